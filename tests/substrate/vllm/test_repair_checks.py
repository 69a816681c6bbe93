"""What a served request may ask of a repair; no engine is needed to refuse the rest."""

from types import SimpleNamespace

import pytest
from attrs import evolve

from kri_core.errors import ConfigError
from kri_core.grammar import parse
from kri_core.routing import Router
from kri_core.substrate.vllm.repair_checks import check_repairs, why_no_repair

WORKER = "kri_core.substrate.vllm.workers.RoutedCPUWorker"


def router(stack):
    return Router.from_config(parse(stack))


def config(**parts):
    told = {"worker_cls": WORKER, "data_parallel_size": 1, "lora": None, "mrope": False} | parts
    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            worker_cls=told["worker_cls"], data_parallel_size=told["data_parallel_size"]
        ),
        device_config=SimpleNamespace(device_type=told.get("device", "cpu")),
        lora_config=told["lora"],
        model_config=SimpleNamespace(uses_mrope=told["mrope"]),
    )


@pytest.mark.parametrize("stack", ["A1R1K2", "A1R1K2+xa25", "A1R1K2+xa[mode=gradual]+xa15"])
def test_a_server_with_our_worker_repairs_by_the_routed_reference(tiny_cartridge, stack):
    assert why_no_repair(config()) is None
    check_repairs(router(stack), tiny_cartridge, None)


def test_a_stack_without_repair_asks_nothing_of_the_worker(tiny_cartridge):
    check_repairs(router("A1R1K2"), tiny_cartridge, "it cannot")
    with pytest.raises(ConfigError, match=r"^xa25 cannot be run by this server: it cannot$"):
        check_repairs(router("A1R1K2+xa25"), tiny_cartridge, "it cannot")


@pytest.mark.parametrize("reference", ["full", "query_first"])
def test_a_reference_a_server_does_not_compute_is_refused_by_name(tiny_cartridge, reference):
    with pytest.raises(ConfigError, match=f"compares with '{reference}', and a server computes"):
        check_repairs(router(f"A1R1K2+xa25[reference={reference}]"), tiny_cartridge, None)


def test_composing_is_refused_by_name():
    with pytest.raises(ConfigError, match="compose"):
        router("A1R1K2+xa25[reference=compose]")


def test_no_request_has_a_server_repair_on_and_on(tiny_cartridge):
    check_repairs(router("A1R1K2" + 4 * "+xa25"), tiny_cartridge, None)
    with pytest.raises(ConfigError, match=r"the stack has 5 repairs, .* give at most 4"):
        check_repairs(router("A1R1K2" + 5 * "+xa25"), tiny_cartridge, None)


def test_a_check_layer_the_model_lacks_is_refused(tiny_cartridge):
    check_repairs(router("A1R1K2+xa[check_layer=2]"), tiny_cartridge, None)
    with pytest.raises(ConfigError, match=r"checks layer 3, and the model's are 0 to 2; give one"):
        check_repairs(router("A1R1K2+xa[check_layer=3]"), tiny_cartridge, None)


def test_a_trained_cartridge_is_repaired_only_if_insisted(tiny_cartridge):
    trained = evolve(tiny_cartridge, trained=True)

    check_repairs(router("A1R1K2+xa25[force_reference=true]"), trained, None)
    with pytest.raises(ConfigError, match="is trained, and a repair would undo that"):
        check_repairs(router("A1R1K2+xa25"), trained, None)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"worker_cls": "vllm.v1.worker.cpu_worker.CPUWorker"}, f"--worker-cls {WORKER}"),
        (
            {"worker_cls": "vllm.v1.worker.gpu_worker.Worker", "device": "cuda"},
            "--worker-cls kri_core.substrate.vllm.workers.RoutedGPUWorker",
        ),
        ({"lora": object()}, "it has LoRA adapters"),
        ({"data_parallel_size": 2}, "serve without data parallel"),
        ({"mrope": True}, "positions have several axes"),
    ],
)
def test_a_server_that_cannot_repair_says_what_to_do(parts, said):
    assert said in why_no_repair(config(**parts))
