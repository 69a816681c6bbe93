"""The kri-core command. stdout carries data, stderr everything else; errors are one line."""

from __future__ import annotations

import logging
import os
import sys

import click

import kri_core
from kri_core.cli.ask import ask
from kri_core.cli.bake import bake
from kri_core.cli.cartridge import cartridge
from kri_core.cli.demo import demo
from kri_core.cli.doctor import HF_PACKAGES, doctor
from kri_core.cli.model import model
from kri_core.cli.plugins import list_plugins
from kri_core.cli.prior import prior
from kri_core.cli.route import route
from kri_core.errors import EngineError, KriError

INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(kri_core.__version__, prog_name="kri-core")
def cli() -> None:
    """Route the KV blocks of long documents: bake once, attend to a few blocks per request."""


for _command in (list_plugins, doctor, model, cartridge, prior, bake, route, ask, demo):
    cli.add_command(_command)


def main() -> None:
    """Run a command; the exit code says what kind of thing went wrong (DESIGN 7)."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a locale without UTF-8
    sys.exit(_run())


def _run() -> int:
    try:
        _configure_logging()
        cli.main(prog_name="kri-core", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except KriError as error:
        click.echo(f"error: {error}", err=True)
        return error.exit_code
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in HF_PACKAGES:
            raise
        click.echo(f"error: this needs {package}; run pip install 'kri-core[hf]'", err=True)
        return EngineError.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough, as in `list-plugins | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _configure_logging() -> None:
    level = os.environ.get("KRI_LOG_LEVEL", "WARNING").upper()
    if level not in logging.getLevelNamesMapping():
        known = ", ".join(logging.getLevelNamesMapping())
        raise click.UsageError(f"KRI_LOG_LEVEL={level} is not a level; it is one of {known}")
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")
