"""Which document an item is about is known of each run, and of a damaged file nothing."""

from types import SimpleNamespace

import pytest

from kri_core.identity import digest
from kri_core.running.documents import keep_documents, kept_documents

NAME = digest(["sha-a", "sha-b"])


def run_of(*items):
    """Two documents with an item each."""
    return [
        SimpleNamespace(sha256=sha, items=(item,))
        for sha, item in zip(("sha-a", "sha-b"), items, strict=True)
    ]


def test_two_tasks_over_the_same_documents_are_both_known(tmp_path):
    keep_documents(tmp_path, run_of("a/1", "b/1"))
    keep_documents(tmp_path, run_of("a/2", "b/2"))

    known = kept_documents(tmp_path, NAME, ["b/1", "a/1", "a/1"])
    assert known == (("sha-a", "sha-b"), {"a/1": 0, "b/1": 1})
    assert kept_documents(tmp_path, NAME, ["a/2", "b/2"])[1] == {"a/2": 0, "b/2": 1}
    assert kept_documents(tmp_path, NAME, ["a/1", "b/2"]) == ((), {})
    assert kept_documents(tmp_path, None, ["a/1", "b/1"]) == ((), {})


@pytest.mark.parametrize("text", ["", "[[", "[1,2]", "{}", None])
def test_a_damaged_file_is_named_and_nothing_is_known(tmp_path, caplog, text):
    keep_documents(tmp_path, run_of("a/1", "b/1"))
    (path,) = (tmp_path / "documents").iterdir()
    path.unlink()
    path.mkdir() if text is None else path.write_text(text)

    assert kept_documents(tmp_path, NAME, ["a/1", "b/1"]) == ((), {})
    assert f"{path} is not read" in caplog.text
