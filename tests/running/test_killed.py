"""A killed stack that comes back under another name is said, and a kill is run again."""

import shutil

import pytest

KNORM = """
    @hookimpl
    def kri_score_blocks(cartridge):
        return cartridge.keys().norm(dim=-1).unflatten(-1, (-1, 16)).mean(-1){after}
    """
STACK = "A1R2K5(loud)"


@pytest.fixture
def killed(evaluate, plugin, kri, tmp_path, bench):
    """A run of `loud`, killed; `again` is the same signal, `quiet` the opposite."""
    for name, after in (("loud", ""), ("again", " * 3 + 1"), ("quiet", " * -1")):
        plugin("scorer", name, KNORM.format(after=after))
    done = evaluate("--seeds", 1, stacks=(STACK,))
    assert done.code == 0, done.err
    folder = tmp_path / "out"
    record = next(path for path in folder.iterdir() if f'"stack":"{STACK}"' in path.read_text())
    done = kri("eval", "kill", record, "--why", "just norms", "--cache", bench / "cache")
    assert (done.code, done.err) == (0, "")
    return folder


def warned(done):
    return [line for line in done.err.splitlines() if line.startswith("warning:")]


def test_a_run_says_when_a_killed_stack_comes_back_under_another_name(killed, evaluate):
    """A planted lie: the killed scores, scaled and shifted. A control: an honest other scorer."""
    done = evaluate("--seeds", 1, stacks=("A1R2K5(again)", "A1R2K5(quiet)"))

    assert done.code == 0
    (line,) = warned(done)
    assert line.startswith(
        f"warning: A1R2K5(again) selects what the killed {STACK} selected (Jaccard 1.00 without "
        "pins); kill "
    )
    assert line.endswith(" says: just norms")


def test_a_killed_run_gone_on_with_is_not_compared_with_itself(killed, evaluate):
    assert warned(evaluate("--seeds", 1, stacks=(STACK,))) == []


def test_a_bake_says_when_a_prior_selects_what_a_killed_one_did(killed, kri, bench, tmp_path):
    """The same lie and the same control, of a document that the kill knows."""
    from kri_core.artifacts import read_cartridge
    from kri_core.evaluation.kill_log import read_kills

    (kill,) = read_kills(killed)
    assert len(kill.cartridges) == 2
    assert kri("eval", "verify", killed).code == 0
    known = sorted(
        path
        for path in (bench / "cache" / "cartridges").iterdir()
        if read_cartridge(path).sha256 in kill.cartridges
    )
    scorers = ("--scorer", "again", "--scorer", "quiet", "--out", tmp_path / "priors")
    done = kri("bake", "--cartridge", known[0], *scorers, "--results", killed)

    assert done.code == 0, done.err
    (line,) = warned(done)
    assert line.startswith(f"warning: again selects what the killed {STACK} selected (Jaccard 1.00")

    shutil.rmtree(killed)
    assert warned(kri("bake", "--cartridge", known[0], *scorers, "--results", killed)) == []


def test_a_kill_without_its_documents_is_said_and_not_compared(evaluate, kri, tmp_path, bench):
    assert evaluate("--seeds", 1, stacks=("A1R2K5(knorm)",)).code == 0
    record = next(
        path for path in (tmp_path / "out").iterdir() if "A1R2K5(knorm)" in path.read_text()
    )
    done = kri("eval", "kill", record, "--why", "norms", "--cache", tmp_path / "other")

    assert done.code == 0
    assert "bake will not know this kill's documents" in done.err


def test_a_kill_is_run_again_on_other_documents(killed, kri, bench):
    """Without change the scores are the same."""
    (kill,) = kri("eval", "kill-log", "--results", killed, "--json").json["kills"]
    again = ("eval", "kill-log", "--results", killed, "rerun", kill["id"])
    model = ("--model", bench / "model", "--cache", bench / "cache")
    same, other = kri(*again, *model), kri(*again, *model, "--set", "seed=1", "--docs", 3)

    then = f"mc {kill['mean']:.3f} ± {kill['error']:.3f}"
    assert f"then    {then}, − random not known" in same.out  # noqa: RUF001
    assert f"now     {then}, − random " in same.out  # noqa: RUF001
    for done, count in ((same, 2), (other, 3)):
        said = f"verdict stands cannot be said: {count} documents are too few, it takes 8."
        assert (done.code, said in done.out) == (0, True)
    assert len(list((killed / "reruns").glob("*.jsonl"))) > 12


@pytest.fixture
def two_are_enough(monkeypatch):
    """Documents for a verdict, so that a rerun takes seconds."""
    monkeypatch.setattr("kri_core.cli.eval_rerun.LEAST_GROUPS", 2)


@pytest.mark.usefixtures("two_are_enough")
def test_a_verdict_that_does_not_stand_exits_with_1(killed, kri, bench, monkeypatch):
    from kri_core.evaluation.kills import Against

    monkeypatch.setattr(Against, "of", lambda _difference: Against(0.5, 0.3, 0.7, 0.001))
    (kill,) = kri("eval", "kill-log", "--results", killed, "--json").json["kills"]
    again = ("eval", "kill-log", "--results", killed, "rerun", kill["id"])
    done = kri(*again, "--model", bench / "model", "--cache", bench / "cache")

    assert done.code == 1
    assert "does not stand: A1R2K5(loud) is better than random by +0.500" in done.err


