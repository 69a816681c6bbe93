"""Records made by hand: documents of 4 items, a board's worth of rows in a folder.

There are 5 documents, too few for a verdict; `num_items` 40 makes them 10, each twice.
"""

import pytest
from attrs import evolve, frozen

from kri_core.evaluation.recording import recording
from kri_core.evaluation.records import Header, Result

HEADER = Header(
    task="needle8",
    task_params={"tokens": "320"},
    items_digest="0" * 64,
    num_items=20,
    ranked_by="mc",
    chance={"mc": 0.125},
    role="stack",
    stack="A1R2K1(kri-d)",
    anchor=1,
    recent=2,
    budget=4,
    seeds=(0,),
    plugins=("kri-plugin-d 0.1.0",),
    probe_set="generic",
    cartridges="1" * 64,
    priors="2" * 64,
    model="tiny",
    fingerprint="3" * 64,
    dtype="float32",
    substrate="hf",
    code="0.1.0",
    machine="x86_64, one thread",
)
RANDOM = evolve(
    HEADER,
    role="random",
    stack="A1R2K1(random)",
    seeds=tuple(range(20)),
    probe_set=None,
    priors=None,
)
FULL = evolve(
    HEADER, role="full", stack="full", anchor=0, recent=0, budget=None, probe_set=None, priors=None
)
FLOOR = evolve(FULL, role="floor", stack="floor")


RIGHT = {0, 1, 2, 3, 5, 6, 8, 9, 10, 12, 13, 14, 15, 17, 18}  # 4, 2, 3, 4 and 2 of each document's


def make_result(number, right, seed=0, kept=(0, 7, 18, 19), total=20):
    """Item `number`, four to a document."""
    return Result(
        id=f"d{number // 4}/q{number % 4}",
        group=f"d{number // 4}",
        seed=seed,
        scores={"mc": right, "em": right * 0.5},
        kept=kept,
        total_blocks=total,
        kept_fraction=len(kept) / total,
        refreshed_tokens=0,
        seconds=0.25,
    )


def write_record(folder, header, right, kept=(0, 7, 18, 19)):
    """A whole record; `right` says for item and seed whether it is."""
    with recording(folder, header, "2026-11-30") as recorder:
        for seed in header.seeds:
            for number in range(header.num_items):
                recorder.append(make_result(number, right(number, seed), seed, kept))
    return recorder.path


@frozen
class Made:
    """Headers, and what makes results and records of them."""

    stack: Header
    random: Header
    full: Header
    floor: Header
    right = staticmethod(lambda number, _seed: number % 20 in RIGHT)
    result = staticmethod(make_result)
    write = staticmethod(write_record)


@pytest.fixture
def num_items():
    return 20


@pytest.fixture
def made(num_items):
    return Made(*(evolve(one, num_items=num_items) for one in (HEADER, RANDOM, FULL, FLOOR)))


def by_luck(number, seed):
    """Under half of the seeds 4 of 20, under the others 5; each of five items in 9 of 10."""
    return number % 4 == 1 and number % 20 != 4 * (seed % 10) + 1


@pytest.fixture
def results(tmp_path, made):
    """A stack right on 15 of 20, random on 4 or 5, full attention on 17, no document on 2."""
    folder = tmp_path / "results"
    write_record(folder, made.stack, made.right)
    write_record(folder, made.random, by_luck)
    write_record(folder, made.full, lambda n, _: n % 20 not in (3, 8, 15), kept=tuple(range(20)))
    write_record(folder, made.floor, lambda n, _: n % 20 in (2, 9), kept=())
    return folder
