"""Stacks that read the question or repair, tasks that cannot be run, and the cache."""

import json

import pytest

from kri_core.artifacts import read_prior
from kri_core.evaluation.reading import read_record
from kri_core.routing import Router
from kri_core.running.provenance import code_version
from kri_core.running.worker import Worker
from kri_core.substrate.hf import HfProbe

TWICE = """
from attrs import frozen
from kri_core.evaluation.tasks import Answer, Document, Task

@frozen
class Twice(Task):
    same: bool = True
    empty: bool = False

    def documents(self, tokenizer):
        if self.empty:
            return
        for name in ("a", "b"):
            ids = tokenizer.encode(name * 40)
            group = "both" if self.same else name
            item = Answer(
                "q", tokenizer.encode("?"), tokenizer.encode(name), text=f"only {name}?"
            )
            yield Document(name, group, ids, (item,))
"""


@pytest.fixture
def twice(environment):
    """A task of two documents whose items have one id."""
    environment.install("of-twice", {"task": {"twice": "twice_task:Twice"}}, {"twice_task": TWICE})


def test_a_stack_that_reads_the_question_chooses_for_each_item(evaluate, records):
    done = evaluate("--seeds", 1, stacks=("A1R2K5(kri-q)",))

    assert done.code == 0, done.err
    found = {row[1]: lines for row, lines in records().items() if "kri-q" in row[0]}
    assert set(found) == {None}  # its summary is of the document alone
    first, second, *_ = (line["kept"] for line in found[None].items)
    assert first != second
    assert {0, 38, 39} <= set(first) & set(second)


def test_a_repaired_stack_records_what_was_refreshed(evaluate, records):
    """A quarter of 8 blocks of 16 tokens; the question has no part in it."""
    stacks = ("A1R2K5(knorm)", "A1R2K5(knorm)+xa25")
    done = evaluate("--seeds", 1, "--docs", 1, stacks=stacks)

    assert done.code == 0, done.err
    plain, repaired = (records()[stack, None] for stack in stacks)
    assert [line["refreshed_tokens"] for line in plain.items] == [0, 0]
    assert [line["refreshed_tokens"] for line in repaired.items] == [32, 32]
    assert [line["kept"] for line in plain.items] == [line["kept"] for line in repaired.items]
    for before, after in zip(plain.items, repaired.items, strict=True):
        assert before["scores"]["nll"] != after["scores"]["nll"]
    assert [name.rpartition(" ")[0] for name in repaired.header["plugins"]] == [
        "kri-core",
        "kri-plugin-kmeans 0.1.0",
        "kri-plugin-xa25 0.1.0",
    ]


def test_a_stack_and_the_same_with_repairs_are_asked_once(evaluate, records, monkeypatch):
    """Two questions of one document, each routed once for both stacks."""
    route, asked = Router.route, []

    def counted(self, cartridge, query, *more):
        asked.append((str(self.stack.config), query.token_ids))
        return route(self, cartridge, query, *more)

    monkeypatch.setattr(Router, "route", counted)
    stacks = ("A1R2K5(kri-q)", "A1R2K5(kri-q)+xa25")
    assert evaluate("--seeds", 1, "--docs", 1, stacks=stacks).code == 0

    plain, repaired = (records()[stack, None] for stack in stacks)
    assert [line["kept"] for line in plain.items] == [line["kept"] for line in repaired.items]
    assert plain.items[0]["kept"] != plain.items[1]["kept"]
    routed = [question for stack, question in asked if "kri-q" in stack]
    assert len(routed) == len(set(routed)) == 2


def test_a_second_run_does_not_run_the_questions_over_the_document(
    evaluate, records, monkeypatch, tmp_path
):
    """Two questions, a capture each; a scorer of the same queries and a second run use them."""
    forward, runs = HfProbe._forward, []

    def counted(self, *arguments):
        runs.append(1)
        return forward(self, *arguments)

    monkeypatch.setattr(HfProbe, "_forward", counted)
    cache, stacks = tmp_path / "cache", ("A1R2K5(kri-q)", "A1R2K5(kri-q-centre)")
    for out in ("out", "again"):
        done = evaluate("--seeds", 1, "--docs", 1, stacks=stacks, cache=cache, out=out)
        assert done.code == 0, done.err
        assert len(runs) == 2
    assert records("again") == records("out")
    assert len([*cache.glob("captures/*/*.safetensors")]) == 2


