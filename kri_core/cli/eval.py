"""`kri-core eval`: run, and what needs no model: compare, power, verify, leaderboard."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click
from attrs import asdict

from kri_core.cli.eval_kill import kill, kill_log
from kri_core.cli.eval_lm_eval import lm_eval
from kri_core.cli.eval_rerun import rerun
from kri_core.cli.eval_run import run
from kri_core.cli.needing import need_packages
from kri_core.cli.options import FILE, json_flag
from kri_core.cli.output import print_json
from kri_core.errors import ConfigError, KriError

if TYPE_CHECKING:
    from kri_core.evaluation.power import PowerAnalysis

POINTS = re.compile(r"([0-9]*\.?[0-9]+)(pp)?")

paths_argument = click.argument("paths", nargs=-1, required=True, type=FILE)
published_option = click.option(
    "--published", type=FILE, help="A JSON table of published rows to show beside these."
)


def _share(_ctx: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    """A difference of shares, written as points (5pp) or as it is (0.05)."""
    if text is None:
        return None
    found = POINTS.fullmatch(text)
    share = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    if not 0 < share <= 1:
        raise click.BadParameter(f"{text!r} is no share; write points such as 5pp, or 0.05")
    return share


@click.group("eval")
def evaluation() -> None:
    """How good stacks are, and how sure that is."""


evaluation.add_command(run)
evaluation.add_command(lm_eval)
evaluation.add_command(kill)
evaluation.add_command(kill_log)
kill_log.add_command(rerun)


@evaluation.command()
@click.argument("first", type=FILE)
@click.argument("second", type=FILE)
@click.option("--score", help="Which score; default: the one the task ranks by.")
@json_flag
def compare(first: Path, second: Path, score: str | None, as_json: bool) -> None:
    """Compare two records item by item: FIRST less SECOND."""
    need_packages()
    from kri_core.cli.eval_compare import comparison, print_comparison

    found = comparison(first, second, score)
    if as_json:
        print_json(asdict(found))
    else:
        print_comparison(found)


@evaluation.command()
@click.option("--effect", callback=_share, required=True, help="What to detect: 5pp or 0.05.")
@click.option("--groups", type=click.IntRange(min=2), required=True, help="Documents.")
@click.option(
    "--spread",
    callback=_share,
    help="Standard deviation over documents of their mean differences. [default: 18.5pp, needle8]",
)
@click.option(
    "--measured",
    nargs=2,
    type=FILE,
    help="Two records; the spread is that of their difference.",
)
@json_flag
def power(
    effect: float,
    groups: int,
    spread: float | None,
    measured: tuple[Path, Path] | None,
    as_json: bool,
) -> None:
    """Say what a paired comparison over documents can detect, before it is run."""
    need_packages()
    from kri_core.cli.eval_compare import comparison
    from kri_core.evaluation.power import ASSUMED_SPREAD, PowerAnalysis

    if spread is not None and measured is not None:
        raise ConfigError("both --spread and --measured were given; give one")
    source = "given" if spread is not None else "assumed"
    if measured is not None:
        spread, source = comparison(*measured, None).spread, "measured"
    found = PowerAnalysis.of(effect, groups, ASSUMED_SPREAD if spread is None else spread)
    if as_json:
        print_json(asdict(found) | {"spread_is": source})
    else:
        _print_power(found, source)


@evaluation.command()
@paths_argument
@published_option
@json_flag
def verify(paths: tuple[Path, ...], published: Path | None, as_json: bool) -> None:
    """Check records line by line, and boards (.html, .json, .md) against all records given."""
    from kri_core.evaluation.published import read_published
    from kri_core.evaluation.verifying import WRITERS, kill_folders
    from kri_core.evaluation.verifying import verify as verified

    if any(path.suffix in WRITERS for path in paths) or kill_folders(paths):
        need_packages()
    found = verified(paths, read_published(published) if published else None)
    if as_json:
        records = [{"record": one.name, "seal": one.seal} for one in found.records]
        ids = [kill.id for kill in found.kills]
        boards = [str(path) for path in found.boards]
        print_json({"records": records, "boards": boards, "kills": ids})
        return
    items = sum(len(record.results) for record in found.records)
    kills = f", {len(found.kills)} kills" if found.kills else ""
    click.echo(
        f"ok: {len(found.records)} records, {items} items, {len(found.boards)} boards{kills}"
    )


@evaluation.command()
@paths_argument
@click.option(
    "--out", type=FILE, multiple=True, help="A .html, .md or .json to write; else stdout."
)
@published_option
@json_flag
def leaderboard(
    paths: tuple[Path, ...], out: tuple[Path, ...], published: Path | None, as_json: bool
) -> None:
    """Make the board of records (files or folders); exit 1 if the model cannot do a task."""
    need_packages()
    from kri_core.artifacts.atomic import replacing
    from kri_core.artifacts.opening import naming
    from kri_core.evaluation.board import leaderboard as made
    from kri_core.evaluation.board_text import to_json, to_markdown
    from kri_core.evaluation.published import read_published
    from kri_core.evaluation.verifying import board_text, read_all

    found = made(read_all(paths), read_published(published) if published else None)
    texts = [(path, board_text(found, path)) for path in out]
    for path, text in texts:
        with naming(path), replacing(path) as file:
            file.write(text.encode())
    if as_json or not out:
        click.echo(to_json(found) if as_json else to_markdown(found), nl=False)
    for board in found.boards:
        if board.unable:
            what = f"{board.task}, {board.budget} blocks, is not ranked"
            raise KriError(f"{what}: {board.unable}; take a better reader or an easier task")


def _print_power(found: PowerAnalysis, source: str) -> None:
    effect = f"{100 * found.effect:.1f} points"
    click.echo(
        f"With {found.groups} documents an effect of {effect} is found in {found.power:.0%} of "
        f"runs.\n{found.wanted_power:.0%} takes {100 * found.detectable_effect:.1f} points, or "
        f"{found.groups_needed} documents for {effect}.\n"
        f"Spread over documents ({source}): {100 * found.spread:.1f} points."
    )
