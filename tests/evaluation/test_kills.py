"""The kill log: what a verdict says, what it refuses, and that a planted lie is found."""

import json
import re
from types import SimpleNamespace

import pytest
from attrs import evolve

STACK = "A1R2K1(kri-d)"


def record_of(results, stack):
    found = sorted(results.glob("2026*.jsonl"))
    return next(path for path in found if f'"stack":"{stack}"' in path.read_text())


@pytest.fixture
def killed(results, kri):
    """The folder with its stack killed."""
    done = kri("eval", "kill", record_of(results, STACK), "--why", "it is too slow")
    assert done.code == 0, done.err
    return results


def test_a_kill_says_what_the_records_say(killed, kri):
    """15 of 20; of the null 4.5 of 20."""
    (kill,) = kri("eval", "kill-log", "--results", killed, "--json").json["kills"]
    record = record_of(killed, STACK)

    assert (kill["stack"], kill["why"]) == ("A1R2K1(kri-d), generic probes", "it is too slow")
    assert (kill["score"], kill["mean"], kill["record"]) == ("mc", 0.75, record.name)
    assert kill["error"] == pytest.approx(0.1118, abs=1e-4)  # of 1, ½, ¾, 1, ½
    assert kill["less_random"][0] == pytest.approx(0.75 - 0.225)
    assert record.name == f"2026-11-30-needle8-{kill['id']}.jsonl"
    assert kill["seal"] == json.loads(record.read_text().splitlines()[-1])["link"]


def test_a_kill_is_listed_and_verified_with_its_page(killed, kri, tmp_path):
    page = tmp_path / "kill-log.md"

    assert kri("eval", "kill-log", "--results", killed, "--out", page).code == 0
    done = kri("eval", "verify", killed, page)
    assert (done.code, done.out) == (0, "ok: 4 records, 460 items, 1 boards, 1 kills\n")
    assert page.read_text().startswith("# Kill log\n\nA kill is the verdict")
    assert "it is too slow" in kri("eval", "kill-log", "--results", killed).out


@pytest.mark.parametrize(("old", "new"), [("0.750", "0.850"), ("too slow", "too fast")])
def test_a_page_edited_by_hand_is_found(killed, kri, tmp_path, old, new):
    page = tmp_path / "kill-log.md"
    kri("eval", "kill-log", "--results", killed, "--out", page)
    page.write_text(page.read_text().replace(old, new))
    done = kri("eval", "verify", killed, page)

    assert done.code == 4
    assert re.search(rf"line 7 is .*{new}.*write it again with kri-core eval kill-log", done.err)


def test_a_line_of_the_log_edited_by_hand_is_found(killed, kri):
    log = killed / "kills.jsonl"
    log.write_text(log.read_text().replace("too slow", "too fast"))
    done = kri("eval", "verify", killed)

    assert done.code == 4
    assert "kills.jsonl: line 2 is not what was recorded after line 1" in done.err


def test_numbers_forged_with_their_links_are_found(killed, kri):
    """The links are right, the records say otherwise."""
    from kri_core.evaluation.chain import linked_line, start_link
    from kri_core.evaluation.kill_log import read_kills

    (kill,) = read_kills(killed)
    log = killed / "kills.jsonl"
    first = log.read_text().splitlines()[0]
    line, _ = linked_line(evolve(kill, mean=0.2), start_link(first))
    log.write_text(f"{first}\n{line}\n")
    done = kri("eval", "verify", killed)

    assert done.code == 4
    assert f"kill {kill.id} says" in done.err
    assert "mc 0.200 ± 0.112" in done.err
    assert "the records give" in done.err


def test_a_record_made_again_is_not_the_one_that_was_killed(killed, kri, made):
    path = record_of(killed, STACK)
    path.unlink()
    made.write(killed, made.stack, lambda n, _: n % 4 != 0)
    done = kri("eval", "verify", killed)

    assert done.code == 4
    assert re.search(
        "kill .* is of .* with seal .*, which now has .*; restore the record", done.err
    )


def test_a_record_is_killed_once(killed, kri):
    done = kri("eval", "kill", record_of(killed, STACK), "--why", "again")

    assert done.code == 4
    assert "(it is too slow); a record is killed once" in done.err
    assert len((killed / "kills.jsonl").read_text().splitlines()) == 2


