"""Write docs/algorithms.md from the plugins themselves: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

import attrs

from kri_core.loading import Plugin, load
from kri_core.registry import Registry

PAGE = Path(__file__).parents[1] / "docs" / "algorithms.md"
OURS = "kri-"  # this repository's distributions
INTRODUCTION = """\
# Algorithms

Every plugin of this repository, written by `make docs` from the installed plugins. Each package's
README says what the signal is, where it comes from, what it costs, when it helps and when it fails.
A parameter is shown with its default.
"""
FORMS = {  # the hook that tells a scorer's form → what a reader wants to know of it
    "kri_watch_prefill": "bake: watches the document's prefill",
    "kri_rank_blocks": "bake: lists by budget",
    "kri_score_query": "per question, from a baked summary",
}


def page() -> str:
    """The page as it should be."""
    rows = [row for row in Registry.discover().rows if row.distribution.startswith(OURS)]
    text = INTRODUCTION
    for slot in ("scorer", "selector", "split", "repair"):
        text += f"\n## {slot.capitalize()}s\n\n"
        text += "| name | what it does | when | parameters | package |\n|---|---|---|---|---|\n"
        for row in rows:
            if row.slot == slot:
                plugin = load(row)
                cells = (f"`{row.name}`", _summary(plugin), _when(plugin), _params(plugin))
                text += f"| {' | '.join((*cells, row.distribution))} |\n"
    return text


def _summary(plugin: Plugin) -> str:
    """First paragraph of the hook module's docstring, on one line."""
    paragraph = (plugin.hooks.__doc__ or "").strip().split("\n\n")[0]
    text = " ".join(paragraph.split()).replace("|", "\\|")
    return text.removeprefix(f"{plugin.row.name}: ")


def _when(plugin: Plugin) -> str:
    if plugin.row.slot != "scorer":
        runs = any("probe" in taken for taken in plugin.takes.values())
        return "per request: asks the model" if runs else "per request"
    form = next((text for hook, text in FORMS.items() if hook in plugin.takes), None)
    if form:
        return form
    asks = "probe" in plugin.takes["kri_score_blocks"]
    return "bake: asks the model" if asks else "bake or per request: no model"


def _params(plugin: Plugin) -> str:
    if plugin.params_class is None:
        return ""
    shown = (
        item.name if item.default is attrs.NOTHING else f"{item.name}={_text(item.default)}"
        for item in attrs.fields(plugin.params_class)
    )
    return ", ".join(f"`{text}`" for text in shown)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    sys.exit(PAGE.write_text(page(), encoding="utf-8") == 0)
