"""What a stack names: a split, perhaps a scorer and a selector, repairs. Canonical, round-trips.

    stack    = split [ "(" [scorer] [ "~" selector ] ")" ] { "+" repair }
    split    = "A" n "R" n "K" n  |  plugin
    plugin   = [dist ":"] name [ "[" key "=" value { "," key "=" value } "]" ]

A tag's K is the number of mid blocks, so A1R2K13 has budget 16.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from attrs import field, frozen

from kri_core.catalogue import canonical_name
from kri_core.errors import ConfigError

TAG = "tag"  # the built-in split behind A<anchor>R<recent>K<mid>
TAG_PATTERN = re.compile(r"A(\d{1,9})R(\d{1,9})K(\d{1,9})", re.IGNORECASE)
DEFAULT_SELECTOR = "top-k"


def _as_params(params: Mapping[str, object] | tuple[tuple[str, str], ...]) -> tuple[
    tuple[str, str], ...
]:
    items = params.items() if isinstance(params, Mapping) else params
    return tuple(sorted((str(key), str(value)) for key, value in items))


@frozen
class PluginRef:
    """One plugin as a stack names it: canonical name, parameters as text, perhaps its package."""

    name: str = field(converter=canonical_name)
    params: tuple[tuple[str, str], ...] = field(default=(), converter=_as_params)
    dist: str | None = None
    at: int | None = field(default=None, eq=False, repr=False)  # where in the text, for a caret

    def __str__(self) -> str:
        if self.name == TAG and dict(self.params).keys() == {"anchor", "recent", "mid"}:
            return "A{anchor}R{recent}K{mid}".format(**dict(self.params))
        params = ",".join(f"{key}={value}" for key, value in self.params)
        dist = f"{self.dist}:" if self.dist else ""
        return f"{dist}{self.name}" + (f"[{params}]" if params else "")

    def with_params(self, params: Mapping[str, object]) -> PluginRef:
        """The same plugin with other parameters."""
        return PluginRef(self.name, _as_params(params), self.dist, self.at)
