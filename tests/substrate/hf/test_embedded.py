"""The substrate's equalities on the embedded model, in float32."""

import pytest
import torch

from kri_core.demo import document, prompt
from kri_core.models import get_model
from kri_core.substrate.hf import HfProbe, answer, build_cartridge, load_model, question_ids

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model():
    return load_model(str(get_model("smollm2-135m")), dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def cartridge(model):
    return build_cartridge(model, document(), cart_id="manual", block_size=16, max_tokens=600)


@pytest.fixture(scope="module")
def question(model):
    return question_ids(model, prompt("Who designed the machine?"))


def test_all_blocks_are_plain_generate(model, cartridge, question):
    every = range(cartridge.layout.num_blocks)
    ours = answer(model, cartridge, every, question, 12)

    tokens = torch.tensor([[*cartridge.token_ids, *question]])
    plain = model.model.generate(tokens, max_new_tokens=12, do_sample=False)
    assert ours.token_ids == tuple(plain[0, tokens.shape[1] :].tolist())


def test_masked_is_removed(model, cartridge, question):
    """Five blocks and the tail; 1e-5 of the largest logit, which is some twenty."""
    kept = (0, 7, 20, 35, 36)
    visible = torch.zeros(1, cartridge.layout.num_blocks, dtype=torch.bool)
    visible[0, list(kept)] = True
    probe = HfProbe(model, cartridge, texts=(), batch=1)
    logits = probe.forward(question, read=("logits",), visible=visible).logits[0]

    removed = answer(model, cartridge, kept, question, 0).question_logprobs
    bound = 1e-5 * float(logits.abs().max())
    assert (logits.log_softmax(-1) - removed).abs().max() < bound
    every = answer(model, cartridge, range(len(visible[0])), question, 0).question_logprobs
    assert (logits.log_softmax(-1) - every).abs().max() > 100 * bound  # absence does something
