"""One broken plugin per promise: its contract suite must fail, and a sound plugin must pass.

Each is installed as a stranger's would be, as a module and a dist-info, and its test file is run
by a pytest of its own.
"""

import textwrap

import pytest

from kri_core.testing import RepairContract, ScorerContract, SelectorContract, SplitContract

pytest_plugins = ["pytester"]

SLOT_OF = {  # classes, so that they and torch are imported once: inner runs forget their imports
    ScorerContract: "scorers",
    SelectorContract: "selectors",
    SplitContract: "splits",
    RepairContract: "repairs",
}


@pytest.fixture
def failures(pytester, monkeypatch):
    """Run a contract on a plugin's source; the names of the tests that fail.

    The test for torch starts a process, so it runs only where it is the subject.
    """

    def run(contract, source, imports="math", tests="not torch"):
        names = "ConfigError, Split, hookimpl"
        lines = [f"import {imports}", f"from kri_core import {names}", textwrap.dedent(source)]
        pytester.makepyfile(planted="\n".join(lines))
        info = pytester.mkdir("planted-1.0.dist-info")
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            f"[kri_core.{SLOT_OF[contract]}]\nplanted = planted\n"
        )
        pytester.makepyfile(
            test_it=f"from kri_core.testing import {contract.__name__}\n"
            f"class TestIt({contract.__name__}):\n    plugin = 'planted'\n"
        )
        monkeypatch.syspath_prepend(pytester.path)
        inner = pytester.inline_run("test_it.py", "-k", tests, "--tb=no")
        reports = inner.getreports("pytest_runtest_logreport")
        assert any(report.when == "call" for report in reports)
        return {
            report.nodeid.partition("::TestIt::")[2].partition("[")[0]
            for report in reports
            if report.failed
        }

    return run


LIGHT = "test_importing_the_hook_module_does_not_import_torch"

SPLIT = """
    @hookimpl
    def kri_split_blocks(layout):
        {}
    """
DIVIDED = "test_every_block_is_in_one_part_and_the_budget_is_kept"
SAME_SPLIT = "test_the_same_layout_gives_the_same_split"
SPLITS = {
    "sound": ("return Split.pin(layout.num_blocks, anchor=1, recent=2, mid_budget=3)", set()),
    "a block is in two parts": (
        "n = layout.num_blocks; return Split(tuple(range(n)), (), tuple(range(n)), 0)",
        {DIVIDED, SAME_SPLIT},
    ),
    "a block is in none": (
        "return Split((), tuple(range(1, layout.num_blocks)), (), 0)",
        {DIVIDED, SAME_SPLIT},
    ),
    "mid is not ascending": (
        "return Split((), tuple(reversed(range(layout.num_blocks))), (), 0)",
        {DIVIDED, SAME_SPLIT},
    ),
    "mid_budget is more than mid": (
        "return Split((), tuple(range(layout.num_blocks)), (), 9)",
        {DIVIDED, SAME_SPLIT},
    ),
    "only a long document breaks it": (
        "n = layout.num_blocks; return Split((), tuple(range(min(n, 200))), (), 0)",
        {DIVIDED},
    ),
    "it returns a tuple": ("return (), tuple(range(layout.num_blocks)), ()", {DIVIDED, SAME_SPLIT}),
    "it remembers": (
        (
            "calls.append(1); n = layout.num_blocks; "
            "return Split.pin(n, anchor=len(calls) % 2, recent=0)\n    calls = []"
        ),
        {SAME_SPLIT},
    ),
}


@pytest.mark.parametrize("case", SPLITS)
def test_split_contract(case, failures):
    body, wanted = SPLITS[case]
    assert failures(SplitContract, SPLIT.format(body)) == wanted


SELECTOR = """
    @hookimpl
    def kri_select_blocks(scores, split, features):
        pins, k = split.anchor + split.recent, split.mid_budget
        pooled = scores.pooled().tolist()
        ranked = sorted(split.mid, key=lambda block: (-pooled[block], block))
        {}
    """
