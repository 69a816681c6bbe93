"""`eval run`: its rows, what a killed run leaves, and that --jobs changes no number."""

import re

import pytest

from kri_core.evaluation.reading import read_record

ROWS = {
    ("full", None),
    ("floor", None),
    ("A1R2K5(kri-d-kv-sum)", "generic"),
    ("A1R2K5(kri-d-kv-sum)", "domain"),
    ("recency[budget=8]", None),
    ("hybrid", None),
    ("A1R2K5(random)", None),
    ("A1R2K5(oracle)", None),
    ("A1R2K5(oracle-doc)", None),
    ("A0R0K8(random)", None),
    ("A0R0K8(oracle)", None),
    ("A0R0K8(oracle-doc)", None),
    ("quantised[bits=8,bytes=0.656]", None),
    ("quantised[bits=4,bytes=0.406]", None),
    ("quantised[bits=2,bytes=0.281]", None),
}


def test_every_reference_row_stands_beside_a_stack(whole_run, records):
    found = records()

    assert set(found) == ROWS
    assert {lines.header["role"] for row, lines in found.items() if "oracle" in row[0]} == {
        "reference"
    }
    assert {row: len(lines.items) for row, lines in found.items()} == {
        row: 4 * (3 if "random" in row[0] else 1) for row in ROWS
    }


def test_a_header_says_what_the_run_was(whole_run, records):
    header = records()["A1R2K5(kri-d-kv-sum)", "domain"].header

    assert (header["anchor"], header["recent"], header["budget"]) == (1, 2, 8)
    core, plugin = header["plugins"]
    assert core == "kri-core 0.1.0"
    assert re.fullmatch(r"kri-plugin-d 0\.1\.0 [0-9a-f]{8}", plugin)
    assert header["task_params"] == {"docs": "2", "needles": "2", "seed": "0", "tokens": "640"}
    assert (header["model"], header["dtype"], header["substrate"]) == ("model", "float32", "hf")
    assert header["priors"] != records()["A1R2K5(kri-d-kv-sum)", "generic"].header["priors"]
    assert header["chance"] == {"mc": 0.5}


def test_a_scorer_that_reads_no_probe_text_is_one_row(evaluate, records):
    done = evaluate("--seeds", 1, stacks=("A0R0K8(knorm)", "A0R0K8(~uniform)"))

    assert done.code == 0, done.err
    own = {row for row in records() if "(knorm" in row[0] or "uniform" in row[0]}
    assert own == {("A0R0K8(knorm)", None), ("A0R0K8(~uniform)", None)}


def test_a_selector_that_runs_the_model_on_probe_texts_is_a_row_for_each_set(evaluate, records):
    done = evaluate("--seeds", 1, "--docs", 1, stacks=("A1R2K2(~kri-d-greedy)",))

    assert done.code == 0, done.err
    own = {row[1] for row in records() if "greedy" in row[0]}
    assert own == {"generic", "domain"}


@pytest.mark.parametrize("lines", [1, 2, 9, 30])
def test_a_run_killed_at_any_item_is_gone_on_with(evaluate, whole_run, records, monkeypatch, lines):
    """Killed after so many lines; then the same command gives the same lines."""
    from kri_core.evaluation.recording import Recorder

    append, left = Recorder.append, [lines]

    def dying(recorder, result):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        append(recorder, result)

    with monkeypatch.context() as patched:
        patched.setattr(Recorder, "append", dying)
        evaluate("--seeds", 3, out="killed")
    assert sum(len(lines.items) for lines in records("killed").values()) == lines

    done = evaluate("--seeds", 3, out="killed")

    assert done.code == 0, done.err
    assert records("killed") == records()


def test_half_a_last_line_is_answered_again(evaluate, whole_run, records):
    before = records()
    for path in whole_run.glob("*.jsonl"):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) - 40])

    assert evaluate("--seeds", 3).code == 0
    assert records() == before


def test_a_finished_run_answers_and_bakes_nothing_again(evaluate, whole_run, monkeypatch):
    before = {path: path.read_bytes() for path in whole_run.iterdir()}

    def refuse(*_):
        raise AssertionError

    monkeypatch.setattr("kri_core.running.answering.read_together", refuse)
    monkeypatch.setattr("kri_core.running.caching.bake", refuse)
    monkeypatch.setattr("kri_core.running.caching.build_from_tokens", refuse)

    assert evaluate("--seeds", 3).code == 0
    assert {path: path.read_bytes() for path in whole_run.iterdir()} == before


