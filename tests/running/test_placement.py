"""`eval run --placement`: each stack over the blocks that it kept of the next document."""

import json

import pytest

THREE = ("--task", "needle8", "--set", "tokens=640", "--set", "needles=2", "--docs", "3")
UNEQUAL = """
from attrs import frozen
from kri_core.evaluation.tasks import Answer, Document, Task

@frozen
class Unequal(Task):
    def documents(self, tokenizer):
        for name, length in (("a", 64), ("b", 80)):
            question, text = tokenizer.encode("?"), f"only {name}?"
            item = Answer("q", question, tokenizer.encode(name), text=text)
            yield Document(name, name, tokenizer.encode(name * length), (item,))
"""


@pytest.fixture
def rows(tmp_path):
    """(header, items) of every record of a role and a stack."""

    def read(role, stack):
        for path in sorted((tmp_path / "out").glob("*.jsonl")):
            first, *items = map(json.loads, path.read_text().splitlines())
            header = first["header"]
            if (header["role"], header["stack"]) == (role, stack):
                yield header, items

    return read


def kept(items):
    """Blocks by document, of its items in order."""
    found = {}
    for line in items:
        found.setdefault(line["group"], []).append(line["kept"])
    return found


def test_each_document_has_the_blocks_of_the_next_and_the_last_those_of_the_first(evaluate, rows):
    """The stack reads the question, so the items of one document differ."""
    stack = "A1R2K5(kri-q)"
    done = evaluate("--seeds", 1, "--placement", task=THREE, stacks=(stack,))

    assert done.code == 0, done.err
    printed = {line.split("\t")[1] for line in done.out.splitlines()}
    assert {stack, f"{stack}, placement", "full", "floor"} < printed
    (own_header, own), (header, placed) = *rows("stack", stack), *rows("placement", stack)
    by_stack = kept(own)
    assert len({json.dumps(blocks) for blocks in by_stack.values()}) == 3
    assert kept(placed) == {
        "000": by_stack["001"],
        "001": by_stack["002"],
        "002": by_stack["000"],
    }
    assert {**header, "role": "stack"} == own_header


def test_the_blocks_are_read_in_this_document(evaluate, rows):
    """Recency keeps the same places in each: what is read is what the stack reads."""
    done = evaluate("--seeds", 1, "--placement", stacks=("A0R0K8(knorm)",))

    assert done.code == 0, done.err
    (_, own), (_, placed) = (
        *rows("stack", "recency[budget=8]"),
        *rows("placement", "recency[budget=8]"),
    )
    assert [line["scores"] for line in placed] == [line["scores"] for line in own]


def test_every_stack_has_its_row_and_every_budget_a_null_without_pins(evaluate, rows):
    """Of a scorer that reads probe texts a row for each set."""
    done = evaluate("--seeds", 1, "--placement", "--k", "4,8", stacks=("A1R2K5(kri-d-kv-sum)",))

    assert done.code == 0, done.err
    for budget in (4, 8):
        for stack in (f"A1R2K{budget - 3}(kri-d-kv-sum)", f"recency[budget={budget}]"):
            sets = {header["probe_set"] for header, _ in rows("stack", stack)}
            assert {header["probe_set"] for header, _ in rows("placement", stack)} == sets
            assert sets == ({None} if "recency" in stack else {"generic", "domain"})
        ((null, _),) = rows("random", f"A0R0K{budget}(random)")
        assert (null["anchor"], null["recent"], null["budget"]) == (0, 0, budget)


def test_a_repairing_stack_s_row_is_of_its_blocks_alone(evaluate, rows):
    stack = "A1R2K5(knorm)+xa25"
    done = evaluate("--seeds", 1, "--placement", stacks=(stack,))

    assert done.code == 0, done.err
    (_, own), (_, placed) = *rows("stack", stack), *rows("placement", stack)
    assert {line["refreshed_tokens"] for line in own} == {32}
    assert {line["refreshed_tokens"] for line in placed} == {0}


def test_without_the_flag_there_is_no_such_row(whole_run, records):
    assert {lines.header["role"] for lines in records().values()} == {
        "stack",
        "full",
        "floor",
        "random",
        "reference",
    }


def test_jobs_change_no_placement(evaluate, rows, tmp_path):
    stack = "A1R2K5(knorm)"
    assert evaluate("--seeds", 1, "--placement", stacks=(stack,)).code == 0
    ((_, alone),) = rows("placement", stack)
    for path in (tmp_path / "out").iterdir():
        path.unlink()

    assert evaluate("--seeds", 1, "--placement", "--jobs", 2, stacks=(stack,)).code == 0

    ((_, spread),) = rows("placement", stack)
    assert kept(spread) == kept(alone)


def test_one_document_is_refused(evaluate, tmp_path):
    done = evaluate("--placement", "--docs", 1)

    assert done.code == 2
    assert "placement is told from two documents or more; got one, run more" in done.err
    assert not list((tmp_path / "out").iterdir())


def test_documents_of_other_lengths_fail_in_that_row_alone(evaluate, rows, environment):
    environment.install(
        "of-unequal", {"task": {"unequal": "unequal:Unequal"}}, {"unequal": UNEQUAL}
    )
    stack = "A0R0K1(knorm)"

    done = evaluate("--seeds", 1, "--placement", task=("--task", "unequal"), stacks=(stack,))

    assert done.code == 1
    assert (
        "placement needs documents of as many blocks and items; a has 4 and 1, b 5 and 1: leave "
        "--placement out, or give them one length"
    ) in done.err
    assert [len(items) for _, items in rows("stack", stack)] == [2]
    assert [items for _, items in rows("placement", stack)] == [[]]