FILLED = "test_pins_are_kept_and_the_budget_is_filled"
SAME_BLOCKS = "test_the_same_inputs_give_the_same_blocks"
KEPT_INPUT = "test_nothing_it_is_given_changes"
TIES = "test_ties_go_to_the_earlier_block"
FEATURELESS = "test_without_features_it_answers_or_says_what_it_needs"
EVERY_ANSWER = {FILLED, SAME_BLOCKS, KEPT_INPUT, TIES, FEATURELESS}
SELECTORS = {
    "sound": ("return pins + tuple(ranked[:k])", set()),
    "sound, refuses without features": (
        (
            "if features is None: raise ConfigError('it needs features')\n"
            "        return pins + tuple(ranked[:k])"
        ),
        set(),
    ),
    "it forgets the pins": ("return tuple(ranked[:k])", EVERY_ANSWER),
    "it keeps one too few": ("return pins + tuple(ranked[:k - 1])", EVERY_ANSWER),
    "it keeps one too many": ("return pins + tuple(ranked[:k + 1])", EVERY_ANSWER),
    "it repeats a block": ("return pins + tuple(ranked[:k - 1]) + pins[:1]", EVERY_ANSWER),
    "it returns floats": ("return pins + tuple(float(b) for b in ranked[:k])", EVERY_ANSWER),
    "it takes the later of two equals": (
        "ranked.sort(key=lambda b: (-pooled[b], -b)); return pins + tuple(ranked[:k])",
        {TIES},
    ),
    "it puts 0.0 above -0.0": (
        (
            "raw = scores.values[0, 0].tolist()\n"
            "        ranked.sort(key=lambda b: (-pooled[b], -math.copysign(1, raw[b]), b))\n"
            "        return pins + tuple(ranked[:k])"
        ),
        {TIES},
    ),
    "it is random": (
        "import random; return pins + tuple(random.sample(ranked, k))",
        {SAME_BLOCKS, TIES},
    ),
    "it remembers": (
        (
            "calls.append(1); shift = len(calls) % 2 if pooled[0] else 0\n"
            "        return pins + tuple((ranked + ranked)[shift:shift + k])\n    calls = []"
        ),
        {SAME_BLOCKS},
    ),
    "it writes into scores": (
        "scores.values[0] = 1; return pins + tuple(ranked[:k])",
        {KEPT_INPUT, SAME_BLOCKS},
    ),
    "it writes into features": (
        "if features is not None: features[0] = 1\n        return pins + tuple(ranked[:k])",
        {KEPT_INPUT},
    ),
    "it crashes without features": (
        "features.shape; return pins + tuple(ranked[:k])",
        {FEATURELESS},
    ),
}


@pytest.mark.parametrize("case", SELECTORS)
def test_selector_contract(case, failures):
    body, wanted = SELECTORS[case]
    assert failures(SelectorContract, SELECTOR.format(body)) == wanted


RUNNING = """
    @hookimpl
    def kri_select_blocks(split, probe):
        import torch
        {}
        mid, num_blocks = split.mid, len(split.anchor + split.mid + split.recent)
        alone = torch.eye(num_blocks)[list(mid)].bool()
        read = probe.forward(probe.texts[0].token_ids, read=("logits",), visible=alone, last=1)
        surest = [round(row, 4) for row in read.logits[:, 0].amax(-1).tolist()]
        place = {}
        ranked = sorted(range(len(mid)), key=lambda at: (-surest[at], place * at))
        return split.anchor + split.recent + tuple(mid[at] for at in ranked[:split.mid_budget])
    """
MODELLESS_BLOCKS = "test_without_a_model_it_answers_or_says_what_it_needs"
REFUSES = "if probe is None: raise ConfigError('give a model')"
RUNNERS = {
    "sound": (REFUSES, "1", set()),
    "it crashes without a model": ("pass", "1", {MODELLESS_BLOCKS}),
    "it takes the later of two equals": (REFUSES, "-1", {TIES}),
}


@pytest.mark.parametrize("case", RUNNERS)
def test_selector_contract_for_one_that_runs_the_model(case, failures):
    *bodies, wanted = RUNNERS[case]
    assert failures(SelectorContract, RUNNING.format(*bodies)) == wanted


def test_a_selector_that_stops_early_may_keep_fewer(failures):
    body = "return pins + tuple(ranked[:(k + 1) // 2])\n    STOPS_EARLY = True"
    assert failures(SelectorContract, SELECTOR.format(body)) == set()


SCORER = """
    @hookimpl
    def kri_score_blocks(cartridge, probe):
        import torch
        scores = cartridge.layout.pool(cartridge.keys().float().norm(dim=-1))
        {}
    """
FINITE = "test_scores_are_finite_float32_for_every_block"
SAME_SCORES = "test_the_same_inputs_give_the_same_scores_bit_for_bit"
KEPT_CARTRIDGE = "test_the_cartridge_is_not_changed"
UNIT = "test_features_in_a_summary_are_unit_vectors"
KEPT_SUMMARY = "test_a_question_does_not_change_the_summary"
MODELLESS = "test_a_question_without_a_model_is_scored_or_refused"
EVERY_SCORE = {FINITE, SAME_SCORES, KEPT_CARTRIDGE}
SCORERS = {
    "sound": ("return scores", set()),
    "sound, pooled": ("return scores.mean((0, 1), keepdim=True)", set()),
    "its shape has no head axis": ("return scores.mean(1)", EVERY_SCORE),
    "a block is missing": ("return scores[..., 1:]", EVERY_SCORE),
    "it scores query heads": ("return scores.repeat(1, 2, 1)", EVERY_SCORE),
    "it scores the tail too": (
        (
            "tail = scores[..., :1] if cartridge.tail.shape[3] else scores[..., :0]\n"
            "        return torch.cat([scores, tail], -1)"
        ),
        EVERY_SCORE,
    ),
    "it is float64": ("return scores.double()", EVERY_SCORE),
    "it follows the cartridge's dtype": (
        "return scores.to(cartridge.kv.dtype)",
        {FINITE, KEPT_CARTRIDGE},
    ),
    "it returns a list": ("return scores.tolist()", EVERY_SCORE),
    "it divides by a spread that one block does not have": (
        "return scores / scores.std(-1, keepdim=True)",
        {FINITE, KEPT_CARTRIDGE},
    ),
    "it returns infinity": ("return scores / 0", EVERY_SCORE),
    "it is random": ("return torch.rand_like(scores)", {SAME_SCORES}),
    "it remembers": ("calls.append(1); return scores + len(calls)\n    calls = []", {SAME_SCORES}),
    "it writes into the blocks": ("cartridge.kv.zero_(); return scores", {KEPT_CARTRIDGE}),
    "it writes into the tail": ("cartridge.tail.zero_(); return scores", {KEPT_CARTRIDGE}),
    "it crashes": ("return scores.nonsense()", EVERY_SCORE),
}


