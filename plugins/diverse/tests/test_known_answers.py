"""What each selector must choose, by hand or by brute force, and that a wrong formula is noticed.

Every check takes the maths under test, so that it also runs on the planted bugs at the end.
"""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from kri_plugin_diverse import candidates, greedy

from kri_core import BlockScores, Ranking, Split
from kri_core.testing import is_noticed, plant_bug

MATHS = SimpleNamespace(**vars(greedy) | vars(candidates))


def given(maths, scores, features, count, *, anchor=0, recent=0, ranking=None):
    """Candidates of one layer and head; blocks at the ends may be pinned."""
    split = Split.pin(len(scores), anchor=anchor, recent=recent, mid_budget=count)
    values = BlockScores(torch.as_tensor(scores, dtype=torch.float32).reshape(1, 1, -1))
    return maths.Candidates.of("it", values, split, features, ranking or Ranking())


def random_case(maths, seed, count=4, num_blocks=11):
    """Nine candidates in four dimensions, so that many are alike, between two pins."""
    draw = torch.Generator().manual_seed(seed)
    features = torch.nn.functional.normalize(torch.randn(num_blocks, 4, generator=draw))
    scores = torch.rand(num_blocks, generator=draw)
    return given(maths, scores, features, count, anchor=1, recent=1)


def facility_value(case, kept):
    cosine = case.features @ case.features.T
    best = [max([0.0, *(float(cosine[j, c]) for c in kept)]) for j in range(len(cosine))]
    return sum(float(r) * value for r, value in zip(case.relevance, best, strict=True))


def logdet_value(case, kept, beta=10.0):
    kept = list(kept)
    root = case.relevance[kept].sqrt()
    kernel = root[:, None] * (case.features[kept] @ case.features[kept].T) * root
    return float(torch.logdet(torch.eye(len(kept)).double() + beta * kernel)) if kept else 0.0


def naive_greedy(case, value):
    """Blocks and the gain of each, by evaluating the function of every set."""
    chosen, gains = [], []
    while len(chosen) < case.wanted:
        now = value(case, [*case.pinned, *chosen])
        rest = [b for b in case.mid if b not in chosen]
        gained = {b: value(case, [*case.pinned, *chosen, b]) - now for b in rest}
        chosen.append(max(rest, key=lambda b: (round(gained[b], 6), -b)))
        gains.append(gained[chosen[-1]])
    return chosen, gains


def is_greedy_and_near_the_optimum(choice, case, value):
    chosen, gains = naive_greedy(case, value)
    assert list(choice) == chosen
    assert all(late <= early + 1e-5 for early, late in itertools.pairwise(gains))
    base = value(case, case.pinned)
    sets = itertools.combinations(case.mid, case.wanted)
    optimum = max(value(case, [*case.pinned, *kept]) for kept in sets) - base
    assert sum(gains) >= (1 - 1 / math.e) * optimum


def check_facility_is_the_greedy_set_of_its_function(maths):
    """ALGORITHMS 11.B, tests 3 and 4: against every set of 4 of 9."""
    for seed in range(6):
        case = random_case(maths, seed)
        is_greedy_and_near_the_optimum(maths.most_covering(case), case, facility_value)


def check_logdet_is_the_greedy_set_of_its_function(maths):
    for seed in range(6):
        case = random_case(maths, seed)
        is_greedy_and_near_the_optimum(maths.most_voluminous(case, 10.0), case, logdet_value)


def check_mmr_is_its_formula(maths):
    for seed in range(6):
        case = random_case(maths, seed, count=6)
        cosine = case.features @ case.features.T
        chosen = []
        while len(chosen) < 6:
            kept = [*case.pinned, *chosen]
            rest = [b for b in case.mid if b not in chosen]
            worth = {
                b: 0.7 * float(case.relevance[b])
                - 0.3 * max(0.0, *(float(cosine[b, c]) for c in kept))
                for b in rest
            }
            chosen.append(max(rest, key=lambda b: worth[b]))
        assert list(maths.most_marginally_relevant(case, 0.7)) == chosen


