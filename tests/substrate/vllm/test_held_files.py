"""Files held in memory are read once, and again when they were replaced."""

from __future__ import annotations

import pytest

from kri_core.substrate.vllm.held_files import HeldFiles


def test_a_file_is_read_once_and_again_when_it_was_replaced(tmp_path):
    path, read = tmp_path / "prior", []

    def reading(found):
        read.append(found.read_text())
        return read[-1]

    files = HeldFiles(reading)
    path.write_text("one")
    assert [files.get(path), files.get(path)] == ["one", "one"]
    (tmp_path / "next").write_text("another")
    (tmp_path / "next").replace(path)

    assert files.get(path) == "another"
    assert read == ["one", "another"]


def test_a_file_that_is_gone_is_not_answered_from_memory(tmp_path):
    path = tmp_path / "prior"
    files = HeldFiles(lambda found: found.read_text())
    path.write_text("one")
    files.get(path)
    path.unlink()

    with pytest.raises(FileNotFoundError):
        files.get(path)
