"""`kri-core eval kill-log rerun`: the same stack on the same task, and the verdict once more."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kri_core.cli.eval_run import check_folder, settings, unfinished
from kri_core.cli.needing import need_packages
from kri_core.cli.options import FILE, model_options
from kri_core.cli.output import print_fields
from kri_core.cli.progress import progress
from kri_core.errors import KriError
from kri_core.evaluation.against_random import MIN_SEEDS
from kri_core.evaluation.statistics import LEAST_GROUPS

if TYPE_CHECKING:
    from kri_core.evaluation.kills import Kill
    from kri_core.evaluation.records import Header
    from kri_core.running.crossing import Job


@click.command()
@click.argument("kill_id", metavar="ID")
@model_options("The model that reads; --dtype auto is the record's.", required=True)
@click.option("--set", "changes", multiple=True, callback=settings, help="Another KEY=VALUE.")
@click.option("--docs", type=click.IntRange(min=2), help="How many documents; default: as then.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--cache", type=FILE, help="For cartridges and priors; default: $KRI_HOME/eval.")
@click.option("--out", type=FILE, help="For the new records; default: reruns/ in the results.")
@click.pass_obj
def rerun(
    results: Path,
    kill_id: str,
    model_name: str,
    revision: str | None,
    dtype: str,
    device: str,
    changes: tuple[tuple[str, str], ...],
    docs: int | None,
    jobs: int,
    cache: Path | None,
    out: Path | None,
) -> None:
    """Run a killed stack on its task again; exit 1 if it is better now.

    Better than random, or than the other stack where the kill was measured against one.
    """
    need_packages()
    from kri_core.evaluation.kill_log import find_kill, kill_record, other_record
    from kri_core.running.rerun import kill_again

    kill = find_kill(results, kill_id)
    header, other = kill_record(results, kill).header, other_record(results, kill)
    rival = other.header if other else None
    dtype = header.dtype if dtype == "auto" else dtype
    job = _job(header, dict(changes), docs, (model_name, revision, dtype, device), cache)
    stacks = (header.stack, rival.stack) if rival else (header.stack,)
    paths = _run(job, stacks, jobs, out or results / "reruns")
    _tell(kill, *kill_again(kill, header, rival, paths))


def _job(
    header: Header,
    changes: dict[str, str],
    docs: int | None,
    model: tuple[str, str | None, str, str],
    cache: Path | None,
) -> Job:
    from kri_core.models import kri_home
    from kri_core.running.crossing import Job
    from kri_core.running.rerun import task_again

    params, as_then = task_again(header, changes)
    cache = kri_home() / "eval" if cache is None else cache
    return Job(header.task, tuple(params.items()), docs or as_then, *model, cache, scorers=())


def _run(job: Job, stacks: tuple[str, ...], jobs: int, out: Path) -> tuple[Path, ...]:
    from kri_core.running.run import RunOptions, run

    check_folder(out)
    today = datetime.now(UTC).date().isoformat()
    name = Path(job.model).name if Path(job.model).is_dir() else job.model
    options = RunOptions(stacks, (), MIN_SEEDS, jobs, out, today)
    with progress() as report:
        finished = run(job, options, name, report)
    if finished.failures:
        raise unfinished(finished.failures)
    return finished.records


def _tell(kill: Kill, again: Kill, num_groups: int, changed: tuple[str, ...]) -> None:
    print_fields(
        {
            "stack": kill.stack,
            "why": kill.why,
            "then": _numbers(kill),
            "now": _numbers(again),
            "run on": ", ".join(changed) or "the same model and items",
            "record": again.record,
        }
    )
    if num_groups < LEAST_GROUPS:
        click.echo(
            f"Whether the verdict stands cannot be said: {num_groups} documents are too few, it "
            f"takes {LEAST_GROUPS}."
        )
        return
    other, found = again.other_stack or "random", again.against_other or again.against_random
    if found is not None and found.better:
        raise KriError(
            f"the verdict of kill {kill.id} does not stand: {kill.stack} is better than {other} by "
            f"{found}; look at both records before you trust either"
        )
    click.echo(f"The verdict stands: it was not found better than {other}.")


def _numbers(kill: Kill) -> str:
    score = f"{kill.score} {kill.mean:.3f} ± {kill.error:.3f}"
    random = f"− random {kill.against_random or 'not known'}"  # noqa: RUF001
    other = f", − {kill.other_stack} {kill.against_other}" if kill.other else ""  # noqa: RUF001
    return f"{score}, {random}{other}"
