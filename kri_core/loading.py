"""Import one plugin and hold it to the hook specs: misspelt, undecorated or wrong hooks refuse."""

from __future__ import annotations

import difflib
import inspect
import sys
from contextlib import redirect_stdout
from types import ModuleType

from attrs import frozen

from kri_core.errors import PluginError, one_line
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
    "scorer": (
        {"kri_score_blocks"},
        {"kri_watch_prefill"},
        {"kri_rank_blocks"},
        {"kri_summarise_blocks", "kri_score_query"},
    ),
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

    def reads_calibration(self, params: object) -> bool:
        """Whether a scorer's priors depend on the model's calibration, with these parameters."""
        reads = getattr(self.hooks, "READS_CALIBRATION", False)
        return bool(reads(params) if callable(reads) else reads)


def load(row: PluginRow) -> Plugin:
    """Import and check; whatever goes wrong is a PluginError with package, error and fix."""
    hooks, members = imported(row)
    label = row.label
    marked = any(_options(member) for _, member in members)
    if isinstance(hooks, type) or not (isinstance(hooks, ModuleType) or marked):
        kind = "a class" if isinstance(hooks, type) else f"of type {type(hooks).__name__}"
        raise PluginError(
            f"{label}: its entry point {row.entry_point.value!r} is {kind}; "
            "point it at the module that holds the @hookimpl functions"
        )
    takes: dict[str, tuple[str, ...]] = {}
    for name, function in members:
        if name.startswith("kri_") or _options(function):
            hook = _hook_name(name, function, row.slot, label)
            if hook in takes:
                raise PluginError(f"{label}: {name} answers {hook!r} a second time; keep one")
            takes[hook] = _arguments(function, HOOKS_OF[row.slot][hook], f"{label}: {name}")
    _check_hooks(set(takes), row.slot, label)
    params_class = getattr(hooks, "Params", None)
    if params_class is not None:
        check_params_class(params_class, row.slot, label)
    return Plugin(row, hooks, params_class, takes)


def imported(row: PluginRow) -> tuple[object, list[tuple[str, object]]]:
    """What the entry point names, and its callables."""
    try:
        with redirect_stdout(sys.stderr):  # stdout is the caller's data
            hooks = row.entry_point.load()
            return hooks, inspect.getmembers(hooks, callable)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a plugin must not end the app
        raise PluginError(
            f"{row.label} cannot be imported: {one_line(error)}; "
            f"repair its installation, or: pip uninstall {row.distribution}"
        ) from error


def _options(function: object) -> dict[str, object] | None:
    """What @hookimpl left on a function."""
    options = getattr(function, _MARK, None)
    return options if isinstance(options, dict) else None


def _check_hooks(hooks: set[str], slot: str, label: str) -> None:
    if not any(needed <= hooks for needed in _NEEDED[slot]):
        wanted = " or ".join(" with ".join(sorted(needed)) for needed in _NEEDED[slot])
        raise PluginError(f"{label} has no hook of its slot; define {wanted} with @hookimpl")
    forms = [" with ".join(sorted(needed)) for needed in _NEEDED[slot] if needed <= hooks]
    if len(forms) > 1:
        raise PluginError(
            f"{label} scores in {len(forms)} ways, {', '.join(forms)}; register each under a name "
            "of its own"
        )


def _hook_name(name: str, function: object, slot: str, label: str) -> str:
    """The spec a function answers, or a PluginError with the nearest right name."""
    options = _options(function)
    hook = str((options and options.get("specname")) or name)
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
    if not inspect.isroutine(function):
        raise PluginError(f"{label}: {name} is a {type(function).__name__}; make it a function")
    return hook


def _arguments(function: object, spec: tuple[str, ...], label: str) -> tuple[str, ...]:
    taken = []
    for name, parameter in inspect.signature(function).parameters.items():  # type: ignore[arg-type]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise PluginError(f"{label} takes {parameter}; name the arguments it needs instead")
        if parameter.kind is parameter.KEYWORD_ONLY:
            raise PluginError(f"{label} takes {name!r} by keyword only; remove the * before it")
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
