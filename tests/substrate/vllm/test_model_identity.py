"""The served model has the identity the hf substrate gives it, and no other model's cartridges."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from attrs import evolve
from transformers import AutoConfig

from kri_core.artifacts import write_cartridge
from kri_core.errors import ArtifactError, ConfigError
from kri_core.models import get_model
from kri_core.substrate.hf import load_model
from kri_core.testing.tiny import save_tiny, tiny_cartridge, tiny_tokenizer, tiny_transformers

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
KINDS = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "multi-query": ("Llama", {"num_key_value_heads": 1}),
    "yarn": ("Llama", {"rope_scaling": YARN}),
    "partial-rope": ("Phi", {"partial_rotary_factor": 0.5}),
}


def fake_vllm_config(folder, **changes):
    """What of vLLM's VllmConfig names a model; vLLM's own takes half a minute per model class."""
    config = AutoConfig.from_pretrained(folder)
    heads = config.num_attention_heads
    model = {
        "model": str(folder),
        "revision": None,
        "tokenizer": str(folder),
        "tokenizer_revision": None,
        "skip_tokenizer_init": False,
        "quantization": None,
        "hf_config": config,
        "get_total_num_kv_heads": lambda: config.num_key_value_heads,
        "get_head_size": lambda: getattr(config, "head_dim", None) or config.hidden_size // heads,
    }
    load = {"load_format": "auto", "download_dir": None}
    load |= {name: changes.pop(name) for name in load.keys() & changes}
    return SimpleNamespace(
        model_config=SimpleNamespace(**model | changes),
        load_config=SimpleNamespace(**load),
    )


def named(config):
    from kri_core.substrate.vllm.model_identity import served_identity

    return served_identity(config.model_config, config.load_config)


class Lines(logging.Handler):
    """What was logged; whether vLLM's loggers pass it on to the root's depends on its settings."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.fixture
def warnings():
    logger, kept = logging.getLogger("vllm.kri_core.model_identity"), Lines()
    logger.addHandler(kept)
    yield kept.lines
    logger.removeHandler(kept)


@pytest.mark.parametrize("kind", KINDS)
def test_the_served_model_is_named_as_the_hf_substrate_names_it(tmp_path, warnings, kind):
    family, overrides = KINDS[kind]
    folder = save_tiny(tmp_path / "model", family, **overrides)

    assert named(fake_vllm_config(folder)) == load_model(str(folder)).identity
    assert warnings == []


@pytest.mark.model
def test_the_embedded_model_is_named_as_the_hf_substrate_names_it():
    folder = get_model("smollm2-135m")

    assert named(fake_vllm_config(folder)) == load_model(str(folder)).identity


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"quantization": "awq"}, "they are quantised (awq)"),
        ({"load_format": "dummy"}, "load_format=dummy draws them at random"),
    ],
)
def test_weights_that_are_not_the_files_are_not_compared_and_that_is_said(
    tmp_path, warnings, change, why
):
    folder = save_tiny(tmp_path / "model")

    found = named(fake_vllm_config(folder, **change))
    assert found == evolve(load_model(str(folder)).identity, weights=None)
    assert warnings == [f"the weights of cartridges are not compared with the model's: {why}"]


def test_a_model_without_files_still_has_a_rope_and_a_tokenizer(tmp_path, warnings):
    """Such as a GGUF file, which the hub's cache knows by another name."""
    folder = save_tiny(tmp_path / "model")
    whole = load_model(str(folder)).identity

    found = named(fake_vllm_config(folder, model="model.gguf"))
    assert found == evolve(whole, model_id="model.gguf", weights=None)
    assert len(warnings) == 1


def test_a_tokenizer_that_is_not_there_is_not_compared_and_that_is_said(tmp_path, warnings):
    folder = save_tiny(tmp_path / "model")

    assert named(fake_vllm_config(folder, tokenizer=str(tmp_path))).tokenizer is None
    (line,) = warnings
    assert line.startswith("the tokenizers of cartridges are not compared with the model's: model")
    assert named(fake_vllm_config(folder, skip_tokenizer_init=True)).tokenizer is None
    assert len(warnings) == 1


