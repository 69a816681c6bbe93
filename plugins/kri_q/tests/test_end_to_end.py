"""A tiny Llama through bake, ask and route, against plain transformers with hooks on q and k."""

import json
import sys
from collections import Counter

import pytest
import torch

from kri_core import Cartridge

transformers = pytest.importorskip("transformers")

from kri_core.cli import main  # noqa: E402 - they need transformers
from kri_core.testing.tiny import save_tiny  # noqa: E402

TEXT = "The pump is set to nine bar; valve four stays shut until the tank is warm. " * 3
QUESTIONS = ("\nWhich valve is it?", "\nzzzz 0123", "\nHow warm? At nine, or at four bar?")
SIZE, DIM, HEADS, LAYERS = 8, 8, 2, 3
STACK = "A1R2K4({})"
SCORERS = ("kri-q", "kri-q-centre", "kri-q-cumulant", "quest")


@pytest.fixture
def kri(capsys, monkeypatch):
    def run(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["kri-core", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        assert (stop.value.code or 0) == code, err
        return json.loads(out) if out.startswith("{") else err

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("workshop")


@pytest.fixture
def here(folder, kri, monkeypatch):
    """The workshop: model/, doc.safetensors of 28 blocks and a tail of 2, and a prior a scorer."""
    monkeypatch.chdir(folder)
    if not (folder / "priors").exists():
        save_tiny(folder / "model")
        (folder / "doc.txt").write_text(TEXT)
        build = ("--model", "model", "--text", "doc.txt", "--block-size", SIZE)
        kri("cartridge", "build", *build, "--out", "doc.safetensors")
        scorers = [word for name in SCORERS for word in ("--scorer", name)]
        kri("bake", "--cartridge", "doc.safetensors", *scorers, "--out", "priors")
    return folder


def ask(kri, stack, question, *arguments, **expected):
    shown = ("--cartridge", "doc.safetensors", "--stack", stack, "--max-new-tokens", 1, "--json")
    return kri("ask", question, *shown, *arguments, **expected)


def route(kri, stack, question, *arguments, **expected):
    shown = ("--cartridge", "doc.safetensors", "--stack", stack, "--explain", "--json")
    return kri("route", *shown, "--query", question, *arguments, **expected)


def turned(vectors, positions):
    """RoPE of Llama, [..., token, 8] at positions."""
    angle = positions[:, None] * 10_000.0 ** (-torch.arange(4) / 4)
    first, second = vectors[..., :4], vectors[..., 4:]
    return torch.cat(
        [
            first * angle.cos() - second * angle.sin(),
            first * angle.sin() + second * angle.cos(),
        ],
        -1,
    )


def plain(question, shown):
    """One forward of document and question, the latter seeing only the blocks shown and the tail.

    Last token's queries [layer, q_head, d], document's keys [layer, kv_head, token, d], both
    post-RoPE, from hooks on the projections.
    """
    model = transformers.AutoModelForCausalLM.from_pretrained("model", attn_implementation="eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained("model")
    document = tokenizer(TEXT).input_ids
    ids = document + tokenizer(question, add_special_tokens=False).input_ids
    end, count = len(document), len(ids)
    allowed = torch.ones(count, count, dtype=torch.bool).tril()
    hidden = [t for t in range(end // SIZE * SIZE) if t // SIZE not in shown]
    allowed[end:, hidden] = False
    mask = torch.zeros(1, 1, count, count).masked_fill(~allowed, -1e30)
    taken = {"q": [], "k": []}
    for layer in model.model.layers:
        for name, projection in (("q", layer.self_attn.q_proj), ("k", layer.self_attn.k_proj)):
            projection.register_forward_hook(
                lambda _module, _inputs, output, name=name: taken[name].append(output[0])
            )
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]), attention_mask=mask)
    queries, keys = (
        torch.stack(taken[name]).unflatten(-1, (-1, DIM)).transpose(1, 2) for name in ("q", "k")
    )  # [layer, head, token, d]
    queries, keys = (turned(side, torch.arange(count)).double() for side in (queries, keys))
    return queries[:, :, -1], keys[:, :, : end // SIZE * SIZE]


def by_hand(name, source, question):
    """The score of each block: mean over layers and KV heads."""
    blocks = (len(TEXT) + 1) // SIZE
    shown = {"full": range(blocks), "pinned": (0, blocks - 2, blocks - 1), "layer0": ()}[source]
    queries, keys = plain(question, shown)
    used = 1 if source == "layer0" else LAYERS
    scores = torch.zeros(blocks, dtype=torch.float64)
    for layer in range(used):
        for head in range(2 * HEADS):
            q, inside = queries[layer, head], keys[layer, head // 2].unflatten(0, (blocks, SIZE))
            if name == "kri-q":
                scores += inside.mean(1) @ q / DIM**0.5 / 4
            elif name == "kri-q-cumulant":
                spread = (inside.var(1, correction=0) @ q.square()) / DIM / 2
                scores += (inside.mean(1) @ q / DIM**0.5 + spread + torch.tensor(SIZE).log()) / 4
    if name == "quest":
        for layer in range(used):
            for kv_head in range(HEADS):
                inside = keys[layer, kv_head].unflatten(0, (blocks, SIZE))
                per_head = [
                    torch.maximum(q * inside.amin(1), q * inside.amax(1)).sum(-1)
                    for q in queries[layer, 2 * kv_head : 2 * kv_head + 2]
                ]
                scores += torch.maximum(*per_head) / HEADS
    return scores / used


@pytest.mark.parametrize("source", ["full", "pinned", "layer0"])
@pytest.mark.parametrize("name", ["kri-q", "kri-q-cumulant", "quest"])
def test_scores_and_choice_are_those_of_plain_transformers(kri, here, name, source):
    scorer = name if source == "pinned" else f"{name}[source={source}]"
    prior = ("--prior", f"priors/doc_{name}.pt")
    wanted = by_hand(name, source, QUESTIONS[0])
    routed = route(kri, STACK.format(scorer), QUESTIONS[0], *prior, "--model", "model")
    got = torch.tensor([item["score"] for item in routed["blocks"]], dtype=torch.float64)

    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)
    best = wanted[1:-2].topk(4).indices + 1
    chosen = sorted([0, *best.tolist(), len(wanted) - 2, len(wanted) - 1])
    answered = ask(kri, STACK.format(scorer), QUESTIONS[0], *prior)
    assert routed["selected_blocks"] == answered["selected_blocks"] == chosen
    assert routed["stack"] == answered["stack"] == STACK.format(scorer)


def test_the_hand_computation_notices_another_source(here):
    """The control: by far more than the tolerance."""
    full, pinned, layer0 = (by_hand("kri-q", s, QUESTIONS[0]) for s in ("full", "pinned", "layer0"))

    assert (full - pinned).abs().max() > 1e-2
    assert (full - layer0).abs().max() > 1e-2


@pytest.mark.parametrize("name", SCORERS)
def test_another_question_keeps_other_blocks(kri, here, name):
    prior = ("--prior", f"priors/doc_{name}.pt")
    kept = [tuple(ask(kri, STACK.format(name), q, *prior)["selected_blocks"]) for q in QUESTIONS]

    assert len(Counter(kept)) > 1
    assert kept == [
        tuple(ask(kri, STACK.format(name), q, *prior)["selected_blocks"]) for q in QUESTIONS
    ]


def test_without_a_prior_the_summary_is_made_anew(kri, here):
    with_it = ask(kri, "A1R2K4(quest)", QUESTIONS[0], "--prior", "priors/doc_quest.pt")
    without = ask(kri, "A1R2K4(quest)", QUESTIONS[0])

    assert with_it["selected_blocks"] == without["selected_blocks"]
    said = ask(kri, "A1R2K4(kri-q-centre)", QUESTIONS[0], code=2)
    assert "kri-q-centre runs the model over the document; bake a prior first" in said


def test_route_needs_the_model_named(kri, here):
    said = route(kri, "A1R2K4(quest)", QUESTIONS[0], code=2)
    assert "runs the question through the model, and none is at hand; give one with --model" in said
    said = kri("route", "--cartridge", "doc.safetensors", "--stack", "A1R2K4(quest)", code=2)
    assert "quest scores questions; give one with --query" in said


@pytest.mark.parametrize(("source", "read"), [("pinned", [0, 26, 27]), ("layer0", [])])
def test_only_pins_and_chosen_blocks_are_read(kri, here, monkeypatch, source, read):
    """28 blocks; `full` reads all of them, which is the control."""
    seen = []
    plain_side = Cartridge._side

    def watched(self, side, blocks):
        seen.append(list(range(28)) if blocks is None else list(blocks))
        return plain_side(self, side, blocks)

    monkeypatch.setattr(Cartridge, "_side", watched)
    prior = ("--prior", "priors/doc_kri-q.pt")
    kept = ask(kri, f"A1R2K4(kri-q[source={source}])", QUESTIONS[0], *prior)["selected_blocks"]
    assert [seen[0], seen[-1]] == [read, kept]
    assert set().union(*seen) == {*read, *kept}

    seen.clear()
    ask(kri, "A1R2K4(kri-q[source=full])", QUESTIONS[0], *prior)
    assert seen[0] == list(range(28))
