"""Installed plugins made of a few files: metadata directories and modules in a temporary folder."""

import importlib
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from hypothesis import HealthCheck, settings

from kri_core.hookspecs import GROUPS
from kri_core.identity import ModelIdentity
from kri_core.types import Cartridge, Layout

# A busy machine is no counterexample.
settings.register_profile("core", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("core")


class Environment:
    """A folder on sys.path that distributions are written into, as pip leaves them."""

    def __init__(self, root):
        self.root = root

    def install(
        self,
        dist,
        points,
        modules=None,
        requires=("kri-core>=0.1,<0.2",),
        metadata=None,
        entry_points=None,
    ):
        """`points` maps a slot (or group) to {name: value}; `modules` a dotted name to source.

        `metadata` and `entry_points`, given as bytes, stand in for those files as they are.
        """
        info = self.root / f"{dist.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {dist}", "Version: 1.0", f"Summary: About {dist}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        if metadata is None:
            metadata = "\n".join([*lines, "", "A long description."]).encode()
        if entry_points is None:
            sections = [
                f"[{GROUPS.get(slot, slot)}]\n"
                + "".join(f"{name} = {value}\n" for name, value in values.items())
                for slot, values in points.items()
            ]
            entry_points = "\n".join(sections).encode()
        if metadata:
            (info / "METADATA").write_bytes(metadata)
        (info / "entry_points.txt").write_bytes(entry_points)
        record = [f"{info.name}/{file.name},," for file in info.iterdir()]
        for dotted, source in (modules or {}).items():
            record.append(f"{self._write(dotted, source)},,")
        (info / "RECORD").write_text("\n".join(record))
        importlib.invalidate_caches()

    def _write(self, dotted, source):
        *parents, _ = parts = dotted.split(".")
        for depth in range(len(parents)):
            package = self.root.joinpath(*parents[: depth + 1])
            package.mkdir(exist_ok=True)
            package.joinpath("__init__.py").touch()
        path = self.root.joinpath(*parts).with_suffix(".py")
        path.write_text(textwrap.dedent(source))
        return path.relative_to(self.root)

    def python(self, code, **variables):
        """Run code in a fresh interpreter that sees these distributions; its stdout."""
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, "PYTHONPATH": str(self.root), **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def environment(tmp_path, monkeypatch):
    monkeypatch.delenv("KRI_PLUGINS", raising=False)
    monkeypatch.delenv("KRI_DISABLE_PLUGINS", raising=False)
    root = tmp_path / "site"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))
    before = set(sys.modules)
    yield Environment(root)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(root)):
            del sys.modules[name]


@pytest.fixture
def make_cartridge():
    """Two layers of three KV heads, one token a block, all zero: routing looks at sizes alone."""

    def make(num_blocks, cart_id="doc"):
        return Cartridge(
            cart_id=cart_id,
            layout=Layout(2, 3, head_dim=1, block_size=1, num_tokens=num_blocks),
            model=ModelIdentity("tiny", architecture="tiny"),
            token_ids=tuple(range(num_blocks)),
            kv=torch.zeros(num_blocks, 2, 2, 3, 1, 1),
            tail=torch.zeros(2, 2, 3, 0, 1),
            trained=False,
            sha256=f"sha of {cart_id}",
            prefix_hash=f"hash of {cart_id}",
            created_at="2025-01-01T00:00:00+00:00",
        )

    return make


@pytest.fixture
def plugin(environment):
    """Install one plugin from the source of its hooks; the imports are given."""

    def install(slot, name, source, dist=None):
        module = f"{slot}_{name}".replace("-", "_")
        header = "import torch\nfrom attrs import frozen\nfrom kri_core import *\n"
        environment.install(
            dist or f"of-{name}",
            {slot: {name: module}},
            {module: header + textwrap.dedent(source)},
        )

    return install
