"""Flags that several commands share, spelt as the ecosystem spells them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

FILE = click.Path(path_type=Path)  # existence is checked where the file is opened, by one message
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

json_flag = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
cartridge_option = click.option(
    "--cartridge", "cartridge_path", type=FILE, required=True, help="A cartridge file."
)
prior_option = click.option(
    "--prior", "prior_path", type=FILE, help="A prior file; it answers in the scorer's place."
)
stack_option = click.option(
    "--stack", "stack_text", required=True, help="Such as 'A1R2K13(kri-d)' or 'recency[budget=16]'."
)


def model_options(model_help: str, *, required: bool = False, dtype: str = "auto") -> Decorator:
    """--model, --revision, --dtype and --device."""
    options = (
        click.option("--model", "model_name", required=required, help=model_help),
        click.option("--revision", help="Branch, tag or commit of a hub model."),
        click.option(
            "--dtype",
            type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
            default=dtype,
            show_default=True,
        ),
        click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda."),
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