def test_a_second_kill_is_a_line_more(killed, kri, made):
    other = made.write(killed, evolve(made.stack, stack="A1R2K1(kri-a)"), made.right)
    before = (killed / "kills.jsonl").read_text()

    assert kri("eval", "kill", other, "--why", "no better").code == 0
    assert (killed / "kills.jsonl").read_text().startswith(before)
    assert kri("eval", "verify", killed).out.endswith("2 kills\n")


@pytest.mark.parametrize("why", ["", "  ", "two\nlines"])
def test_a_reason_is_one_line(results, kri, why):
    done = kri("eval", "kill", record_of(results, STACK), "--why", why)

    assert done.code == 2
    assert f"--why must be one line of text; got {why!r}" in done.err
    assert not (results / "kills.jsonl").exists()


def test_only_a_stack_that_is_finished_is_killed(results, kri, made):
    full = kri("eval", "kill", record_of(results, "full"), "--why", "dense")
    path = record_of(results, STACK)
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    half = kri("eval", "kill", path, "--why", "half")

    assert (full.code, half.code) == (4, 4)
    assert "is of full, a row of role full; kill a stack's" in full.err
    assert "has 19 items, its header says 20" in half.err


def test_without_a_null_there_is_no_difference(results, kri):
    record_of(results, "A1R2K1(random)").unlink()
    done = kri("eval", "kill", record_of(results, STACK), "--why", "alone")

    assert "no random null of 20 seeds beside it" in done.out
    assert kri("eval", "verify", results).code == 0


def test_a_log_without_kills_is_an_empty_page(results, kri, tmp_path):
    page = tmp_path / "kill-log.md"
    kri("eval", "kill-log", "--results", results, "--out", page)

    assert page.read_text().endswith("There is none.\n")
    assert kri("eval", "verify", results, page).code == 0


def test_another_file_is_no_kill_log(results, kri):
    (results / "kills.jsonl").write_text("{}\n")
    done = kri("eval", "kill-log", "--results", results)

    assert done.code == 4
    assert "kills.jsonl: line 1 is not that of a kill log; restore the file" in done.err


def test_documents_that_are_not_the_header_s_are_refused(results):
    """A kill may not name a cartridge that its record was not made on."""
    from kri_core.errors import ArtifactError
    from kri_core.evaluation.kills import Verdict, kill_of
    from kri_core.evaluation.reading import read_record

    record = read_record(record_of(results, STACK))
    items = {result.id: 0 for result in record.results}
    with pytest.raises(ArtifactError, match="the documents listed are not those of 2026"):
        kill_of(record, None, None, Verdict("slow", "2026-11-30", ("a" * 64,), items))


def test_a_null_of_other_pins_is_found(killed, kri, made):
    """Forged with right links: another record is named as the null."""
    from kri_core.evaluation.chain import linked_line, start_link
    from kri_core.evaluation.kill_log import FIRST_LINE, read_kills

    (kill,) = read_kills(killed)
    forged = evolve(kill, null=record_of(killed, "full").name)
    line, _ = linked_line(forged, start_link(FIRST_LINE))
    (killed / "kills.jsonl").write_text(f"{FIRST_LINE}\n{line}\n")
    done = kri("eval", "verify", killed)

    assert done.code == 4
    assert re.search(rf"kill {kill.id}: 2026.* is no random null of {kill.record}", done.err)


def test_what_cannot_be_run_again_is_said(made):
    from kri_core.errors import ConfigError
    from kri_core.running.rerun import kill_again, task_again

    served = evolve(made.stack, substrate="vllm")
    with pytest.raises(ConfigError, match="the record was made on vllm, and only hf is run again"):
        task_again(served, {})
    own = evolve(made.stack, task_params={"path": "mine.jsonl", "docs": "5"})
    with pytest.raises(ConfigError, match=r"'mine\.jsonl'; give it with --set path=FILE"):
        task_again(own, {})
    assert task_again(own, {"path": "a/mine.jsonl"}) == ({"path": "a/mine.jsonl"}, 5)
    kill = SimpleNamespace(record="killed.jsonl")
    said = r"no row A1R2K1\(kri-d\), generic probes, as killed\.jsonl has"
    with pytest.raises(ConfigError, match=said):
        kill_again(kill, made.stack, None, [])
