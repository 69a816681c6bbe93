"""Progress of named work: lines with the time left where there is no terminal, bars on one."""

import time

import pytest

from kri_core.cli import progress as module
from kri_core.cli.progress import progress


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
        report("second", 1, 2)
        report("second", 2, 2)

    shown = capsys.readouterr().err
    assert "100%" in shown
    assert shown.index("first") < shown.index("second")
    assert "left" not in shown
