"""A question's queries on the scheduler's side are those of layer 0 of the hf substrate's model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from kri_core.errors import ConfigError, EngineError, PluginError
from kri_core.substrate.hf import HfProbe, load_model
from kri_core.testing.tiny import random_tokens, save_tiny, tiny_cartridge

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

QUESTION = random_tokens(5, seed=1)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
KINDS = {
    "llama": ("Llama", {}),
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "biases": ("Qwen2", {}),
    "norms on queries": ("Qwen3", {}),
    "yarn": ("Llama", {"rope_scaling": YARN}),
    "partial rope": ("Phi", {"partial_rotary_factor": 0.5}),
    "interleaved rope": ("Cohere", {}),
}


def layer_zero(folder, dtype=torch.float32, config=None):
    """Of what vLLM's own configuration says of a model."""
    from kri_core.substrate.vllm.layer_zero import LayerZero

    config = config or AutoConfig.from_pretrained(folder)
    fake = SimpleNamespace(model=str(folder), revision=None, hf_config=config, dtype=dtype)
    return LayerZero(fake, SimpleNamespace(download_dir=None))


def nothing(cartridge):
    return torch.zeros(1, cartridge.layout.num_blocks, dtype=torch.bool)


def shown(folder, dtype=torch.float32):
    """The model of a folder, its cartridge and both probes."""
    model = load_model(str(folder), dtype=str(dtype).removeprefix("torch."))
    cartridge = tiny_cartridge(model)
    layer = layer_zero(folder, dtype)
    return cartridge, HfProbe(model, cartridge, (), 1), layer.probe(cartridge), layer


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return shown(save_tiny(tmp_path_factory.mktemp("models") / "llama"))


@pytest.mark.parametrize("kind", KINDS)
def test_queries_are_layer_zero_of_a_forward_over_the_whole_document(tmp_path, kind):
    family, overrides = KINDS[kind]
    cartridge, full, probe, _ = shown(save_tiny(tmp_path / "model", family, **overrides))
    read = ("queries", "pre_rope_queries", "scaling")

    wanted = full.forward(QUESTION, read=read)
    found = probe.forward(QUESTION, read=read, visible=nothing(cartridge))
    for name in read:
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name)[:, :1])
    torch.testing.assert_close(probe.rope.inv_freq, full.rope.inv_freq)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_queries_are_rounded_as_the_served_dtype_rounds_them(tmp_path, dtype):
    cartridge, full, probe, _ = shown(save_tiny(tmp_path / "model"), dtype)

    wanted = full.forward(QUESTION, read=("queries",)).queries[:, :1]
    found = probe.forward(QUESTION, read=("queries",), visible=nothing(cartridge)).queries
    assert found.dtype == torch.float32
    assert torch.equal(found, wanted)


def test_the_last_tokens_alone_are_run_at_their_own_positions(llama):
    cartridge, full, probe, _ = llama
    found = probe.forward(QUESTION, read=("queries",), visible=nothing(cartridge), last=2).queries
    assert found.shape == (1, 1, 4, 2, 8)

    wanted = full.forward(QUESTION, read=("queries",), last=2).queries[:, :1]
    torch.testing.assert_close(found, wanted)
    other = full.forward(QUESTION[-2:], read=("queries",)).queries[:, :1]  # three positions earlier
    assert not torch.allclose(found, other, atol=1e-2)


def test_a_request_after_another_is_not_changed_by_it(llama):
    cartridge, _, probe, layer = llama
    first = probe.forward(QUESTION, read=("queries",), visible=nothing(cartridge)).queries
    layer.probe(cartridge).forward([1, 2], read=("queries",), visible=nothing(cartridge))
    again = layer.probe(cartridge).forward(QUESTION, read=("queries",), visible=nothing(cartridge))
    assert torch.equal(first, again.queries)


def test_only_the_embedding_and_one_layer_are_held(llama):
    *_, layer = llama
    held = {name for name, _ in layer.model.model.named_parameters()}

    assert {".".join(name.split(".")[:2]) for name in held} == {
        "embed_tokens.weight", "layers.0", "norm.weight",
    }  # fmt: skip


