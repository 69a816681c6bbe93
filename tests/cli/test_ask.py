"""`ask`: what it prints, and that the reference answers are what it says they are."""

import pytest
import torch

from kri_core.catalogue import DISTRIBUTION_OF
from kri_core.substrate.hf import load_model

PRIOR = "priors/doc_kri-d.pt"
REQUIRED = {
    "schema_version", "stack", "cart_id", "selected_blocks", "total_blocks", "kept_fraction",
    "kv_bytes", "token_ids", "logprobs", "text", "timings",
}  # fmt: skip


def ask(kri, *arguments):
    done = kri("ask", "\nHow many bar?", "--cartridge", "doc.safetensors", "--json", *arguments)
    assert done.code == 0, done.err
    return done.json


def test_json_says_what_was_routed_and_what_it_cost(kri, here):
    """Ten of 21 blocks and a tail of 13 tokens; 3 layers, 2 heads of 8 and float32."""
    answer = ask(kri, "--stack", "a1r2k7", "--prior", PRIOR, "--max-new-tokens", "3")

    assert answer.keys() >= REQUIRED
    assert answer["stack"] == "A1R2K7(kri-d)"
    assert answer["cart_id"] == "doc"
    assert {0, 19, 20} < set(answer["selected_blocks"])
    assert len(answer["selected_blocks"]) == 10
    assert answer["total_blocks"] == 21
    assert answer["kept_fraction"] == 10 / 21
    assert answer["kv_bytes"] == (10 * 16 + 13) * 3 * 2 * 2 * 8 * 4
    assert len(answer["token_ids"]) == len(answer["logprobs"]) <= 3
    assert answer["timings"].keys() == {"route", "load", "prefill", "decode"}


def test_all_blocks_answer_as_plain_transformers(kri, here):
    answer = ask(kri, "--stack", "whole", "--max-new-tokens", "8")

    model = load_model("model").model
    tokenizer = load_model("model").tokenizer
    document = tokenizer((here / "doc.txt").read_text()).input_ids
    question = tokenizer("\nHow many bar?", add_special_tokens=False).input_ids
    tokens = torch.tensor([document + question])
    plain = model.generate(tokens, max_new_tokens=8, do_sample=False)[0, tokens.shape[1] :]
    assert answer["token_ids"] == plain.tolist()


def test_fewer_blocks_answer_otherwise(kri, here):
    """The control of the test before: absence changes the distribution."""
    whole = ask(kri, "--stack", "whole", "--max-new-tokens", "1")
    some = ask(kri, "--stack", "recency[budget=2]", "--max-new-tokens", "1")

    assert whole["logprobs"] != some["logprobs"]


def test_without_json_stdout_is_the_answer_alone(kri, here):
    done = kri("ask", "\nHow many?", "--cartridge", "doc.safetensors", "--stack", "whole")

    assert done.code == 0
    assert "21 of 21 blocks" in done.err
    assert "blocks" not in done.out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--stack", "A1R2K7"], 2, "has nothing to score blocks with; name a scorer"),
        (["--stack", "A1R2K7(kri-d)"], 2, "bake a prior first (kri-core bake --scorer kri-d)"),
        (["--stack", "A1R2"], 2, "'A1R2' is not a split tag; write A<anchor>R<recent>K<mid>"),
        (
            ["--stack", "A1R2K7(charon)"],
            3,
            "'charon' is not installed; pip install kri-plugin-pluto",
        ),
        (["--stack", "whole", "--prior", "gone.pt"], 4, "gone.pt: cannot be opened"),
        (["--stack", "whole", "--model", "./gone"], 5, "model './gone' is not a directory"),
        (["--stack", "whole", "--device", "cuda:99"], 5, "device 'cuda:99' is not there"),
        (["--stack", "A1R2K7(kri-d-kv-sum)", "--prior", PRIOR], 4, "prior was baked by kri-d"),
    ],
)
def test_a_bad_request_is_one_error_and_an_exit_code(
    kri, here, monkeypatch, arguments, code, message
):
    monkeypatch.setitem(DISTRIBUTION_OF, "charon", "kri-plugin-pluto")
    done = kri("ask", "x", "--cartridge", "doc.safetensors", *arguments)

    assert done.code == code
    assert message in done.err
    assert done.out == ""


def test_an_empty_question_is_refused(kri, here):
    done = kri("ask", "", "--cartridge", "doc.safetensors", "--stack", "whole")

    assert (done.code, "the question has no tokens; ask something" in done.err) == (2, True)


def test_a_repair_that_refreshes_nothing_is_counted(kri, here, plugin):
    """CASE 38; an answer must have gone through the stack it is printed under."""
    plugin(
        "repair", "mend", "@hookimpl\ndef kri_plan_repair(manifest, deviation):\n    return ()\n"
    )

    done = kri("ask", "x", "--cartridge", "doc.safetensors", "--stack",
               "recency[budget=2]+mend", "--json")  # fmt: skip
    assert done.json["stack"] == "recency[budget=2]+mend"
    assert done.json["repair"]["refreshed"] == 0
    assert done.json["repair"]["kept_tokens"] == 2 * 16 + 13


def test_a_scorer_of_questions_may_run_the_model_on_them(kri, here, plugin):
    """Without a model, as in `route`, it is given no probe and says so."""
    plugin(
        "scorer",
        "asker",
        """
        @hookimpl
        def kri_summarise_blocks(cartridge):
            return {"order": torch.arange(cartridge.layout.num_blocks).float()}

        @hookimpl
        def kri_score_query(summary, query, probe):
            if probe is None:
                raise ConfigError("asker runs the model on the question; use ask")
            logits = probe.forward(query.token_ids, read=("logits",), last=1).logits
            return (summary["order"] * logits.abs().mean()).view(1, 1, -1)
        """,
    )

    answer = ask(kri, "--stack", "A0R0K3(asker)", "--max-new-tokens", "1")
    assert answer["selected_blocks"] == [18, 19, 20]
    routed = kri(
        "route", "--cartridge", "doc.safetensors", "--stack", "A0R0K3(asker)", "--query", "x"
    )
    assert (routed.code, "use ask" in routed.err) == (2, True), routed.err


def test_a_selector_may_run_the_model_on_probe_texts(kri, here, plugin):
    """On eight generic ones, or the user's two; `route` runs a model if it is given one."""
    plugin(
        "selector",
        "reader",
        """
        @hookimpl
        def kri_select_blocks(split, probe):
            if probe is None:
                raise ConfigError("reader runs the model; give one with --model")
            for text in probe.texts:
                probe.forward(text.token_ids, read=("logits",), last=1)
            return (len(probe.texts),)
        """,
    )
    stack = ("--cartridge", "doc.safetensors", "--stack", "A0R0K1(~reader)")
    for probes, block in (((), 8), (("--probes", "probes.txt"), 2)):
        asked = kri("ask", "x", *stack, *probes, "--json", "--max-new-tokens", "1").json
        routed = kri("route", *stack, *probes, "--model", "model", "--json").json
        assert asked["selected_blocks"] == routed["selected_blocks"] == [block]

    bare = kri("route", *stack)
    assert (bare.code, "give one with --model" in bare.err) == (2, True), bare.err
    for command in (("ask", "x"), ("route",)):
        gone = kri(*command, *stack, "--probes", "gone.txt")
        assert (gone.code, "--probes gone.txt cannot be read" in gone.err) == (2, True), gone.err
