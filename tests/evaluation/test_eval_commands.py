"""`kri-core eval`: what it prints, what it refuses, and that a planted lie is found."""

import json
import re
import subprocess
import sys

import pytest
from attrs import evolve

BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
sys.argv = ["kri-core", *{arguments!r}]
from kri_core.cli import main
main()
"""


def without(packages, *arguments):
    """A command on a machine that lacks these packages."""
    code = BLOCKED.format(blocked=packages, arguments=[str(one) for one in arguments])
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def record_of(results, stack):
    return next(path for path in results.iterdir() if f'"stack":"{stack}"' in path.read_text())


@pytest.fixture
def boards(results, kri):
    """leaderboard.md and leaderboard.json of the results, beside them."""
    paths = [results.parent / "leaderboard.md", results.parent / "leaderboard.json"]
    done = kri("eval", "leaderboard", results, "--out", paths[0], "--out", paths[1])
    assert (done.code, done.out) == (0, "")
    return paths


def test_a_board_of_honest_records_is_verified(results, boards, kri):
    done = kri("eval", "verify", results, *boards)

    assert done.code == 0
    assert done.out == "ok: 4 records, 460 items, 2 boards\n"


def test_the_seals_are_listed_as_json(results, kri):
    held = kri("eval", "verify", results, "--json").json

    assert held["schema_version"] == 1
    assert len({record["seal"] for record in held["records"]}) == 4


@pytest.mark.parametrize("name", ["leaderboard.md", "leaderboard.json"])
def test_a_number_edited_on_a_board_is_found(results, boards, kri, name):
    """A planted lie: .750 becomes .850."""
    path = results.parent / name
    assert "0.75" in path.read_text()
    path.write_text(path.read_text().replace("0.75", "0.85", 1))
    done = kri("eval", "verify", results, path)

    assert done.code == 4
    assert re.search(rf"{name}: line \d+ is '.*0.85.*', the records give '.*0.75.*'", done.err)


def test_a_record_edited_by_hand_is_found(results, kri):
    """A planted lie: a wrong answer becomes a right one."""
    path = record_of(results, "A1R2K1(kri-d)")
    path.write_text(path.read_text().replace('"mc":0.0', '"mc":1.0', 1))
    done = kri("eval", "verify", results)

    assert done.code == 4
    assert f"{path.name}: line 6 is not what was recorded after line 5" in done.err


def test_a_record_run_again_does_not_fit_the_old_board(results, boards, kri, made):
    """Even with the same scores: the seal is another, as the lines took other times."""
    path = record_of(results, "A1R2K1(kri-d)")
    path.unlink()
    made.write(results, made.stack, lambda n, _: n % 4 != 0)
    done = kri("eval", "verify", results, boards[1])

    assert done.code == 4
    assert "write it again with kri-core eval leaderboard, or restore the records" in done.err


def test_a_board_is_of_all_the_records_given(results, boards, kri, made):
    made.write(results, evolve(made.stack, stack="A1R2K1(new)"), made.right)

    assert kri("eval", "verify", results, *boards).code == 4
    assert kri("eval", "leaderboard", results, *(a for b in boards for a in ("--out", b))).code == 0
    assert kri("eval", "verify", results, *boards).code == 0


def test_verify_and_the_rest_run_without_torch(results, boards):
    """EVAL 3, and a control: numbers need numpy."""
    torch = ("torch", "transformers", "safetensors")
    path = record_of(results, "A1R2K1(kri-d)")

    for arguments in (
        ("verify", results, *boards),
        ("compare", path, record_of(results, "full")),
        ("power", "--effect", "5pp", "--groups", "25"),
        ("leaderboard", results),
    ):
        done = without(torch, "eval", *arguments)
        assert (done.returncode, done.stderr) == (0, "")


def test_kills_are_made_listed_and_verified_without_torch(results):
    torch = ("torch", "transformers", "safetensors")
    path = record_of(results, "A1R2K1(kri-d)")

    for arguments in (
        ("kill", path, "--why", "too slow"),
        ("kill-log", "--results", results),
        ("verify", results),
    ):
        done = without(torch, "eval", *arguments)
        assert done.returncode == 0, done.stderr


def test_records_alone_are_verified_without_scipy(results):
    done = without(("torch", "numpy", "scipy"), "eval", "verify", results)

    assert done.stdout == "ok: 4 records, 460 items, 0 boards\n"


def test_without_scipy_the_fix_is_said(results, kri, monkeypatch):
    monkeypatch.setattr("kri_core.cli.needing.find_spec", lambda name: name != "scipy" or None)
    for arguments in (("power", "--effect", "5pp", "--groups", "9"), ("leaderboard", results)):
        done = kri("eval", *arguments)
        assert (done.code, done.out) == (5, "")
        assert done.err == "error: this needs scipy; run pip install 'kri-core[eval]'\n"


def test_a_board_is_printed_as_it_is_written(results, boards, kri):
    assert kri("eval", "leaderboard", results).out == boards[0].read_text()
    assert kri("eval", "leaderboard", results, "--json").out == boards[1].read_text()
    assert json.loads(boards[1].read_text())["schema_version"] == 1


def test_a_board_that_cannot_rank_is_written_and_exits_1(results, kri, made):
    """CASES 42."""
    record_of(results, "floor").unlink()
    made.write(results, made.floor, lambda n, _: n != 3, kept=())
    done = kri("eval", "leaderboard", results)

    assert done.code == 1
    assert "needle8, 4 blocks, is not ranked: full attention has mc 0.850, less" in done.err
    assert "take a better reader or an easier task" in done.err
    assert "Not ranked: full attention has mc 0.850" in done.out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("leaderboard", "nowhere"), 4, "nowhere: cannot be opened"),
        (("verify", "."), 4, "no record in .; give results/ or its files"),
        (("verify",), 2, "Missing argument 'PATHS...'"),
        (("power", "--effect", "5px", "--groups", "9"), 2, "'5px' is no share; write points such"),
        (("power", "--effect", "0pp", "--groups", "9"), 2, "'0pp' is no share"),
        (("power", "--effect", "500pp", "--groups", "9"), 2, "'500pp' is no share"),
        (("power", "--effect", "5pp", "--groups", "1"), 2, "1 is not in the range x>=2"),
    ],
)
def test_what_cannot_be_done_is_said(kri, tmp_path, monkeypatch, arguments, code, said):
    monkeypatch.chdir(tmp_path)
    done = kri("eval", *arguments)

    assert done.code == code
    assert said in done.err


def test_a_board_of_another_suffix_is_refused(results, kri):
    done = kri("eval", "leaderboard", results, "--out", results.parent / "board.csv")

    assert done.code == 4
    assert "board.csv: a board is a .html or a .json or a .md; name it so" in done.err


def test_a_board_that_cannot_be_written_is_named(results, kri):
    done = kri("eval", "leaderboard", results, "--out", results / "no" / "board.md")

    assert done.code == 4
    assert "no/board.md: cannot be written (No such file or directory)" in done.err


def test_compare_says_how_sure_a_difference_is(results, kri, made):
    """15 of 20 against 17: 5 items only full has right, 3 only the stack.

    Documents differ by ¼, −½, 0, ¼, −½: their spread is √(.575 / 4), the error .170.
    """
    stack, full = record_of(results, "A1R2K1(kri-d)"), record_of(results, "full")
    done = kri("eval", "compare", stack, full)

    assert done.code == 0
    assert "first (mc)      0.750 ± 0.112" in done.out
    assert "second (mc)     0.850 ± 0.061" in done.out
    assert "first − second  -0.100 ± 0.170" in done.out  # noqa: RUF001
    assert ": 5 documents are too few to say, it takes 8" in done.out
    assert re.search("detectable +-", done.out)
    assert "McNemar, exact  3:5, p 0.7266, as if items were independent" in done.out
    assert "they differ in  role, stack, anchor, recent, budget, probe_set, priors" in done.out


def test_compare_refuses_records_of_other_items(results, kri, made, tmp_path):
    """Items of other documents may be called the same."""
    header = evolve(made.full, items_digest="f" * 64)
    other = made.write(tmp_path / "other", header, made.right, kept=tuple(range(20)))

    done = kri("eval", "compare", record_of(results, "full"), other)

    assert done.code == 4
    assert "are of other documents or questions; give two records of the same task" in done.err


def test_compare_gives_json_and_another_score(results, kri):
    stack, full = record_of(results, "A1R2K1(kri-d)"), record_of(results, "full")
    held = kri("eval", "compare", stack, full, "--score", "em", "--json").json

    assert held["schema_version"] == 1
    assert held["difference"]["mean"] == pytest.approx(-0.05)
    assert held["mcnemar"] is None
    assert kri("eval", "compare", stack, full, "--score", "nll").code == 4


@pytest.mark.parametrize(
    ("num_items", "first", "said"),
    [
        (32, "full", ": they differ at 95 %"),
        (28, "full", ": 7 documents are too few to say, it takes 8"),
        (40, "A1R2K1(kri-d)", ": not told apart at 95 %"),
    ],
)
def test_compare_says_whether_a_difference_is_sure(results, kri, num_items, first, said):
    """Full attention is far above no document; the stack's documents differ from its by ¼ to ½."""
    second = "floor" if first == "full" else "full"
    out = kri("eval", "compare", record_of(results, first), record_of(results, second)).out

    assert said in out
    assert bool(re.search(r"detectable +[\d.]+ points", out)) == (num_items >= 32)