def test_other_seeds_reuse_nothing(evaluate, whole_run, tmp_path):
    """CASES 40: a null of two seeds is another record than one of three, and so is another task."""
    before = {path: path.read_bytes() for path in whole_run.iterdir()}

    assert evaluate("--seeds", 2).code == 0
    fewer = set(whole_run.iterdir()) - set(before)
    assert evaluate("--seeds", 2, "--set", "seed=1").code == 0
    other = set(whole_run.iterdir()) - set(before) - fewer

    assert {path: path.read_bytes() for path in before} == before
    assert sorted(len(read_record(path).results) for path in fewer) == [8, 8]
    assert len(other) == len(ROWS)
    assert all(read_record(path).missing == 0 for path in other)


def test_jobs_change_no_number(evaluate, whole_run, records):
    done = evaluate("--seeds", 3, "--jobs", 2, out="parallel")

    assert done.code == 0, done.err
    assert records("parallel") == records()


def test_a_stack_that_keeps_every_block_is_full_attention(evaluate, records):
    done = evaluate("--seeds", 1, stacks=("A1R2K100(random)",))

    assert done.code == 0, done.err
    found = records()
    assert found["A1R2K100(random)", None].items == found["full", None].items


def test_a_stack_that_fails_on_one_document_is_named_with_it(evaluate, records, plugin):
    plugin(
        "scorer",
        "moody",
        """
        SEEN = []

        @hookimpl
        def kri_score_blocks(cartridge):
            if cartridge.sha256 not in SEEN:
                SEEN.append(cartridge.sha256)
            if SEEN.index(cartridge.sha256):
                raise ValueError("no second one")
            return cartridge.keys().norm(dim=-1).unflatten(-1, (-1, 16)).mean(-1)
        """,
    )

    done = evaluate("--seeds", 1, stacks=("A0R0K8(moody)", "A0R0K8(knorm)"))

    assert done.code == 1
    assert "baking moody failed on document 001: scorer 'moody' of of-moody 1.0" in done.err
    assert "everything else is recorded" in done.err
    found = records()
    assert not [row for row in found if "moody" in row[0]]  # it could never be gone on with
    assert {len(lines.items) for lines in found.values()} == {4}


def test_budgets_keep_a_stack_s_pins(evaluate, records):
    done = evaluate("--seeds", 1, "--k", "4,8", stacks=("A1R2K13(knorm)", "A0R0K4(~uniform)"))

    assert done.code == 0, done.err
    own = {row[0] for row in records() if "knorm" in row[0] or "uniform" in row[0]}
    assert own == {"A1R2K1(knorm)", "A1R2K5(knorm)", "A0R0K4(~uniform)", "A0R0K8(~uniform)"}


def test_docs_may_be_more_than_the_task_has_by_itself(evaluate, records):
    """One is asked for by --set, three by --docs."""
    done = evaluate("--seeds", 1, "--set", "docs=1", "--docs", 3, stacks=("A0R0K8(~uniform)",))

    assert done.code == 0, done.err
    full = records()["full", None]
    assert full.header["task_params"]["docs"] == "3"
    assert [line["group"] for line in full.items] == ["000", "000", "001", "001", "002", "002"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--k", "2"), "A1R2K5 pins 3 blocks, more than a budget of 2; leave 2 out of --k"),
        (("--k", "8,x"), "'8,x' is no list of budgets; write 8,16,32"),
        (("--set", "tokens"), "'tokens' is no parameter; write KEY=VALUE"),
        (("--set", "token=1"), "'needle8' has no parameter 'token'; did you mean 'tokens'?"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(evaluate, arguments, said):
    done = evaluate(*arguments)

    assert done.code == 2
    assert said in done.err


def test_an_out_that_is_no_folder_is_refused(evaluate, tmp_path):
    (tmp_path / "out").write_text("")

    done = evaluate()

    assert done.code == 2
    assert "cannot be made a folder (File exists); give another" in done.err