def test_items_of_one_id_in_a_group_are_refused(evaluate, twice):
    done = evaluate("--seeds", 1, task=("--task", "twice"), stacks=("A0R0K1(knorm)",))

    assert done.code == 2
    assert "two items of the task are called 'both/q'; give each its own id" in done.err


def test_an_item_is_called_by_its_group(evaluate, twice, records):
    done = evaluate(
        "--seeds", 1, task=("--task", "twice", "--set", "same=false"), stacks=("A0R0K1(knorm)",)
    )

    assert done.code == 0, done.err
    found = records()
    assert {line["id"] for line in found["full", None].items} == {"a/q", "b/q"}
    assert not [row for row in found if "oracle" in row[0]]  # nobody knows where the answer is
    assert found["full", None].header["ranked_by"] == "em"


def test_a_task_without_documents_is_refused(evaluate, twice):
    done = evaluate(task=("--task", "twice", "--set", "empty=true"), stacks=("A0R0K1(knorm)",))

    assert done.code == 2
    assert "task twice has no document with items; give it some" in done.err


def test_fewer_documents_than_asked_are_said(evaluate, twice, caplog):
    """Control: two of two are as asked."""
    arguments = ("--seeds", 1, "--docs")
    task, stacks = ("--task", "twice", "--set", "same=false"), ("A0R0K1(knorm)",)

    assert evaluate(*arguments, 9, task=task, stacks=stacks).code == 0
    assert "task twice has 2 documents, 9 were asked" in caplog.text
    caplog.clear()
    assert evaluate(*arguments, 2, task=task, stacks=stacks, out="two").code == 0
    assert "were asked" not in caplog.text


def test_a_stack_without_a_scorer_is_refused_before_the_first_document(
    evaluate, tmp_path, monkeypatch
):
    """Control: one that keeps all 40 blocks has nothing to rank."""
    prepare, prepared = Worker.prepare, []

    def counted(self, index):
        prepared.append(index)
        return prepare(self, index)

    monkeypatch.setattr(Worker, "prepare", counted)
    done = evaluate("--seeds", 1, stacks=("A0R0K8(~uniform)", "A1R2K5"))

    assert (done.code, prepared) == (2, [])
    assert done.err.splitlines()[-1] == (
        "error: A1R2K5 has nothing to score blocks with; name a scorer, such as "
        "A1R2K5(kri-d-kv-sum), or give a prior"
    )
    assert list((tmp_path / "out").iterdir()) == []

    assert evaluate("--seeds", 1, "--docs", 1, stacks=("A1R2K37",)).code == 0


def test_a_damaged_cache_is_made_again(evaluate, records, tmp_path, caplog):
    cache = tmp_path / "cache"
    assert evaluate("--seeds", 1, cache=cache).code == 0
    before = records()
    files = [*cache.glob("cartridges/*"), *cache.glob("priors/*")]
    assert {path.parent.name for path in files} == {"cartridges", "priors"}
    for path in files:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data if path.parent.name == "cartridges" else data[:-9])

    done = evaluate("--seeds", 1, cache=cache, out="again")

    assert done.code == 0, done.err
    assert records("again") == before
    assert "is built again" in caplog.text
    assert "is baked again" in caplog.text


def test_files_that_changed_places_in_a_cache_are_made_again(evaluate, records, tmp_path, caplog):
    """Cartridges of two documents, and their priors, each under the other's name."""
    cache = tmp_path / "cache"
    assert evaluate("--seeds", 1, cache=cache, stacks=("A1R2K5(knorm)",)).code == 0
    before = records()
    for kind in ("cartridges", "priors"):
        first, second = cache.glob(f"{kind}/*")
        bytes_of = first.read_bytes(), second.read_bytes()
        first.write_bytes(bytes_of[1])
        second.write_bytes(bytes_of[0])

    done = evaluate("--seeds", 1, cache=cache, stacks=("A1R2K5(knorm)",), out="again")

    assert done.code == 0, done.err
    assert records("again") == before
    assert "is built again: it is another document's" in caplog.text
    assert "is baked again: it is another's" in caplog.text


