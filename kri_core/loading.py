"""Import one plugin and hold it to the hook specs: misspelt, undecorated or wrong hooks refuse."""

from __future__ import annotations

import difflib
import inspect
from types import ModuleType

from attrs import frozen

from kri_core.errors import PluginError
from kri_core.hookspecs import PROJECT, SLOTS
from kri_core.params import check_params_class
from kri_core.registry import PluginRow

_MARK = f"{PROJECT}_impl"
_SPEC = f"{PROJECT}_spec"
HOOKS_OF = {
    slot: {
        name: tuple(inspect.signature(hook).parameters)[1:]
        for name, hook in vars(spec).items()
        if hasattr(hook, _SPEC)
    }
    for slot, spec in SLOTS.items()
}
_NEEDED = {  # slot → alternatives, each a set of hooks that is enough
    "scorer": ({"kri_score_blocks"}, {"kri_summarise_blocks", "kri_score_query"}),
    "selector": ({"kri_select_blocks"},),
    "split": ({"kri_split_blocks"},),
    "repair": ({"kri_plan_repair"},),
}


@frozen(eq=False)
class Plugin:
    """A plugin whose hooks have been checked against its slot's specs."""

    row: PluginRow
    hooks: object  # the module (or instance) the entry point names
    params_class: type | None
    takes: dict[str, tuple[str, ...]]  # hook → the arguments it asks for

    @property
    def stops_early(self) -> bool:
        """A selector that may keep fewer than mid_budget blocks."""
        return bool(getattr(self.hooks, "STOPS_EARLY", False))


def load(row: PluginRow) -> Plugin:
    """Import and check; whatever goes wrong is a PluginError with package, error and fix."""
    hooks = _imported(row)
    label = row.label
    if isinstance(hooks, type) or not (isinstance(hooks, ModuleType) or _marked(hooks)):
        kind = "a class" if isinstance(hooks, type) else f"a {type(hooks).__name__}"
        raise PluginError(
            f"{label}: its entry point {row.entry_point.value!r} is {kind}; "
            "point it at the module that holds the @hookimpl functions"
        )
    takes = {}
    for name, function in inspect.getmembers(hooks, callable):
        if name.startswith("kri_") or hasattr(function, _MARK):
            hook = _hook_name(name, function, row.slot, label)
            takes[hook] = _arguments(function, HOOKS_OF[row.slot][hook], f"{label}: {name}")
    if not any(needed <= takes.keys() for needed in _NEEDED[row.slot]):
        wanted = " or ".join(" with ".join(sorted(needed)) for needed in _NEEDED[row.slot])
        raise PluginError(f"{label} has no hook of its slot; define {wanted} with @hookimpl")
    params_class = getattr(hooks, "Params", None)
    if params_class is not None:
        check_params_class(params_class, label)
    return Plugin(row, hooks, params_class, takes)


def _imported(row: PluginRow) -> object:
    try:
        return row.entry_point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a plugin must not end the app
        raise PluginError(
            f"{row.label} cannot be imported: {type(error).__name__}: {error}; "
            f"repair its installation, or: pip uninstall {row.distribution}"
        ) from error


def _marked(hooks: object) -> bool:
    return any(hasattr(value, _MARK) for _, value in inspect.getmembers(hooks, callable))


def _hook_name(name: str, function: object, slot: str, label: str) -> str:
    """The spec a function answers, or a PluginError with the nearest right name."""
    options = getattr(function, _MARK, None)
    hook = (options and options.get("specname")) or name
    specs = HOOKS_OF[slot]
    if hook not in specs:
        owner = next((other for other, hooks in HOOKS_OF.items() if hook in hooks), None)
        if owner:
            raise PluginError(
                f"{label}: {name} is a {owner} hook; register it in a module of its own under "
                f"the group kri_core.{owner}s"
            )
        near = difflib.get_close_matches(hook, specs, 1, 0.0)
        raise PluginError(f"{label}: there is no hook {hook!r}; did you mean {near[0]!r}?")
    if options is None:
        raise PluginError(f"{label}: {name} is not decorated; put @hookimpl above it")
    if options.get("wrapper") or options.get("hookwrapper"):
        raise PluginError(f"{label}: {name} is a wrapper; a hook here answers by itself")
    return hook


def _arguments(function: object, spec: tuple[str, ...], label: str) -> tuple[str, ...]:
    taken = []
    for name, parameter in inspect.signature(function).parameters.items():  # type: ignore[arg-type]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise PluginError(f"{label} takes *{name}; name the arguments it needs instead")
        if name not in spec:
            near = difflib.get_close_matches(name, spec, 1, 0.0)
            raise PluginError(
                f"{label} takes {name!r}, which the hook does not have; did you mean {near[0]!r}? "
                f"It has {', '.join(spec)}"
            )
        if parameter.default is not parameter.empty:
            raise PluginError(
                f"{label} gives {name!r} a default, so it would never be passed; remove it"
            )
        taken.append(name)
    return tuple(taken)
