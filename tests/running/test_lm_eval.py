"""`eval lm-eval`: real lm-eval over a small local task, against its own HFLM and `answer`."""

import json
import re
import subprocess
import sys

import pytest

from kri_core.testing.tiny import save_tiny

STORY = "The pump runs at nine bar. The clerk met a fox at noon. The gate is shut by night. " * 3
QUESTIONS = [
    {"story": STORY, "ask": "Who?", "options": ["fox", "owl"], "right": 0, "says": "a fox"},
    {"story": STORY, "ask": "When?", "options": ["noon", "dusk"], "right": 0, "says": "noon"},
    {"story": "Short.", "ask": "Why?", "options": ["rain", "sun"], "right": 1, "says": "sun"},
]
HEAD = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {path}}}
test_split: test
doc_to_text: "{{{{story}}}}\\n\\nQuestion: {{{{ask}}}}\\nAnswer:"
"""
CHOICE = """output_type: multiple_choice
doc_to_choice: options
doc_to_target: right
metric_list: [{metric: acc}]
"""
SAYING = """output_type: generate_until
doc_to_target: says
generation_kwargs: {until: ["z"], max_gen_toks: 8, do_sample: SAMPLE}
metric_list: [{metric: exact_match}]
"""
ROLLING = """output_type: loglikelihood_rolling
doc_to_target: story
metric_list: [{metric: word_perplexity}]
"""
EVERY, ONE = "A0R0K16", "A0R0K1"  # blocks: 16 are all of STORY's 249 bytes and <s>
SPLIT = "\n\nQuestion:"


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    """model/ and tasks/ whose data lie beside them."""
    folder = tmp_path_factory.mktemp("shop")
    save_tiny(folder / "model", max_position_embeddings=1024)
    tasks = folder / "tasks"
    tasks.mkdir()
    data = tasks / "data.jsonl"
    data.write_text("".join(f"{json.dumps(one)}\n" for one in QUESTIONS))
    bodies = {"choice": CHOICE, "saying": SAYING.replace("SAMPLE", "false"), "rolling": ROLLING}
    bodies["sampling"] = SAYING.replace("SAMPLE", "true")
    for name, body in bodies.items():
        (tasks / f"tiny_{name}.yaml").write_text(HEAD.format(name=f"tiny_{name}", path=data) + body)
    return folder


@pytest.fixture
def offline(monkeypatch, tmp_path):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed: kri-core[lm-eval]")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


@pytest.fixture
def lm_eval(kri, shop, offline, tmp_path):
    """Run the command on the tiny tasks."""

    def run(*arguments, tasks="tiny_choice"):
        named = ("--tasks", tasks, "--include-path", shop / "tasks", "--model", shop / "model")
        return kri("eval", "lm-eval", *named, "--cache", tmp_path / "cache", *arguments)

    return run


@pytest.fixture
def reader(shop, tmp_path):
    """A reader of a stack; None is full attention."""
    from kri_core.running.caching import Cache
    from kri_core.running.lm_eval_bridge import load_routers
    from kri_core.running.lm_eval_reading import ContextReader
    from kri_core.substrate.hf import load_model

    model = load_model(str(shop / "model"), None, "float32", "cpu")

    def make(stack=None):
        router = None if stack is None else next(iter(load_routers([stack]).values()))
        return ContextReader(model, router, Cache(tmp_path / "cache"), SPLIT)

    return make


@pytest.fixture
def asked():
    """lm-eval's requests: each question with each of its options, and each to be answered."""
    from lm_eval.api.instance import Instance

    options = {"until": ["z"], "max_gen_toks": 8, "do_sample": False}
    contexts = [f"{one['story']}\n\nQuestion: {one['ask']}\nAnswer:" for one in QUESTIONS]
    choices = [
        Instance("loglikelihood", {}, (context, f" {option}"), 0)
        for context, one in zip(contexts, QUESTIONS, strict=True)
        for option in one["options"]
    ]
    return choices, [Instance("generate_until", {}, (text, options), 0) for text in contexts]


@pytest.fixture
def harness(offline, reader):
    """lm-eval's own model over the same weights."""
    pytest.importorskip("accelerate", reason="lm-eval's own models need accelerate")
    from lm_eval.models.huggingface import HFLM

    model = reader().model
    return HFLM(pretrained=model.model, tokenizer=model.tokenizer, batch_size=1)


@pytest.mark.parametrize("stack", [None, f"{EVERY}(knorm)"])
def test_with_every_block_kept_answers_are_those_of_lm_evals_own_model(
    harness, reader, asked, stack
):
    from kri_core.running.lm_eval_model import RoutedLM

    choices, sayings = asked
    routed = RoutedLM(reader(stack))
    found, wanted = routed.loglikelihood(choices), harness.loglikelihood(choices)

    assert [one[0] for one in found] == pytest.approx([one[0] for one in wanted], abs=1e-4)
    assert [one[1] for one in found] == [one[1] for one in wanted]
    assert routed.generate_until(sayings) == harness.generate_until(sayings)


def test_with_one_block_kept_they_are_others(harness, reader, asked):
    """The control: only the short document, read dense, is as before."""
    from kri_core.running.lm_eval_model import RoutedLM

    found = RoutedLM(reader(f"{ONE}(knorm)")).loglikelihood(asked[0])
    wanted = harness.loglikelihood(asked[0])
    near = [abs(one[0] - two[0]) < 1e-4 for one, two in zip(found, wanted, strict=True)]

    assert near == [False, False, False, False, True, True]


