"""What no document, item or task may be."""

import inspect
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import attrs
import pytest

from kri_core.config import PluginRef
from kri_core.errors import ConfigError, PluginError
from kri_core.evaluation.tasks import (
    Agreement,
    Answer,
    Choice,
    Document,
    ProbeSet,
    Recall,
    Span,
    Task,
    check_probes,
    load_task,
)
from kri_core.evaluation.tasks.needle import Needle8, Needle8Fast
from kri_core.params import changed_params
from kri_core.registry import Registry

ROOT = Path(__file__).parents[3]
QUESTION = "\n\nThe access code for Anna is"
ITEM = Answer("000/Anna", (1, 2), (3,), text=QUESTION)


def test_a_probe_that_asks_an_evaluated_question_is_refused():
    """The planted lie of the issue: such a probe tells the scorer what will be asked."""
    wanted = (
        r"the probe .* asks what item '000/Anna' asks, which flatters every scorer; take a probe"
    )
    for text in (
        QUESTION,
        "The access code for Anna is",
        "the  ACCESS code\nfor anna is ",
        "Tell me. The access code for Anna is 12345",
    ):
        with pytest.raises(ConfigError, match=wanted):
            check_probes([text], [ITEM])
        with pytest.raises(ConfigError, match=wanted):
            Document("000", "000", (1,), (ITEM,), (ProbeSet("mine", (text,)),))


def test_another_question_of_the_same_form_may_be_a_probe():
    silent = Answer("000/text", (1,), (2,), text="")
    check_probes(["The access code for Hannah is", "The access code for"], [ITEM, silent])


def test_two_items_of_one_id_and_evidence_outside_the_document_are_refused():
    with pytest.raises(ConfigError, match="document 'd' has two items '000/Anna'; rename one"):
        Document("d", "g", (1, 2), (ITEM, ITEM))
    outside = Answer("a", (1,), (2,), text="", evidence=(Span(1, 3),))
    with pytest.raises(ConfigError, match="'a' has evidence behind the 2 tokens of document 'd';"):
        Document("d", "g", (1, 2), (outside,))
    with pytest.raises(ConfigError, match="a span is start < stop from 0; got 3 to 3; leave"):
        Span(3, 3)


@pytest.mark.parametrize(
    ("options", "correct", "wanted"),
    [
        (((1,), (2,)), 2, "item 'i' has 2 options and 2 as the right one; give its index from 0"),
        (((1,), (1,)), 0, "item 'i' has two identical options; make them differ"),
        (((1,), ()), 0, "item 'i' needs two options or more, none of them empty"),
        (((1,),), 0, "item 'i' needs two options or more, none of them empty"),
    ],
)
def test_options_without_one_right_answer_are_refused(options, correct, wanted):
    with pytest.raises(ConfigError, match=wanted):
        Choice("i", (1,), options, correct, text="")


@pytest.mark.parametrize(
    "options",
    [((1, 2, 3), (1, 2, 4), (1, 5, 6)), ((1, 2), (1,)), ((1, 2, 3), (1, 2))],
)
def test_options_that_one_token_cannot_tell_apart_are_refused(options):
    wanted = "item 'i' has options that one token cannot tell apart with this tokenizer; make each"
    with pytest.raises(ConfigError, match=wanted):
        Recall("i", (1,), options, 0, text="")


def entry_points():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["entry-points"]["kri_core.tasks"]


@pytest.mark.parametrize(("name", "value"), sorted(entry_points().items()))
def test_an_entry_point_names_a_task(name, value):
    task = EntryPoint(name, value, "kri_core.tasks").load()

    assert issubclass(task, Task)
    assert not inspect.isabstract(task)
    assert attrs.has(task)
    assert inspect.getdoc(task) != inspect.getdoc(Task)


@pytest.mark.parametrize("item", [Agreement, Answer, Choice, Recall])
def test_items_are_ranked_by_a_score_of_which_more_is_better(item):
    names = [metric.name for metric in item.metrics]

    assert item.metrics[0].higher_is_better
    assert len(set(names)) == len(names)


def test_a_document_s_digest_is_of_all_that_is_asked():
    document = Document("d", "g", (1, 2), (ITEM,))
    changed = [
        attrs.evolve(document, token_ids=(1, 3)),
        attrs.evolve(document, group="h"),
        attrs.evolve(document, items=()),
        attrs.evolve(document, items=(attrs.evolve(ITEM, answer=(4,)),)),
        attrs.evolve(document, items=(attrs.evolve(ITEM, evidence=(Span(0, 1),)),)),
        attrs.evolve(document, probes=(ProbeSet("generic", ("a",)),)),
    ]

    assert document.digest == Document("d", "g", [1, 2], (ITEM,)).digest
    assert len({document.digest, *(other.digest for other in changed)}) == 7


