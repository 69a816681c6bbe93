"""Gradients of the loss: against transformers' own attention, finite differences and the laws."""

from __future__ import annotations

import inspect

import pytest
import torch
from attrs import evolve
from transformers import DynamicCache

from kri_core.errors import ConfigError, EngineError, PluginError
from kri_core.substrate.hf import HfProbe, gradients
from kri_core.substrate.hf.attention import PrefixAttention
from kri_core.substrate.hf.interface import attending
from kri_core.substrate.hf.prefix import Prefix
from kri_core.substrate.hf.projection import NAMES
from kri_core.testing.tiny import random_tokens, tiny, tiny_cartridge

TEXT, TARGETS = random_tokens(5, seed=1), random_tokens(3, seed=2)


def probe_of(model, cartridge):
    return HfProbe(model, cartridge, texts=(), batch=1)


def side(cartridge, which):
    """Keys (0) or values (1) of blocks and tail, a list of [kv_head, token, head_dim]."""
    blocks = cartridge.keys() if which == 0 else cartridge.values()
    return list(torch.cat([blocks, cartridge.tail[:, which]], 2))


def plain_loss(model, keys, values, text=TEXT, targets=TARGETS):
    """Loss by transformers' eager attention over a cache of these keys and values."""
    network, cache = model.model, DynamicCache()
    for layer, (key, value) in enumerate(zip(keys, values, strict=True)):
        cache.update(key[None], value[None], layer)
    taken = inspect.signature(network.forward).parameters
    first = keys[0].shape[1]
    previous = network.config._attn_implementation
    network.set_attn_implementation("eager")
    try:
        logits = network(
            input_ids=torch.tensor([text]),
            position_ids=torch.arange(first, first + len(text))[None],
            **{"cache" if "cache" in taken else "past_key_values": cache},
        ).logits[0]
    finally:
        network.set_attn_implementation(previous)
    of_targets = logits[-len(targets) :].log_softmax(-1)[range(len(targets)), targets]
    return -of_targets.mean()


def by_transformers(case):
    """Gradients by the keys, [layer, kv_head, token, head_dim], and by each head's output."""
    keys = [key.clone().requires_grad_() for key in side(case.cartridge, 0)]
    inputs = []
    hooks = [
        next(part for name, part in layer.named_modules() if name.split(".")[-1] in NAMES)
        .register_forward_pre_hook(lambda _module, given: inputs.append(given[0]))
        for layer in case.model.anatomy.layers
    ]  # fmt: skip
    loss = plain_loss(case.model, keys, side(case.cartridge, 1))
    for hook in hooks:
        hook.remove()
    by_key = torch.autograd.grad(loss, keys, retain_graph=True)
    by_input = torch.stack(torch.autograd.grad(loss, inputs))[:, 0]  # [layer, token, q_head · d]
    heads = by_input.unflatten(-1, (case.model.anatomy.num_q_heads, -1)).transpose(1, 2)
    return torch.stack(by_key), heads


def test_they_are_what_autograd_gives_through_transformers_own_attention(case):
    given = probe_of(case.model, case.cartridge).gradients(TEXT, TARGETS)
    by_key, by_output = by_transformers(case)
    blocks = by_key[:, :, :48].unflatten(2, (6, 8))
    scale = blocks.sum(3).abs().max()

    assert scale > 1e-4
    torch.testing.assert_close(given.key_sums, blocks.sum(3), rtol=1e-4, atol=1e-5 * float(scale))
    torch.testing.assert_close(given.key_norms, blocks.norm(dim=-1).sum(3), rtol=1e-3, atol=1e-7)
    torch.testing.assert_close(given.head_outputs, by_output, rtol=1e-3, atol=1e-6)
    sizes = case.cartridge.layout
    assert given.other_keys.shape == (3, sizes.num_kv_heads, 8)
    assert {part.dtype for part in vars_of(given)} == {torch.float32}


def vars_of(given):
    return given.key_sums, given.key_norms, given.other_keys, given.head_outputs


@pytest.fixture(scope="module", params=["Llama", "Qwen3", "Phi"])
def double(request):
    """A model in float64, its norms too, which transformers takes in float32; its cartridge."""
    model = tiny(request.param, dtype=torch.float64)
    for part in list(model.model.modules()):
        for name, norm in part.named_children():
            if type(norm).__name__.endswith("RMSNorm"):
                exact = torch.nn.RMSNorm(len(norm.weight), norm.variance_epsilon)
                exact.weight = norm.weight
                setattr(part, name, exact)
    return model, tiny_cartridge(model)


def test_a_shift_of_all_keys_changes_nothing(double):
    """ALGORITHMS 3.5, test 1: softmax takes away what every logit of a row has in common."""
    given = probe_of(*double).gradients(TEXT, TARGETS)
    everything = given.key_sums.sum(2) + given.other_keys

    assert given.key_sums.dtype == torch.float64
    assert everything.abs().max() < 1e-9 * given.key_sums.abs().max()


def test_without_the_texts_own_keys_and_the_tail_a_shift_would_change_something(double):
    """A negative control."""
    given = probe_of(*double).gradients(TEXT, TARGETS)

    assert given.key_sums.sum(2).abs().max() > 1e-2 * given.key_sums.abs().max()


