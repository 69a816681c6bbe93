"""Texts read together are what each is when it is read alone."""

from __future__ import annotations

import pytest
import torch

from kri_core.substrate.hf import Text, answer, load_prefix, read_together, together
from kri_core.testing.tiny import random_tokens

SELECTIONS = [(1, 4), (0, 5), (2, 3), (), (0, 1, 2, 3, 4, 5)]
LENGTHS = [5, 9, 6, 1, 14, 7]


@pytest.fixture
def forwards(tiny_llama, monkeypatch):
    """The shapes [row, token] that the model is run on."""
    run, shapes = type(tiny_llama).run, []

    def seen(self, token_ids, positions, **options):
        shapes.append(tuple(token_ids.shape))
        return run(self, token_ids, positions, **options)

    monkeypatch.setattr(type(tiny_llama), "run", seen)
    return shapes


def texts_over(model, cartridge, selections):
    return [
        Text(load_prefix(model, cartridge, blocks), random_tokens(length, seed=seed), length // 3)
        for seed, (blocks, length) in enumerate(
            (blocks, length) for blocks in selections for length in LENGTHS
        )
    ]


def test_each_has_the_rows_of_an_answer_of_its_own(tiny_llama, tiny_cartridge):
    """Other prefixes of one length, other lengths of text: no row sees another, or its filling."""
    texts = texts_over(tiny_llama, tiny_cartridge, SELECTIONS)

    found = read_together(tiny_llama, tiny_cartridge.layout.num_tokens, texts)

    for text, rows in zip(texts, found, strict=True):
        alone = answer(tiny_llama, tiny_cartridge, text.prefix.blocks, text.token_ids, 0)
        torch.testing.assert_close(
            rows, alone.question_logprobs[text.start :], atol=1e-5, rtol=1e-5
        )
    other = answer(tiny_llama, tiny_cartridge, (1, 4), texts[6].token_ids, 0)  # not its blocks
    assert not torch.allclose(found[6], other.question_logprobs[texts[6].start :], atol=1e-3)


def test_texts_of_similar_length_over_prefixes_of_one_length_share_a_forward(
    tiny_llama, tiny_cartridge, forwards
):
    """1 | 5 6 7 9 | 14 are the lengths; three pairs of blocks are one length of prefix."""
    texts = texts_over(tiny_llama, tiny_cartridge, [(1, 4), (0, 5), (2, 3)])

    read_together(tiny_llama, tiny_cartridge.layout.num_tokens, texts)

    assert forwards == [(3, 1), (12, 9), (3, 14)]


def test_a_forward_is_bounded(tiny_llama, tiny_cartridge, forwards, monkeypatch):
    """Four texts of 4 tokens after 18: two rows are 44 tokens."""
    prefix = load_prefix(tiny_llama, tiny_cartridge, (1, 4))
    texts = [Text(prefix, random_tokens(4, seed=seed), 0) for seed in range(4)]
    monkeypatch.setattr(together, "MAX_TOKENS", 44)

    read_together(tiny_llama, tiny_cartridge.layout.num_tokens, texts)
    assert forwards == [(2, 4), (2, 4)]

    forwards.clear()
    monkeypatch.setattr(together, "MAX_TOKENS", 1)  # one text is read whatever it takes
    read_together(tiny_llama, tiny_cartridge.layout.num_tokens, texts)
    assert forwards == [(1, 4)] * 4


def test_nothing_to_read_is_nothing(tiny_llama):
    assert read_together(tiny_llama, 0, []) == []