def test_a_routed_likelihood_is_that_of_answer_over_the_same_blocks(offline, reader):
    """The tiny tokenizer has a token for each byte, so that the parts are known."""
    from kri_core.substrate.hf import answer, build_from_tokens

    held = reader("recency[budget=3]")
    tokens = held.model.tokenizer
    ((logprob, _),) = held.scores(f"{STORY}{SPLIT} Who?\nAnswer:", [" fox"])
    cartridge = build_from_tokens(
        held.model, tokens(STORY).input_ids, cart_id="same", block_size=16
    )
    question = tokens(f"{SPLIT} Who?\nAnswer: fox", add_special_tokens=False).input_ids
    blocks = cartridge.layout.num_blocks
    rows = answer(held.model, cartridge, range(blocks - 3, blocks), question, 0).question_logprobs
    expected = sum(float(rows[place - 1][question[place]]) for place in range(-4, 0))

    assert logprob == pytest.approx(expected, abs=1e-4)
    assert held.kept_fractions == [3 / blocks]


def test_the_command_counts_what_was_routed_and_writes_it(lm_eval, tmp_path):
    out = tmp_path / "found.json"
    done = lm_eval("--stack", f"{ONE}(knorm)", "--split-at", r"\n\nQuestion:", "--out", out)

    assert done.code == 0, done.err
    found = json.loads(out.read_text())
    full, routed = found["rows"]
    assert (full["stack"], full["routed"], full["dense"]) == ("full", 0, 6)
    assert (routed["stack"], routed["routed"], routed["dense"]) == (f"{ONE}(knorm)", 4, 2)
    one_block = 1 / (len(STORY) // 16)
    assert routed["kept_fraction"] == pytest.approx((4 * one_block + 2) / 6)  # dense is all of it
    assert full["kept_fraction"] == 1
    assert "acc,none" in routed["results"]["results"]["tiny_choice"]
    assert (found["dtype"], found["split_at"]) == ("float32", SPLIT)
    assert found["fingerprint"]
    assert done.out.splitlines()[0].split() == ["task", "metric", "full", f"{ONE}(knorm)"]


def test_a_context_without_the_text_is_read_dense(lm_eval):
    done = lm_eval("--stack", "recency[budget=2]", "--split-at", "nowhere", "--limit", 1, "--json")

    assert done.code == 0, done.err
    assert [(row["routed"], row["dense"]) for row in done.json["rows"]] == [(0, 2), (0, 2)]


@pytest.mark.parametrize(
    ("tasks", "code", "says"),
    [
        ("tiny_rolling", 2, r"tiny_rolling asks for .*; give a task with contexts"),
        ("tiny_sampling", 2, r"tiny_sampling asks for sampling or beams, .*do_sample: false"),
        ("nowhere", 2, r"lm-eval has no task 'nowhere'; .*--include-path"),
    ],
)
def test_what_cannot_be_evaluated_is_said_in_one_line(lm_eval, tasks, code, says):
    done = lm_eval("--stack", "recency[budget=2]", tasks=tasks)

    assert done.code == code
    assert re.search(says, done.err.splitlines()[-1])


def test_data_that_are_not_there_are_said_in_one_line(lm_eval, shop, monkeypatch):
    lost = shop / "tasks" / "tiny_lost.yaml"
    lost.write_text(HEAD.format(name="tiny_lost", path=shop / "lost.jsonl") + CHOICE)
    done = lm_eval("--stack", "recency[budget=2]", tasks="tiny_lost")
    lost.unlink()

    assert done.code == 5
    assert "lm-eval failed on tiny_lost: " in done.err.splitlines()[-1]


def test_a_fault_of_ours_is_not_called_lm_evals(lm_eval, monkeypatch):
    from kri_core.running.lm_eval_reading import ContextReader

    def fault(*_):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(ContextReader, "scores", fault)

    done = lm_eval("--stack", "recency[budget=2]", "--limit", 1)

    assert done.code == 1
    assert "ZeroDivisionError: ours: a fault of kri-core" in done.err.splitlines()[-1]


def test_a_context_without_words_is_refused(reader):
    with pytest.raises(Exception, match=r"context '' has no words to route; give tasks"):
        reader().scores("", [" fox"])


def test_a_bad_stack_is_refused_before_the_model_is_loaded(lm_eval):
    done = lm_eval("--stack", "A1R2K(", "--model", "nowhere")

    assert done.code == 2
    assert "A1R2K(" in done.err


def test_an_empty_split_is_refused(kri):
    done = kri("eval", "lm-eval", "--tasks", "t", "--stack", "s", "--model", "m", "--split-at", "")

    assert done.code == 2
    assert "it is empty; give the text a question starts with" in done.err


def test_lm_eval_makes_the_model_by_its_name(reader, shop, offline, asked, monkeypatch, tmp_path):
    from lm_eval.api.registry import get_model

    from kri_core.running import lm_eval_model  # noqa: F401 - registers it

    monkeypatch.setenv("KRI_HOME", str(tmp_path))
    given = {"model": str(shop / "model"), "stack": f"{ONE}(knorm)", "split_at": SPLIT}
    made = get_model("kri-core").create_from_arg_obj(given)

    context = asked[0][0].args[0]
    assert made.loglikelihood(asked[0][:1]) == reader(given["stack"]).scores(context, [" fox"])
    with pytest.raises(Exception, match="got the arguments model; give model, split_at, stack"):
        made.create_from_arg_obj({"model": "m"})


def test_without_lm_eval_it_says_what_to_install():
    code = (
        "import sys; sys.modules['lm_eval'] = None; import importlib.util as u; "
        "find = u.find_spec; u.find_spec = lambda n, *a: None if n == 'lm_eval' else find(n, *a); "
        "sys.argv = 'kri-core eval lm-eval --tasks t --stack s --model m'.split(); "
        "from kri_core.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.returncode == 5
    assert "this needs lm-eval; run pip install 'kri-core[lm-eval]'" in done.stderr
