"""The stack grammar; what cannot be read is shown with a caret.

    stack    = split [ "(" [scorer] [ "~" selector ] ")" ] { "+" repair }
    split    = "A" n "R" n "K" n  |  plugin
    plugin   = [dist ":"] name [ "[" key "=" value { "," key "=" value } "]" ]

A tag's K is the number of mid blocks, so A1R2K13 has budget 16. kvpress:knorm is short for
kvpress[press=knorm] (catalogue.FAMILIES). Parsing imports no plugin.
"""

from __future__ import annotations

import re
from typing import NoReturn

from kri_core.config import (
    DEFAULT_SELECTOR,
    NAME,
    TAG,
    TAG_KEYS,
    TAG_LIKE,
    VALUE,
    PluginRef,
    RoutingConfig,
)
from kri_core.errors import ConfigError

_TAG = re.compile(  # and not the start of a longer name
    r"A(\d{1,9})R(\d{1,9})K(\d{1,9})(?![\w.-]*[A-Z0-9]|\s*:)", re.ASCII | re.IGNORECASE
)
_SPACE = re.compile(r"\s*")


def parse(text: str) -> RoutingConfig:
    """Parse a stack; a ConfigError shows where with a caret. str(parse(text)) is canonical."""
    return _Parser(text).stack()


def parse_scorer(text: str) -> PluginRef:
    """Parse one scorer with its parameters, as `bake --scorer` takes it."""
    return _Parser(text).scorer()


def caret(text: str, at: int) -> str:
    """Two lines that point at a place in a stack."""
    shown = "".join(char if char.isprintable() else "?" for char in text)
    return f"\n  {shown}\n  {' ' * at}^"


class _Parser:
    """Recursive descent over one string; spaces between parts are allowed."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def stack(self) -> RoutingConfig:
        split = self._split()
        scorer, selector = None, DEFAULT_SELECTOR
        if self._take("("):
            if not self._peek(")") and not self._peek("~"):
                scorer = self._plugin("a scorer")
            if self._take("~"):
                selector = self._plugin("a selector")
            self._expect(")", "to close the scorer and selector")
        repairs = []
        while self._take("+"):
            repairs.append(self._plugin("a repair"))
        self._end("after the split come (scorer~selector) and +repair")
        try:
            return RoutingConfig(
                split, scorer=scorer, selector=selector, repairs=tuple(repairs), text=self.text
            )
        except ConfigError as error:  # a budget that is no number or contradicts the tag
            self._fail(str(error), split.at)

    def scorer(self) -> PluginRef:
        plugin = self._plugin("a scorer")
        self._end("a scorer is name[key=value,…]")
        return plugin

    def _end(self, expected: str) -> None:
        if self.at < len(self.text):
            self._fail(f"{_short(self.text[self.at :])} does not belong here; {expected}")

    def _split(self) -> PluginRef:
        self._skip()
        tag = _TAG.match(self.text, self.at)
        if tag is None:
            return self._plugin("a split such as A1R2K13 or recency[budget=16]")
        at, self.at = self.at, tag.end()
        counts = (str(int(count)) for count in tag.groups())
        return PluginRef(TAG, tuple(zip(TAG_KEYS, counts, strict=True)), at=at)

    def _plugin(self, wanted: str) -> PluginRef:
        self._skip()
        at, dist = self.at, None
        name = self._name(wanted)
        if self._take(":"):
            dist, name = name, self._name(wanted)
        params = self._params() if self._take("[") else {}
        try:
            return PluginRef(name, params, dist, at)
        except ConfigError as error:  # a family's member, given before and after the bracket
            self._fail(str(error), at)

    def _name(self, wanted: str) -> str:
        self._skip()
        at, name = self.at, self._match(NAME, wanted)
        if TAG_LIKE.fullmatch(name) and not self._peek(":"):
            if _TAG.fullmatch(name):
                self._fail(f"expected {wanted}, got a split tag; a tag stands first", at)
            tag = "A<anchor>R<recent>K<mid>, such as A1R2K13, each of at most 9 digits"
            self._fail(f"{_short(name)} is not a split tag; write {tag}", at)
        return name

    def _params(self) -> dict[str, str]:
        params: dict[str, str] = {}
        while True:
            self._skip()
            at = self.at
            key = self._match(NAME, "a parameter name")
            if key in params:
                self._fail(f"parameter {key!r} is given twice", at)
            self._expect("=", f"and a value after {key!r}")
            self._skip()
            at = self.at
            params[key] = self._match(VALUE, f"a value for {key!r}")
            if not params[key].isprintable():
                self._fail(f"{_short(params[key])} has characters that cannot be shown", at)
            if not self._take(","):
                self._expect("]", "to close the parameters")
                return params

    def _match(self, pattern: re.Pattern[str], wanted: str) -> str:
        self._skip()
        found = pattern.match(self.text, self.at)
        if found is None:
            self._fail(f"expected {wanted}, got {self._came()}")
        self.at = found.end()
        return found.group()

    def _peek(self, char: str) -> bool:
        self._skip()
        return self.text.startswith(char, self.at)

    def _take(self, char: str) -> bool:
        taken = self._peek(char)
        if taken:
            self.at += 1
            self._skip()
        return taken

    def _expect(self, char: str, why: str) -> None:
        if not self._take(char):
            self._fail(f"expected {char!r} {why}, got {self._came()}")

    def _skip(self) -> None:
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def _came(self) -> str:
        return repr(self.text[self.at]) if self.at < len(self.text) else "the end"

    def _fail(self, message: str, at: int | None = None) -> NoReturn:
        raise ConfigError(message + caret(self.text, self.at if at is None else at))


def _short(text: str, limit: int = 40) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "…")
