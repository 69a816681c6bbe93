"""Records: valid from birth, whole after a kill, resumed by their own header; edits are found."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from attrs import asdict, evolve, fields

from kri_core.errors import ArtifactError
from kri_core.evaluation.chain import first_line, linked_line, start_link
from kri_core.evaluation.reading import read_record
from kri_core.evaluation.recording import recording
from kri_core.evaluation.records import Header, Result, check_complete
from kri_core.types import Manifest, Split

TODAY = "2026-11-30"


@pytest.fixture
def record(tmp_path, made):
    return made.write(tmp_path, made.stack, made.right)


def lines_of(path):
    return path.read_text().splitlines(keepends=True)


def test_a_record_is_a_header_and_a_line_per_item(record, made):
    held = read_record(record)

    assert record.name == f"{TODAY}-needle8-{made.stack.digest[:12]}.jsonl"
    assert (held.header, held.date, held.name) == (made.stack, TODAY, record.name)
    assert held.results == tuple(made.result(n, made.right(n, 0)) for n in range(20))
    assert len(lines_of(record)) == 21
    assert check_complete(held) is held


def test_a_header_holds_every_part_that_decides_the_items(made):
    """EVAL 4; wall time is with each item, as a header is written before there is any."""
    assert {field.name for field in fields(Header)} >= {
        "stack", "plugins", "priors", "cartridges", "fingerprint", "dtype", "substrate",
        "task_params", "seeds", "probe_set", "code", "machine", "items_digest",
    }  # fmt: skip
    assert {field.name for field in fields(Result)} >= {
        "id", "group", "scores", "kept", "kept_fraction", "refreshed_tokens", "seconds",
    }  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in fields(Header)])
def test_every_part_of_a_header_is_in_its_digest(made, name):
    other = evolve(made.stack, **{name: _another(getattr(made.stack, name))})

    assert other.digest != made.stack.digest
    assert made.stack.difference(other) == name
    assert made.stack.difference(made.stack) is None


def _another(value):
    if isinstance(value, dict):
        return {**value, "more": 0.5 if "mc" in value else "x"}
    if isinstance(value, tuple):
        return (*value, 9 if value == (0,) else "other 1.0")
    if value in (None, "stack"):
        return "reference"
    return value + 1 if isinstance(value, int) else f"{value}x"


def test_resuming_does_only_what_is_missing(tmp_path, made):
    with recording(tmp_path, made.stack, TODAY) as recorder:
        for number in range(7):
            recorder.append(made.result(number, True))
    with recording(tmp_path, made.stack, "2027-01-01") as recorder:  # the next year
        assert recorder.done == {(f"d{n // 4}/q{n % 4}", 0) for n in range(7)}
        for number in range(7, 20):
            recorder.append(made.result(number, True))

    assert [path.name[:10] for path in tmp_path.iterdir()] == [TODAY]
    check_complete(read_record(recorder.path))


def test_a_line_is_written_through_at_once(tmp_path, made):
    """What a kill right after an item would leave."""
    with recording(tmp_path, made.stack, TODAY) as recorder:
        for number in range(3):
            recorder.append(made.result(number, True))
            assert len(read_record(recorder.path).results) == number + 1


def test_another_seed_reuses_nothing(tmp_path, made):
    """CASES 40: killed at item 37 of 200, then resumed with another seed."""
    of_200 = evolve(made.stack, num_items=200)
    with recording(tmp_path, of_200, TODAY) as recorder:
        for number in range(37):
            recorder.append(made.result(number, True))
    with recording(tmp_path, evolve(of_200, seeds=(1,)), TODAY) as other:
        assert other.done == set()
    with recording(tmp_path, of_200, TODAY) as same:  # the control
        assert len(same.done) == 37
    assert other.path != same.path


def test_a_file_renamed_to_another_headers_name_is_not_reused(record, tmp_path, made):
    other = evolve(made.stack, seeds=(1,))
    record.rename(tmp_path / f"{TODAY}-needle8-{other.digest[:12]}.jsonl")

    with (
        pytest.raises(ArtifactError, match=r"is of another run \(seeds differs\), so nothing of"),
        recording(tmp_path, other, TODAY),
    ):
        pass


def test_two_files_of_one_configuration_are_refused(record, tmp_path, made):
    (tmp_path / f"2026-12-01{record.name[10:]}").write_bytes(record.read_bytes())

    with (
        pytest.raises(ArtifactError, match="are of one configuration; delete one"),
        recording(tmp_path, made.stack, TODAY),
    ):
        pass


def test_two_processes_do_not_write_one_record(tmp_path, made):
    with (
        recording(tmp_path, made.stack, TODAY),
        pytest.raises(ArtifactError, match="is being written by another process; wait for it"),
        recording(tmp_path, made.stack, TODAY),
    ):
        pass


def test_an_item_is_recorded_once_and_under_the_headers_seeds(tmp_path, made):
    with recording(tmp_path, made.stack, TODAY) as recorder:
        recorder.append(made.result(0, True))
        for again in (made.result(0, False), made.result(1, True, seed=1)):
            with pytest.raises(ArtifactError, match="is recorded already or not of the header's"):
                recorder.append(again)


def test_at_every_byte_a_kill_leaves_whole_lines(record, tmp_path, made):
    """CASES 40: the half line is dropped on reading, cut off on resuming, and done again."""
    data = record.read_bytes()
    header_end = data.index(b"\n") + 1
    for size in (*range(0, len(data), 211), header_end, header_end + 1, len(data) - 1):
        record.write_bytes(data[:size])
        whole = data[:size].count(b"\n")
        with recording(tmp_path, made.stack, TODAY) as recorder:
            assert len(recorder.done) == max(0, whole - 1)
            for number in range(max(0, whole - 1), 20):
                recorder.append(made.result(number, made.right(number, 0)))
        assert record.read_bytes() == data


def test_half_a_last_line_is_dropped_on_reading(record):
    record.write_bytes(record.read_bytes()[:-1])

    assert len(read_record(record).results) == 19
    with pytest.raises(ArtifactError, match="has 19 items, its header says 20 under 1 seeds; run"):
        check_complete(read_record(record))


def test_half_a_header_is_no_record(record):
    record.write_bytes(record.read_bytes()[:40])

    with pytest.raises(ArtifactError, match="has no whole line; delete it and run again"):
        read_record(record)


WRITER = """
import sys, time
from pathlib import Path
from attrs import evolve
sys.path.insert(0, sys.argv[1])
from conftest import HEADER, make_result
from kri_core.evaluation.recording import recording
with recording(Path(sys.argv[2]), evolve(HEADER, num_items=10**6), "2026-11-30") as recorder:
    for number in range(10**6):
        recorder.append(make_result(number, True))