def test_what_is_done_and_what_is_left_is_on_stderr(evaluate, monkeypatch):
    """By documents, of which there are two, and nothing of the libraries below."""
    monkeypatch.setattr("kri_core.cli.progress.EVERY", 0.0)

    done = evaluate("--seeds", 1, stacks=("A0R0K8(knorm)",))

    assert "preparing: 2 of 2, 0 s left" in done.err
    assert "answering: 0 of 2\nanswering: 1 of 2, " in done.err
    assert "answering: 2 of 2, 0 s left" in done.err
    assert {line.partition(":")[0] for line in done.err.splitlines()} == {"preparing", "answering"}
    assert all(line.split("\t")[0].endswith(".jsonl") for line in done.out.splitlines())


def test_records_of_a_run_are_a_board_s(evaluate, whole_run, kri):
    """The rows fit the board, which asks only for a null of 20 seeds."""
    assert kri("eval", "verify", whole_run).code == 0
    done = kri("eval", "leaderboard", whole_run)

    assert "a random null needs 20 seeds; it has 3: run more" in done.err


def test_a_null_of_twenty_seeds_makes_a_board(evaluate, kri, tmp_path):
    assert evaluate().code == 0
    done = kri("eval", "leaderboard", tmp_path / "out", "--json")
    board = json.loads(done.out)["boards"][0]

    assert {row["label"] for row in board["rows"]} == {
        "A1R2K5(kri-d-kv-sum), generic probes",
        "A1R2K5(kri-d-kv-sum), domain probes",
        "recency[budget=8]",
        "hybrid",
    }
    assert [row["seeds"]["num_seeds"] for row in board["nulls"]] == [20, 20]
    oracles = {
        f"{tag}({kind})" for tag in ("A1R2K5", "A0R0K8") for kind in ("oracle", "oracle-doc")
    }
    shown = {row["label"] for row in board["references"]}
    assert shown >= oracles | {"quantised[bits=2,bytes=0.281]"}


def test_the_random_null_keeps_the_pins_and_draws_anew_for_each_seed(whole_run):
    (null,) = (
        record
        for record in map(read_record, whole_run.glob("*.jsonl"))
        if record.header.stack == "A1R2K5(random)"
    )
    of_one = [result.kept for result in null.results if result.id == null.results[0].id]

    assert all({0, 38, 39} <= set(kept) and len(kept) == 8 for kept in of_one)
    assert len(set(of_one)) == 3


@pytest.mark.parametrize(("commit", "ending"), [("", ""), ("abc123", " abc123")])
def test_the_code_is_named_by_what_it_is_and_by_its_commit(monkeypatch, commit, ending):
    """An installed package has no commit; an edit, new files too, is another digest."""
    monkeypatch.setattr("kri_core.running.provenance._git", lambda *_: commit)
    monkeypatch.setattr("kri_core.versions._source_digest", lambda _package: "0a1b2c3d")

    assert code_version() == f"0.1.0 0a1b2c3d{ending}"


def test_a_plugin_whose_code_was_edited_is_another_plugin(environment, tmp_path):
    """The same version, a digit more in its code: neither its priors nor its items are reused."""
    from kri_core.config import PluginRef
    from kri_core.registry import Registry
    from kri_core.versions import _source_digest, installed_versions, named_version

    environment.install("of-edited", {"scorer": {"edited": "edited.hooks"}}, {"edited.hooks": "1"})
    row = Registry.discover().find("scorer", PluginRef("edited"))
    before = named_version(row)
    assert before == named_version(row)
    assert before.startswith("of-edited 1.0 ")
    assert before in installed_versions()  # what a server says of itself

    (tmp_path / "site" / "edited" / "hooks.py").write_text("12")
    _source_digest.cache_clear()  # as in the next process
    assert named_version(row) != before


def test_a_scorer_that_cannot_see_probe_texts_is_baked_once(evaluate, tmp_path, monkeypatch):
    """One watches the prefill, one takes the probe: a prior for both sets, and one for each."""
    prefill, passes = HfProbe.prefill, []

    def counted(self, *arguments, **options):
        passes.append(1)
        return prefill(self, *arguments, **options)

    monkeypatch.setattr(HfProbe, "prefill", counted)
    cache, stacks = tmp_path / "cache", ("A1R2K5(snapkv)", "A1R2K5(kri-d-kv-sum)")
    assert evaluate("--docs", 1, "--seeds", 1, stacks=stacks, cache=cache).code == 0

    found = [read_prior(path).meta for path in (cache / "priors").iterdir()]
    named = sorted((meta.algorithm, meta.probe_sha256 is None) for meta in found)
    assert named == [("kri-d-kv-sum", False), ("kri-d-kv-sum", False), ("snapkv", True)]
    assert len(passes) == 1
