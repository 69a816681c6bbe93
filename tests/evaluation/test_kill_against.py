"""A kill that says which other stack it was measured against: the same items, and no lies."""

import json

import pytest
from attrs import evolve

from kri_core.errors import ArtifactError, ConfigError
from kri_core.evaluation.chain import link, linked_line, start_link
from kri_core.evaluation.kill_log import FIRST_LINE, other_record, read_kills
from kri_core.evaluation.reading import read_record
from kri_core.running.rerun import kill_again

PLAIN, REPAIRED = "A1R2K1(kri-d)", "A1R2K1(kri-d)+xa25"
LOST = {0, 5, 8}  # one right answer each of the first three documents


@pytest.fixture
def pair(results, made):
    """The repaired stack's record, right on 12 of 20, and the plain one's, on 15."""
    plain = next(path for path in results.iterdir() if f'"stack":"{PLAIN}"' in path.read_text())
    header = evolve(made.stack, stack=REPAIRED)
    right = made.right
    return made.write(results, header, lambda n, seed: right(n, seed) and n not in LOST), plain


@pytest.fixture
def killed(pair, kri):
    """The folder; the repaired stack is killed against the plain one."""
    repaired, plain = pair
    done = kri("eval", "kill", repaired, "--why", "no better", "--against", plain)
    assert done.code == 0, done.err
    assert f"− {PLAIN}, generic probes  -0.150 [-0.250, +0.000], p 0.0705" in done.out  # noqa: RUF001
    return repaired.parent


def forged(folder, **changes):
    """The one kill of a folder with other values and right links."""
    (kill,) = read_kills(folder)
    line, _ = linked_line(evolve(kill, **changes), start_link(FIRST_LINE))
    (folder / "kills.jsonl").write_text(f"{FIRST_LINE}\n{line}\n")


def test_a_kill_says_what_it_was_measured_against(killed, kri, pair):
    """Three documents lose ¼, two nothing: t = -√6 with 4 degrees, p = 1 − 1.2 √.6."""
    (kill,) = kri("eval", "kill-log", "--results", killed, "--json").json["kills"]

    assert (kill["other"], kill["other_stack"]) == (pair[1].name, f"{PLAIN}, generic probes")
    assert kill["less_other"] == [-0.15, -0.25, 0.0, 0.070484]
    assert kill["less_random"][0] == pytest.approx(0.6 - 0.225)  # random as ever


def test_the_page_shows_it_and_is_verified(killed, kri, tmp_path):
    page = tmp_path / "kill-log.md"
    kri("eval", "kill-log", "--results", killed, "--out", page)
    row = f"{PLAIN}, generic probes: -0.150 [-0.250, +0.000], p 0.0705"

    assert f" | {row} | no better | " in page.read_text()
    assert row in kri("eval", "kill-log", "--results", killed).out
    assert kri("eval", "verify", killed, page).code == 0
    page.write_text(page.read_text().replace("-0.150", "+0.150"))
    assert kri("eval", "verify", killed, page).code == 4


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (
            {"less_other": (0.15, 0.0, 0.25, 0.07)},
            f"'{PLAIN}, generic probes: -0.150 [-0.250, +0.000], p 0.0705'); restore",
        ),
        ({"other_stack": "A1R2K1(kri-a)"}, f"now has {PLAIN}, generic probes; restore"),
    ],
)
def test_a_forged_difference_is_found(killed, kri, lie, said):
    """Control: with nothing changed the rewritten line is right."""
    forged(killed)
    assert kri("eval", "verify", killed).code == 0

    forged(killed, **lie)
    done = kri("eval", "verify", killed)
    assert done.code == 4
    assert said in done.err


def test_another_record_put_in_its_place_is_found(killed, kri, made):
    """As good a stack, but the numbers and the name are not its."""
    other = made.write(killed, evolve(made.stack, stack="A1R2K1(kri-a)"), made.right)
    forged(killed, other=other.name)
    done = kri("eval", "verify", killed)

    assert done.code == 4
    assert f"is against {PLAIN}, generic probes, and {other.name} now has" in done.err

    forged(killed, other=read_kills(killed)[0].record)
    assert f"now has {REPAIRED}, generic probes; restore" in kri("eval", "verify", killed).err