def test_an_unknown_kill_is_refused_with_those_there_are(killed, kri, bench):
    again = ("eval", "kill-log", "--results", killed, "rerun", "abc", "--model", "none")
    done = kri(*again)

    assert done.code == 4
    assert "kills.jsonl has no kill 'abc'; it has " in done.err


REPAIRED = f"{STACK}+xa25"


@pytest.fixture
def repairs_killed(evaluate, plugin, kri, tmp_path, bench):
    """`loud` with repairs, killed with and without `--against` the same without them."""
    for name, after in (("loud", ""), ("again", " * 3 + 1")):
        plugin("scorer", name, KNORM.format(after=after))
    assert evaluate("--seeds", 1, stacks=(STACK, REPAIRED)).code == 0
    by_stack = {
        stack: next(
            p for p in (tmp_path / "out").iterdir() if f'"stack":"{stack}"' in p.read_text()
        )
        for stack in (STACK, REPAIRED)
    }

    def kill(*against):
        (tmp_path / "out" / "kills.jsonl").unlink(missing_ok=True)
        given = ("--why", "no gain", "--cache", bench / "cache", *against)
        done = kri("eval", "kill", by_stack[REPAIRED], *given)
        assert done.code == 0, done.err
        return tmp_path / "out"

    return kill, ("--against", by_stack[STACK])


def test_a_kill_of_repairs_is_said_of_stacks_with_these_repairs(repairs_killed, evaluate):
    """Control: killed without the other, it is a verdict on what was selected, and said of both."""
    kill, against = repairs_killed
    stacks = ("A1R2K5(again)", "A1R2K5(again)+xa25")

    kill(*against)
    (line,) = warned(evaluate("--seeds", 1, stacks=stacks))
    assert line.startswith(f"warning: A1R2K5(again)+xa25 selects what the killed {REPAIRED} ")
    kill()
    said = warned(evaluate("--seeds", 1, stacks=stacks))
    assert [line.split()[1] for line in said] == list(stacks)


def test_a_bake_passes_over_a_kill_of_repairs(repairs_killed, kri, bench, tmp_path):
    """The same control."""
    from kri_core.artifacts import read_cartridge
    from kri_core.evaluation.kill_log import read_kills

    kill, against = repairs_killed
    (known,) = read_kills(kill())
    cartridge = next(
        path
        for path in (bench / "cache" / "cartridges").iterdir()
        if read_cartridge(path).sha256 in known.cartridges
    )
    bake = ("bake", "--cartridge", cartridge, "--scorer", "again", "--out", tmp_path / "priors")
    results = ("--results", tmp_path / "out")

    assert len(warned(kri(*bake, *results))) == 1
    kill(*against)
    assert warned(kri(*bake, *results)) == []


@pytest.mark.usefixtures("two_are_enough")
def test_a_rerun_runs_both_stacks_and_judges_by_their_difference(repairs_killed, kri, bench):
    """Better than random or not: whether the repairs gain is asked."""
    kill, against = repairs_killed
    folder = kill(*against)
    (one,) = kri("eval", "kill-log", "--results", folder, "--json").json["kills"]
    again = ("eval", "kill-log", "--results", folder, "rerun", one["id"])
    done = kri(*again, "--model", bench / "model", "--cache", bench / "cache")

    then = f"− {STACK} {one['less_other'][0]:+.3f} ["  # noqa: RUF001
    lines = {line.split()[0]: line for line in done.out.splitlines()}
    assert then in lines["then"]
    assert then in lines["now"]
    better = done.code == 1 and f"{REPAIRED} is better than {STACK} by +" in done.err
    assert better or f"stands: it was not found better than {STACK}." in done.out
    new = [
        path for path in (folder / "reruns").iterdir() if f'"stack":"{STACK}"' in path.read_text()
    ]
    assert len(new) == 1


@pytest.mark.usefixtures("two_are_enough")
def test_a_stack_that_now_gains_on_the_other_exits_with_1(repairs_killed, kri, bench, monkeypatch):
    """Only the difference to the other is made up: random has no say."""
    from kri_core.evaluation.kills import Against, Kill

    kill, against = repairs_killed
    folder = kill(*against)
    (one,) = kri("eval", "kill-log", "--results", folder, "--json").json["kills"]
    again = ("eval", "kill-log", "--results", folder, "rerun", one["id"])
    model = ("--model", bench / "model", "--cache", bench / "cache")
    better, flat = Against(0.5, 0.3, 0.7, 0.001), Against(0.0, -0.1, 0.1, 1.0)

    monkeypatch.setattr(Kill, "against_random", better)
    monkeypatch.setattr(Kill, "against_other", flat)
    assert "stands: it was not found better than A1R2K5(loud)." in kri(*again, *model).out
    monkeypatch.setattr(Kill, "against_random", flat)
    monkeypatch.setattr(Kill, "against_other", better)
    done = kri(*again, *model)
    assert done.code == 1
    assert f"does not stand: {REPAIRED} is better than {STACK} by +0.500" in done.err
