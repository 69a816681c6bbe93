"""Repairs in the worker, without an engine: what is written, what is summed, what is refused."""

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

import torch

from kri_core.errors import EngineError
from kri_core.repairing import RepairParams
from kri_core.substrate.hf.cutting import NothingLeftError
from kri_core.substrate.hf.prefix import Prefix
from kri_core.substrate.vllm import workers
from kri_core.substrate.vllm.loading import Rank
from kri_core.substrate.vllm.nested import OverRanks
from kri_core.substrate.vllm.orders import LoadOrder, RepairOrder
from kri_core.substrate.vllm.repairing import RankRefresh, Rewriting, check_finite
from kri_core.substrate.vllm.working import Worker
from kri_core.types import RepairPlan

LAYERS, TOKENS = 3, 4


def rewriting(plan, over_ranks=lambda deviation: deviation, layers=LAYERS, tokens=TOKENS, **params):
    """Stored KV of zeros, one head of one dimension."""
    zeros = tuple(torch.zeros(1, tokens, 1) for _ in range(layers))
    refresh = RankRefresh(
        Prefix(zeros, zeros, (), 0, 1),
        RepairParams(**params),
        lambda deviation: RepairPlan(plan(deviation), tokens),
        over_ranks=over_ranks,
    )
    return Rewriting(refresh, {f"layer {number}": number for number in range(layers)})


def written(watcher, number, values):
    """The tokens whose KV the layer writes."""
    fresh, slots = torch.tensor(values)[:, None, None], torch.arange(len(values))
    keys, _, slots = watcher(SimpleNamespace(layer_name=f"layer {number}"), fresh, fresh, slots)
    assert keys.flatten().tolist() == [values[slot] for slot in slots.tolist()]
    return slots.tolist()


def test_all_tokens_are_written_up_to_the_check_layer_and_then_the_planned_ones():
    watcher = rewriting(lambda _: (1, 3), check_layer=1)

    assert written(watcher, 0, [1.0, 2.0, 3.0, 4.0]) == [0, 1, 2, 3]
    assert written(watcher, 1, [1.0, 2.0, 3.0, 4.0]) == [0, 1, 2, 3]
    assert written(watcher, 2, [5.0, 6.0, 7.0, 8.0]) == [1, 3]
    watcher.check_all()
    blended = [keys.flatten().tolist() for keys in watcher.refresh.keys]
    assert blended == [[0.0, 2.0, 0.0, 4.0], [0.0, 2.0, 0.0, 4.0], [0.0, 6.0, 0.0, 8.0]]


def test_a_gradual_repair_writes_fewer_tokens_layer_by_layer():
    """8 tokens times 1, 0.885, 0.769, 0.654, rounded up; those that deviate least leave first."""
    watcher = rewriting(lambda _: range(8), layers=5, tokens=8, check_layer=0, mode="gradual")
    values = [float(value) for value in range(1, 9)]

    lines = [written(watcher, layer, values) for layer in range(5)]
    assert [len(tokens) for tokens in lines] == [8, 8, 8, 7, 6]
    assert lines[-1] == [2, 3, 4, 5, 6, 7]


def test_a_plan_of_nothing_ends_the_forward():
    watcher = rewriting(lambda _: (), check_layer=0)

    assert written(watcher, 0, [1.0, 2.0, 3.0, 4.0]) == [0, 1, 2, 3]
    with pytest.raises(NothingLeftError):
        written(watcher, 1, [1.0, 2.0, 3.0, 4.0])
    assert not any(keys.any() for keys in watcher.refresh.keys)


def test_the_deviation_is_measured_over_all_ranks():
    seen = []
    watcher = rewriting(lambda it: seen.append(it) or (0,), lambda it: it * 2, check_layer=0)

    written(watcher, 0, [1.0, 2.0, 3.0, 4.0])
    assert seen[0].tolist() == [2.0, 8.0, 18.0, 32.0]


def test_a_layer_that_does_not_write_its_kv_through_us_is_noticed():
    watcher = rewriting(lambda _: (0,), check_layer=0)
    written(watcher, 0, [1.0, 2.0, 3.0, 4.0])

    with pytest.raises(EngineError, match=r"saw layers \[0\] write their KV where all 3 should"):
        watcher.check_all()


def test_kv_that_is_not_finite_is_refused():
    watcher = rewriting(lambda _: (1,), check_layer=0)
    written(watcher, 0, [1.0, 2.0, 3.0, 4.0])
    check_finite(watcher.refresh, bool)

    watcher.refresh.keys[1][0, 1] = torch.nan
    with pytest.raises(EngineError, match="the repair computed KV that is not finite"):
        check_finite(watcher.refresh, bool)


def test_kv_that_is_not_finite_on_another_rank_is_refused_here_too():
    """Or this rank would start the stack's next repair, and wait for that one."""
    watcher = rewriting(lambda _: (1,), check_layer=0)
    written(watcher, 0, [1.0, 2.0, 3.0, 4.0])
    other_is_not = OverRanks(Rank(0, 2), lambda it: it + 1)

    with pytest.raises(EngineError, match="the repair computed KV that is not finite"):
        check_finite(watcher.refresh, lambda here: other_is_not.all(here, torch.device("cpu")))


def test_a_sum_over_ranks_counts_each_head_once():
    """Two ranks' sums of [3] are [6] for two heads, and [3] where both ranks hold the same one."""
    here, doubled = torch.tensor([3.0]), lambda it: it * 2

    assert OverRanks(Rank(0, 1), doubled).summed(here, 2).tolist() == [3.0]
    assert OverRanks(Rank(0, 2), doubled).summed(here, 2).tolist() == [6.0]
    assert OverRanks(Rank(0, 2), doubled).summed(here, 1).tolist() == [3.0]


def test_a_repair_runs_on_all_ranks_or_on_none():
    cpu = torch.device("cpu")
    other_failed, other_has_it = (OverRanks(Rank(0, 2), lambda it, n=n: it + n) for n in (1, 0))

    assert not other_failed.all(True, cpu)
    assert other_has_it.all(True, cpu)
    assert not other_has_it.all(False, cpu)
    assert OverRanks(Rank(0, 1)).all(True, cpu)


def test_a_worker_without_a_model_fails_the_request_and_not_the_engine(caplog):
    worker = Worker(lambda _: None, Rank(0, 1), 16)
    order = LoadOrder("one", "doc", "", ())

    assert not worker._repair(order, RepairOrder(None, ()), loaded=True)
    assert dict(worker.counts.total) == {"repair_failures": 1}


def test_a_worker_of_another_name_is_not_made_up():
    with pytest.raises(AttributeError, match="RoutedCPUWorker, RoutedGPUWorker"):
        _ = workers.RoutedTPUWorker