COMMITS = {"main": "a" * 40, "v2": "b" * 40}


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A hub cache with one model in two commits."""
    home = tmp_path_factory.mktemp("home")
    held = home / "hub" / "models--org--tiny"
    (held / "refs").mkdir(parents=True)
    for name, commit in COMMITS.items():
        save_tiny(held / "snapshots" / commit)
        (held / "refs" / name).write_text(commit)
    return home


def test_a_hub_models_revision_is_its_commit_in_both_substrates(hub):
    """Whatever name it was asked by, and whether the engine was given the id or the snapshot."""
    cache = hub / "hub"
    for name, commit in COMMITS.items():
        snapshot = cache / "models--org--tiny" / "snapshots" / commit
        by_id = {"model": "org/tiny", "revision": name, "download_dir": str(cache)}
        assert named(fake_vllm_config(snapshot, **by_id)).revision == commit
        assert named(fake_vllm_config(snapshot)).revision == commit

    code = (
        "from kri_core.substrate.hf import load_model\n"
        f"print([load_model('org/tiny', name).identity.revision for name in {list(COMMITS)}])"
    )
    environment = os.environ | {"HF_HOME": str(hub), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(list(COMMITS.values())), done.stderr


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A model, and a cartridge of it in blocks of 16."""
    root = tmp_path_factory.mktemp("served")
    folder = save_tiny(root / "model")
    model = load_model(str(folder))
    return SimpleNamespace(
        root=root, folder=folder, model=model, cartridge=tiny_cartridge(model, 50, 16)
    )


def vllm_config(folder, **options):
    """As vLLM makes it."""
    from vllm.engine.arg_utils import EngineArgs

    arguments = EngineArgs(
        model=str(folder), **{"dtype": "float32", "block_size": 16, "max_model_len": 128} | options
    )
    return arguments.create_engine_config()


def start(served, cartridge, folder=None, **options):
    """The scheduler's side, as the connector makes it."""
    from kri_core.substrate.vllm.settings import Settings
    from kri_core.substrate.vllm.starting import dispatcher_of

    path = served.root / "doc.safetensors"
    write_cartridge(cartridge, path)
    settings = Settings.parse({"cartridges": {"doc": str(path)}})
    return dispatcher_of(settings, vllm_config(folder or served.folder, **options))


def test_a_cartridge_of_the_served_model_starts(served):
    assert list(start(served, served.cartridge).planner.shelf.entries) == ["doc"]


def other_weights(folder):
    """Two rows of one matrix have other signs."""
    made = tiny_transformers("Llama")
    made.model.layers[1].mlp.up_proj.weight.data[:2] *= -1
    made.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


OTHERS = {
    "architecture": lambda folder: save_tiny(folder, num_key_value_heads=4),
    "rope": lambda folder: save_tiny(folder, rope_scaling=YARN),
    "weights": other_weights,
}


@pytest.mark.parametrize("field", OTHERS)
def test_a_cartridge_of_another_model_does_not_start(served, tmp_path, field):
    """CASES 20."""
    other = load_model(str(OTHERS[field](tmp_path / "other")))
    with pytest.raises(ArtifactError, match=f"^cartridge 'doc' was made with {field} "):
        start(served, tiny_cartridge(other, 50, 16))


def test_a_cartridge_of_another_tokenizer_does_not_start(served, tmp_path):
    """CASES 20: also where only the server was given another one."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["new"])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ArtifactError, match=r"^cartridge 'doc' was made with tokenizer "):
        start(served, served.cartridge, tokenizer=str(tmp_path))


def test_a_cartridge_of_another_revision_does_not_start(served, hub):
    """CASES 20: two commits of equal weights are told apart by their names alone."""
    snapshots = hub / "hub" / "models--org--tiny" / "snapshots"
    model = load_model(str(snapshots / COMMITS["main"]))
    cartridge = tiny_cartridge(model, 50, 16)

    start(served, cartridge, snapshots / COMMITS["main"])
    with pytest.raises(ArtifactError, match=r"^cartridge 'doc' was made with revision aaaa"):
        start(served, cartridge, snapshots / COMMITS["v2"])


def test_a_cartridge_of_blocks_the_engine_cannot_make_does_not_start(served):
    """CASES 20."""
    with pytest.raises(ConfigError, match="has blocks of 16 tokens, the engine of 24; start it "):
        start(served, served.cartridge, block_size=24)


def test_the_rope_is_the_served_one_not_the_files(served):
    longer = {"rope_parameters": YARN | {"rope_theta": 10000.0}}

    assert named(vllm_config(served.folder)) == served.model.identity
    with pytest.raises(ArtifactError, match=r"^cartridge 'doc' was made with rope "):
        start(served, served.cartridge, hf_overrides=longer)