def check_residual_projects_the_question_off_what_is_kept(maths):
    """Relevances 0 … 1 that are ⟨q, x_b⟩ for a known q: project q itself instead."""
    for seed in range(6):
        draw = torch.Generator().manual_seed(seed)
        features = torch.randn(8, 16, generator=draw, dtype=torch.float64)
        features = torch.nn.functional.normalize(features + features.mean(0) * 4)
        relevance = torch.rand(8, generator=draw, dtype=torch.float64).float()
        relevance[3], relevance[5] = 0.0, 1.0
        case = given(maths, relevance, features, 4, anchor=1)
        question = torch.linalg.pinv(features) @ relevance.double()
        question = question - 0.8 * (question @ features[0]) * features[0]  # the pin
        chosen = []
        while len(chosen) < 4:
            rest = [b for b in case.mid if b not in chosen]
            chosen.append(max(rest, key=lambda b: float(question @ features[b])))
            centre = features[chosen[-1]]
            question = question - 0.8 * (question @ centre) * centre
        assert list(maths.most_residual(case, 0.8)) == chosen


def all_of(maths):
    """Each selector, redundancy counted in full."""
    return (
        lambda case: maths.most_marginally_relevant(case, 0.5),
        maths.most_covering,
        lambda case: maths.most_voluminous(case, 10.0),
        lambda case: maths.most_residual(case, 1.0),
    )


def check_both_twins_are_never_kept_before_the_unique_block(maths):
    """ALGORITHMS 11.B, test 2: attention mass .45, .45, .10 and a block of none."""
    twins = torch.eye(3)[[0, 0, 1, 2]]
    fours = torch.eye(4)[[0, 0, 1, 0, 0, 2, 3]]
    for select in all_of(maths):
        assert select(given(maths, [0.45, 0.45, 0.10, 0.0], twins, 2)) == (0, 2)
        masses = [0.225, 0.225, 0.05, 0.225, 0.225, 0.05, 0.0]
        assert select(given(maths, masses, fours, 3)) == (0, 2, 5)
    case = given(maths, [0.45, 0.45, 0.10, 0.0], twins, 2)
    assert maths.most_marginally_relevant(case, 1.0) == (0, 1)


def check_a_pin_counts_as_kept(maths):
    """Block 1 is the pinned block 0 over again."""
    features = torch.eye(3)[[0, 0, 1, 2]]
    for select in all_of(maths):
        assert select(given(maths, [1.0, 1.0, 0.5, 0.0], features, 1, anchor=1)) == (2,)


def check_a_pin_outside_of_the_range_is_cut_off(maths):
    """The pin scores 100 where mid has 0 … 1: relevance 1, so half of its twin is left."""
    features = torch.eye(3)[[0, 0, 1, 2]]
    case = given(maths, [100.0, 1.0, 0.4, 0.0], features, 3, anchor=1)

    assert case.relevance.tolist() == pytest.approx([1, 1, 0.4, 0])
    assert maths.most_residual(case, 0.5) == (1, 2, 3)


def check_full_relevance_is_top_k(maths):
    """ALGORITHMS 11.B, test 5: weight 1 and alpha 0; beta towards 0 as well."""
    for seed in range(5):
        case = random_case(maths, seed)
        wanted = tuple(sorted(case.mid, key=lambda b: (-float(case.relevance[b]), b))[:4])
        assert maths.most_marginally_relevant(case, 1.0) == wanted
        assert maths.most_residual(case, 0.0) == wanted
        assert maths.most_voluminous(case, 1e-3) == wanted


def check_relevance_is_scaled_over_mid(maths):
    """Mid 2, 4, 3 is 0, 1, ½; constant scores are all 1; the ranking's parameters count."""
    features = torch.eye(5)
    plain = given(maths, [9.0, 2.0, 4.0, 3.0, 9.0], features, 1, anchor=1, recent=1)
    flat = given(maths, [9.0, 2.0, 2.0, 2.0, 9.0], features, 1, anchor=1, recent=1)
    ranked = given(maths, [0.0, 1.0, 3.0, 100.0, 0], features, 1, ranking=Ranking(norm="rank"))

    assert plain.relevance[1:4].tolist() == [0.0, 1.0, 0.5]
    assert flat.relevance.tolist() == [1.0] * 5
    assert ranked.relevance.tolist() == pytest.approx([0, 3 / 7, 5 / 7, 1, 0])


