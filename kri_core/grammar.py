"""The stack grammar; what cannot be read is shown with a caret.

    stack    = split [ "(" [scorer] [ "~" selector ] ")" ] { "+" repair }
    split    = "A" n "R" n "K" n  |  plugin
    plugin   = [dist ":"] name [ "[" key "=" value { "," key "=" value } "]" ]

A tag's K is the number of mid blocks, so A1R2K13 has budget 16. Parsing imports no plugin.
"""

from __future__ import annotations

import re
from typing import NoReturn

from kri_core.config import (
    DEFAULT_SELECTOR,
    NAME,
    TAG,
    TAG_KEYS,
    VALUE,
    Params,
    PluginRef,
    RoutingConfig,
    sorted_params,
)
from kri_core.errors import ConfigError

_TAG = re.compile(r"A(\d{1,9})R(\d{1,9})K(\d{1,9})(?![\w.:-])", re.IGNORECASE)
_TAG_LIKE = re.compile(r"(?:[ARK]\d+){2,}(?![\w.:-])", re.IGNORECASE)
_SPACE = re.compile(r"\s*")


def parse(text: str) -> RoutingConfig:
    """Parse a stack; a ConfigError shows where with a caret. str(parse(text)) is canonical."""
    return _Parser(text).stack()


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
        if self.at < len(self.text):
            self._fail(
                f"{self.text[self.at :]!r} does not belong here; after the split come "
                "(scorer~selector) and +repair"
            )
        return RoutingConfig(
            split, scorer=scorer, selector=selector, repairs=tuple(repairs), text=self.text
        )

    def _split(self) -> PluginRef:
        self._skip()
        tag = _TAG.match(self.text, self.at)
        if tag is None:
            like = _TAG_LIKE.match(self.text, self.at)
            if like:
                wanted = "write A<anchor>R<recent>K<mid>, such as A1R2K13"
                self._fail(f"{like.group()!r} is not a split tag; {wanted}")
            return self._plugin("a split such as A1R2K13 or recency[budget=16]")
        at, self.at = self.at, tag.end()
        counts = (str(int(count)) for count in tag.groups())
        return PluginRef(TAG, tuple(zip(TAG_KEYS, counts, strict=True)), at=at)

    def _plugin(self, wanted: str) -> PluginRef:
        self._skip()
        at, dist = self.at, None
        name = self._match(NAME, wanted)
        if self._take(":"):
            dist, name = name.lower().replace("_", "-"), self._match(NAME, wanted)
        return PluginRef(name, self._params() if self._take("[") else (), dist, at)

    def _params(self) -> Params:
        params: dict[str, str] = {}
        while True:
            self._skip()
            at = self.at
            key = self._match(NAME, "a parameter name")
            if key in params:
                self._fail(f"parameter {key!r} is given twice", at)
            self._expect("=", f"and a value after {key!r}")
            params[key] = self._match(VALUE, f"a value for {key!r}")
            if not self._take(","):
                self._expect("]", "to close the parameters")
                return sorted_params(params)

    def _match(self, pattern: re.Pattern[str], wanted: str) -> str:
        self._skip()
        found = pattern.match(self.text, self.at)
        if found is None:
            came = repr(self.text[self.at]) if self.at < len(self.text) else "the end"
            self._fail(f"expected {wanted}, got {came}")
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
            came = repr(self.text[self.at]) if self.at < len(self.text) else "the end"
            self._fail(f"expected {char!r} {why}, got {came}")

    def _skip(self) -> None:
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def _fail(self, message: str, at: int | None = None) -> NoReturn:
        raise ConfigError(message + caret(self.text, self.at if at is None else at))
