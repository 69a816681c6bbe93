"""CASE 15: build and convert killed at any moment leave a whole file or none (bake: test_bake)."""

import subprocess
import sys
import time

import pytest

from kri_core.artifacts import verify_cartridge

COMMANDS = {
    "build": ("cartridge", "build", "--model", "model", "--text", "doc.txt", "--out"),
    "convert": ("cartridge", "convert", "doc.safetensors"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_killed_command_leaves_a_whole_file_or_none(here, tmp_path, command):
    """Killed at ten moments spread over the time that a whole run takes."""

    def start(name):
        call = [sys.executable, "-m", "kri_core.cli", *COMMANDS[command], str(tmp_path / name)]
        return subprocess.Popen(call, cwd=here, stdout=subprocess.DEVNULL)

    began = time.monotonic()
    assert start("whole.safetensors").wait() == 0
    whole = time.monotonic() - began
    for tenth in range(1, 11):
        process = start(f"{tenth}.safetensors")
        time.sleep(whole * tenth / 10)
        process.kill()
        process.wait()

    left = list(tmp_path.glob("*.safetensors"))
    assert tmp_path / "whole.safetensors" in left
    for path in left:
        verify_cartridge(path)
