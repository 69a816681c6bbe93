"""What a stack names, and its one canonical string; grammar.py reads that string back.

Parameters stay text here: only the plugin knows their types and defaults (see params.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from attrs import evolve, field, frozen

from kri_core.catalogue import canonical_name
from kri_core.errors import ConfigError

TAG = "tag"  # the built-in split behind A<anchor>R<recent>K<mid>
TAG_KEYS = ("anchor", "recent", "mid")
NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?", re.ASCII)
VALUE = re.compile(r"[^\[\],=\s](?:[^\[\],=]*[^\[\],=\s])?")

Params = tuple[tuple[str, str], ...]


def sorted_params(params: Mapping[str, object] | Params) -> Params:
    """Parameters as text, by key; what a stack could not hold is refused."""
    items: Iterable[tuple[str, object]] = params.items() if isinstance(params, Mapping) else params
    pairs = tuple(sorted((str(key), str(value)) for key, value in items))
    for key, value in pairs:
        if not NAME.fullmatch(key) or not VALUE.fullmatch(value):
            raise ConfigError(f"{key}={value} cannot stand in a stack; write [key=value]")
    return pairs


def _check_name(_ref: object, _attribute: object, name: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not a plugin name; use letters, digits, '-' and '.'")


@frozen
class PluginRef:
    """One plugin as a stack names it: canonical name, parameters as text, perhaps its package."""

    name: str = field(converter=canonical_name, validator=_check_name)
    params: Params = field(default=(), converter=sorted_params)
    dist: str | None = None
    at: int | None = field(default=None, eq=False, repr=False)  # where in the text, for a caret

    def __str__(self) -> str:
        values = dict(self.params)
        if self.name == TAG and values.keys() == set(TAG_KEYS) and not self.dist:
            return "A{anchor}R{recent}K{mid}".format(**values)
        params = ",".join(f"{key}={value}" for key, value in self.params)
        return (
            (f"{self.dist}:" if self.dist else "") + self.name + (f"[{params}]" if params else "")
        )


DEFAULT_SELECTOR = PluginRef("top-k")


@frozen
class RoutingConfig:
    """A stack, parsed: one split, at most one scorer, one selector, repairs in order."""

    split: PluginRef
    budget: int | None = None  # blocks a request sees in all; None: the split decides
    scorer: PluginRef | None = None  # None: taken from the prior, or not needed
    selector: PluginRef = DEFAULT_SELECTOR
    repairs: tuple[PluginRef, ...] = ()
    text: str | None = field(default=None, eq=False, repr=False)  # as written, for carets

    def __attrs_post_init__(self) -> None:
        """Give the budget one place: this field, whatever way it was written."""
        params = dict(self.split.params)
        budget = self.budget
        if "budget" in params:
            budget = _agree(budget, _whole(params.pop("budget"), "budget"), self.split)
            object.__setattr__(self, "split", evolve(self.split, params=params))
        if self.split.name == TAG:
            pinned_and_mid = (_whole(params.get(key, "0"), key) for key in TAG_KEYS)
            budget = _agree(budget, sum(pinned_and_mid), self.split)
        if budget is not None and budget < 0:
            raise ConfigError(f"a budget must be 0 or more blocks; got {budget}")
        object.__setattr__(self, "budget", budget)

    def __str__(self) -> str:
        split = self.split
        if self.budget is not None and split.name != TAG:
            split = evolve(split, params=(*split.params, ("budget", str(self.budget))))
        selector = "" if self.selector == DEFAULT_SELECTOR else f"~{self.selector}"
        inner = f"{self.scorer or ''}{selector}"
        repairs = "".join(f"+{repair}" for repair in self.repairs)
        return f"{split}" + (f"({inner})" if inner else "") + repairs


def _whole(text: str, key: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise ConfigError(f"{key}={text} is not a whole number of blocks; write {key}=16")
    return int(text)


def _agree(budget: int | None, own: int, split: PluginRef) -> int:
    if budget not in (None, own):
        raise ConfigError(
            f"a budget of {budget} was given beside {split}, which has budget {own}; "
            "give one, or make them equal"
        )
    return own
