"""The kri-core command. stdout carries data, stderr everything else; errors are one line."""

from __future__ import annotations

import logging
import os
import sys

import click

import kri_core
from kri_core.cli.ask import ask
from kri_core.cli.bake import bake
from kri_core.cli.bake_overlay import bake_overlay
from kri_core.cli.calibrate import calibrate
from kri_core.cli.cartridge import cartridge
from kri_core.cli.demo import demo
from kri_core.cli.doctor import HF_PACKAGES, doctor
from kri_core.cli.eval import evaluation
from kri_core.cli.model import model
from kri_core.cli.plugins import list_plugins
from kri_core.cli.prior import prior
from kri_core.cli.route import route
from kri_core.cli.serve import config, serve
from kri_core.cli.streams import drop, hold_streams
from kri_core.errors import EngineError, KriError, one_line

logger = logging.getLogger(__name__)

INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(kri_core.__version__, prog_name="kri-core")
def cli() -> None:
    """Route the KV blocks of long documents: bake once, attend to a few blocks per request."""


for _command in (
    list_plugins,
    doctor,
    model,
    calibrate,
    cartridge,
    prior,
    bake,
    bake_overlay,
    route,
    ask,
    demo,
    config,
    serve,
    evaluation,
):
    cli.add_command(_command)


def main() -> None:
    """Run a command; the exit code says what kind of thing went wrong (DESIGN 7)."""
    hold_streams()
    sys.exit(_guarded())


def _guarded() -> int:
    """A command's exit code, whatever the streams or kri-core itself do wrong."""
    try:
        return _run()
    except BrokenPipeError:  # the reader has seen enough, as in `list-plugins | head -1`
        drop(sys.stdout)
        return 0
    except OSError as error:
        drop(sys.stdout)  # the likeliest cause, as in `> /dev/full`
        return _fail(f"{one_line(error)}; free space, or check the place and its permissions")
    except Exception as error:
        logger.debug("the fault", exc_info=True)
        return _fail(
            f"{one_line(error)}: a fault of kri-core; report it with what KRI_LOG_LEVEL=DEBUG shows"
        )


def _run() -> int:
    try:
        _configure_logging()
        cli.main(prog_name="kri-core", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        sys.stdout.flush()
        return stop.exit_code
    except click.ClickException as error:
        return _fail(error, error.exit_code)
    except KriError as error:
        return _fail(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in HF_PACKAGES:
            raise
        return _fail(f"this needs {package}; run pip install 'kri-core[hf]'", EngineError.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    return 0


def _fail(what: str | click.ClickException, code: int = KriError.exit_code) -> int:
    """Say it if anyone can still hear it; the exit code is the same."""
    try:
        if isinstance(what, click.ClickException):
            what.show()
        else:
            click.echo(what if code == INTERRUPTED else f"error: {what}", err=True)
    except OSError:
        drop(sys.stderr)
    return code


def _configure_logging() -> None:
    level = (os.environ.get("KRI_LOG_LEVEL") or "WARNING").upper()
    if level not in logging.getLevelNamesMapping():
        known = ", ".join(logging.getLevelNamesMapping())
        raise click.UsageError(f"KRI_LOG_LEVEL={level} is not a level; it is one of {known}")
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")
