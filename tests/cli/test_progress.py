"""Progress of named work: lines with the time left where there is no terminal, bars on one."""

import time

import pytest

from kri_core.cli import progress as module
from kri_core.cli.progress import progress, seconds_left


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test turns by hand, from now on."""
    now = [time.monotonic()]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def turn(seconds):
        now[0] += seconds

    return turn


def test_a_line_every_ten_seconds_says_how_long_it_will_take(clock, capsys):
    """Four units a batch of 6 s: after 12 s, 8 of 20 are done and 12 units are 18 s."""
    with progress() as report:
        for done in (4, 8, 12):
            clock(6)
            report("leave-one-out/1/mask", done, 20)

    assert capsys.readouterr().err == "leave-one-out: 8 of 20, 18 s left\n"


def test_each_name_is_timed_from_its_own_start(clock, capsys):
    with progress() as report:
        clock(8)
        report("first", 2, 2)
        clock(5)
        report("second", 1, 3)

    assert capsys.readouterr().err == "second: 1 of 3, 10 s left\n"


def test_a_terminal_gets_a_bar_for_each_name(clock, capsys, monkeypatch):
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True)
    with progress() as report:
        report("first/1", 2, 2)
        report("second", 0, 3)
        clock(4)
        report("second", 1, 3)

    first, second = capsys.readouterr().err.split("second", 1)
    assert "first" in first
    assert "100%" in first
    assert "33%  8 s left" in second


def test_before_the_first_unit_no_time_is_said_and_the_clock_starts(clock, capsys):
    """20 s go by between the works; the second's three units take 12 s each."""
    with progress() as report:
        report("first", 1, 1)
        clock(20)
        report("second", 0, 3)
        clock(12)
        report("second", 1, 3)

    assert capsys.readouterr().err == "second: 0 of 3\nsecond: 1 of 3, 24 s left\n"


def test_documents_of_two_processes_come_in_pairs(clock, capsys):
    """Four of 60 s each in two processes take 120 s: half is left with the first report already."""
    with progress() as report:
        report("answering", 0, 4, 2)
        clock(60)
        report("answering", 1, 4, 2)
        report("answering", 2, 4, 2)
        clock(60)
        report("answering", 3, 4, 2)
        report("answering", 4, 4, 2)

    assert capsys.readouterr().err == "answering: 1 of 4, 60 s left\nanswering: 3 of 4\n"


@pytest.mark.parametrize(
    ("elapsed", "done", "total", "at_once", "left"),
    [
        (30, 1, 25, 1, 720),  # 24 more of 30 s
        (60, 1, 25, 2, 720),  # 13 pairs, the last of one: 12 more of 60 s
        (60, 2, 25, 2, 720),
        (120, 3, 25, 2, 660),  # of the second pair
        (90, 1, 3, 8, None),  # all are worked on already
        (90, 3, 3, 8, 0),
        (5, 0, 25, 2, None),
    ],
)
def test_the_time_left_is_counted_in_waves(elapsed, done, total, at_once, left):
    assert seconds_left(elapsed, done, total, at_once) == left
