"""A plugin's parameters: text in a stack, typed values in the plugin's own `Params` class."""

from __future__ import annotations

import difflib
import math
import typing
from collections.abc import Callable, Mapping

import attrs

from kri_core.config import param_text
from kri_core.errors import ConfigError, KriError, PluginError, one_line

_BOOLEANS = {"true": True, "false": False}


def in_a_stack(name: str, key: str) -> str:
    """How a stack gives a parameter."""
    return f"{name}[{key}=…]"


def make_params(
    params_class: type | None,
    texts: Mapping[str, str],
    name: str,
    how: Callable[[str, str], str] = in_a_stack,
) -> object | None:
    """The plugin's Params from text; an unknown key or a wrong value is a ConfigError."""
    known = [item.name for item in attrs.fields(params_class)] if params_class else []
    if texts and not known:
        raise ConfigError(f"{name!r} takes no parameters; got {', '.join(sorted(texts))}")
    if params_class is None:
        return None
    for key in texts:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]!r}? It has" if near else "it has"
            raise ConfigError(f"{name!r} has no parameter {key!r}; {hint} {', '.join(known)}")
    types = typing.get_type_hints(params_class)
    values = {key: _typed(types[key], text, f"{name}'s {key}") for key, text in texts.items()}
    missing = [
        item.name
        for item in attrs.fields(params_class)
        if item.default is attrs.NOTHING and item.name not in values
    ]
    if missing:
        raise ConfigError(f"{name!r} needs {', '.join(missing)}; write {how(name, missing[0])}")
    try:
        params: object = params_class(**values)
    except KriError:
        raise
    except Exception as error:  # a validator may raise anything
        said = error.args[0] if error.args and isinstance(error.args[0], str) else one_line(error)
        raise ConfigError(f"{name!r}: {said}") from error
    return params


def changed_params(params: object | None) -> dict[str, str]:
    """The parameters that differ from their defaults, as canonical text."""
    if params is None:
        return {}
    return {
        item.name: param_text(value)
        for item in attrs.fields(typing.cast("type[attrs.AttrsInstance]", type(params)))
        if (value := getattr(params, item.name)) != item.default
    }


def check_params_class(params_class: object, slot: str, label: str) -> None:
    """Refuse a `Params` that a stack's text cannot fill or cannot name again."""
    if not isinstance(params_class, type) or not attrs.has(params_class):
        raise PluginError(f"{label}: Params must be an attrs class; decorate it with @frozen")
    try:
        types = typing.get_type_hints(params_class)
    except NameError as error:
        raise PluginError(
            f"{label}: {error} in Params; import it outside of TYPE_CHECKING"
        ) from error
    for item in attrs.fields(params_class):
        kind = types.get(item.name)
        plain = item.default is attrs.NOTHING or isinstance(item.default, (int, float, str))
        if not (plain and item.init and item.alias == item.name):
            raise PluginError(
                f"{label}: Params.{item.name} must be a public field, its default plain or none"
            )
        if slot == "split" and item.name == "budget":
            raise PluginError(
                f"{label}: Params.budget would never be set; take the hook's argument 'budget'"
            )
        if kind not in (int, float, bool, str) and typing.get_origin(kind) is not typing.Literal:
            raise PluginError(
                f"{label}: Params.{item.name} must be int, float, bool, str or Literal; got {kind}"
            )


def _typed(kind: object, text: str, what: str) -> object:
    if typing.get_origin(kind) is typing.Literal:
        choices = {param_text(choice): choice for choice in typing.get_args(kind)}
        if text not in choices:
            raise ConfigError(f"{what} is one of {', '.join(choices)}; got {text!r}")
        return choices[text]
    try:
        if kind is bool:
            return _BOOLEANS[text.lower()]
        value = typing.cast("type", kind)(text)
    except (ValueError, KeyError):
        wanted = {int: "a whole number", float: "a number", bool: "true or false"}
        raise ConfigError(f"{what} is {wanted[typing.cast('type', kind)]}; got {text!r}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{what} is a finite number; got {text!r}")
    return value
