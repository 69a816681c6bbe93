"""benchmarks/bake_bench.py measures what it says: the most that was held, and who was skipped."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from kri_core.artifacts import write_cartridge
from kri_core.substrate.hf import load_model
from kri_core.testing.tiny import tiny_cartridge

MIB = 1 << 20


@pytest.fixture(scope="module")
def bench():
    path = Path(__file__).parents[1] / "benchmarks" / "bake_bench.py"
    spec = spec_from_file_location("bake_bench", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cartridge(tiny_model_directory, tmp_path_factory):
    path = tmp_path_factory.mktemp("cartridge") / "tiny.safetensors"
    model = load_model(str(tiny_model_directory), dtype="float32", device="cpu")
    write_cartridge(tiny_cartridge(model), path)
    return path


def test_the_peak_is_what_was_held_at_once_though_it_is_let_go(bench):
    def hold(count):
        for _ in range(count):
            torch.ones(64 * MIB, dtype=torch.uint8)

    once, exact = bench.extra_peak(lambda: hold(1))
    if not exact:
        pytest.skip("this machine does not let a process start VmHWM anew")
    thrice, _ = bench.extra_peak(lambda: hold(3))
    nothing, _ = bench.extra_peak(lambda: None)

    assert 60 * MIB < once < 72 * MIB
    assert 60 * MIB < thrice < 72 * MIB  # one after the other
    assert nothing < 4 * MIB


def test_a_scorer_has_a_cost_or_a_reason(bench, tiny_model_directory, cartridge, monkeypatch):
    monkeypatch.setattr(bench, "RUNS", 1)

    cost = bench.cost_of(str(tiny_model_directory), cartridge, "attention-prefill")
    assert cost.seconds > 0
    reason = bench.cost_of(str(tiny_model_directory), cartridge, "nobody")
    assert "no scorer is called 'nobody'" in reason


def test_a_second_scorer_is_held_against_the_first_alone(
    bench, tiny_model_directory, cartridge, monkeypatch
):
    """Only those that watch the prefill; knorm does not."""
    monkeypatch.setattr(bench, "RUNS", 1)
    names = ["attention-prefill", "h2o", "knorm", "tova"]

    shares = bench.shares_of_first(str(tiny_model_directory), cartridge, names)
    assert list(shares) == ["h2o", "tova"]
