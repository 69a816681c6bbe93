"""Probe texts: what the model is run on after a document, and how many rows at once."""

from __future__ import annotations

from pathlib import Path

import click

from kri_core.cli.options import FILE
from kri_core.errors import ConfigError

BATCH = 16  # 8–16 masks at once were fastest on a CPU (ALGORITHMS 1.2)

probes_option = click.option(
    "--probes", type=FILE, help=r"Probe texts, one a line; \n in one is a newline."
)


def read_probes(path: Path | None) -> tuple[str, ...]:
    """The texts of a file, generic ones without one."""
    from kri_core.probe_texts import DEFAULT_PROBE_TEXTS

    if path is None:
        return DEFAULT_PROBE_TEXTS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--probes {path} cannot be read: {error}; give a UTF-8 file") from error
    texts = tuple(line.replace("\\n", "\n") for line in lines if line.strip())
    if not texts:
        raise ConfigError(f"--probes {path} holds no text; write one probe a line")
    return texts
