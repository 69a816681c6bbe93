"""What the statistics of an evaluation need beside the base install."""

from __future__ import annotations

from importlib.util import find_spec

from kri_core.errors import EngineError

EVAL_PACKAGES = ("numpy", "scipy")  # what the extra [eval] brings


def need_packages() -> None:
    """Say in one line what to install."""
    for package in EVAL_PACKAGES:
        if find_spec(package) is None:
            raise EngineError(f"this needs {package}; run pip install 'kri-core[eval]'")
