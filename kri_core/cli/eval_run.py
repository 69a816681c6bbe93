"""`kri-core eval run`: every item of a task through every stack, recorded item by item."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kri_core.cli.options import FILE, model_options
from kri_core.cli.progress import progress
from kri_core.errors import ConfigError, KriError
from kri_core.evaluation.against_random import MIN_SEEDS

if TYPE_CHECKING:
    from kri_core.evaluation.records import Header
    from kri_core.running.crossing import Failure


def _budgets(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Budgets as 8,16,32."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"{text!r} is no list of budgets; write 8,16,32")
    return tuple(dict.fromkeys(map(int, parts)))


def settings(
    _ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """The task's parameters as KEY=VALUE."""
    pairs = [text.partition("=") for text in texts]
    if bad := next((text for text, pair in zip(texts, pairs, strict=True) if not pair[1]), None):
        raise click.BadParameter(f"{bad!r} is no parameter; write KEY=VALUE, such as tokens=1024")
    return tuple((key, value) for key, _, value in pairs)


@click.command()
@click.option("--task", required=True, help="Such as needle8; list-plugins --slot task has all.")
@click.option("--set", "params", multiple=True, callback=settings, help="Of the task: KEY=VALUE.")
@click.option("--stack", "stacks", multiple=True, required=True, help="Once for each stack.")
@click.option("--k", "budgets", callback=_budgets, help="Budgets for every stack: 8,16,32.")
@click.option("--docs", type=click.IntRange(min=1), help="How many documents, the first ones.")
@model_options("The model that reads.", required=True, dtype="float32")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=MIN_SEEDS,
    show_default=True,
    help="Of the random null.",
)
@click.option(
    "--placement",
    is_flag=True,
    help="Each stack also with the blocks it kept of the next document.",
)
@click.option("--cache", type=FILE, help="For cartridges and priors; default: $KRI_HOME/eval.")
@click.option("--server", metavar="URL", help="A kri-core serve that answers in hf's place.")
@click.option("--out", type=FILE, required=True, help="The folder of records.")
def run(
    task: str,
    params: tuple[tuple[str, str], ...],
    stacks: tuple[str, ...],
    budgets: tuple[int, ...],
    docs: int | None,
    model_name: str,
    revision: str | None,
    dtype: str,
    device: str,
    jobs: int,
    seeds: int,
    placement: bool,
    cache: Path | None,
    server: str | None,
    out: Path,
) -> None:
    """Run stacks on a task, with the rows they are measured against; a killed run goes on.

    Prints each record and its row, a tab between. Each process uses one thread; --jobs changes
    no number.
    """
    from kri_core.evaluation.reading import read_record
    from kri_core.models import kri_home
    from kri_core.running.crossing import Job
    from kri_core.running.killed import killed_in, records_alike
    from kri_core.running.run import RunOptions
    from kri_core.running.run import run as run_all

    job = Job(
        task=task,
        task_params=params,
        docs=docs,
        model=model_name,
        revision=revision,
        dtype=dtype,
        device=device,
        cache=kri_home() / "eval" if cache is None else cache,
        scorers=(),
        server=server,
    )
    today = datetime.now(UTC).date().isoformat()
    options = RunOptions(stacks, budgets, seeds, jobs, out, today, placement)
    name = Path(model_name).name if Path(model_name).is_dir() else model_name
    check_folder(out)
    killed = killed_in(out)
    with progress() as report:
        finished = run_all(job, options, name, report)
    for path in finished.records:
        click.echo(f"{path}\t{row_name(read_record(path).header)}")
    for line in records_alike(finished.records, killed):
        click.echo(f"warning: {line}", err=True)
    if finished.failures:
        raise unfinished(finished.failures)


def row_name(header: Header) -> str:
    """A row's label; a placement row has that of its stack."""
    return header.label + (", placement" if header.role == "placement" else "")


def check_folder(out: Path) -> None:
    """Make the folder of records, before any work is done."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--out {out} cannot be made a folder ({error.strerror}); give another"
        ) from error


def unfinished(failures: tuple[Failure, ...]) -> KriError:
    """One line: the first failure; the log has all."""
    first = failures[0]
    more = f" (and {len(failures) - 1} more, see above)" if len(failures) > 1 else ""
    return KriError(
        f"{first.what} failed on document {first.document}: {first.message}{more}; everything else "
        "is recorded: repair it and run the same command again"
    )
