"""removal="reprefill": the document is encoded again without the invisible blocks."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from kri_core.errors import ConfigError
from kri_core.substrate.hf import HfProbe
from kri_core.testing.tiny import random_tokens

CLOSE = {"atol": 1e-5, "rtol": 0}
QUESTION = random_tokens(5, seed=1)


@pytest.fixture
def probe(tiny_llama, tiny_cartridge):
    return HfProbe(tiny_llama, tiny_cartridge, texts=(), batch=4)


def without(block):
    visible = torch.ones(1, 6, dtype=torch.bool)
    visible[0, block] = False
    return visible


def test_equals_one_forward_of_the_kept_tokens_at_their_positions(case, run_eager):
    """The naive loop: no cartridge, no cache, one forward a row."""
    probe = HfProbe(case.model, case.cartridge, texts=(), batch=4)
    logits = probe.forward(
        case.question, read=["logits"], visible=case.visible, removal="reprefill"
    ).logits
    for row, found in zip(case.visible, logits, strict=True):
        kept = [t for t in range(50) if t >= 48 or row[t // 8]]
        tokens = [*(case.cartridge.token_ids[t] for t in kept), *case.question]
        positions = torch.tensor([[*kept, *range(50, 55)]])
        count = len(tokens)
        causal = torch.full((count, count), torch.finfo(torch.float32).min).triu(1)[None, None]
        naive = run_eager(case.model, tokens, causal, position_ids=positions)
        torch.testing.assert_close(found, naive.logits[0, -5:], **CLOSE)


def test_agrees_with_masking_on_the_last_block_alone(tiny_llama):
    """Nothing after the last block was encoded with it (ALGORITHMS 1.2)."""
    from kri_core.testing.tiny import tiny_cartridge

    cartridge = tiny_cartridge(tiny_llama, num_tokens=48)  # no tail
    probe = HfProbe(tiny_llama, cartridge, texts=(), batch=1)

    def distance(block):
        masked, again = (
            probe.forward(QUESTION, read=["hidden"], visible=without(block), removal=removal)
            for removal in ("mask", "reprefill")
        )
        return (masked.hidden - again.hidden).abs().max()

    assert distance(5) < 1e-5
    assert distance(1) > 1e-3


def test_block_mass_keeps_the_blocks_numbers(probe):
    mass = probe.forward(
        QUESTION, read=["block_mass"], visible=without(2), removal="reprefill"
    ).block_mass

    assert mass.shape == (1, 3, 4, 5, 6)
    assert (mass[..., 2] == 0).all()
    assert (mass[..., [0, 1, 3, 4, 5]] > 0).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"trained": True}, "cartridge 'tiny' is trained, so its document cannot be run"),
        ({"token_ids": ()}, "cartridge 'tiny' does not know its tokens, so its document"),
    ],
)
def test_needs_a_document_whose_prefill_gives_the_cartridge(
    tiny_llama, tiny_cartridge, changed, message
):
    probe = HfProbe(tiny_llama, evolve(tiny_cartridge, **changed), texts=(), batch=1)
    with pytest.raises(ConfigError, match=f"{message}.*removal=mask"):
        probe.forward(QUESTION, read=["hidden"], visible=without(0), removal="reprefill")
    with pytest.raises(ConfigError, match=message):
        probe.prefill(lambda chunk: None)
    assert probe.forward(QUESTION, read=["hidden"]).hidden is not None