"""


def test_a_killed_process_leaves_every_line_it_wrote(tmp_path, made):
    """SIGKILL, in the middle of writing."""
    here = os.path.dirname(__file__)  # noqa: PTH120
    process = subprocess.Popen([sys.executable, "-c", WRITER, here, tmp_path])
    while not (files := list(tmp_path.iterdir())) or files[0].stat().st_size < 20_000:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()

    held = read_record(files[0])
    assert [one.id for one in held.results] == [
        made.result(n, True).id for n in range(len(held.results))
    ]
    assert len(held.results) > 50


def edit(record, number, change):
    lines = lines_of(record)
    held = json.loads(lines[number])
    change(held)
    lines[number] = json.dumps(held, sort_keys=True, separators=(",", ":")) + "\n"
    record.write_text("".join(lines))


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held["scores"].update(mc=1.0),
        lambda held: held.update(group="d4"),
        lambda held: held.update(kept=[0, 5, 18, 19]),
        lambda held: held.update(seconds=0.1),
        lambda held: held.update(link="0" * 16),
        lambda held: held.update(more=1),
    ],
)
def test_an_edited_line_is_found(record, change):
    """A planted lie: item d1/q0 was wrong."""
    edit(record, 5, change)

    with pytest.raises(ArtifactError, match="line 6 is not what was recorded after line 5: it was"):
        read_record(record)


def test_a_line_written_again_as_it_was_is_not_found(record):
    """A control: what `edit` does besides changing does not matter."""
    edit(record, 5, lambda held: None)

    assert len(read_record(record).results) == 20


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda lines: lines.pop(5), 6),
        (lambda lines: lines.insert(5, lines.pop(6)), 6),
        (lambda lines: lines.insert(5, lines[4]), 6),
    ],
    ids=["lost", "moved", "repeated"],
)
def test_a_line_that_is_lost_moved_or_put_in_is_found(record, change, line):
    lines = lines_of(record)
    change(lines)
    record.write_text("".join(lines))

    with pytest.raises(ArtifactError, match=f"line {line} is not what was recorded after line"):
        read_record(record)


def test_lines_lost_from_the_end_are_found_by_their_number(record):
    record.write_text("".join(lines_of(record)[:-3]))

    with pytest.raises(ArtifactError, match="has 17 items, its header says 20"):
        check_complete(read_record(record))


def test_an_edited_header_is_found(record):
    edit(record, 0, lambda held: held["header"].update(stack="A1R2K1(mine)"))

    with pytest.raises(ArtifactError, match="line 1: the header is not the one its digest was"):
        read_record(record)


def test_a_header_with_a_digest_of_its_own_does_not_take_anothers_lines(record, made):
    """Edited, and its digest computed anew: the first item's link is over the old header."""
    lines = lines_of(record)
    lines[0] = first_line(evolve(made.stack, stack="A1R2K1(mine)"), TODAY) + "\n"
    record.write_text("".join(lines))

    with pytest.raises(ArtifactError, match="line 2 is not what was recorded after line 1"):
        read_record(record)


