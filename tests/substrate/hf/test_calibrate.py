"""A calibration is the mean of what the model's own projections give."""

from __future__ import annotations

import pytest
import torch

from kri_core.artifacts import calibration_path, write_calibration
from kri_core.errors import ConfigError
from kri_core.substrate.hf import HfProbe, build, calibrate
from kri_core.testing.tiny import tiny, tiny_cartridge

TEXT = "Sixty bytes of plain text, more or less, on no subject at all."


def by_hand(model, text):
    """Queries of all tokens but the first four as real vectors, [layer, q_head, token, head_dim].

    q_norm, or q_proj where there is none, hooked in plain transformers.
    """
    kind, seen, hooks = type(model.anatomy.rotary.attention), [], []
    for part in model.model.modules():
        if isinstance(part, kind):
            last = getattr(part, "q_norm", None) or part.q_proj
            hooks.append(last.register_forward_hook(lambda *args: seen.append(args[2])))
    with torch.no_grad():
        model.model(torch.tensor([model.tokenizer(text).input_ids]))
    for hook in hooks:
        hook.remove()
    shape = (-1, model.anatomy.num_q_heads, model.anatomy.head_dim)
    return torch.stack([queries.reshape(shape).transpose(0, 1) for queries in seen])[:, :, 4:]


def paired(model, queries):
    """Real vectors as complex pairs: by halves, neighbours, or halves of 4 and of the other 4."""
    bands = len(model.anatomy.rotary.rope.inv_freq)
    first, second = queries[..., :bands], queries[..., bands : 2 * bands]
    if model.anatomy.rotary.rope.interleaved:
        first, second = queries[..., 0::2], queries[..., 1::2]
    pairs = torch.complex(first, second)
    rest = queries[..., 2 * bands :]
    if rest.shape[-1]:
        assert rest.shape[-1] == 4
        pairs = torch.cat([pairs, torch.complex(rest[..., :2], rest[..., 2:])], -1)
    return pairs


def test_centre_and_length_are_means_over_the_text(case, monkeypatch):
    """In chunks of 16 tokens, of which the first holds the four that are skipped."""
    monkeypatch.setattr(build, "CHUNK", 16)
    made = calibrate(case.model, TEXT)
    queries = paired(case.model, by_hand(case.model, TEXT))

    assert made.num_tokens == queries.shape[2] == len(TEXT) + 1 - 4
    assert made.centre.shape == (len(case.model.anatomy.layers), 4, 4)
    torch.testing.assert_close(made.centre, queries.mean(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(made.length, queries.abs().mean(2), atol=1e-5, rtol=0)


def test_first_tokens_that_fill_chunks_are_skipped(tiny_llama, monkeypatch):
    whole = calibrate(tiny_llama, TEXT)
    monkeypatch.setattr(build, "CHUNK", 3)
    pieces = calibrate(tiny_llama, TEXT)

    torch.testing.assert_close(pieces.centre, whole.centre, atol=1e-5, rtol=0)


def test_a_text_longer_than_the_model_takes_is_cut():
    model = tiny("Llama", max_position_embeddings=20)

    assert calibrate(model, TEXT).num_tokens == 16


def test_a_text_of_few_tokens_is_refused(tiny_llama):
    with pytest.raises(ConfigError, match="the text has 4 tokens and the first 4 are left out"):
        calibrate(tiny_llama, "one")


def test_a_probe_finds_the_calibration_of_its_model(tiny_llama, tmp_path, monkeypatch):
    monkeypatch.setenv("KRI_HOME", str(tmp_path))
    cartridge = tiny_cartridge(tiny_llama)
    assert HfProbe(tiny_llama, cartridge, texts=(), batch=1).calibration is None

    path = calibration_path(tiny_llama.identity.fingerprint)
    path.parent.mkdir()
    made = calibrate(tiny_llama, TEXT)
    write_calibration(made, path)
    probe = HfProbe(tiny_llama, cartridge, texts=(), batch=1)
    assert probe.calibration.sha256 == made.sha256
    write_calibration(calibrate(tiny_llama, TEXT * 2), path)
    assert probe.calibration.sha256 == made.sha256
