"""Clusters and key scores known without the code, and that a wrong formula is noticed.

Every check takes the maths under test, so that it also runs on the planted bugs at the end.
"""

import math
from types import SimpleNamespace

import pytest
import torch
from kri_plugin_kmeans import clustering, key_scores

from kri_core import Layout
from kri_core.testing import FakeModel, cartridge_of, is_noticed, plant_bug

MATHS = SimpleNamespace(**vars(clustering) | vars(key_scores))


def directions(*degrees):
    """Unit vectors in the plane."""
    return torch.tensor([[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in degrees])


def random_features(seed, num_blocks=14, dim=3):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(num_blocks, dim, generator=draw)


def naive(features, count):
    """Spherical k-means on explicit centres, by its definition in ALGORITHMS 6.1."""
    unit = [v / v.norm() for v in features.double()]
    mean = sum(unit)
    seeds = [max(range(len(unit)), key=lambda b: (float(unit[b] @ mean), -b))]
    while len(seeds) < count:
        rest = [b for b in range(len(unit)) if b not in seeds]
        seeds.append(min(rest, key=lambda b: (max(float(unit[b] @ unit[s]) for s in seeds), b)))
    centres, before = [unit[s] for s in seeds], None
    for _ in range(50):
        cosine = [[float(v @ c) for c in centres] for v in unit]
        now = [max(range(count), key=lambda c: (row[c], -c)) for row in cosine]
        for empty in set(range(count)) - set(now):
            shared = [b for b in range(len(unit)) if now.count(now[b]) > 1]
            now[min(shared, key=lambda b: cosine[b][now[b]])] = empty
        if now == before:
            break
        before = now
        sums = [sum(v for v, c in zip(unit, now, strict=True) if c == k) for k in range(count)]
        centres = [total / total.norm() for total in sums]
    ranked = []
    for k in range(count):
        members = [b for b in range(len(unit)) if now[b] == k]
        near = {b: float(unit[b] @ centres[k]) for b in members}
        best = max(members, key=lambda b: (round(near[b], 6), -b))
        ranked.append((-len(members), -round(sum(near.values()) / len(near), 6), best))
    return tuple(block for _, _, block in sorted(ranked))


def check_one_block_for_each_prototype_in_order_of_multiplicity(maths):
    """ALGORITHMS 6.3, test 1: copies 0, 2, 5, 7 of A, 1, 6, 8 of B, 3, 4 of C, 9 of D."""
    prototypes = torch.eye(4)[[0, 1, 0, 2, 2, 0, 1, 0, 1, 3]]
    assert maths.representatives(prototypes, [4]) == {4: (0, 1, 3, 9)}
    stretched = prototypes * torch.arange(1, 11)[:, None]
    assert maths.representatives(stretched, [4]) == {4: (0, 1, 3, 9)}


def check_the_nearest_member_stands_for_its_cluster(maths):
    """0°, 10° and 25° have their mean at 11.7°; 180° and 184° are as near to theirs: the first."""
    assert maths.representatives(directions(0, 25, 10, 180, 184), [2]) == {2: (2, 3)}


def check_of_equal_sizes_the_tighter_cluster_comes_first(maths):
    assert maths.representatives(directions(90, 110, 300, 302), [2]) == {2: (2, 0)}


def check_a_list_need_not_be_part_of_the_next(maths):
    """ALGORITHMS 6.3, test 5: 45° stands for all, but for neither half."""
    lists = maths.representatives(directions(0, 5, 45, 85, 90), [1, 2])
    assert lists == {1: (2,), 2: (3, 0)}


def check_seeds_start_in_the_middle_and_go_to_the_farthest(maths):
    """0°, 30°, 100°: their mean is at 42°."""
    unit = directions(0, 30, 100).double()
    assert maths.farthest_first(unit @ unit.T, 3) == [1, 2, 0]
    assert maths.farthest_first(torch.ones(3, 3), 3) == [0, 1, 2]
    line = directions(0, 10, 50, 90, 180).double()
    assert maths.farthest_first(line @ line.T, 4) == [2, 4, 0, 3]


def check_an_empty_cluster_takes_the_worst_explained_block_that_is_not_alone(maths):
    """Block 3 is explained worst but is its cluster's only one; of the others block 1 is."""
    to_centre = torch.tensor([[0.9, 0.5, 0.8, 0.1], [0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.0, 0.0]])
    assert maths._without_empty(to_centre).tolist() == [0, 2, 0, 1]


def check_it_is_spherical_k_means(maths):
    for seed in range(8):
        features = random_features(seed)
        lists = maths.representatives(features, [2, 3, 5, 8])
        assert lists == {count: naive(features, count) for count in lists}


def check_every_list_has_as_many_distinct_blocks_as_its_budget(maths):
    """ALGORITHMS 6.3, test 3; also of blocks that are all equal, or opposites that cancel."""
    equal, opposite = torch.ones(6, 3), torch.eye(3).repeat(2, 1) * torch.tensor([[1.0], [-1]] * 3)
    doubled = random_features(0, 5).repeat(2, 1)
    for features in (random_features(1), equal, opposite, doubled):
        budgets = range(1, len(features) + 1)
        for budget, blocks in maths.representatives(features, budgets).items():
            assert len(blocks) == len(set(blocks)) == budget
            assert set(blocks) <= set(range(len(features)))


def check_relabelled_blocks_give_relabelled_lists(maths):
    """ALGORITHMS 6.3, test 4; no cluster has two members, which are always as near."""
    for seed in range(4):
        features = (
            torch.eye(3)[[0, 0, 1, 2, 1, 0, 2, 1, 2, 0, 1, 2]] + random_features(seed, 12) / 8
        )
        order = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
        plain = maths.representatives(features, [1, 2, 3])
        for budget, blocks in maths.representatives(features[order], [1, 2, 3]).items():
            assert {int(order[block]) for block in blocks} == set(plain[budget])


def keys_of(keys, block_size):
    """A cartridge of these keys, [layer, kv_head, token, head_dim], and of values all one."""
    keys = torch.as_tensor(keys)
    layers, heads, tokens, dim = keys.shape
    layout = Layout(layers, heads, dim, block_size, tokens)
    return cartridge_of(layout, torch.stack([keys, torch.ones_like(keys)], 1), range(tokens))


def check_knorm_is_the_shortest_key_of_each_block(maths):
    """Norms 5, 1 and 2, 2; the tail's 0 is not looked at."""
    keys = [[3.0, 4], [1, 0], [0, 2], [2, 0], [0, 0]]
    assert maths.shortness(keys_of([[keys]], 2)).tolist() == [[[-1.0, -2.0]]]


def check_keydiff_is_lowest_for_duplicates_whatever_their_length(maths):
    """Unit keys e₁, e₁, e₂: their mean (2, 1)/3 has cosines 2/√5, 2/√5, 1/√5."""
    keys = [[7.0, 0], [0.1, 0], [0, 2]]
    scores = maths.unlikeness(keys_of([[keys]], 1))[0, 0].tolist()
    assert scores == pytest.approx([-2 / 5**0.5, -2 / 5**0.5, -1 / 5**0.5])


def check_key_scores_match_loops_over_tokens(maths):
    """Each layer and head by itself, the block's best token."""
    cartridge = FakeModel.random().cartridge(tuple(range(20, 46)))
    lengths, likeness = maths.shortness(cartridge), maths.unlikeness(cartridge)
    assert lengths.shape == likeness.shape == (3, 2, 6)
    for layer in range(3):
        for head in range(2):
            keys = cartridge.keys()[layer, head].double()
            unit = [key / key.norm() for key in keys]
            mean = sum(unit) / len(unit)
            cosine = [float(u @ mean / mean.norm()) for u in unit]
            for block in range(6):
                tokens = range(4 * block, 4 * block + 4)
                assert float(lengths[layer, head, block]) == pytest.approx(
                    max(-float(keys[t].norm()) for t in tokens), abs=1e-6
                )
                assert float(likeness[layer, head, block]) == pytest.approx(
                    max(-cosine[t] for t in tokens), abs=1e-6
                )


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_plugin_gives_the_known_answer(check):
    check(MATHS)


@pytest.mark.parametrize("seed", range(3))
def test_neither_threads_nor_dtype_nor_a_rerun_change_a_list(seed):
    """ALGORITHMS 6.3, test 2."""
    features = random_features(seed, 60, 33)
    lists = clustering.representatives(features, range(1, 61))
    threads = torch.get_num_threads()
    torch.set_num_threads(3 - min(threads, 2))
    again = clustering.representatives(features, range(1, 61))
    torch.set_num_threads(threads)

    assert again == lists == clustering.representatives(features.double(), range(1, 61))
    assert set(lists[60]) == set(range(60))


PLANTED = {
    "features not made unit": ("normalize(features.double(), dim=-1)", "features.double()"),
    "the first seed far from the mean": ("mean(0).float().argmax()", "mean(0).float().argmin()"),
    "the first seed is block 0": ("int(cosines.mean(0).float().argmax())", "0"),
    "nearest-first": ("nearest.float().argmin()", "(-nearest).float().argmin()"),
    "far from one seed is enough": ("nearest.maximum(", "nearest.minimum("),
    "a seed taken twice": ("nearest[seeds[-1]] = torch.inf", "pass"),
    "a single round": ("ITERATIONS = 50", "ITERATIONS = 1"),
    "centres not made unit": (" / squared.clamp(min=ZERO).sqrt()[:, None]", ""),
    "centres divided by size": ("squared.clamp(min=ZERO).sqrt()", "squared.clamp(min=ZERO)"),
    "blocks go to the farthest centre": ("to_centre.argmax(0)", "to_centre.argmin(0)"),
    "empty clusters stay": ("(sizes == 0)", "(sizes < 0)"),
    "a lone block may be taken": ("sizes[assigned] == 1", "sizes[assigned] == 0"),
    "the best-explained is taken": (
        "own.masked_fill(alone, torch.inf).argmin()",
        "own.masked_fill(alone, -torch.inf).argmax()",
    ),
    "the farthest member stands": ("members[near.argmax()]", "members[near.argmin()]"),
    "the first member stands": ("members[near.argmax()]", "members[0]"),
    "the smallest cluster first": ("(-len(members)", "(len(members)"),
    "the loosest first": ("-float(near.double()", "float(near.double()"),
    "keydiff's sign": ("return -(unit * mean)", "return (unit * mean)"),
    "keydiff by dot product": ("-(unit * mean)", "-(keys * mean)"),
    "keydiff's mean of plain keys": ("unit.mean((0, 2)", "keys.mean((0, 2)"),
    "keydiff's mean over heads too": ("unit.mean((0, 2)", "unit.mean((0, 1, 2)"),
    "keydiff's mean not made unit": (
        "normalize(unit.mean((0, 2), keepdim=True), dim=-1)",
        "unit.mean((0, 2), keepdim=True)",
    ),
    "knorm's sign": ("keys: -keys.norm(dim=-1)", "keys: keys.norm(dim=-1)"),
    "knorm squared": ("-keys.norm(dim=-1)", "-keys.square().sum(-1)"),
    "mean for max": (".amax(-1).T", ".mean(-1).T"),
    "values for keys": ("cartridge.kv[:, layer, 0]", "cartridge.kv[:, layer, 1]"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_bug_is_noticed(fault):
    assert is_noticed(CHECKS.values(), plant_bug(*PLANTED[fault], clustering, key_scores))
