"""What is mapped of a checkpoint is what transformers loads of it; no vLLM is needed for that."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from kri_core.errors import ArtifactError
from kri_core.substrate.hf import load_model
from kri_core.substrate.hf.identity import digest_of, weights_digest
from kri_core.substrate.vllm.checkpoint import directory_of, outline, stored_parameters
from kri_core.testing.tiny import save_tiny, tiny_tokenizer, tiny_transformers

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def parameters(folder):
    return stored_parameters(folder, outline(AutoConfig.from_pretrained(folder)))


def rewrite(folder, change):
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_an_outline_has_names_and_shapes_and_no_memory(tmp_path):
    folder = save_tiny(tmp_path / "model")
    made = outline(AutoConfig.from_pretrained(folder))

    real = load_model(str(folder)).model
    assert {name: it.shape for name, it in made.named_parameters()} == {
        name: it.shape for name, it in real.named_parameters()
    }
    assert {it.device.type for it in made.parameters()} == {"meta"}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_mapped_parameters_are_the_loaded_models(tmp_path, family, tied):
    folder = save_tiny(tmp_path / "model", family, tie_word_embeddings=tied)
    loaded = dict(load_model(str(folder)).model.named_parameters())

    found = parameters(folder)
    assert found.keys() == loaded.keys()
    assert (HEAD in found) != tied
    assert all(torch.equal(found[name], loaded[name]) for name in found)


def test_shards_are_one_checkpoint(tmp_path):
    model = tiny_transformers("Llama")
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    tiny_tokenizer().save_pretrained(tmp_path)

    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert digest_of(parameters(tmp_path)) == weights_digest(model)


@pytest.mark.parametrize("case", ["stored twice", "stored under the other name", "not equal"])
def test_a_tied_weight_is_what_transformers_makes_of_it(tmp_path, case):
    """As transformers 5 does: it ties only what is equal, and by whichever name is there."""
    folder = save_tiny(tmp_path / "model", tie_word_embeddings=True)

    def change(tensors):
        tensors[HEAD] = tensors[EMBEDDING].clone()
        if case == "stored under the other name":
            del tensors[EMBEDDING]
        elif case == "not equal":
            tensors[HEAD][:9] *= -1

    rewrite(folder, change)
    found = parameters(folder)
    assert (HEAD in found) == (case == "not equal")
    assert digest_of(found) == load_model(str(folder)).identity.weights


def refused(folder):
    with pytest.raises(ArtifactError) as error:
        parameters(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_weight_of_another_name_or_shape_is_said(tmp_path):
    """A converted checkpoint: fused, renamed or packed weights."""
    folder = save_tiny(tmp_path / "model")
    rewrite(folder, lambda tensors: tensors.update(fused=tensors.pop("model.norm.weight")))
    assert refused(folder) == ("its checkpoint has no model.norm.weight as transformers stores it")

    rewrite(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(2)}))
    assert refused(folder) == (
        "its checkpoint has another shape [2] of model.norm.weight as transformers stores it"
    )


@pytest.mark.parametrize(
    "index", [None, b"{", b"[]", json.dumps({"weight_map": {"a": "b"}}).encode()]
)
def test_a_directory_without_whole_safetensors_is_said(tmp_path, index):
    """Checkpoints of another format, and ones that are damaged."""
    folder = save_tiny(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    if index is not None:
        (folder / "model.safetensors.index.json").write_bytes(index)
    assert "has no safetensors checkpoint that can be read (" in refused(folder)


def test_a_truncated_file_is_said(tmp_path):
    folder = save_tiny(tmp_path / "model")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "has no safetensors checkpoint that can be read (" in refused(folder)


def test_a_config_transformers_has_no_causal_model_of_is_said():
    from transformers import ViTConfig

    with pytest.raises(ArtifactError, match="transformers knows no causal model of ViTConfig"):
        outline(ViTConfig())


def test_a_hub_id_is_the_snapshot_that_was_downloaded(tmp_path):
    held = tmp_path / "models--org--tiny"
    for commit in ("a" * 40, "b" * 40):
        save_tiny(held / "snapshots" / commit)
    (held / "refs").mkdir()
    (held / "refs" / "main").write_text("a" * 40)
    (held / "refs" / "v2").write_text("b" * 40)

    assert directory_of("org/tiny", None, str(tmp_path)).name == "a" * 40
    assert directory_of("org/tiny", "v2", str(tmp_path)).name == "b" * 40
    assert directory_of(str(held), None, None) == held
    for gone in (("org/tiny", "v3"), ("org/other", None), ("no such/hub/id.gguf", None)):
        with pytest.raises(ArtifactError, match=f"^{gone[0]} is neither a directory nor in the"):
            directory_of(*gone, str(tmp_path))
