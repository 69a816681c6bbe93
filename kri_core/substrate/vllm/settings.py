"""What `kv_connector_extra_config` may hold; anything else is refused, by its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, cast, get_args

from attrs import frozen

from kri_core.errors import ConfigError
from kri_core.grammar import parse

OnError = Literal["fail", "dense"]
WHOLE = "whole"  # every block of the cartridge: what is served where nothing is routed


@frozen
class CartridgeEntry:
    """One cartridge a server offers."""

    cart_id: str
    path: Path
    token_ids_path: Path | None = None  # of an imported cartridge, which does not hold its tokens
    priors: tuple[Path, ...] = ()  # the first is the default
    overlays: tuple[Path, ...] = ()  # repaired KV, each for one stack and one selection


@frozen
class Settings:
    """A server's routing, as its JSON says; see docs/serving.md."""

    cartridges: tuple[CartridgeEntry, ...]
    stack: str = WHOLE
    on_error: OnError = "fail"
    share: bool = True  # cartridge blocks in the engine's cache are shared between requests
    trace: Path | None = None  # a JSON line per request

    @classmethod
    def parse(cls, extra: Mapping[str, object]) -> Settings:
        """From the parsed JSON; relative paths are relative to the server's working directory."""
        known = {"cartridges", "routing", "on_error", "share", "trace"}
        _refuse_unknown("kv_connector_extra_config", extra, known)
        routing = _mapping("routing", extra.get("routing", {"enabled": False}))
        _refuse_unknown("routing", routing, {"enabled", "K", "stack", "priors", "overlays"})
        priors = _mapping("routing.priors", routing.get("priors", {}))
        overlays = _mapping("routing.overlays", routing.get("overlays", {}))
        entries = tuple(_entries(extra.get("cartridges"), priors, overlays))
        for name, given in (("priors", priors), ("overlays", overlays)):
            if strangers := sorted(given.keys() - {entry.cart_id for entry in entries}):
                raise ConfigError(
                    f"routing.{name} names {', '.join(strangers)}, which is no cartridge here; "
                    f"give {name} of {', '.join(entry.cart_id for entry in entries)}"
                )
        trace = extra.get("trace")
        return cls(
            entries,
            _stack(routing),
            _one_of("on_error", extra.get("on_error", "fail"), get_args(OnError)),
            _boolean("share", extra.get("share", True)),
            None if trace is None else Path(_text("trace", trace)),
        )


def _stack(routing: Mapping[str, object]) -> str:
    if not _boolean("routing.enabled", routing.get("enabled", True)):
        return WHOLE
    budget, stack = routing.get("K"), routing.get("stack")
    if budget is not None and (type(budget) is not int or budget < 1):
        raise ConfigError(f"routing.K is {budget!r}; give a whole number of blocks, such as 16")
    if stack is None:
        if budget is None:
            raise ConfigError(
                'routing is enabled but names neither K nor stack; give "K": 16 or '
                '"stack": "A1R2K13"'
            )
        return f"A0R0K{budget}"
    config = parse(_text("routing.stack", stack))
    if budget is not None and config.budget != budget:
        raise ConfigError(
            f"routing.K is {budget}, but {stack} has budget {config.budget}; leave one out"
        )
    return str(config)


def _entries(
    found: object, priors: Mapping[str, object], overlays: Mapping[str, object]
) -> Iterable[CartridgeEntry]:
    if isinstance(found, Mapping):
        rows = [{"cartridge_id": name, "path": path} for name, path in found.items()]
    elif isinstance(found, (list, tuple)):
        rows = [dict(_mapping("an entry of cartridges", row)) for row in found]
    else:
        raise ConfigError(
            f"cartridges is {found!r}; give a mapping of ids to paths, or a list of "
            '{"cartridge_id", "path"}'
        )
    seen = set[str]()
    for row in rows:
        _refuse_unknown("an entry of cartridges", row, {"cartridge_id", "path", "manifest_path"})
        cart_id = _text("cartridge_id", row.get("cartridge_id"))
        if cart_id in seen:
            raise ConfigError(f"cartridges lists {cart_id!r} twice; give each its own id")
        seen.add(cart_id)
        beside = row.get("manifest_path")
        yield CartridgeEntry(
            cart_id,
            Path(_text(f"the path of cartridge {cart_id!r}", row.get("path"))),
            None if beside is None else Path(_text("manifest_path", beside)),
            tuple(_paths(f"routing.priors[{cart_id!r}]", priors.get(cart_id, ()))),
            tuple(_paths(f"routing.overlays[{cart_id!r}]", overlays.get(cart_id, ()))),
        )


def _paths(name: str, found: object) -> Iterable[Path]:
    several = found if isinstance(found, (list, tuple)) else (found,)
    return [Path(_text(name, one)) for one in several]


def _refuse_unknown(where: str, found: Mapping[str, object], known: set[str]) -> None:
    if unknown := sorted(found.keys() - known):
        raise ConfigError(
            f"{where} has no {', '.join(unknown)}; it knows {', '.join(sorted(known))}"
        )


def _mapping(name: str, found: object) -> Mapping[str, object]:
    if not isinstance(found, Mapping):
        raise ConfigError(f"{name} is {found!r}; give a mapping")
    return found


def _text(name: str, found: object) -> str:
    if not isinstance(found, str) or not found:
        raise ConfigError(f"{name} is {found!r}; give a text")
    return found


def _boolean(name: str, found: object) -> bool:
    if not isinstance(found, bool):
        raise ConfigError(f"{name} is {found!r}; give true or false")
    return found


def _one_of(name: str, found: object, known: tuple[str, ...]) -> OnError:
    if found not in known:
        raise ConfigError(f"{name} is {found!r}; give one of {', '.join(known)}")
    return cast(OnError, found)
