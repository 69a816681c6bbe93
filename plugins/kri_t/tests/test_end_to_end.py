"""Calibrated and baked over transformers models of every kind of RoPE."""

import pytest
import torch

from kri_core import ConfigError, PluginRef
from kri_core.bake import bake
from kri_core.registry import Registry
from kri_core.stack import Member

pytest.importorskip("transformers")

from kri_core.artifacts import calibration_path, write_calibration
from kri_core.substrate.hf import HfProbe, calibrate
from kri_core.testing.tiny import tiny, tiny_cartridge

TEXT = "Any plain text will do, the paper says, if it is long enough to have a mean. " * 3
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
KINDS = {
    "grouped": ("Llama", {}),
    "multi-query": ("Llama", {"num_key_value_heads": 1}),
    "norms on queries and keys": ("Qwen3", {}),
    "yarn": ("Llama", {"rope_scaling": YARN}),
    "partial": ("Phi", {"partial_rotary_factor": 0.5}),
    "interleaved": ("Cohere", {}),
}


def baked(model, cartridge, name="kri-t"):
    member = Member.load(Registry.discover(), "scorer", PluginRef(name))
    ((_, prior),) = bake(cartridge, [member], HfProbe(model, cartridge, (), 16))
    return prior


@pytest.mark.parametrize("kind", KINDS)
def test_a_prior_records_the_calibration_it_depends_on(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("KRI_HOME", str(tmp_path))
    family, overrides = KINDS[kind]
    model = tiny(family, **overrides)
    cartridge = tiny_cartridge(model, num_tokens=102, block_size=8)
    with pytest.raises(ConfigError, match="run kri-core calibrate --model tiny"):
        baked(model, cartridge)

    made = calibrate(model, TEXT)
    path = calibration_path(model.identity.fingerprint)
    path.parent.mkdir()
    write_calibration(made, path)
    prior = baked(model, cartridge)
    assert prior.meta.calib_sha256 == made.sha256
    assert prior.scores.values.shape == (3, model.anatomy.num_kv_heads, 12)
    assert prior.scores.values.equal(baked(model, cartridge).scores.values)
    assert baked(model, cartridge, "kri-energy").meta.calib_sha256 is None


def test_the_constant_query_s_score_is_the_model_s_own_logit():
    """ALGORITHMS 5.9, test 3, against attention: one probe token, calibrated on itself alone."""
    from kri_plugin_t import trigonometry

    for family, overrides in KINDS.values():
        model = tiny(family, **overrides)
        cartridge = tiny_cartridge(model, num_tokens=96, block_size=8)
        probe, rope = HfProbe(model, cartridge, (), 16), model.anatomy.rotary.rope
        read = probe.forward([65], read=["pre_rope_queries", "queries"])
        query = rope.pairs(read.pre_rope_queries[0, 0])  # [q_head, token, pair]
        heads = (model.anatomy.num_kv_heads, -1, query.shape[-1])
        still = query.shape[-1] - len(rope.inv_freq)
        frequencies = torch.nn.functional.pad(rope.inv_freq, (0, still))
        scaling = torch.nn.functional.pad(
            torch.full_like(rope.inv_freq, rope.scaling), (0, still), value=1.0
        )
        ahead = trigonometry.turns(frequencies, 95, 1)  # offset 1: at 96, where the probe stands
        keys, centre = rope.pairs(cartridge.keys()[0]), query.reshape(heads) * scaling
        got = trigonometry.token_scores(keys, centre, centre.abs(), ahead)
        asked = read.queries[0, 0].reshape(heads[0], -1, model.anatomy.head_dim)
        wanted = asked @ cartridge.keys()[0].mT
        torch.testing.assert_close(got.float(), wanted, rtol=1e-4, atol=1e-4)