def test_a_forger_who_links_every_line_anew_is_seen_only_by_the_seal(record, made):
    """What the links do not protect from: the board's copy of the seal is what is left."""
    honest = read_record(record)
    lines = [first_line(made.stack, TODAY)]
    link = start_link(lines[0])
    for one in honest.results:
        line, link = linked_line(evolve(one, scores={"mc": 1.0, "em": 1.0}), link)
        lines.append(line)
    record.write_text("\n".join(lines) + "\n")

    assert read_record(record).sample("mc").mean == 1.0
    assert read_record(record).seal != honest.seal


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1}\n', "is no record of an evaluation; give a file that eval run has written"),
        ("[1]\n", "line 1 is not a JSON object; restore the file"),
        ("hello\n", "line 1 is not JSON; restore the file"),
        ('{"kri_core_results": 2}\n', "is of format 2, this kri-core reads 1; upgrade kri-core"),
        ('{"kri_core_results": 1, "header": {}}\n', "header lacks task, task_params"),
        ("", "has zero bytes"),
    ],
)
def test_a_file_that_is_no_record_is_refused_by_name(tmp_path, text, said):
    (tmp_path / "x.jsonl").write_text(text)

    with pytest.raises(ArtifactError, match=f"x.jsonl: .*{said}"):
        read_record(tmp_path / "x.jsonl")


def forged(path, header, *results):
    """A record whose links are right, whatever its results are."""
    lines = [first_line(header, TODAY)]
    link = start_link(lines[0])
    for one in results:
        line, link = linked_line(one, link)
        lines.append(line)
    path.write_text("\n".join(lines) + "\n")


def test_an_item_twice_or_under_a_seed_that_is_not_the_headers_is_refused(tmp_path, made):
    twice = (made.result(0, True), made.result(0, True))
    for results in (twice, (made.result(0, True, seed=5),)):
        forged(tmp_path / "x.jsonl", made.stack, *results)
        with pytest.raises(ArtifactError, match="is there twice or is not of this header"):
            read_record(tmp_path / "x.jsonl")


