"""The embedded model in float32: vLLM and the hf substrate give the same tokens and numbers."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

from kri_core.artifacts import write_cartridge, write_prior
from kri_core.bake import bake
from kri_core.config import PluginRef
from kri_core.demo import document, questions
from kri_core.grammar import parse
from kri_core.models import model_directory
from kri_core.registry import Registry
from kri_core.routing import Router
from kri_core.stack import Member
from kri_core.substrate.hf import answer, build_from_tokens, document_ids, load_model, run_repairs

pytestmark = pytest.mark.model

TOKENS = 1000  # 62 blocks of 16 and a tail of 8
WORDS = 12  # tokens of an answer
PRIORS = ("kri-energy", "knorm")  # two that need no model to bake
WORKER = "kri_core.substrate.vllm.workers.RoutedCPUWorker"


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """The embedded model, a cartridge of the demo's document, and two priors of it."""
    path = model_directory("smollm2-135m")
    if not (path / "config.json").is_file():
        pytest.skip("the embedded model is not here; run make model")
    root = tmp_path_factory.mktemp("embedded")
    model = load_model(str(path), dtype="float32", device="cpu")
    tokens = document_ids(model, document(), False)[:TOKENS]
    cartridge = build_from_tokens(model, tokens, cart_id="manual", block_size=16)
    write_cartridge(cartridge, root / "manual.safetensors")
    registry, priors = Registry.discover(), []
    for name in PRIORS:
        scorer = Member.load(registry, "scorer", PluginRef(name))
        ((_, prior),) = bake(cartridge, [scorer], None)
        priors.append(root / f"{name}.pt")
        write_prior(prior, priors[-1])
    return SimpleNamespace(
        model_path=path,
        model=model,
        cartridges={"manual": cartridge},
        paths={"manual": root / "manual.safetensors"},
        priors={"manual": priors},
    )


@pytest.fixture(scope="module")
def extra(shop):
    priors = {"manual": [str(path) for path in shop.priors["manual"]]}
    return {
        "cartridges": {"manual": str(shop.paths["manual"])},
        "routing": {"stack": "A1R2K13", "priors": priors},
    }


@pytest.fixture(scope="module")
def engine(start, extra):
    with start(extra, max_model_len=2048, worker_cls=WORKER) as running:
        yield running


@pytest.fixture(scope="module")
def question(shop):
    return shop.model.tokenizer(questions()[0].prompt, add_special_tokens=False)["input_ids"]


def cases(question):
    """K=16 by two priors, all blocks, a repair, and a dense request."""
    return [
        ("manual", question, {"prior": PRIORS[0]}),
        ("manual", question, {"prior": PRIORS[1], "stack": "A0R0K16"}),
        ("manual", question, {"stack": "whole"}),
        ("manual", question, {"stack": "A1R2K13+xa25", "prior": PRIORS[0]}),
        ("manual", question, {"enabled": False}),
    ]


def expected(shop, question, kri):
    """The hf substrate's answer, repaired where the stack says so."""
    cartridge = shop.cartridges["manual"]
    kept, prefix = range(62) if kri is None else kri["selected"], None
    if kri is not None and kri["stack"].endswith("+xa25"):
        router = Router.from_config(parse(kri["stack"]))
        from kri_core.artifacts import read_prior

        manifest = router.route(cartridge, prior=read_prior(shop.priors["manual"][0]))
        assert list(manifest.kept) == kri["selected"]
        ((prefix, _),) = run_repairs(shop.model, cartridge, router, [(manifest, question)])
    return answer(shop.model, cartridge, list(kept), question, WORDS, prefix)


def check(shop, question, kri, tokens, logprobs):
    reference = expected(shop, question, kri)
    count = len(reference.token_ids)
    assert tokens is None or tokens[:count] == list(reference.token_ids)
    assert logprobs[:count] == pytest.approx(list(reference.logprobs), abs=1e-4)


def test_a_mixed_batch_of_every_kind_agrees_with_the_hf_substrate(engine, shop, question):
    answers = engine.ask_all(cases(question), tokens=WORDS)

    assert [said.kri and len(said.kri["selected"]) for said in answers] == [16, 16, 62, 16, None]
    assert answers[0].kri["selected"] != answers[1].kri["selected"]
    for said in answers:
        check(shop, question, said.kri, said.tokens, said.logprobs)


def test_the_kinds_answer_differently(engine, question):
    """The control: answers that agreed by being all alike would prove nothing."""
    first, second, whole, repaired, _ = engine.ask_all(cases(question), tokens=WORDS)

    for one, other in [(first, second), (first, whole), (first, repaired)]:
        assert max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True)) > 1e-2


@pytest.fixture(scope="module")
def complete(serve, shop, tmp_path_factory):
    """The real `openai` client of a real server."""
    import openai

    arguments = [shop.model_path, f"--cartridge=manual={shop.paths['manual']}"]
    arguments += [f"--prior=manual={path}" for path in shop.priors["manual"]]
    arguments += ["--stack=A1R2K13+xa25", "--cpu-kv-space=1", "--", "--served-model-name=smollm2"]
    arguments += ["--dtype=float32", "--max-model-len=2048", "--enforce-eager"]
    with serve(arguments, tmp_path_factory.mktemp("server")) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

        def ask(prompt, params):
            return client.completions.create(
                model="smollm2",
                prompt=prompt,
                max_tokens=WORDS,
                temperature=0,
                logprobs=1,
                extra_body={"kv_transfer_params": params},
            )

        yield ask


def test_the_server_agrees_with_the_hf_substrate(complete, shop, question):
    """The same five, at once, over HTTP."""
    prompt = [*shop.cartridges["manual"].token_ids, *question]
    asked = [{"stack": "A1R2K13"} | params for _, _, params in cases(question)]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda params: complete(prompt, params), asked))

    for said in answers:
        kri = (said.kv_transfer_params or {}).get("kri")
        check(shop, question, kri, None, said.choices[0].logprobs.token_logprobs)
    repaired = answers[3].kv_transfer_params["kri"]["repair"]
    assert repaired["tokens"] == math.ceil(0.25 * (16 * 16 + 8))
