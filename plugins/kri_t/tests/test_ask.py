"""kri-t-q through calibrate, bake, ask and route, against a tiny Llama with hooks on q_proj."""

import json
import sys
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

from kri_core.artifacts import read_cartridge  # noqa: E402 - they need transformers
from kri_core.cli import main  # noqa: E402
from kri_core.testing.tiny import save_tiny  # noqa: E402

TEXT = "The pump is set to nine bar; valve four stays shut until the tank is warm. " * 3
QUESTIONS = ("\nWhich valve is it?", "\nzzzz 0123", "\nHow warm? At nine, or at four bar?")
SIZE = 8


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


@pytest.fixture
def here(tmp_path, kri, monkeypatch):
    """A model that is calibrated, a document of 28 blocks, and no prior."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KRI_HOME", str(tmp_path / "home"))
    save_tiny(tmp_path / "model")
    (tmp_path / "doc.txt").write_text(TEXT)
    built = ("--text", "doc.txt", "--block-size", SIZE, "--out", "doc.safetensors")
    kri("cartridge", "build", "--model", "model", *built)
    kri("calibrate", "--model", "model", "--text", "doc.txt")
    return tmp_path


def bake(kri, scorer):
    kri("bake", "--cartridge", "doc.safetensors", "--scorer", scorer, "--out", "prior.pt")


def ask(kri, stack, question, *arguments, **expected):
    shown = ("--cartridge", "doc.safetensors", "--stack", stack, "--max-new-tokens", 1, "--json")
    return kri("ask", question, *shown, *arguments, **expected)


def route(kri, stack, question, *arguments, **expected):
    shown = ("--cartridge", "doc.safetensors", "--stack", stack, "--explain", "--json")
    return kri("route", *shown, "--query", question, *arguments, **expected)


def queries_before_rope(question):
    """Of the question after the whole document, [layer, q_head, token, 8]."""
    model = transformers.AutoModelForCausalLM.from_pretrained("model", attn_implementation="eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained("model")
    document = tokenizer(TEXT).input_ids
    ids = document + tokenizer(question, add_special_tokens=False).input_ids
    taken = []
    for layer in model.model.layers:
        layer.self_attn.q_proj.register_forward_hook(lambda _m, _i, out: taken.append(out[0]))
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]))
    return torch.stack(taken).unflatten(-1, (-1, 8)).transpose(1, 2)[:, :, len(document) :].double()


def by_hand(question):
    """blend=1, pool=max, A1R2: one cosine of each pair at a time, its angle known from Llama."""
    cartridge = read_cartridge(Path("doc.safetensors"))
    keys, end = cartridge.keys().double(), cartridge.layout.num_tokens
    asked = queries_before_rope(question)
    bands = 10_000.0 ** (-torch.arange(4).double() / 4)
    total = torch.zeros(keys.shape[2] // SIZE).double()
    for layer in range(3):
        per_head = []
        for head in range(4):
            key = torch.complex(*keys[layer, head // 2].split(4, -1))
            query = torch.complex(*asked[layer, head].split(4, -1))
            centre, length = query.mean(0), query.abs().mean(0)
            at = torch.tensor([end + 2.0**power for power in range(17)]).double()
            angle = at[:, None, None] * bands + centre.angle() - key.angle()  # [offset, token, 4]
            logits = (centre.abs() * key.abs() * angle.cos()).sum(-1).mean(0)
            logits += (key.abs() * (length - centre.abs())).sum(-1)
            mid = logits[SIZE : -2 * SIZE]
            per_head.append((logits - mid.mean()) / mid.std(correction=0))
        for pair in (per_head[:2], per_head[2:]):
            total += torch.maximum(*pair).view(-1, SIZE).amax(1) / 6
    return total


def test_scores_are_those_of_plain_transformers_queries(kri, here):
    """The prior was baked without parameters and serves them all."""
    scorer = "kri-t-q[blend=1.0,pool=max,source=full]"
    bake(kri, "kri-t-q")
    wanted = by_hand(QUESTIONS[0])
    routed = route(
        kri, f"A1R2K4({scorer})", QUESTIONS[0], "--prior", "prior.pt", "--model", "model"
    )
    got = torch.tensor([item["score"] for item in routed["blocks"]], dtype=torch.float64)

    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)
    best = (wanted[1:-2].topk(4).indices + 1).tolist()
    answered = ask(kri, f"A1R2K4({scorer})", QUESTIONS[0], "--prior", "prior.pt")
    assert answered["selected_blocks"] == routed["selected_blocks"] == sorted([0, *best, 26, 27])
    assert answered["stack"] == routed["stack"] == f"A1R2K4({scorer})"


def test_another_question_keeps_other_blocks(kri, here):
    bake(kri, "kri-t-q")
    kept = [
        ask(kri, "A1R2K4(kri-t-q[blend=1.0])", question, "--prior", "prior.pt")["selected_blocks"]
        for question in (*QUESTIONS, QUESTIONS[0])
    ]

    assert kept[0] == kept[3]
    assert len({tuple(blocks) for blocks in kept}) > 1


def test_a_prior_keeps_the_calibration_it_was_baked_with(kri, here):
    """Calibrating again changes kri-t-q's next prior, not this one."""
    bake(kri, "kri-t-q")
    asked = ("A1R2K4(kri-t-q)", QUESTIONS[0], "--prior", "prior.pt", "--model", "model")
    before = route(kri, *asked)
    (here / "other.txt").write_text("zzzz 0123 9876 qqqq; " * 9)
    kri("calibrate", "--model", "model", "--text", "other.txt")
    assert route(kri, *asked)["blocks"] == before["blocks"]

    recorded = kri("prior", "inspect", "prior.pt", "--json")["meta"]["calib_sha256"]
    bake(kri, "kri-t-q")
    assert kri("prior", "inspect", "prior.pt", "--json")["meta"]["calib_sha256"] != recorded
    assert route(kri, *asked)["blocks"] != before["blocks"]


def test_late_layers_and_layer_0_choose_for_themselves(kri, here):
    kept = []
    for baked, scorer in (
        ("kri-t-q", "kri-t-q"),
        ("kri-t-q", "kri-t-q[source=layer0]"),
        ("kri-t-q-late", "kri-t-q-late"),
    ):
        bake(kri, baked)
        answer = ask(kri, f"A1R2K4({scorer})", QUESTIONS[0], "--prior", "prior.pt")
        assert answer["stack"] == f"A1R2K4({scorer})"
        kept.append(tuple(answer["selected_blocks"]))

    assert len(set(kept)) > 1


def test_what_is_missing_is_said(kri, here):
    said = ask(kri, "A1R2K4(kri-t-q)", QUESTIONS[0], code=2)
    assert "kri-t-q runs the model over the document; bake a prior first" in said
    bake(kri, "kri-t-q")
    said = route(kri, "A1R2K4(kri-t-q)", QUESTIONS[0], "--prior", "prior.pt", code=2)
    assert "runs the question through the model, and none is at hand; give one with --model" in said
    said = ask(kri, "A1R2K4(kri-t-q-late)", QUESTIONS[0], "--prior", "prior.pt", code=4)
    assert "the stack names scorer kri-t-q-late, the prior was baked by kri-t-q" in said
    said = ask(kri, "A1R2K4(kri-t-q-late[source=layer0])", QUESTIONS[0], code=2)
    assert "kri-t-q-late's source is one of pinned, full; got 'layer0'" in said
