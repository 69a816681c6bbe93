"""Scores against a plain transformers forward under a mask, and what was attended to."""

import math

import pytest
import torch

from kri_core.evaluation.tasks import load_task
from kri_core.evaluation.tasks.needle import Needle8
from kri_core.grammar import parse
from kri_core.routing import Router
from kri_core.running.answering import Reader, Selection
from kri_core.running.tokenizing import HfTokenizer
from kri_core.substrate.hf import build_from_tokens, load_model, run_repairs
from kri_core.substrate.hf.attention import PrefixAttention
from kri_core.types import Query

TOKENS = 652  # 40 blocks of 16 and a tail of 12


@pytest.fixture(scope="module")
def model(bench):
    return load_model(str(bench / "model"), dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def document(model):
    return next(Needle8(tokens=TOKENS, needles=2).documents(HfTokenizer(model)))


@pytest.fixture(scope="module")
def cartridge(model, document):
    return build_from_tokens(model, document.token_ids, cart_id="needle", block_size=16)


def all_outcomes(reader, document, selection):
    return reader.outcomes([(item, selection) for item in document.items])


def one_outcome(model, cartridge, item, selection):
    (found,) = Reader(model, cartridge).outcomes([(item, selection)])
    return found


def masked_log_probs(model, document, fed, kept, tail=True):
    """Log-probabilities after each fed token by one forward of everything under a mask.

    The document attends as it did alone; what follows it sees the kept blocks, the tail and itself.
    """
    size, end = len(document) + len(fed), len(document)
    seen = torch.ones(size, size, dtype=torch.bool).tril()
    allowed = torch.zeros(end, dtype=torch.bool)
    for block in kept:
        allowed[block * 16 : block * 16 + 16] = True
    if tail:
        allowed[end // 16 * 16 :] = True
    seen[end:, :end] = allowed
    bias = torch.zeros(size, size).masked_fill(~seen, torch.finfo(torch.float32).min)
    with torch.no_grad():
        logits = model.model(
            torch.tensor([[*document, *fed]]), attention_mask=bias[None, None], use_cache=False
        ).logits[0, end:]
    return logits.double().log_softmax(-1)


@pytest.mark.parametrize("kept", [(), (0, 7, 8, 39), tuple(range(40)), None])
def test_scores_are_those_of_a_plain_forward_under_a_mask(model, document, cartridge, kept):
    """mc, em, logp, kl and nll from the definitions of EVAL 1; None is no document at all."""
    selection = Selection(kept or (), document=kept is not None)
    reader = Reader(model, cartridge)

    for item, outcome in zip(
        document.items, all_outcomes(reader, document, selection), strict=True
    ):
        found = outcome.scores

        def rows(fed, blocks, tail=True):
            return masked_log_probs(model, document.token_ids, fed, blocks, tail)

        question, answer = item.question, item.options[item.correct]
        fed = (*question, *answer)
        routed = rows(fed, kept or (), kept is not None)
        dense = rows(fed, range(40))
        first = len(question)  # the position of the space, after which the digits differ
        among = [float(routed[first][option[1]]) for option in item.options]
        right = among[item.correct]
        assert found["mc"] == float(right == max(among))
        assert found["logp"] == pytest.approx(
            right - math.log(sum(math.exp(value) for value in among)), abs=1e-4
        )
        digits = [int(row.argmax()) for row in routed[first : first + 5]]
        assert found["em"] == float(digits == list(answer[1:]))
        span = slice(first + 1 - 3, first + 1 - 3 + 8)
        kl = (dense[span].exp() * (dense[span] - routed[span])).sum(-1).mean()
        assert found["kl"] == pytest.approx(float(kl), abs=1e-4)
        following = item.continuation
        after = rows(following, kept or (), kept is not None)
        nll = -sum(float(after[at][following[at + 1]]) for at in range(64)) / 64
        assert found["nll"] == pytest.approx(nll, abs=1e-4)


@pytest.mark.parametrize(
    "stack",
    [
        "A1R2K5(knorm)",
        "A1R2K0",
        "A0R0K0",
        "A30R30K2(knorm)",
        "A1R2K100(knorm)",
        "recency[budget=8]",
        "recency[budget=99]",
        "hybrid",
        "whole",
    ],
)
def test_the_kept_fraction_is_that_of_the_tokens_attended_to(
    model, document, cartridge, monkeypatch, stack
):
    """CASES 44: counted in the keys that the model's attention was given."""
    manifest = Router.from_config(parse(stack)).route(cartridge, Query(document.items[0].question))
    attend, lengths = PrefixAttention.__call__, set()

    def counted(self, call):
        lengths.add(self.prefix.keys[call.layer].shape[1])
        return attend(self, call)

    reader = Reader(model, cartridge)
    all_outcomes(reader, document, Selection(tuple(range(40))))  # so that dense is known
    with monkeypatch.context() as patched:
        patched.setattr(PrefixAttention, "__call__", counted)
        found = all_outcomes(reader, document, Selection(manifest.kept, variant="again"))

    (length,) = lengths
    assert {outcome.kept_fraction for outcome in found} == {(length - 12) / 16 / 40}
    assert found[0].kept_fraction == manifest.kept_fraction


def test_the_same_blocks_are_read_once(model, document, cartridge, monkeypatch):
    """Reading the same items over the same blocks again costs nothing."""
    calls = []

    def counted(self, *arguments, **options):
        calls.append(1)
        return run(self, *arguments, **options)

    run = type(model).run
    monkeypatch.setattr(type(model), "run", counted)
    reader = Reader(model, cartridge)
    first = all_outcomes(reader, document, Selection((0, 5)))
    assert len(calls) == 2  # routed and dense: both questions and the continuation in one forward

    assert all_outcomes(reader, document, Selection((0, 5), seconds=1.0)) == first
    assert len(calls) == 2


def test_a_repaired_selection_is_answered_from_its_own_rows(model, document, cartridge):
    """A full reference over few blocks changes nothing, being what is stored."""
    item = document.items[0]
    plain = one_outcome(model, cartridge, item, Selection((0, 3, 9)))
    found = {}
    for reference in ("full", "routed"):
        router = Router.from_config(parse(f"A0R0K3(knorm)+xa25[reference={reference}]"))
        manifest = router.route(cartridge, Query(item.question))
        ((prefix, repairs),) = run_repairs(model, cartridge, router, [(manifest, item.question)])
        assert len(repairs[0].report.refreshed) == 15  # a quarter of 48 + 12 tokens
        selection = Selection(manifest.kept, repaired=prefix, variant=reference)
        found[reference] = one_outcome(model, cartridge, item, selection)
        stored = one_outcome(model, cartridge, item, Selection(manifest.kept))
        same = found[reference].scores == pytest.approx(stored.scores, abs=1e-4)
        assert same == (reference == "full")

    assert plain.kept_fraction == found["routed"].kept_fraction == 3 / 40


def test_full_attention_is_faithful_to_itself(model, tmp_path):
    """fidelity: the routed reader's own draft, fed to dense."""
    text = tmp_path / "text.txt"
    text.write_text("The pump is set to nine bar, and the valve stays shut. " * 10)
    task = load_task("fidelity", {"path": str(text), "tokens": "250", "compared": "6"})
    document = next(task.documents(HfTokenizer(model)))
    cartridge = build_from_tokens(model, document.token_ids, cart_id="text", block_size=16)
    reader = Reader(model, cartridge)

    full = reader.outcomes([(document.items[0], Selection(tuple(range(15))))])[0].scores
    none = reader.outcomes([(document.items[0], Selection((), document=False))])[0].scores

    assert full == {"kl": 0.0, "top1": 1.0, "acceptance": 6.0}
    assert none["kl"] > 0.01
    assert none["acceptance"] < 6


def test_a_turn_is_opened_by_the_chat_template(model):
    tokenizer = HfTokenizer(model)

    opened = tokenizer.open_turn("Be brief.")

    assert opened == "<s><|system|>Be brief.<|end|><|user|>"
    assert tokenizer.decode(tokenizer.encode(opened)) == opened
    assert len(tokenizer.encode("<s>ab")) == 3


def test_a_template_without_a_system_message_opens_the_user_s_turn(bench):
    fresh = load_model(str(bench / "model"), dtype="float32", device="cpu")
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    fresh.tokenizer.chat_template = refusing + fresh.tokenizer.chat_template
    assert HfTokenizer(fresh).open_turn("Be brief.") == "<s><|user|>"

    fresh.tokenizer.chat_template = None
    assert HfTokenizer(fresh).open_turn("Be brief.") == "<s>"
