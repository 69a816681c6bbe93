"""Whether two records chose alike: Jaccard by hand, and what says nothing."""

import pytest
from attrs import evolve

from kri_core.evaluation.reading import read_record
from kri_core.evaluation.similarity import chosen, mean_jaccard, record_jaccard


def of(made, folder, kept, **changes):
    return read_record(made.write(folder, evolve(made.stack, **changes), made.right, kept))


def pair(mine, theirs, among=100):
    return frozenset(mine), frozenset(theirs), among


def test_jaccard_is_shared_over_all():
    """Two of four; then the mean with one of one."""
    assert mean_jaccard([pair({1, 2, 3}, {2, 3, 4})]) == 0.5
    assert mean_jaccard([pair({1, 2, 3}, {2, 3, 4}), pair({9}, {9})]) == 0.75
    assert mean_jaccard([pair({1}, {2})]) == 0


def test_pins_are_not_chosen():
    assert chosen((0, 7, 18, 19), 20, 1, 2) == (frozenset({7}), 17)
    assert chosen((0, 1), 2, 1, 2) == (frozenset(), 0)


def test_pins_alone_make_no_two_stacks_alike(made, tmp_path):
    """Three of four blocks are shared, all of them pinned."""
    one = of(made, tmp_path / "a", (0, 7, 18, 19))
    other = of(made, tmp_path / "b", (0, 9, 18, 19), stack="A1R2K1(kri-a)")

    assert record_jaccard(one, other) == 0


def test_a_choice_of_nothing_or_of_everything_says_nothing():
    assert mean_jaccard([pair((), ())]) is None
    assert mean_jaccard([pair(range(20), range(20), 20)]) is None
    assert mean_jaccard([pair(range(99), range(99), 100)]) is None  # by luck 98 of 100
    assert mean_jaccard([pair(range(10), range(10), 20)]) == 1


@pytest.mark.parametrize(
    "changes",
    [{"items_digest": "9" * 64}, {"anchor": 0}, {"budget": 5}, {"stack": "A1R2K1(kri-d)"}],
)
def test_only_other_records_of_the_same_items_and_pins_are_compared(made, tmp_path, changes):
    """The last is the record itself; a control says that else it is compared."""
    one = of(made, tmp_path / "a", (0, 7, 18, 19))
    other = of(made, tmp_path / "b", (0, 7, 18, 19), **changes)
    control = of(made, tmp_path / "c", (0, 7, 18, 19), stack="A1R2K1(kri-a)")

    assert record_jaccard(other, one) is None
    assert record_jaccard(control, one) == 1