def test_a_log_from_before_is_read_and_verified(killed, kri, pair):
    """Its lines lack the three fields, and its links are over what it has."""
    held = json.loads((killed / "kills.jsonl").read_text().splitlines()[1])
    old = {k: v for k, v in held.items() if "other" not in k and k != "link"}
    assert len(held) - len(old) == 4
    old_line = json.dumps({**old, "link": link(start_link(FIRST_LINE), old)})
    (killed / "kills.jsonl").write_text(f"{FIRST_LINE}\n{old_line}\n")

    assert kri("eval", "verify", killed).code == 0
    assert kri("eval", "kill", pair[1], "--why", "slow", "--against", pair[0]).code == 0
    assert kri("eval", "verify", killed).out.endswith("2 kills\n")
    first, second = read_kills(killed)
    assert (first.other, first.against_other) == (None, None)
    assert second.against_other.difference == 0.15


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"items_digest": "9" * 64}, "has another items_digest"),
        ({"fingerprint": "9" * 64}, "has another fingerprint"),
        ({"dtype": "bfloat16"}, "has another dtype"),
        ({"substrate": "vllm"}, "has another substrate"),
        ({"ranked_by": "em"}, "has another ranked_by"),
        ({"role": "reference"}, "is a row of role reference"),
        ({"stack": REPAIRED, "code": "0.2.0"}, "is of the same stack and probe set"),
    ],
)
def test_what_is_not_comparable_is_refused(pair, kri, made, changes, fault):
    other = made.write(
        pair[0].parent, evolve(made.stack, **{"stack": "A1R2K1(kri-a)", **changes}), made.right
    )
    done = kri("eval", "kill", pair[0], "--why", "no better", "--against", other)

    assert done.code == 4
    assert done.err.splitlines()[-1].endswith(
        f"{other.name} {fault}, so {pair[0].name} is not measured against it; give --against "
        "another stack's record of the same items, score, model, dtype and substrate"
    )
    assert not (pair[0].parent / "kills.jsonl").exists()


def test_an_unfinished_record_is_refused(pair, kri):
    repaired, plain = pair
    plain.write_text("\n".join(plain.read_text().splitlines()[:-1]) + "\n")
    done = kri("eval", "kill", repaired, "--why", "no better", "--against", plain)

    assert done.code == 4
    assert f"{plain.name} has 19 items, its header says 20" in done.err


def test_a_record_of_another_folder_is_refused(pair, kri, tmp_path):
    repaired, plain = pair
    away = plain.rename(tmp_path / plain.name)
    done = kri("eval", "kill", repaired, "--why", "no better", "--against", away)

    assert done.code == 4
    assert (
        f"{away} is not in {repaired.parent}, beside the record that is killed; copy both into one "
        "folder"
    ) in done.err


def test_the_other_record_of_a_kill_is_not_taken_from_another_stack(killed, made):
    other = made.write(killed, evolve(made.stack, stack="A1R2K1(kri-a)"), made.right)
    (kill,) = read_kills(killed)
    assert other_record(killed, kill).header.stack == PLAIN
    with pytest.raises(ArtifactError, match=rf"is against .*kri-d.*, and {other.name} now has"):
        other_record(killed, evolve(kill, other=other.name))


def test_a_rerun_that_is_measured_against_nothing_says_nothing(killed, pair):
    """The other stack's record is enough; without it and without random blocks there is no word."""
    (kill,) = read_kills(killed)
    header, rival = read_record(pair[0]).header, read_record(pair[1]).header
    again, num_groups, changed = kill_again(kill, header, rival, pair)
    assert changed == ()
    assert (again.against_random, again.against_other.difference, num_groups) == (None, -0.15, 5)
    with pytest.raises(ConfigError, match=r"has no random row with the pins of .*20 seeds"):
        kill_again(kill, header, None, pair)
    with pytest.raises(ConfigError, match=r"the kill is by em and this run is ranked by mc"):
        kill_again(kill, evolve(header, ranked_by="em"), rival, pair)
    then = evolve(header, fingerprint="9" * 64, items_digest="9" * 64)
    assert kill_again(kill, then, rival, pair)[2] == ("another model", "other items")


def test_a_page_does_not_take_a_record_s_place(killed, kri, pair):
    before = pair[0].read_bytes()
    done = kri("eval", "kill-log", "--results", killed, "--out", pair[0])
    assert (done.code, pair[0].read_bytes()) == (4, before)
    assert f"{pair[0].name}: a kill log's page is a .md; name it so" in done.err
