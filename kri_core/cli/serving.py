"""What a server is told of routing: flags that become `--kv-transfer-config` (DESIGN 8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click

from kri_core.cli.options import FILE
from kri_core.errors import ArtifactError, ConfigError

SUFFIXES = (".safetensors", ".pt")
OPTIONS = (
    click.option(
        "--cartridge",
        "cartridges",
        multiple=True,
        required=True,
        metavar="ID=PATH|FOLDER",
        help="A cartridge, or all of a folder, by their file names.  [repeatable]",
    ),
    click.option(
        "--prior",
        "priors",
        multiple=True,
        metavar="ID=PATH|FOLDER",
        help="A prior of that cartridge, the first is the default; or those of a folder that "
        "were baked for these cartridges.  [repeatable]",
    ),
    click.option(
        "--overlay",
        "overlays",
        multiple=True,
        metavar="ID=PATH",
        help="Repaired KV of that cartridge, by kri-core bake-overlay.  [repeatable]",
    ),
    click.option("--stack", help="Such as 'A1R2K13'; without it all blocks are served."),
    click.option("--K", "budget", type=int, help="Pure top-K: short for --stack A0R0K<K>."),
    click.option(
        "--on-error",
        type=click.Choice(["fail", "dense"]),
        default="fail",
        show_default=True,
        help="What becomes of a request that cannot be routed as it asks.",
    ),
    click.option("--no-share", is_flag=True, help="No cartridge block serves two requests."),
    click.option("--trace", type=FILE, help="Write a JSON line per routed request."),
)


def routing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """All there is to say of routing; the command takes it as `extra`, checked."""

    @wraps(command)
    def configured(
        cartridges: tuple[str, ...],
        priors: tuple[str, ...],
        overlays: tuple[str, ...],
        stack: str | None,
        budget: int | None,
        on_error: str,
        no_share: bool,
        trace: Path | None,
        **others: Any,  # noqa: ANN401 - the command's own
    ) -> Any:  # noqa: ANN401
        found = extra_config(cartridges, priors, overlays, stack, budget, on_error, no_share, trace)
        return command(extra=found, **others)

    decorated: Callable[..., Any] = configured
    for option in reversed(OPTIONS):
        decorated = option(decorated)
    return decorated


def extra_config(
    cartridges: Sequence[str],
    priors: Sequence[str],
    overlays: Sequence[str],
    stack: str | None,
    budget: int | None,
    on_error: str,
    no_share: bool,
    trace: Path | None,
) -> dict[str, object]:
    """`kv_connector_extra_config`, checked as the server will; nothing in it is a default."""
    from kri_core.substrate.vllm.settings import Settings

    by_id = _by_id(cartridges)
    extra: dict[str, object] = {"cartridges": by_id}
    routing: dict[str, object] = {
        "stack": stack,
        "K": budget,
        "priors": _paths("--prior", _each_prior(priors, by_id)),
        "overlays": _paths("--overlay", overlays),
    }
    if routing := {name: value for name, value in routing.items() if value not in (None, {})}:
        extra["routing"] = routing
        if stack is None and budget is None:
            routing["enabled"] = False  # until a request names a stack
    if on_error != "fail":
        extra["on_error"] = on_error
    if no_share:
        extra["share"] = False
    if trace is not None:
        extra["trace"] = str(trace.absolute())
    Settings.parse(extra)
    return extra


def transfer_config(extra: Mapping[str, object]) -> dict[str, object]:
    """The whole of `--kv-transfer-config`."""
    from kri_core.substrate.vllm.plugin import CONNECTOR

    return {
        "kv_connector": CONNECTOR,
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }


def _by_id(given: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, path in (pair for one in given for pair in _named(one)):
        if name in found:
            raise ConfigError(f"--cartridge gives {name!r} twice; give each cartridge its own id")
        found[name] = str(path.absolute())
    return found


def _named(given: str) -> Iterable[tuple[str, Path]]:
    name, equals, path = given.partition("=")
    if equals and name and path:
        return [(name, Path(path))]
    folder = Path(given)
    if not folder.is_dir():
        raise ConfigError(f"--cartridge {given!r} is no ID=PATH and no folder; give one of the two")
    held = [(file.stem, file) for file in sorted(folder.iterdir()) if _is_cartridge(file)]
    if not held:
        raise ConfigError(f"folder {given} holds no cartridge; build one, or name it with ID=PATH")
    return held


def _is_cartridge(path: Path) -> bool:
    """Priors and overlays may lie beside cartridges; a damaged file is not passed over."""
    from kri_core.artifacts import is_overlay, read_cartridge_header, read_prior

    if path.suffix.lower() not in SUFFIXES or is_overlay(path):
        return False
    try:
        read_cartridge_header(path)
    except ArtifactError as error:
        try:
            read_prior(path)
        except ArtifactError:
            raise error from None
        return False
    return True


def _each_prior(given: Iterable[str], cartridges: Mapping[str, str]) -> Iterable[str]:
    """A folder becomes ID=PATH of each prior in it that was baked for one of the cartridges."""
    for one in given:
        if "=" in one or not Path(one).is_dir():
            yield one
        else:
            yield from _priors_in(Path(one), cartridges)


def _priors_in(folder: Path, cartridges: Mapping[str, str]) -> Iterable[str]:
    from kri_core.artifacts import is_native, read_cartridge_header, read_prior

    ids: dict[str, list[str]] = {}
    for name, held in cartridges.items():
        if is_native(Path(held)):
            ids.setdefault(read_cartridge_header(Path(held)).sha256, []).append(name)
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in SUFFIXES:
            meta = read_prior(path).meta
            yield from (
                f"{name}={path}" for name in ids.get(meta.cartridge_sha256 if meta else "", ())
            )


def _paths(flag: str, given: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not (equals and name and path):
            raise ConfigError(f"{flag} {one!r} is no ID=PATH; name the cartridge it is of")
        found.setdefault(name, []).append(str(Path(path).absolute()))
    return found