def test_they_are_the_slopes_of_the_loss(double):
    """ALGORITHMS 3.5, test 2: a block's keys moved together, in each layer and KV head."""
    model, cartridge = double
    given = probe_of(model, cartridge).gradients(TEXT, TARGETS)
    draw, step = torch.Generator().manual_seed(0), 1e-5

    def loss(layer, head, block, shift):
        kv = cartridge.kv.clone()
        kv[block, layer, 0, head] += shift
        prefix = Prefix.of(evolve(cartridge, kv=kv), torch.float64, model.device)
        with attending(model.model, PrefixAttention(prefix)):
            logits = model.run(model.tokens(TEXT), model.positions(50, 5), keep=3)[0]
        return -float(logits.log_softmax(-1)[range(3), TARGETS].mean())

    for place in ((0, 0, 0), (1, 1, 3), (2, 0, 5)):
        way = torch.randn(8, generator=draw, dtype=torch.float64)
        slope = (loss(*place, step * way) - loss(*place, -step * way)) / (2 * step)
        assert float(given.key_sums[place] @ way) == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("nbytes", [1, 2000])
def test_steps_of_any_size_give_the_same(double, monkeypatch, nbytes):
    """One token at a time, two at a time."""
    whole = probe_of(*double).gradients(TEXT, TARGETS)
    monkeypatch.setattr(gradients, "STEP_BYTES", nbytes)
    for one, other in zip(vars_of(probe_of(*double).gradients(TEXT, TARGETS)), vars_of(whole),
                          strict=True):  # fmt: skip
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_the_model_is_left_as_it_was(tiny_llama, tiny_cartridge):
    weights = list(tiny_llama.model.parameters())
    weights[0].requires_grad_(False)
    before = [weight.requires_grad for weight in weights]
    kv = tiny_cartridge.kv.clone()
    probe = probe_of(tiny_llama, tiny_cartridge)
    first = probe.gradients(TEXT, TARGETS)

    assert [weight.requires_grad for weight in weights] == before
    weights[0].requires_grad_(True)
    assert all(weight.grad is None for weight in weights)
    assert tiny_cartridge.kv.equal(kv)
    assert tiny_llama.model.config._attn_implementation != "kri_core"
    for part, again in zip(vars_of(first), vars_of(probe.gradients(TEXT, TARGETS)), strict=True):
        assert not part.requires_grad
        assert part.equal(again)


def test_no_tensor_is_larger_than_a_step_or_one_layers_keys(
    tiny_llama, largest_tensor, monkeypatch
):
    """The weights of all 40 tokens would be 4 · 40 · 440 float32, 282 thousand bytes."""
    monkeypatch.setattr(gradients, "STEP_BYTES", 1 << 16)
    probe = probe_of(tiny_llama, tiny_cartridge(tiny_llama, num_tokens=400))
    probe.gradients(TEXT, TARGETS)  # loads the cartridge, which is not measured
    with largest_tensor() as largest:
        probe.gradients(random_tokens(40, seed=3), TARGETS)

    assert 2 * 440 * 8 * 4 <= largest.nbytes <= 1 << 16


def test_key_gradients_of_one_layer_are_held_at_a_time(tiny_llama, tiny_cartridge, monkeypatch):
    leaves, held = [], []
    reduce = gradients._Attention._reduce

    def watch(self, layer, keys):
        leaves.append(keys)
        held.append(sum(leaf.grad is not None for leaf in leaves))
        reduce(self, layer, keys)

    monkeypatch.setattr(gradients._Attention, "_reduce", watch)
    probe_of(tiny_llama, tiny_cartridge).gradients(TEXT, TARGETS)

    assert held == [1, 1, 1]


def test_a_bfloat16_model_gives_float32_near_the_float32_ones():
    exact = tiny("Llama")
    rounded = tiny("Llama", dtype=torch.bfloat16)
    wanted = probe_of(exact, tiny_cartridge(exact)).gradients(TEXT, TARGETS).key_sums
    given = probe_of(rounded, tiny_cartridge(rounded)).gradients(TEXT, TARGETS).key_sums

    assert given.dtype == torch.float32
    assert (given - wanted).norm() < 0.1 * wanted.norm()


def test_a_float16_models_gradients_do_not_underflow(monkeypatch):
    """Output weights so small that the way back passes below 6e-8 unless the loss is raised."""
    model = tiny("Llama", dtype=torch.float16)
    model.model.lm_head.weight.data.mul_(1e-5)
    exact = tiny("Llama")
    exact.model.lm_head.weight.data.copy_(model.model.lm_head.weight)
    wanted = probe_of(exact, tiny_cartridge(exact)).gradients(TEXT, TARGETS).key_sums
    given = probe_of(model, tiny_cartridge(model)).gradients(TEXT, TARGETS).key_sums
    monkeypatch.setattr(gradients, "LOSS_SCALE", 1.0)
    lost = probe_of(model, tiny_cartridge(model)).gradients(TEXT, TARGETS).key_sums

    assert (given - wanted).norm() < 0.1 * wanted.norm()
    assert (lost - wanted).norm() > 0.2 * wanted.norm()


@pytest.mark.parametrize("count", [0, 6])
def test_targets_that_do_not_fit_are_refused(tiny_llama, tiny_cartridge, count):
    with pytest.raises(
        PluginError, match=rf"needs a target for 1 to 5 of the last tokens, .*; got {count}"
    ):
        probe_of(tiny_llama, tiny_cartridge).gradients(TEXT, random_tokens(count))


def test_a_text_past_the_models_positions_is_refused(tiny_llama, tiny_cartridge):
    text = random_tokens(463)
    with pytest.raises(ConfigError, match="513 tokens are needed but the model takes 512"):
        probe_of(tiny_llama, tiny_cartridge).gradients(text, TARGETS)


def test_gradients_of_nan_are_refused(tiny_llama, tiny_cartridge):
    kv = tiny_cartridge.kv.clone()
    kv[2, 1, 1] = torch.inf
    with pytest.raises(
        EngineError, match=r"tiny-llama computed gradients of NaN or infinity in torch\.float32; "
    ):
        probe_of(tiny_llama, evolve(tiny_cartridge, kv=kv)).gradients(TEXT, TARGETS)