def test_an_item_of_two_documents_is_refused(tmp_path, made):
    header = evolve(made.stack, seeds=(0, 1))
    moved = evolve(made.result(0, True, seed=1), group="d1")
    forged(tmp_path / "x.jsonl", header, made.result(0, True), moved)

    with pytest.raises(ArtifactError, match="item 'd0/q0' is of 'd0' and of 'd1'; give each item"):
        read_record(tmp_path / "x.jsonl")


def test_seeds_are_averaged_into_their_item_and_never_pooled(tmp_path, made):
    """20 seeds of 20 items are 20 items."""
    header = evolve(made.random, seeds=tuple(range(20)))
    path = made.write(tmp_path, header, lambda number, seed: number == 0 and seed < 5)
    held = read_record(path)

    assert len(held.results) == 400
    assert len(held.sample("mc").values) == 20
    assert held.sample("mc").values[0] == 0.25


def test_a_score_that_is_not_there_is_named_with_those_that_are(record):
    with pytest.raises(ArtifactError, match="item 'd0/q0' has no score 'nll'; it has em, mc"):
        read_record(record).sample("nll")


@pytest.mark.parametrize(
    ("num_blocks", "anchor", "recent", "mid_budget"),
    [(20, 1, 2, 13), (20, 0, 0, 4), (20, 12, 12, 4), (3, 1, 2, 13), (2, 5, 5, 5), (0, 1, 2, 13)],
)
def test_the_kept_fraction_is_that_of_the_blocks_recorded(
    made, num_blocks, anchor, recent, mid_budget
):
    """CASES 44: with overlapping pins, and with fewer blocks than the budget."""
    split = Split.pin(num_blocks, anchor=anchor, recent=recent, mid_budget=mid_budget)
    kept = tuple(sorted((*split.anchor, *split.mid[: split.mid_budget], *split.recent)))
    manifest = Manifest(kept, num_blocks, split, "A1R2K13(x)", "c", "p")
    fraction = manifest.kept_fraction

    one = evolve(made.result(0, True), kept=kept, total_blocks=num_blocks, kept_fraction=fraction)
    assert one.kept_fraction == (len(kept) / num_blocks if num_blocks else 1.0)
    asked = min(anchor + recent + mid_budget, 99) / max(num_blocks, 1)
    if asked != fraction:  # what a report of the budget would have said
        with pytest.raises(ArtifactError, match="blocks are recorded; run it again"):
            evolve(one, kept_fraction=asked)


@pytest.mark.parametrize("kept", [(3, 1), (1, 1), (20,), (-1,)])
def test_kept_blocks_are_ascending_and_of_the_document(made, kept):
    with pytest.raises(ArtifactError, match="kept must be ascending blocks below 20; got"):
        evolve(made.result(0, True), kept=kept)


@pytest.mark.parametrize("scores", [{"mc": float("nan")}, {"mc": float("inf")}, {}])
def test_scores_are_finite_and_at_least_one(made, scores):
    with pytest.raises(ArtifactError, match="item 'd0/q0': scores must be finite and at least one"):
        evolve(made.result(0, True), scores=scores)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"role": "best"}, "header.role must be one of stack, full, floor, random, reference"),
        ({"seeds": ()}, r"header.seeds must be one or more, each once; got \[\]"),
        ({"seeds": (1, 1)}, r"header.seeds must be one or more, each once; got \[1, 1\]"),
        ({"task": "../x"}, "header.task must be small letters, digits and '-'"),
    ],
)
def test_a_header_is_valid_from_birth(made, change, said):
    with pytest.raises(ArtifactError, match=said):
        evolve(made.stack, **change)


def test_a_line_is_plain_json_that_any_tool_reads(record):
    line = json.loads(lines_of(record)[1])

    assert line.pop("link")
    assert line == json.loads(json.dumps(asdict(read_record(record).results[0])))