@pytest.mark.parametrize("case", SCORERS)
def test_scorer_contract(case, failures):
    body, wanted = SCORERS[case]
    assert failures(ScorerContract, SCORER.format(body)) == wanted


QUERY_SCORER = """
    @hookimpl
    def kri_summarise_blocks(cartridge):
        import torch
        means = cartridge.layout.pool(cartridge.keys().mT)
        features = torch.nn.functional.normalize(means.flatten(0, 2).T)
        return {summary}

    @hookimpl
    def kri_score_query(summary, query, probe):
        import torch
        means = summary["means"]
        {score}
    """
SOUND_SUMMARY = "{'means': means, 'features': features}"
QUERY_SCORERS = {
    "sound": (SOUND_SUMMARY, "return means.sum(2) + len(query.token_ids)", set()),
    "sound, asks the model": (
        SOUND_SUMMARY,
        (
            "if probe is None: raise ConfigError('it needs a model')\n"
            "        read = probe.forward(query.token_ids, read=['queries'])\n"
            "        return means.sum(2) * read.queries.mean()"
        ),
        set(),
    ),
    "it crashes without a model": (
        SOUND_SUMMARY,
        "probe.texts; return means.sum(2)",
        {MODELLESS},
    ),
    "its features have no unit length": (
        "{'means': means, 'features': 2 * features}",
        "return means.sum(2)",
        {UNIT},
    ),
    "it writes into the summary": (
        SOUND_SUMMARY,
        "scores = means.sum(2); means.zero_(); return scores",
        {KEPT_SUMMARY},
    ),
    "its summary is a tensor": (
        "means",
        "return summary.sum(2)",
        {*EVERY_SCORE, UNIT, MODELLESS, KEPT_SUMMARY},
    ),
    "its scores have no block axis": (
        SOUND_SUMMARY,
        "return means.sum((2, 3))",
        {*EVERY_SCORE, MODELLESS, KEPT_SUMMARY},
    ),
}


@pytest.mark.parametrize("case", QUERY_SCORERS)
def test_scorer_contract_for_questions(case, failures):
    summary, score, wanted = QUERY_SCORERS[case]
    source = QUERY_SCORER.format(summary=summary, score=score)
    assert failures(ScorerContract, source) == wanted


REPAIR = """
    @hookimpl
    def kri_plan_repair(manifest, deviation):
        wanted = math.ceil(0.25 * len(deviation))
        ranked = deviation.argsort(descending=True, stable=True)[:wanted].tolist()
        {}
    """
ASCENDING = "test_a_plan_is_ascending_tokens_among_the_kept"
SAME_PLAN = "test_the_same_deviation_gives_the_same_plan"
KEPT_DEVIATION = "test_the_deviation_is_not_changed"
EVERY_PLAN = {ASCENDING, SAME_PLAN, KEPT_DEVIATION}
REPAIRS = {
    "sound": ("return tuple(sorted(ranked))", set()),
    "it is not ascending": ("return tuple(ranked)", EVERY_PLAN),
    "it repeats a token": ("return tuple(sorted(ranked + ranked[:1]))", EVERY_PLAN),
    "it is one past the end": ("return (*sorted(ranked), len(deviation))", EVERY_PLAN),
    "it needs a token": ("deviation[0]; return tuple(sorted(ranked))", {ASCENDING}),
    "it expects a deviation": (
        "return tuple(sorted(ranked)) if (deviation > 0).any() else None",
        {ASCENDING},
    ),
    "it is random": (
        "import random; return tuple(sorted(random.sample(range(len(deviation)), wanted)))",
        {SAME_PLAN},
    ),
    "it writes into deviation": (
        "deviation.zero_(); return tuple(sorted(ranked))",
        {KEPT_DEVIATION},
    ),
}


@pytest.mark.parametrize("case", REPAIRS)
def test_repair_contract(case, failures):
    body, wanted = REPAIRS[case]
    assert failures(RepairContract, REPAIR.format(body)) == wanted


def test_a_hook_module_that_imports_torch_is_noticed(failures):
    sound = SPLIT.format("return Split.pin(layout.num_blocks, anchor=1, recent=2)")
    assert failures(SplitContract, sound, imports="torch", tests="") == {LIGHT}


def test_a_misspelt_hook_fails_every_test(failures):
    source = SPLIT.replace("kri_split_blocks", "kri_splti_blocks").format("return None")
    assert failures(SplitContract, source) == {DIVIDED, SAME_SPLIT}
