"""Engine blocks of 32, 64 and 128 tokens under cartridge blocks of 16 (CASES 36)."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")


@pytest.mark.parametrize(
    ("block_size", "kept"),
    [
        (32, [0, 1, 6, 7, 8, 9, 10, 11]),  # blocks 0, 3, 4, 5 of 32 tokens
        (64, range(12)),  # three blocks of 64 are fewer than the budget of four
        (128, range(12)),  # one of 128, and a tail of 72 tokens
    ],
)
def test_larger_engine_blocks_answer_as_the_blocks_they_hold(start, agree, block_size, kept):
    with start(block_size=block_size) as engine:
        said = engine.ask("plain")

        assert said.kri["block_size"] == block_size
        agree(said, engine.reference("plain", list(kept)))


def test_a_cartridge_of_larger_blocks_takes_several_engine_blocks_each(
    start, shop, agree, tmp_path
):
    """Blocks of 32 tokens in an engine of 16: pins and the best of the middle, two rows each."""
    import torch

    from kri_core.artifacts import write_cartridge, write_prior
    from kri_core.prior import Prior
    from kri_core.substrate.hf import answer, build_from_tokens
    from kri_core.types import BlockScores

    tokens = shop.cartridges["plain"].token_ids
    cartridge = build_from_tokens(shop.model, tokens, cart_id="wide", block_size=32)
    write_cartridge(cartridge, tmp_path / "wide.safetensors")
    scores = torch.tensor([[[0.0, 1.0, 5.0, 2.0, 3.0, 0.0]]])
    write_prior(Prior(scores=BlockScores(scores)), tmp_path / "wide.pt")
    extra = {
        "cartridges": {"plain": str(tmp_path / "wide.safetensors")},
        "routing": {"stack": "A1R1K1", "priors": {"plain": str(tmp_path / "wide.pt")}},
    }
    with start(extra) as engine:
        said = engine.ask("plain")

    assert said.kri["selected"] == [0, 2, 5]
    assert said.kri["rows_loaded"] == 7
    agree(said, answer(shop.model, cartridge, [0, 2, 5], [5, 6, 7, 8, 9], 6))


def test_without_prefix_caching_rows_are_loaded_every_time(start, agree):
    """`--no-enable-prefix-caching`: nothing is shared, nothing else changes."""
    with start(enable_prefix_caching=False) as engine:
        twice = [engine.ask("plain") for _ in range(2)]

        for said in twice:
            assert (said.kri["rows_loaded"], said.kri["rows_resident"]) == (5, 0)
            agree(said, engine.reference("plain", [0, 9, 10, 11]))


def test_a_server_told_not_to_share_loads_every_time(start, agree, extra):
    with start(extra | {"share": False}) as engine:
        twice = [engine.ask("plain") for _ in range(2)]

        assert [said.kri["rows_resident"] for said in twice] == [0, 0]
        agree(twice[1], engine.reference("plain", [0, 9, 10, 11]))
