"""Texts read together are what each is when it is read alone."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest
import torch

from kri_core.substrate.hf import Text, answer, attention, load_prefix, read_together, together
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
    """Each length over each selection, those over one prefix apart from each other."""
    prefixes = [load_prefix(model, cartridge, blocks) for blocks in selections]
    prefixes += [prefixes[0].before(0)]  # no document at all
    return [
        Text(prefix, random_tokens(length, seed=seed), length // 3)
        for seed, (length, prefix) in enumerate(product(LENGTHS, prefixes))
    ]


@pytest.mark.parametrize("nbytes", [4 << 20, 2_000])  # of scores: all tokens at once, or some
@pytest.mark.parametrize("limit", [512, 40, 1])
def test_each_has_the_rows_of_an_answer_of_its_own(
    tiny_llama, tiny_cartridge, monkeypatch, limit, nbytes
):
    """Other prefixes, other lengths, in one forward, in some or in one each: none sees another."""
    monkeypatch.setattr(together, "MAX_TOKENS", limit)
    monkeypatch.setitem(attention.SCORE_BYTES, "cpu", nbytes)
    texts = texts_over(tiny_llama, tiny_cartridge, SELECTIONS)

    found = read_together(tiny_llama, tiny_cartridge.layout.num_tokens, texts)

    for text, rows in zip(texts, found, strict=True):
        own = text.prefix.blocks, text.token_ids, 0, text.prefix
        alone = answer(tiny_llama, tiny_cartridge, *own)
        torch.testing.assert_close(
            rows, alone.question_logprobs[text.start :], atol=1e-5, rtol=1e-5
        )
    other = answer(tiny_llama, tiny_cartridge, (0, 5), texts[0].token_ids, 0)  # not its blocks
    assert not torch.allclose(found[0], other.question_logprobs[texts[0].start :], atol=1e-3)


def test_texts_over_one_prefix_would_see_each_other_unhidden(
    tiny_llama, tiny_cartridge, monkeypatch
):
    """The negative control: without `hidden` the later of two texts reads the earlier one."""
    prefix = load_prefix(tiny_llama, tiny_cartridge, (1, 4))
    texts = [Text(prefix, random_tokens(6, seed=seed), 0) for seed in range(2)]
    end = tiny_cartridge.layout.num_tokens
    right = read_together(tiny_llama, end, texts)

    attention = partial(together.PrefixAttention, prefix)
    monkeypatch.setattr(together, "PrefixAttention", lambda *_args, **_named: attention())
    wrong = read_together(tiny_llama, end, texts)

    torch.testing.assert_close(wrong[0], right[0], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(wrong[1], right[1], atol=1e-3)


def test_a_forward_is_bounded(tiny_llama, tiny_cartridge, forwards, monkeypatch):
    """Over two prefixes in turn, 4, 4, 6 and 6 tokens: those over one are together."""
    prefixes = [load_prefix(tiny_llama, tiny_cartridge, blocks) for blocks in ((1, 4), (2,))]
    texts = [
        Text(prefixes[place % 2], random_tokens(length, seed=place), 0)
        for place, length in enumerate((4, 4, 6, 6))
    ]
    monkeypatch.setattr(together, "MAX_TOKENS", 14)

    read_together(tiny_llama, tiny_cartridge.layout.num_tokens, texts)
    assert forwards == [(1, 14), (1, 6)]

    forwards.clear()
    monkeypatch.setattr(together, "MAX_TOKENS", 1)  # one text is read whatever it takes
    read_together(tiny_llama, tiny_cartridge.layout.num_tokens, texts)
    assert forwards == [(1, 4), (1, 6), (1, 4), (1, 6)]


def test_nothing_to_read_is_nothing(tiny_llama):
    assert read_together(tiny_llama, 0, []) == []