def test_compare_of_a_record_with_itself_says_nothing_varies(results, kri):
    full = record_of(results, "full")

    assert "0.000 ± 0.000" in kri("eval", "compare", full, full).out


def test_records_of_other_items_are_not_compared(results, kri, made, tmp_path):
    half = evolve(made.stack, num_items=10)
    other = made.write(tmp_path / "half", half, made.right)
    done = kri("eval", "compare", record_of(results, "full"), other)

    assert done.code == 2
    assert "a paired difference needs the same items on both sides; 10 are on one side" in done.err


def test_power_by_an_assumed_a_given_and_a_measured_spread(results, kri):
    asked = ("eval", "power", "--effect", "5pp", "--groups", "25")
    records = (record_of(results, "A1R2K1(kri-d)"), record_of(results, "floor"))
    assumed, given, measured = (
        kri(*asked, *more, "--json").json
        for more in ((), ("--spread", "11pp"), ("--measured", *records))
    )

    assert (assumed["spread"], assumed["spread_is"]) == (pytest.approx(0.185), "assumed")
    assert (given["spread"], given["spread_is"]) == (0.11, "given")
    assert given["detectable_effect"] == pytest.approx(2.9208 * 0.11 / 5, rel=1e-3)
    # the stack's documents 1, ½, ¾, 1, ½ less the floor's ¼, 0, ¼, 0, 0
    assert measured["spread"] == pytest.approx(
        (sum(d * d for d in (0.1, -0.15, -0.15, 0.35, -0.15)) / 4) ** 0.5
    )
    assert kri(*asked).out.startswith(
        "With 25 documents an effect of 5.0 points is found in 25% of runs.\n"
    )


def test_two_spreads_are_one_too_many(results, kri):
    record = record_of(results, "full")
    asked = ("eval", "power", "--effect", "5pp", "--groups", "25", "--spread", "11pp")
    done = kri(*asked, "--measured", record, record)

    assert done.code == 2
    assert "both --spread and --measured were given; give one" in done.err
