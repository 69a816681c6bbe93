"""The plugins of one stack, each in a fresh PluginManager: the only code that calls a hook."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

import pluggy
from attrs import evolve, frozen

from kri_core.config import PluginRef, RoutingConfig
from kri_core.errors import KriError, PluginError, one_line
from kri_core.hookspecs import PROJECT, SLOTS
from kri_core.loading import Plugin, load
from kri_core.params import changed_params, make_params
from kri_core.registry import Registry


@frozen(eq=False)
class Member:
    """One plugin of a stack with its parameters."""

    plugin: Plugin
    params: object | None
    ref: PluginRef  # canonical: defaults left out
    manager: pluggy.PluginManager  # of this plugin alone, so that no other can answer for it

    @classmethod
    def load(cls, registry: Registry, slot: str, ref: PluginRef, text: str | None = None) -> Member:
        """Find, import and check the plugin a reference means, and type its parameters."""
        plugin = load(registry.find(slot, ref, text))
        params = make_params(plugin.params_class, dict(ref.params), ref.name)
        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(SLOTS[slot])
        manager.register(plugin.hooks)
        return cls(plugin, params, evolve(ref, params=changed_params(params)), manager)

    def takes(self, hook: str, argument: str) -> bool:
        """Whether the plugin's hook asks for an argument."""
        return argument in self.plugin.takes.get(hook, ())

    def answers(self, hook: str) -> bool:
        """Whether the plugin implements a hook."""
        return hook in self.plugin.takes

    def call(self, hook: str, **arguments: object) -> object:
        """Ask the plugin by one hook."""
        caller: pluggy.HookCaller = getattr(self.manager.hook, hook)
        with self.blamed(hook):
            return caller(**arguments, params=self.params)

    @contextmanager
    def blamed(self, where: str) -> Iterator[None]:
        """Whatever the plugin's code raises in here, other than a KriError, names it."""
        try:
            with redirect_stdout(sys.stderr):  # stdout is the caller's data
                yield
        except (KriError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit too: a plugin must not end the app
            raise PluginError(
                f"{self.plugin.row.label} failed in {where}: {one_line(error)}"
            ) from error


@frozen(eq=False)
class Stack:
    """The members of a stack by slot."""

    config: RoutingConfig  # canonical
    split: Member
    scorer: Member | None
    selector: Member
    repairs: tuple[Member, ...]

    @classmethod
    def load(cls, config: RoutingConfig, registry: Registry) -> Stack:
        """Load what a config names, and nothing else."""
        text = config.text
        split = Member.load(registry, "split", config.split, text)
        scorer = Member.load(registry, "scorer", config.scorer, text) if config.scorer else None
        selector = Member.load(registry, "selector", config.selector, text)
        repairs = tuple(Member.load(registry, "repair", ref, text) for ref in config.repairs)
        canonical = evolve(
            config,
            split=split.ref,
            scorer=scorer.ref if scorer else None,
            selector=selector.ref,
            repairs=tuple(repair.ref for repair in repairs),
        )
        return cls(canonical, split, scorer, selector, repairs)
