"""Every way a model cannot be loaded is one line."""

from __future__ import annotations

import json
import shutil

import huggingface_hub
import pytest
import torch

from kri_core.errors import ConfigError, EngineError
from kri_core.substrate.hf import load_model, load_tokenizer
from kri_core.testing.tiny import save_tiny


@pytest.fixture
def broken(tiny_model_directory, tmp_path):
    return shutil.copytree(tiny_model_directory, tmp_path / "model")


def one_line(caught):
    assert "\n" not in str(caught.value)


def test_a_directory_is_loaded_with_its_tokenizer(tiny_model_directory):
    model = load_model(str(tiny_model_directory), dtype="bfloat16", device="cpu")

    assert model.dtype == torch.bfloat16
    assert model.device.type == "cpu"
    assert not model.model.training
    assert model.tokenizer.decode(model.tokenizer("ab").input_ids) == "<s>ab"
    assert model.identity.model_id == str(tiny_model_directory)
    assert model.identity.revision is None
    assert model.max_positions == 512


def test_the_checkpoints_dtype_is_the_default(tmp_path):
    directory = save_tiny(tmp_path / "model")
    assert load_model(str(directory)).dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/nowhere/model", "is not a directory"),
        ("./nowhere", "is not a directory"),
        ("a/b/c", "is not a directory"),
        ("~/nowhere", "is not a directory"),
    ],
)
def test_a_path_that_is_not_there(name, why):
    with pytest.raises(
        EngineError, match=rf"model '{name}' {why}; give a model directory or a hub"
    ):
        load_model(name)


def test_a_tokenizer_is_loaded_alone_and_its_path_checked(tiny_model_directory):
    assert len(load_tokenizer(str(tiny_model_directory))) == 261
    with pytest.raises(EngineError, match="model '/nowhere/model' is not a directory; give"):
        load_tokenizer("/nowhere/model")


def test_a_directory_without_a_model(tmp_path):
    with pytest.raises(EngineError, match=r"has no config\.json; give a model directory or"):
        load_model(str(tmp_path))


def test_a_hub_that_cannot_be_reached(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        EngineError, match=r"model 'nobody/nothing' cannot be loaded: .*HF_HUB_OFFLINE$"
    ) as caught:
        load_model("nobody/nothing")
    one_line(caught)
    assert "(kri-core model get smollm2-135m fetches the embedded one)" in str(caught.value)


def test_a_model_type_nobody_knows(broken):
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"model_type": "enigma"}))
    with pytest.raises(EngineError, match=r"cannot be loaded: .*enigma") as caught:
        load_model(str(broken))
    one_line(caught)


def test_weights_that_are_damaged(broken):
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(EngineError, match="cannot be loaded: ") as caught:
        load_model(str(broken))
    one_line(caught)


def test_weights_that_are_not_there(broken):
    (broken / "model.safetensors").unlink()
    with pytest.raises(EngineError, match=r"cannot be loaded: .*model\.safetensors") as caught:
        load_model(str(broken))
    one_line(caught)


def test_weights_that_are_incomplete_are_not_drawn_at_random(broken):
    from safetensors.torch import load_file, save_file

    weights = load_file(broken / "model.safetensors")
    del weights["model.layers.1.self_attn.q_proj.weight"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        EngineError, match=r"lacks 1 weights, such as model\.layers\.1\.self_attn\.q_proj\.weight"
    ):
        load_model(str(broken))


def edit(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_weights_of_another_shape_than_the_config_says(broken, capfd):
    edit(broken / "config.json", hidden_size=64)
    line = r"weights of another shape than its config\.json says, such as lm_head\.weight; give the"
    with pytest.raises(EngineError, match=line):
        load_model(str(broken))
    assert "MISMATCH" not in capfd.readouterr().err  # transformers' table, beside our line


def test_weights_that_the_config_leaves_unused_are_a_warning(broken, caplog, capfd):
    edit(broken / "config.json", num_hidden_layers=2)
    load_model(str(broken))

    (record,) = caplog.records
    assert "has no use for 9 weights of its checkpoint, such as model.layers.2" in record.message
    assert "UNEXPECTED" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("file", "values", "says"),
    [
        ("config.json", {"num_hidden_layers": "x"}, r"(expected int, got str|TypeError: 'str')"),
        ("config.json", {"num_key_value_heads": 0}, "ZeroDivisionError: "),
        ("tokenizer.json", {"added_tokens": 7}, "(TypeError|ImportError): "),  # by its version
    ],
)
def test_values_that_break_transformers_are_one_line(broken, file, values, says):
    edit(broken / file, **values)
    with pytest.raises(EngineError, match=rf"can(not)? be loaded: .*{says}") as caught:
        load_model(str(broken))
    one_line(caught)


def test_a_file_is_no_model(broken):
    with pytest.raises(EngineError, match=r"model\.safetensors' is not a directory; give a model"):
        load_model(str(broken / "model.safetensors"))


def test_a_name_longer_than_a_path_can_be(broken):
    with pytest.raises(EngineError, match=r"cannot be loaded: .*; check the name") as caught:
        load_model("x" * 300)
    one_line(caught)


def test_a_directory_without_a_tokenizer(broken):
    for path in broken.glob("*token*"):
        path.unlink()
    with pytest.raises(EngineError, match="has no tokenizer that can be loaded: ") as caught:
        load_model(str(broken))
    one_line(caught)


def test_a_refused_kind_is_refused_before_its_weights_are_read(broken):
    config = json.loads((broken / "config.json").read_text())
    config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    (broken / "config.json").write_text(json.dumps(config | {"sliding_window": 9}))
    (broken / "model.safetensors").unlink()
    with pytest.raises(
        EngineError, match=r"MistralForCausalLM cannot be routed exactly: .* 9 tokens"
    ):
        load_model(str(broken))


def test_a_dtype_nobody_knows(tiny_model_directory):
    with pytest.raises(
        ConfigError, match="dtype 'int4' is not known; give one of auto, float32, bfloat16, float16"
    ):
        load_model(str(tiny_model_directory), dtype="int4")


def test_a_device_nobody_knows(tiny_model_directory):
    with pytest.raises(ConfigError, match="device 'abacus' is not known; give auto, cpu, cuda or"):
        load_model(str(tiny_model_directory), device="abacus")


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_there(tiny_model_directory, monkeypatch, device):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(
        EngineError, match=f"device '{device}' is not there: torch sees 0 CUDA devices; give --dev"
    ):
        load_model(str(tiny_model_directory), device=device)
