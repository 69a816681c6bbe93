"""What a stack names, and its one canonical string; grammar.py reads that string back.

Parameters stay text here: only the plugin knows their types and defaults (see params.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

from attrs import evolve, field, frozen
from attrs.converters import optional

from kri_core.catalogue import FAMILIES, canonical_distribution, canonical_name, folded_name
from kri_core.errors import ConfigError

CORE = "kri-core"  # the distribution whose plugins are built in
TAG = "tag"  # its split behind A<anchor>R<recent>K<mid>
TAG_KEYS = ("anchor", "recent", "mid")
TAG_LIKE = re.compile(r"(?:[ARK]\d+){2,}", re.ASCII | re.IGNORECASE)
NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?", re.ASCII)
VALUE = re.compile(r"[^\[\],=\s](?:[^\[\],=]*[^\[\],=\s])?")

Params = tuple[tuple[str, str], ...]


def sorted_params(params: Mapping[str, object] | Params) -> Params:
    """Parameters as text, by key; what a stack could not hold is refused."""
    items: Iterable[tuple[str, object]] = params.items() if isinstance(params, Mapping) else params
    pairs = tuple(sorted((str(key), param_text(value)) for key, value in items))
    for key, value in pairs:
        if not NAME.fullmatch(key) or not (VALUE.fullmatch(value) and value.isprintable()):
            raise ConfigError(f"{key}={value!r} cannot stand in a stack; write [key=value]")
    for (key, _), (following, _) in pairwise(pairs):
        if key == following:
            raise ConfigError(f"parameter {key!r} is given twice; keep one")
    return pairs


def param_text(value: object) -> str:
    """A parameter's value as a stack spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_folded_name(text: str) -> bool:
    return bool(NAME.fullmatch(text)) and not TAG_LIKE.fullmatch(text) and folded_name(text) == text


def _check_name(_ref: object, _attribute: object, name: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not a plugin name; use letters, digits, '-' and '.'")
    if TAG_LIKE.fullmatch(name):
        raise ConfigError(f"{name!r} is no plugin name: a stack would read it as a split tag")


def _check_dist(_ref: object, _attribute: object, dist: str | None) -> None:
    if dist is not None and not NAME.fullmatch(dist):
        raise ConfigError(f"{dist!r} is not a package name; use letters, digits and '-'")


@frozen
class PluginRef:
    """One plugin as a stack names it: canonical name, parameters as text, perhaps its package."""

    name: str = field(converter=folded_name, validator=_check_name)
    params: Params = field(default=(), converter=sorted_params)
    dist: str | None = field(
        default=None, converter=optional(canonical_distribution), validator=_check_dist
    )
    at: int | None = field(default=None, eq=False, repr=False)  # where in the text, for a caret

    def __attrs_post_init__(self) -> None:
        """Resolve an alias; before the colon, a family's name is no package's."""
        name, family = canonical_name(self.name), self.dist
        if family in FAMILIES:
            member = (FAMILIES[family], self.name)
            object.__setattr__(self, "params", sorted_params((*self.params, member)))
            object.__setattr__(self, "dist", None)
            name = family
        object.__setattr__(self, "name", name)

    @property
    def is_tag(self) -> bool:
        """The built-in tag, not a stranger's split of that name."""
        return self.name == TAG and self.dist in (None, CORE)

    def __str__(self) -> str:
        values = dict(self.params)
        if self.is_tag and values.keys() == set(TAG_KEYS) and not self.dist:
            return "A{anchor}R{recent}K{mid}".format(**values)
        prefix, name = f"{self.dist}:" if self.dist else "", self.name
        member = values.get(FAMILIES.get(name, ""), "")
        if not self.dist and _is_folded_name(member):
            prefix, name = f"{name}:", member
            del values[FAMILIES[self.name]]
        params = ",".join(f"{key}={value}" for key, value in values.items())
        return prefix + name + (f"[{params}]" if params else "")


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
        params: dict[str, object] = dict(self.split.params)
        budget = None if self.budget is None else _whole(self.budget, "budget")
        if "budget" in params:
            budget = _agree(budget, _whole(params.pop("budget"), "budget"), self.split)
        if self.split.is_tag:
            counts = {key: _whole(params[key], key) for key in TAG_KEYS if key in params}
            budget = _agree(budget, sum(counts.values()), self.split)
            params |= counts
        object.__setattr__(self, "split", evolve(self.split, params=params))
        object.__setattr__(self, "budget", budget)

    def __str__(self) -> str:
        split = self.split
        if self.budget is not None and not split.is_tag:
            split = evolve(split, params=(*split.params, ("budget", str(self.budget))))
        selector = "" if self.selector == DEFAULT_SELECTOR else f"~{self.selector}"
        inner = f"{self.scorer or ''}{selector}"
        repairs = "".join(f"+{repair}" for repair in self.repairs)
        return f"{split}" + (f"({inner})" if inner else "") + repairs


def _whole(value: object, key: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", str(value)):
        raise ConfigError(f"{key}={value} is not a whole number of blocks; write {key}=16")
    return int(str(value))


def _agree(budget: int | None, own: int, split: PluginRef) -> int:
    if budget not in (None, own):
        raise ConfigError(
            f"a budget of {budget} was given beside {split}, which has budget {own}; "
            "give one, or make them equal"
        )
    return own