def test_all_tasks_of_the_design_are_there():
    assert sorted(entry_points()) == [
        "fidelity",
        "jsonl",
        "longhealth",
        "nearby-copies",
        "needle8",
        "needle8-fast",
        "needle8-long",
        "niah-copy",
    ]


def test_a_task_is_made_from_its_name_and_parameters_as_text(environment):
    environment.install("kri-core", {"task": entry_points()})

    assert load_task("needle8", {}) == Needle8()
    task = load_task("Needle8_fast", {"docs": "4", "seed": "3"})
    assert (type(task), task.tokens, task.docs, task.seed) == (Needle8Fast, 1024, 4, 3)
    assert changed_params(task) == {"docs": "4", "seed": "3"}
    with pytest.raises(ConfigError, match=r"'needle8': 'needles' must be <= 10: 11"):
        load_task("needle8", {"needles": "11"})


STRANGER = """
from attrs import frozen
from kri_core.evaluation.tasks import Answer, Document, Task

@frozen
class Echo(Task):
    \"\"\"A stranger's task.\"\"\"
    word: str
    times: int = 2

    def documents(self, tokenizer):
        ids = tokenizer.encode(self.word)
        yield Document("0", "0", ids * self.times, (Answer("0/0", ids, ids, text="?"),))
"""


@pytest.fixture
def stranger(environment):
    def install(source, value="echo_task:Echo"):
        environment.install("of-echo", {"task": {"echo": value}}, {"echo_task": source})

    return install


def test_a_package_s_task_is_found_and_made(stranger, bytewise):
    stranger(STRANGER)
    task = load_task("echo", {"word": "ab", "times": "3"})
    (document,) = task.documents(bytewise)

    assert bytewise.decode(document.token_ids) == "ababab"
    assert load_task("of-echo:echo", {"word": "ab"}).times == 2


def test_a_wrong_or_missing_parameter_is_refused(stranger):
    stranger(STRANGER)

    with pytest.raises(ConfigError, match=r"^'echo' needs word; write --set word=VALUE$"):
        load_task("echo", {})
    with pytest.raises(ConfigError, match="echo's times is a whole number; got 'x'"):
        load_task("echo", {"word": "a", "times": "x"})
    for task in ("jsonl", "longhealth", "fidelity"):
        with pytest.raises(ConfigError, match=f"^'{task}' needs path; write --set path=FILE$"):
            load_task(task, {})
    with pytest.raises(ConfigError, match="'echo' has no parameter 'time'; did you mean 'times'"):
        load_task("echo", {"word": "a", "time": "1"})
    with pytest.raises(PluginError, match=r"no task is called 'ecko'; did you mean echo\?"):
        load_task("ecko", {})


@pytest.mark.parametrize(
    ("source", "value", "wanted"),
    [
        ("Echo = 3", "echo_task:Echo", "'echo_task:Echo' is no task; point it at an attrs class"),
        (STRANGER, "echo_task", "'echo_task' is no task; point it at an attrs class derived from"),
        (STRANGER.replace("def documents", "def texts"), "echo_task:Echo", "lacks documents; def"),
        ("raise SystemExit(3)", "echo_task:Echo", "cannot be imported: SystemExit: 3; repair its"),
        (STRANGER.replace("int = 2", "list = []"), "echo_task:Echo", "Params.times must be"),
    ],
)
def test_a_broken_task_is_refused_with_its_package(stranger, source, value, wanted):
    stranger(source, value)
    with pytest.raises(PluginError, match=wanted) as caught:
        load_task("echo", {"word": "a"})
    assert "task 'echo' of of-echo 1.0" in str(caught.value)


def test_tasks_are_listed_like_plugins_and_not_imported(stranger):
    stranger("raise SystemExit(3)")
    rows = [row for row in Registry.discover().rows if row.slot == "task" and row.name == "echo"]

    assert [(row.state, row.summary) for row in rows] == [("ok", "About of-echo")]
    wanted = "'echo' is a task, not a scorer; write kri-core eval run --task echo"
    with pytest.raises(PluginError, match=wanted):
        Registry.discover().find("scorer", PluginRef("echo"))


def test_tasks_cost_no_torch_and_no_numpy(environment):
    code = "import sys, kri_core.evaluation.tasks as t; print(*sys.modules)"
    loaded = {name.split(".")[0] for name in environment.python(code).split()}

    assert not loaded & {"torch", "numpy", "scipy", "transformers", "tokenizers"}
