"""`each`: batches, order, sharing, and going on after a kill."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from attrs import evolve

from kri_core.errors import ArtifactError, PluginError
from kri_core.substrate.hf import DiskJournal, HfProbe, MemoryJournal, journal_scope, probe_texts

SQUARES = torch.arange(10.0).square()[:, None]


@pytest.fixture
def make(tiny_llama, tiny_cartridge):
    """A probe, and the batches it was asked to run."""

    def make(batch=4, **options):
        probe = HfProbe(tiny_llama, tiny_cartridge, texts=(), batch=batch, **options)
        batches = []

        def run(units):
            batches.append(list(units))
            return SQUARES[list(units)]

        return probe, run, batches

    return make


@pytest.fixture(params=["memory", "disk"])
def journal(request, tmp_path):
    return MemoryJournal() if request.param == "memory" else DiskJournal(tmp_path, "scope")


def test_batches_hold_at_most_so_many_and_rows_come_in_unit_order(make, journal):
    probe, run, batches = make(batch=4, journal=journal)
    rows = probe.each("squares", range(9, -1, -1), run)

    assert batches == [[9, 8, 7, 6], [5, 4, 3, 2], [1, 0]]
    assert torch.equal(rows, SQUARES.flip(0))


def test_a_unit_asked_for_twice_is_run_once(make):
    probe, run, batches = make(batch=4)
    assert torch.equal(probe.each("squares", [3, 1, 3], run), SQUARES[[3, 1, 3]])
    assert batches == [[3, 1]]


def test_the_same_name_shares_the_work_and_another_does_not(make, journal):
    probe, run, batches = make(batch=8, journal=journal)
    probe.each("squares", [1, 2], run)
    probe.each("squares", [2, 3], run)
    probe.each("other", [2], run)

    assert batches == [[1, 2], [3], [2]]


def test_progress_starts_from_what_was_kept(make, journal):
    told = []
    probe, run, _ = make(batch=2, journal=journal, progress=lambda *at: told.append(at))
    probe.each("squares", [0, 1], run)
    probe.each("squares", range(5), run)

    assert told == [("squares", 2, 2), ("squares", 4, 5), ("squares", 5, 5)]


def test_a_function_that_returns_too_few_rows(make):
    probe, _, _ = make(batch=4)
    with pytest.raises(
        PluginError, match=r"for 'squares' must return one row per unit; got 1 for 3"
    ):
        probe.each("squares", range(3), lambda units: SQUARES[:1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_rows_come_back_as_they_were(tmp_path, dtype):
    rows = torch.arange(12).reshape(2, 3, 2).to(dtype)
    DiskJournal(tmp_path, "scope").put("name", [5, 7], rows.mT)

    again = DiskJournal(tmp_path, "scope")
    assert torch.equal(again.get("name", 7), rows[1].mT)
    assert again.get("name", 7).dtype == dtype
    assert again.get("name", 6) is None


def test_another_scope_sees_nothing(tmp_path):
    DiskJournal(tmp_path, "one").put("name", [5], SQUARES[:1])
    assert DiskJournal(tmp_path, "other").get("name", 5) is None


def test_scopes_say_all_that_rows_depend_on(tiny_llama, tiny_qwen2, tiny_cartridge):
    texts = probe_texts(tiny_llama, ["ab"])
    one = journal_scope(tiny_llama, tiny_cartridge, texts)
    others = [
        journal_scope(tiny_qwen2, tiny_cartridge, texts),
        journal_scope(tiny_llama, evolve(tiny_cartridge, sha256="other"), texts),
        journal_scope(tiny_llama, tiny_cartridge, probe_texts(tiny_llama, ["ac"])),
    ]
    assert one == journal_scope(tiny_llama, tiny_cartridge, texts)
    assert len({one, *others}) == 4


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_a_damaged_batch_is_computed_again(make, tmp_path, damage, caplog):
    probe, run, batches = make(batch=2, journal=DiskJournal(tmp_path, "scope"))
    probe.each("squares", range(4), run)
    path = min(tmp_path.rglob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes({"truncated": data[:-3], "flipped": data, "empty": b""}[damage])

    probe, run, batches = make(batch=2, journal=DiskJournal(tmp_path, "scope"))
    assert torch.equal(probe.each("squares", range(4), run), SQUARES[:4])
    assert len(batches) == 1
    assert f"{path} is damaged; its batch is computed again" in caplog.text


def test_a_finished_bake_leaves_nothing(tmp_path):
    journal = DiskJournal(tmp_path / "kept", "scope")
    journal.put("name", [5], SQUARES[:1])
    journal.discard()

    assert not (tmp_path / "kept").exists()
    assert journal.get("name", 5) is None
    journal.discard()


def test_a_finished_bake_leaves_another_ones_batches(tmp_path):
    """Two bakes of one cartridge into one folder, at once; or one that was killed before."""
    done, other = (DiskJournal(tmp_path / "kept", scope) for scope in ("done", "other"))
    done.put("name", [5], SQUARES[:1])
    other.put("name", [6], SQUARES[1:2])
    done.discard()
    other.put("name", [7], SQUARES[2:3])

    again = DiskJournal(tmp_path / "kept", "other")
    assert torch.equal(again.get("name", 6), SQUARES[1])
    assert torch.equal(again.get("name", 7), SQUARES[2])
    again.discard()
    assert not (tmp_path / "kept").exists()


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtifactError, match=r"/kept/.*\.safetensors: cannot be written \(No space"):
        DiskJournal(tmp_path / "kept", "scope").put("name", [5], SQUARES[:1])


def test_a_half_written_batch_is_taken_away(tmp_path):
    DiskJournal(tmp_path / "kept", "scope").put("name", [5], SQUARES[:1])
    (batch,) = (tmp_path / "kept").rglob("*.safetensors")
    batch.with_name(".x.safetensors.0a.tmp").touch()

    journal = DiskJournal(tmp_path / "kept", "scope")
    journal.get("name", 5)
    journal.discard()
    assert not (tmp_path / "kept").exists()


def test_a_batch_that_goes_while_it_is_listed_is_computed_again(tmp_path, monkeypatch):
    DiskJournal(tmp_path, "scope").put("name", [5], SQUARES[:1])
    monkeypatch.setattr(Path, "glob", lambda folder, _: [folder / "gone.safetensors"])

    assert DiskJournal(tmp_path, "scope").get("name", 5) is None


def test_a_killed_bake_goes_on_with_another_batch_size(make, tmp_path):
    """SIGKILL in the third batch of two: four units are kept, none is half kept."""
    code = f"""
        import os, signal
        import torch
        from kri_core.substrate.hf import DiskJournal, HfProbe
        from kri_core.testing.tiny import tiny_cartridge, tiny_llama

        def run(units):
            if 4 in units:
                os.kill(os.getpid(), signal.SIGKILL)
            return torch.tensor([[float(unit) ** 2] for unit in units])

        model = tiny_llama()
        journal = DiskJournal(__import__("pathlib").Path({str(tmp_path)!r}), "scope")
        probe = HfProbe(model, tiny_cartridge(model), (), batch=2, journal=journal)
        probe.each("squares", range(10), run)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=os.environ)
    assert killed.returncode == -signal.SIGKILL

    probe, run, batches = make(batch=3, journal=DiskJournal(tmp_path, "scope"))
    assert torch.equal(probe.each("squares", range(10), run), SQUARES)
    assert batches == [[4, 5, 6], [7, 8, 9]]
