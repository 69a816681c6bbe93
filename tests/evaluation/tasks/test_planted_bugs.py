"""Negative controls: one place of a formula is changed, and the tests' cases notice."""

from math import log

import numpy as np
import pytest

from kri_core.evaluation.tasks import (
    Answer,
    Span,
    assembling,
    contract,
    needle,
    references,
    scoring,
)
from kri_core.evaluation.tasks.draws import Draws
from kri_core.testing.planted import is_noticed, plant_bug
from kri_core.types import Split


def check_kl(maths):
    with np.errstate(divide="ignore"):
        dense, routed = np.log([[0.5, 0.5, 0.0]]), np.log([[0.25, 0.5, 0.25]])
    assert maths.mean_kl(dense, routed) == pytest.approx(log(2) / 2)
    assert maths.mean_kl(np.tile(dense, (3, 1)), np.tile(routed, (3, 1))) < 0.5


def check_acceptance(maths):
    dense = np.log([[0.9, 0.1], [0.1, 0.9], [0.9, 0.1]])
    routed = np.log([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]])
    assert maths.acceptance_length(dense, routed) == 1
    assert maths.acceptance_length(dense, dense) == 3


def check_ties(maths):
    assert maths.is_best([-1.0, -1.0], 0) == 0.0
    assert maths.is_best([-1.0, -2.0], 0) == 1.0


def check_shares(maths):
    assert maths.log_share([log(0.2), log(0.1), log(0.1)], 0) == pytest.approx(log(0.5))


def check_blocks(maths):
    assert maths.evidence_blocks((Span(4, 8),), 4, 9) == {1}
    assert maths.evidence_blocks((Span(3, 9),), 4, 2) == {0, 1}


def check_joint(maths):
    assert maths.joint([1.0, 1.0, 0.0, 1.0], 2) == 0.5


SCORING = (check_kl, check_acceptance, check_ties, check_shares, check_blocks, check_joint)
SCORING_BUGS = [
    ("np.exp(p[possible])", "np.exp(q[possible])"),
    ("(p[possible] - q[possible])", "(q[possible] - p[possible])"),
    ("/ len(p)", ""),
    ("float(same.argmin())", "float(same.sum())"),
    ("log_probs[right] > others", "log_probs[right] >= others"),
    ("log_probs[right] - top - log", "log_probs[right] - log"),
    ("(span.stop - 1) // block_size", "span.stop // block_size"),
    ("if block < num_blocks", ""),
    ("comb(len(values), size)", "len(values)"),
]


def check_references(maths):
    split = Split.pin(20, anchor=1, recent=2, mid_budget=2)
    evidence = (Span(24, 28), Span(8, 12), Span(48, 52))
    assert maths.oracle(split, evidence, 4, 0, "x") == (0, 2, 6, 18, 19)
    pinned = maths.oracle(split, (Span(0, 4), Span(8, 12)), 4, 0, "x")
    assert len(set(pinned)) == 5
    assert 2 in pinned
    drawn = [maths.random_blocks(split, seed, "x") for seed in range(3)]
    assert all(len(set(blocks)) == 5 and {0, 18, 19} <= set(blocks) for blocks in drawn)
    assert len(set(drawn)) > 1
    assert drawn[0] != maths.random_blocks(split, 0, "y")


REFERENCE_BUGS = [
    ("sorted(wanted)", "sorted(wanted, reverse=True)"),
    ("if block in set(split.mid)", ""),
    ("[: split.mid_budget]", ""),
    ("seed ^ crc32(prefix_hash.encode())", "seed"),
    ("seed ^ crc32(prefix_hash.encode())", "crc32(prefix_hash.encode())"),
    ("*split.anchor, *split.recent, *list", "*split.anchor, *list"),
]


class Characters:
    """One token per character."""

    def encode(self, text):
        return [ord(character) for character in text]

    def open_turn(self, system):
        return system


def check_a_haystack(maths):
    text = Characters().encode
    for seed in range(30):
        hay = maths.bury(Characters(), [[" One."], [" Two."]], 900, 40, Draws(seed))
        assert len(hay.token_ids) == 900
        (one,), (two,) = hay.spans
        assert list(hay.token_ids[one.start : one.stop]) == text(" One.")
        assert list(hay.token_ids[two.start : two.stop]) == text(" Two.")
        told = "".join(map(chr, hay.token_ids)).partition("Document:\n")[2]
        pieces = told.replace(" One.", "\0").replace(" Two.", "\0").split("\0")
        assert told[0] != " "
        assert pieces[0].count(".") >= 2
        assert pieces[-1].count(".") >= 1
        assert len(hay.held_out) == 40


HAYSTACK_BUGS = [
    ("num_tokens - len(first) - sum(lengths)", "num_tokens - len(first)"),
    ("range(MARGIN, sentences", "range(1, sentences"),
    ("sentences - MARGIN + 1", "sentences"),
    ("start = len(tokens)\n", "start = len(tokens) + 1\n"),
    ("next(texts).lstrip()", "next(texts)"),
    ("filler.append(sentence[:room])", "filler.append(sentence)"),
]


def check_codes(maths):
    for seed in range(20):
        codes = maths.draw_codes(Draws(seed), 8)
        assert len({code[0] for code in codes}) == 8
        assert {len(code) for code in codes} == {5}


def check_the_lie(maths):
    asked = Answer("i", (1,), (2,), text="What is X?")
    for text in ("what is  x?", "Say: What is X? It is"):
        with pytest.raises(Exception, match="flatters every scorer"):
            maths.check_probes([text], [asked])
    maths.check_probes(["What is X", "What is Y?"], [asked])


BUGS = [
    *((scoring, SCORING, *bug) for bug in SCORING_BUGS),
    *((references, (check_references,), *bug) for bug in REFERENCE_BUGS),
    *((assembling, (check_a_haystack,), *bug) for bug in HAYSTACK_BUGS),
    (needle, (check_codes,), "draws.some(DIGITS, count)", "[draws.one(DIGITS)] * count"),
    (contract, (check_the_lie,), ".casefold()", ""),
    (contract, (check_the_lie,), '" ".join(text.split())', "text"),
]


@pytest.mark.parametrize(("module", "checks"), sorted({(m, c) for m, c, *_ in BUGS}, key=str))
def test_the_right_formulas_pass(module, checks):
    assert not is_noticed(checks, module)


@pytest.mark.parametrize(("module", "checks", "right", "wrong"), BUGS)
def test_a_changed_formula_is_noticed(module, checks, right, wrong):
    assert is_noticed(checks, plant_bug(right, wrong, module))