def check_equal_blocks_go_in_order(maths):
    """513 blocks of an odd width: sums over them must not differ by place in a register."""
    row = torch.nn.functional.normalize(torch.randn(37, generator=torch.Generator()), dim=0)
    case = given(maths, torch.full((513,), 0.3), row.expand(513, -1), 5, anchor=2)
    for select in all_of(maths):
        assert select(case) == (2, 3, 4, 5, 6)


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_plugin_gives_the_known_answer(check):
    check(MATHS)


PLANTED = {
    "mmr adds similarity": ("- (1 - weight) * nearest", "+ (1 - weight) * nearest"),
    "mmr's weights swapped": (
        "weight * candidates.relevance - (1 - weight)",
        "(1 - weight) * candidates.relevance - weight",
    ),
    "mmr forgets the pins": ("nearest = nearest.maximum(candidates.cosines(block))", "pass"),
    "mmr sees only the last": (
        "nearest.maximum(candidates.cosines(chosen[-1]))",
        "candidates.cosines(chosen[-1])",
    ),
    "mmr's cosine not cut off": (
        "nearest = torch.zeros_like(candidates.relevance)",
        "nearest = torch.full_like(candidates.relevance, -1)",
    ),
    "facility without relevance": (".clamp(min=0) * relevance)", ".clamp(min=0))"),
    "facility's gains not cut off": (
        "((similarity - covered).clamp(min=0)",
        "((similarity - covered)",
    ),
    "facility trusts old gains": ("if heap and heap[0] < (-gain, block)", "if False"),
    "facility takes the least gain": ("heap = [(-_gain(", "heap = [(_gain("),
    "facility forgets the pins": (
        "        covered = covered.maximum(similarity[block])\n    relevance",
        "        pass\n    relevance",
    ),
    "facility sees only the last": (
        "            covered = covered.maximum(similarity[block])",
        "            covered = similarity[block]",
    ),
    "logdet without the root": (
        "(beta * candidates.relevance).sqrt()",
        "beta * candidates.relevance",
    ),
    "logdet takes off norms": ("row.square()", "row.abs()"),
    "logdet without the factor": ("(row - factor[:, block] @ factor)", "row"),
    "logdet divides by the pivot": ("/ spare[block].sqrt()", "/ spare[block]"),
    "logdet forgets the pins": ("step >= len(candidates.pinned)", "True"),
    "residual adds": (
        "(left, chosen)\n        left = left - alpha",
        "(left, chosen)\n        left = left + alpha",
    ),
    "residual in full": (
        "(left, chosen)\n        left = left - alpha *",
        "(left, chosen)\n        left = left -",
    ),
    "residual forgets what was taken off": (
        "(left, chosen)\n        left = left - alpha * left[block]",
        "(left, chosen)\n        left = left - alpha * candidates.relevance[block]",
    ),
    "residual forgets the pins": (
        "in candidates.pinned:\n        left =",
        "in ():\n        left =",
    ),
    "relevance not scaled": ("((pooled - low) / (high - low))", "pooled"),
    "relevance scaled over all": ("pooled[list(split.mid)].aminmax()", "pooled.aminmax()"),
    "pins not cut off": (".clamp(0, 1)", ""),
    "constant scores are worth nothing": ("torch.ones_like", "torch.zeros_like"),
    "ties to the later block": ("(listed[b], -b)", "(listed[b], b)"),
    "the ranking ignored": ("ranking.pooled(scores, split)", "scores.pooled()"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_bug_is_noticed(fault):
    assert is_noticed(CHECKS.values(), plant_bug(*PLANTED[fault], greedy, candidates))
