"""A forward that was run is not run again for another scorer."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from kri_core.probe import Readout
from kri_core.substrate.hf import HfProbe, captures
from kri_core.substrate.hf.captures import Captures
from kri_core.testing import tiny
from kri_core.testing.tiny import random_tokens


@pytest.fixture
def runs(tiny_llama, monkeypatch):
    """How often the model runs."""
    run, calls = type(tiny_llama).run, []

    def counted(self, *arguments, **options):
        calls.append(1)
        return run(self, *arguments, **options)

    monkeypatch.setattr(type(tiny_llama), "run", counted)
    return calls


def shown(*blocks):
    visible = torch.zeros(1, 6, dtype=torch.bool)
    visible[0, list(blocks)] = True
    return visible


def test_probes_of_one_cartridge_share_what_was_read(tiny_llama, tiny_cartridge, runs):
    one = HfProbe(tiny_llama, tiny_cartridge, texts=(), batch=1, captures=Captures())
    other = HfProbe(tiny_llama, tiny_cartridge, texts=(), batch=1, captures=one.captures)
    first = one.forward([5, 6], read=["queries"], visible=shown(0, 5), last=1)
    again = other.forward([5, 6], read=["queries"], visible=shown(0, 5), last=1)

    assert len(runs) == 1
    assert torch.equal(first.queries, again.queries)
    apart = evolve(other, captures=Captures())  # the control: with captures of its own it runs
    assert torch.equal(
        apart.forward([5, 6], read=["queries"], visible=shown(0, 5), last=1).queries, first.queries
    )
    assert len(runs) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"token_ids": [5, 7]},
        {"read": ["block_mass"]},
        {"visible": shown(0, 4)},
        {"visible": torch.ones(2, 6, dtype=torch.bool)},
        {"removal": "reprefill"},
        {"last": 2},
    ],
    ids=str,
)
def test_what_is_asked_otherwise_is_run(tiny_llama, tiny_cartridge, changed):
    asked = {"token_ids": [5, 6], "read": ["queries"], "visible": shown(0, 5), "last": 1}
    probe = HfProbe(tiny_llama, tiny_cartridge, texts=(), batch=1, captures=Captures())
    probe.forward(**asked)
    got = probe.forward(**{**asked, **changed})
    alone = HfProbe(tiny_llama, tiny_cartridge, texts=(), batch=1).forward(**{**asked, **changed})
    for name in ("queries", "block_mass"):
        assert (getattr(got, name) is None) == (getattr(alone, name) is None)
        if getattr(got, name) is not None:
            assert torch.equal(getattr(got, name), getattr(alone, name))


def test_what_was_read_outlives_the_process(tiny_llama, tiny_cartridge, runs, tmp_path, caplog):
    """Other captures of the same folder, another folder, a damaged file."""

    def read(folder):
        probe = HfProbe(
            tiny_llama, tiny_cartridge, texts=(), batch=1, captures=Captures(tmp_path / folder)
        )
        return probe.forward([5, 6], read=["queries", "scaling"], visible=shown(0, 5), last=1)

    first, again = read("kept"), read("kept")
    assert len(runs) == 1
    assert torch.equal(first.queries, again.queries)
    assert torch.equal(first.scaling, again.scaling)
    assert again.logits is None

    read("elsewhere")
    assert len(runs) == 2
    (path,) = (tmp_path / "kept").iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    assert torch.equal(read("kept").queries, first.queries)
    assert len(runs) == 3
    assert f"{path} is read anew" in caplog.text


def test_another_capture_under_the_name_is_not_taken(
    tiny_llama, tiny_cartridge, runs, tmp_path, caplog
):
    """The files of two questions change places."""

    def read(token):
        kept = Captures(tmp_path / "kept")
        probe = HfProbe(tiny_llama, tiny_cartridge, texts=(), batch=1, captures=kept)
        return probe.forward([5, token], read=["queries"], last=1)

    right = read(6), read(7)
    first, second = (tmp_path / "kept").iterdir()
    bytes_of = first.read_bytes(), second.read_bytes()
    first.write_bytes(bytes_of[1])
    second.write_bytes(bytes_of[0])

    assert torch.equal(read(6).queries, right[0].queries)
    assert torch.equal(read(7).queries, right[1].queries)
    assert len(runs) == 4
    assert "is read anew: it is another capture's" in caplog.text


def test_another_cartridge_is_asked_itself(tiny_llama, tiny_cartridge, runs):
    """The same captures, a document of as many other tokens."""
    kept, other = Captures(), tiny.tiny_cartridge(tiny_llama, token_ids=random_tokens(50, seed=7))
    runs.clear()
    for document in (tiny_cartridge, other):
        HfProbe(tiny_llama, document, texts=(), batch=1, captures=kept).forward(
            [5, 6], read=["queries"], last=1
        )
    assert len(runs) == 2


def test_what_was_wanted_longest_ago_goes_first(monkeypatch):
    """Readouts of 40 bytes where 100 are kept: two; one of 52, over a half, is not kept at all."""
    monkeypatch.setattr(captures, "MAX_BYTES", 100)
    monkeypatch.setattr(captures, "MAX_SHARE", 2)
    held, run = Captures(), []

    def ask(name, floats=10):
        held.of(name, lambda: run.append(name) or Readout(logits=torch.zeros(floats)))

    for name in "abacab":
        ask(name)
    assert run == ["a", "b", "c", "b"]  # c took b's place, for a was wanted since

    for name in ("large", "large", "b", "a"):
        ask(name, floats=13)
    assert run[4:] == ["large", "large"]