def test_nothing_is_loaded_before_a_question_is_asked(llama, tmp_path):
    cartridge, *_, layer = llama
    gone = layer_zero(tmp_path, config=layer.model_config.hf_config)
    probe = gone.probe(cartridge)
    assert probe.calibration is None

    with pytest.raises(EngineError, match="cannot be loaded for the question's queries"):
        probe.forward(QUESTION, read=("queries",), visible=nothing(cartridge))
    assert not probe.used


def test_a_served_rope_that_the_files_do_not_have_turns_the_queries(llama):
    """As --hf-overrides gives it."""
    cartridge, _, probe, layer = llama
    config = AutoConfig.from_pretrained(layer.model_config.model)
    config.rope_parameters = YARN | {"rope_theta": 10000.0}
    other = layer_zero(layer.model_config.model, config=config).probe(cartridge)

    ours = probe.forward(QUESTION, read=("queries",), visible=nothing(cartridge)).queries
    theirs = other.forward(QUESTION, read=("queries",), visible=nothing(cartridge)).queries
    assert not torch.allclose(ours, theirs, atol=1e-3)
    assert config.num_hidden_layers == 3


def test_a_checkpoint_that_transformers_does_not_read_is_refused_by_name(tmp_path):
    """Quantised and converted ones: nothing is drawn at random in their place."""
    folder = save_tiny(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    save_file(
        {key: value for key, value in tensors.items() if key != name},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(EngineError) as error:
        _ = layer_zero(folder).model
    assert str(error.value) == (
        f"{folder} lacks 1 weights as transformers names them, such as "
        "layers.0.self_attn.q_proj.weight; serve an unquantised checkpoint, or a stack that asks "
        "no question"
    )
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(EngineError, match=r"^layer 0 of .* cannot be loaded for the question's"):
        _ = layer_zero(folder).model


SAYS = (
    "{} needs the whole model, and a server has its layer 0 alone when it chooses blocks; write "
    "source=layer0, such as A1R2K13(kri-q[source=layer0]), or give a baked prior"
)
OVER_BLOCKS = "a question over blocks of the document (source=pinned, source=full)"


def refused(ask):
    with pytest.raises(ConfigError) as error:
        ask()
    return str(error.value)


def test_what_needs_more_than_layer_zero_is_refused_by_name(llama):
    cartridge, _, probe, _ = llama
    some = nothing(cartridge)
    some[0, 2] = True

    def forward(**options):
        return lambda: probe.forward(QUESTION, **{"read": ("queries",)} | options)

    asks = {
        OVER_BLOCKS: forward(),
        "reading hidden, logits": forward(read=("queries", "logits", "hidden"), visible=some),
        "running probe texts": lambda: probe.texts,
        "the model itself": lambda: probe.native_model,
        "an output projection": lambda: probe.output_projection(0),
        "gradients": lambda: probe.gradients(QUESTION, QUESTION),
        "a run over units": lambda: probe.each("x", [0], torch.tensor),
        "running the document": lambda: probe.prefill(print),
    }
    assert {what: refused(ask) for what, ask in asks.items()} == {
        what: SAYS.format(what) for what in asks
    }
    assert refused(forward(visible=some)) == SAYS.format(OVER_BLOCKS)
    with pytest.raises(PluginError, match=r"probe\.forward needs at least one token"):
        probe.forward((), read=("queries",), visible=nothing(cartridge))


def test_the_calibration_is_the_cartridges_models(llama, monkeypatch, tmp_path):
    monkeypatch.setenv("KRI_HOME", str(tmp_path))
    from kri_core.artifacts import calibration_path, write_calibration
    from kri_core.substrate.hf import calibrate

    cartridge, full, probe, layer = llama
    assert probe.calibration is None
    path = calibration_path(cartridge.model.fingerprint)
    path.parent.mkdir()
    write_calibration(calibrate(full.model, "Any text with a mean. " * 9), path)
    assert probe.calibration.model_fingerprint == cartridge.model.fingerprint
    assert layer.model.identity.fingerprint != cartridge.model.fingerprint  # one layer is another


def test_a_question_longer_than_the_model_takes_is_refused(llama):
    cartridge, _, probe, _ = llama
    with pytest.raises(ConfigError, match="550 tokens are needed but the model takes 512"):
        probe.forward([5] * 500, read=("queries",), visible=nothing(cartridge))
