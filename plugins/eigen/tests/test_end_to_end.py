"""Over transformers models: three centralities share a prefill; eigen-synthq a calibration."""

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

NAMES = ("eigen", "katz", "pagerank")


class Counting(HfProbe):
    passes: list = []  # noqa: RUF012 - one per test run

    def prefill(self, observe, first_token=0):
        self.passes.append(first_token)
        super().prefill(observe, first_token)


def baked(model, cartridge, *names):
    registry = Registry.discover()
    members = [Member.load(registry, "scorer", PluginRef(name)) for name in names]
    Counting.passes.clear()
    probe = Counting(model, cartridge, (), 16)
    return [prior.scores.values for _, prior in bake(cartridge, members, probe)]


def test_three_scorers_share_one_prefill():
    model = tiny("Qwen3")
    cartridge = tiny_cartridge(model, num_tokens=102, block_size=8)
    together = baked(model, cartridge, *NAMES)
    assert Counting.passes == [0]

    for name, scores in zip(NAMES, together, strict=True):
        (alone,) = baked(model, cartridge, name)
        assert alone.equal(scores)
        assert scores.shape == (1, 1, 12)
        assert float(scores.sum()) == pytest.approx(1)
        assert (scores > 0).all()
        assert len(set(scores.flatten().tolist())) == 12
    assert torch.stack(together).flatten(1).argsort().unique(dim=0).shape[0] > 1


def priors(model, cartridge, **params):
    member = Member.load(Registry.discover(), "scorer", PluginRef("eigen-synthq", params))
    return [prior for _, prior in bake(cartridge, [member], HfProbe(model, cartridge, (), 16))]


@pytest.mark.parametrize("family", ["Qwen3", "Phi"])
def test_calibrated_queries_are_recorded_and_keys_need_none(family, tmp_path, monkeypatch):
    """Phi rotates half of its dimensions; the stack's text says which queries were asked."""
    monkeypatch.setenv("KRI_HOME", str(tmp_path))
    model = tiny(family, **({"partial_rotary_factor": 0.5} if family == "Phi" else {}))
    cartridge = tiny_cartridge(model, num_tokens=102, block_size=8)
    (by_keys,) = priors(model, cartridge, queries="keys")
    with pytest.raises(ConfigError, match="'eigen-synthq' needs the model's calibration"):
        priors(model, cartridge)

    made = calibrate(model, "Any plain text will do, if it is long enough to have a mean. " * 3)
    path = calibration_path(model.identity.fingerprint)
    path.parent.mkdir()
    write_calibration(made, path)
    (calibrated,) = priors(model, cartridge)
    (again,) = priors(model, cartridge, queries="keys")
    assert calibrated.meta.calib_sha256 == made.sha256
    assert by_keys.meta.calib_sha256 is again.meta.calib_sha256 is None
    assert (calibrated.meta.params, again.meta.params) == ({}, {"queries": "keys"})
    assert again.scores.values.equal(by_keys.scores.values)
    assert not torch.allclose(calibrated.scores.values, by_keys.scores.values, atol=1e-3)
