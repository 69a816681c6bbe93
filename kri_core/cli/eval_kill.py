"""`kri-core eval kill` and `kill-log`: verdicts on records, and whether they still stand."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click
from attrs import asdict

from kri_core.cli.needing import need_packages
from kri_core.cli.options import FILE, json_flag
from kri_core.cli.output import print_fields, print_json, print_table


@click.command()
@click.argument("record", type=FILE)
@click.option("--why", required=True, help="What was found, in one line.")
@click.option("--against", type=FILE, help="Another stack's record to measure it against.")
@click.option("--cache", type=FILE, help="That eval run had; default: $KRI_HOME/eval.")
def kill(record: Path, why: str, against: Path | None, cache: Path | None) -> None:
    """Put a verdict on a stack's RECORD, into kills.jsonl beside it."""
    need_packages()
    from kri_core.evaluation.kill_log import add_kill
    from kri_core.evaluation.kills import Verdict
    from kri_core.evaluation.reading import read_record
    from kri_core.models import kri_home
    from kri_core.running.documents import kept_documents

    held = read_record(record)
    items = (result.id for result in held.results)
    place = kri_home() / "eval" if cache is None else cache
    known = kept_documents(place, held.header.cartridges, items)
    if not known[0]:
        click.echo(
            "bake will not know this kill's documents, as the cache does not; run the record's "
            "eval run again and give its --cache, before the kill, if it should",
            err=True,
        )
    found = add_kill(record, against, Verdict(why, datetime.now(UTC).date().isoformat(), *known))
    print_fields(
        {
            "kill": found.id,
            "stack": found.stack,
            found.score: f"{found.mean:.3f} ± {found.error:.3f}",
            "− random": found.against_random or "no random null of 20 seeds beside it",  # noqa: RUF001
            f"− {found.other_stack or 'another stack'}": found.against_other,  # noqa: RUF001
            "why": found.why,
        }
    )


@click.group("kill-log", invoke_without_command=True)
@click.option(
    "--results", type=FILE, default="results", show_default=True, help="The folder of records."
)
@click.option("--out", type=FILE, help="Write the page, a .md, instead.")
@json_flag
@click.pass_context
def kill_log(context: click.Context, results: Path, out: Path | None, as_json: bool) -> None:
    """List what was killed, and why; `rerun` asks whether a verdict still stands."""
    from kri_core.artifacts.atomic import replacing
    from kri_core.artifacts.opening import naming
    from kri_core.errors import ArtifactError
    from kri_core.evaluation.kill_log import COLUMNS, cells, read_kills, to_markdown

    context.obj = results
    if context.invoked_subcommand:
        return
    kills = read_kills(results)
    if out is not None:
        if out.suffix != ".md":
            raise ArtifactError(f"{out.name}: a kill log's page is a .md; name it so")
        with naming(out), replacing(out) as file:
            file.write(to_markdown(kills).encode())
    elif as_json:
        print_json({"kills": [{"id": one.id, **asdict(one)} for one in kills]})
    else:
        print_table(COLUMNS[:-1], [cells(one)[:-1] for one in kills])
