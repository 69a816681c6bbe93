"""benchmarks/bake_bench.py measures what it says: the most that was held, and who was skipped."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from kri_core.probe import ProbeText
from kri_core.registry import Registry

MIB = 1 << 20


@pytest.fixture(scope="module")
def module():
    path = Path(__file__).parents[1] / "benchmarks" / "bake_bench.py"
    spec = spec_from_file_location("bake_bench", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.RUNS = 1
    return module


@pytest.fixture
def bench(module, tiny_llama, tiny_cartridge):
    texts = (ProbeText("?", (1, 2, 3)),)
    return module.Bench(tiny_llama, tiny_cartridge, texts, Registry.discover())


def test_the_peak_is_what_was_held_at_once_though_it_is_let_go(module):
    def hold(count):
        for _ in range(count):
            torch.ones(64 * MIB, dtype=torch.uint8)

    once, exact = module.extra_peak(lambda: hold(1))
    if not exact:
        pytest.skip("this machine does not let a process start VmHWM anew")
    thrice, _ = module.extra_peak(lambda: hold(3))
    nothing, _ = module.extra_peak(lambda: None)

    assert 60 * MIB < once < 72 * MIB
    assert 60 * MIB < thrice < 72 * MIB  # one after the other
    assert nothing < 4 * MIB


def test_a_fork_answers_and_leaves_nothing_behind(module):
    held = []

    assert module.apart(lambda it: held.append(it) or len(held), "a scorer's") == 1
    assert held == []


def test_a_fork_that_dies_is_an_error(module):
    with pytest.raises(EOFError):
        module.apart(lambda: 1 / 0)


def test_a_scorer_has_a_cost_or_a_reason(bench):
    assert bench.cost_of("attention-prefill").seconds > 0
    assert "no scorer is called 'nobody'" in bench.cost_of("nobody")


def test_a_second_scorer_is_held_against_the_first_alone(bench):
    """Only those that watch the prefill; knorm does not."""
    shares = bench.shares_of_first(["attention-prefill", "h2o", "knorm", "tova"])

    assert list(shares) == ["h2o", "tova"]


def test_a_sweep_by_prefills_is_scaled_from_a_sample(bench):
    """Three of six blocks."""
    masked, prefilled = bench.removals()

    assert masked > 0
    assert prefilled > 0
