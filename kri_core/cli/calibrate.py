"""`kri-core calibrate`: measure a model's queries once, for scorers that expect future ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from kri_core.cli.options import FILE, model_options
from kri_core.cli.progress import progress
from kri_core.errors import ConfigError


@click.command()
@model_options("A hub id, a path, or smollm2-135m.", required=True)
@click.option("--text", "text_path", type=FILE, required=True, help="Any plain UTF-8 text.")
@click.option("--out", type=FILE, help="Write it here, where no bake looks, instead.")
def calibrate(
    model_name: str,
    revision: str | None,
    dtype: str,
    device: str,
    text_path: Path,
    out: Path | None,
) -> None:
    """Keep how a model's queries lie before RoPE; once per model, for kri-t.

    Some thousands of words are enough, of any subject. The file goes to $KRI_HOME/calibrations,
    where bake finds it by the model's fingerprint.
    """
    from kri_core.artifacts import calibration_path, check_target, write_calibration
    from kri_core.cli.loading import load
    from kri_core.substrate.hf import calibrate as measure

    try:
        text = text_path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--text {text_path} cannot be read: {error}; give a UTF-8 file"
        ) from error
    if out is not None:
        check_target(out)
    model = load(model_name, revision, dtype, device)
    with progress() as report:
        made = measure(model, text, partial(report, "calibrate"))
    path = out or calibration_path(model.identity.fingerprint)
    if out is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    write_calibration(made, path)
    click.echo(path)
