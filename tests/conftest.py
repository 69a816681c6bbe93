"""The command line in this process, tiny models, and plugins installed in a temporary folder."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import textwrap

import pytest
from attrs import frozen

from kri_core.cli import main
from kri_core.hookspecs import GROUPS


@frozen
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def kri(capsys, monkeypatch):
    """Run `kri-core ARGS` in this process."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["kri-core", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return Done(stop.value.code or 0, out, err)

    return run


@pytest.fixture(scope="session")
def tiny_llama():
    """Grouped queries; shared by all tests, so leave it as it is."""
    from kri_core.testing import tiny

    return tiny.tiny_llama()


@pytest.fixture(scope="session")
def tiny_qwen2():
    """Biases on queries, keys and values."""
    from kri_core.testing import tiny

    return tiny.tiny_qwen2()


@pytest.fixture(scope="session")
def tiny_qwen3():
    """Norms on queries and keys."""
    from kri_core.testing import tiny

    return tiny.tiny_qwen3()


@pytest.fixture(scope="session")
def tiny_cartridge(tiny_llama):
    """Six blocks of eight tokens and a tail of two, made by tiny_llama."""
    from kri_core.testing import tiny

    return tiny.tiny_cartridge(tiny_llama)


@pytest.fixture(scope="session")
def tiny_model_directory(tmp_path_factory):
    """A Llama directory that load_model takes."""
    from kri_core.testing import tiny

    return tiny.save_tiny(tmp_path_factory.mktemp("models") / "tiny-llama")


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
