"""Looking at a header costs no import of torch, which takes seconds."""

from __future__ import annotations

import subprocess
import sys

from kri_core.artifacts import write_cartridge

PROGRAM = """
import sys
from pathlib import Path
from kri_core.artifacts import read_cartridge_header

header = read_cartridge_header(Path(sys.argv[1]))
print(header.layout.num_tokens, "torch" in sys.modules)
"""


def test_a_safetensors_header_is_read_without_torch(make_cartridge, tmp_path):
    write_cartridge(make_cartridge(), tmp_path / "a.safetensors")
    command = [sys.executable, "-c", PROGRAM, tmp_path / "a.safetensors"]

    assert subprocess.check_output(command, text=True) == "11 False\n"
