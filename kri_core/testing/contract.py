"""What every slot's contract shares: the plugin, found and loaded the way the Router does."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import ClassVar

from hypothesis import Phase, settings

from kri_core.errors import ArtifactError, ConfigError, EngineError
from kri_core.grammar import parse
from kri_core.registry import Registry
from kri_core.stack import Member, Stack

# Derandomised: a contract that fails fails for everyone, and leaves no example database behind.
thorough = settings(
    max_examples=60,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
)

# What a plugin may answer instead: a PluginError is what the Router makes of a crash.
REFUSALS = (ArtifactError, ConfigError, EngineError)
_LIGHT = "import {module}, sys; sys.exit('torch' in sys.modules)"


class PluginContract:
    """Subclass your slot's contract in a test module and set `plugin`; override no test."""

    plugin: ClassVar[str]  # as a stack writes it: "kri-d-kv-sum[norm=relative]"
    stack_with: ClassVar[str]  # a stack around a plugin of this slot

    @classmethod
    @functools.cache
    def load(cls) -> Stack:
        """Find the installed plugin and check its hooks and parameters, as for a request."""
        return Stack.load(parse(cls.stack_with.format(cls.plugin)), Registry.discover())

    def member(self, stack: Stack) -> Member:
        """The plugin under test, in its slot."""
        raise NotImplementedError

    def test_importing_the_hook_module_does_not_import_torch(self) -> None:
        """Torch belongs inside the hook: the command line loads modules it may not call."""
        module = self.member(self.load()).plugin.row.entry_point.module
        run = subprocess.run(  # noqa: S603 - this very interpreter
            [sys.executable, "-c", _LIGHT.format(module=module)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            check=False,
        )
        assert run.returncode == 0, f"{module} imports torch; move the import into the hook"
