"""`kri-core eval lm-eval`: tasks of lm-eval through stacks, beside full attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kri_core.cli.loading import load
from kri_core.cli.options import FILE, json_flag, model_options
from kri_core.cli.output import SCHEMA_VERSION, print_json, print_table


def _marker(_ctx: click.Context, _param: click.Parameter, text: str) -> str:
    """In single quotes a shell leaves a newline as a backslash and an n."""
    if not text:
        raise click.BadParameter("it is empty; give the text a question starts with")
    return text.replace("\\n", "\n")


@click.command("lm-eval")
@click.option("--tasks", required=True, help="Names of lm-eval's tasks: NAME[,NAME].")
@click.option("--include-path", type=FILE, help="A folder with task files of your own.")
@click.option("--stack", "stacks", multiple=True, required=True, help="Once for each stack.")
@model_options("The model that reads.", required=True, dtype="float32")
@click.option(
    "--split-at",
    callback=_marker,
    default="\\n\\n",
    show_default=True,
    help="A question starts at the last of this text in a context; before it is the document.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Items of each task, the first ones.")
@click.option("--cache", type=FILE, help="For cartridges and priors; default: $KRI_HOME/eval.")
@click.option("--out", type=FILE, help="A .json for lm-eval's results and how they were read.")
@json_flag
def lm_eval(
    tasks: str,
    include_path: Path | None,
    stacks: tuple[str, ...],
    model_name: str,
    revision: str | None,
    dtype: str,
    device: str,
    split_at: str,
    limit: int | None,
    cache: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Evaluate tasks of lm-eval with full attention and through stacks."""
    from kri_core.artifacts.atomic import replacing
    from kri_core.artifacts.opening import naming
    from kri_core.models import kri_home
    from kri_core.running.lm_eval_bridge import LmEvalOptions, check_lm_eval, evaluate, load_routers

    check_lm_eval()
    routers = load_routers(stacks)
    names = tuple(name for part in tasks.split(",") if (name := part.strip()))
    options = LmEvalOptions(names, include_path, split_at, limit)
    model = load(model_name, revision, dtype, device)
    found = evaluate(model, routers, cache or kri_home() / "eval", options)
    if out is not None:
        import json

        with naming(out), replacing(out) as file:
            text = json.dumps({"schema_version": SCHEMA_VERSION, **found}, indent=2)
            file.write(f"{text}\n".encode())
    if as_json:
        print_json(found)
    else:
        _print(found["rows"])


def _print(rows: Any) -> None:  # noqa: ANN401 - read back from JSON
    """A line per task and metric, a column per row; then how the requests were read."""
    lines = [
        [task, metric.partition(",")[0], *(_shown(row, task, metric) for row in rows)]
        for task, scores in rows[0]["results"]["results"].items()
        for metric, value in scores.items()
        if isinstance(value, float) and "_stderr" not in metric
    ]
    lines += [["requests", name, *(str(row[name]) for row in rows)] for name in ("routed", "dense")]
    kept = [row["kept_fraction"] for row in rows]
    lines.append(["", "kept", *("-" if one is None else f"{one:.3f}" for one in kept)])
    print_table(["task", "metric", *(row["stack"] for row in rows)], lines)


def _shown(row: Any, task: str, metric: str) -> str:  # noqa: ANN401
    scores = row["results"]["results"][task]
    error = scores.get(metric.replace(",", "_stderr,", 1))
    return f"{scores[metric]:.3f}" + (f" ± {error:.3f}" if isinstance(error, float) else "")
