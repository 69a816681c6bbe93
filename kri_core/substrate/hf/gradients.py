"""Gradients of a text's loss by the document's keys and by what the attention heads gave.

The parameters are frozen and the stored keys are the leaves, in float32 whatever the model's dtype:
in float16 their gradients would fall below its smallest number. Weights are not kept for the way
back but computed again, some tokens of one layer at a time, and a layer's key gradients are reduced
to block sums as soon as they are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from attrs import Factory, frozen
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from kri_core.errors import EngineError, PluginError
from kri_core.probe import Gradients
from kri_core.substrate.hf.interface import AttentionCall, attending
from kri_core.substrate.hf.model import HfModel
from kri_core.substrate.hf.prefix import Prefix

STEP_BYTES = 64 << 20  # of one step's attention weights; autograd holds three tensors of their size
# A float16 gradient below 6e-8 is 0: the loss is raised before the way back (ALGORITHMS 3.3).
LOSS_SCALE = 2.0**12


def loss_gradients(
    model: HfModel, prefix: Prefix, token_ids: Sequence[int], first: int, targets: Sequence[int]
) -> Gradients:
    """Run tokens at positions from `first` over a whole document, and back from their loss.

    Results are on the CPU.
    """
    if not 1 <= len(targets) <= len(token_ids):
        raise PluginError(
            f"probe.gradients needs a target for 1 to {len(token_ids)} of the last tokens, as many "
            f"as there are; got {len(targets)}"
        )
    scale = LOSS_SCALE if model.dtype == torch.float16 else 1.0
    attend = _Attention(prefix)
    wanted = model.tokens(targets)[0]
    options = {
        "input_ids": model.tokens(token_ids),
        "position_ids": model.positions(first, len(token_ids)),
        "use_cache": False,
        "logits_to_keep": len(targets),
    }
    with _frozen(model.model), torch.enable_grad(), attending(model.model, attend):
        logits = model.model(**options).logits[0]
        loss = cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), wanted)
        (loss * scale).backward()  # type: ignore[no-untyped-call]
    return _finite(model, attend.gradients(scale))


@frozen(eq=False)
class _Attention:
    """An `Attend` of one row that sees everything; what the way back gives is kept by layer."""

    prefix: Prefix
    key_sums: dict[int, Tensor] = Factory(dict)  # [kv_head, block, head_dim]
    key_norms: dict[int, Tensor] = Factory(dict)  # [kv_head, block]
    tails: dict[int, Tensor] = Factory(dict)  # [kv_head, head_dim]
    own_keys: dict[int, Tensor] = Factory(dict)  # [kv_head, head_dim]
    outputs: dict[int, Tensor] = Factory(dict)  # [q_head, token, head_dim]

    def __call__(self, call: AttentionCall) -> Tensor:
        """[row, q_head, token, head_dim], in the query's dtype."""
        layer, dtype = call.layer, torch.promote_types(call.query.dtype, torch.float32)
        query = call.query[0].to(dtype) * call.scaling
        keys = self.prefix.keys[layer].to(dtype).detach().requires_grad_()
        own = call.key[0].to(dtype).requires_grad_()  # layer 0's depend on nothing: leaves, too
        keys.register_post_accumulate_grad_hook(partial(self._reduce, layer))  # type: ignore[no-untyped-call]
        own.register_hook(partial(self._keep_own, layer))  # type: ignore[no-untyped-call]
        values = torch.cat([self.prefix.values[layer], call.value[0]], 1).to(dtype)
        steps = [
            checkpoint(
                _attend, query[:, rows], keys, own, values, rows.start,
                use_reentrant=False, preserve_rng_state=False,
            )
            for rows in _steps(query, values.shape[1])
        ]  # fmt: skip
        output: Tensor = torch.cat(steps, 1)
        output.register_hook(partial(self.outputs.__setitem__, layer))  # type: ignore[no-untyped-call]
        return output[None].to(call.query.dtype)

    def _reduce(self, layer: int, keys: Tensor) -> None:
        """Take a layer's key gradients and let them go."""
        gradient, keys.grad = keys.grad, None
        assert gradient is not None  # noqa: S101 - called when it is there
        blocks, size = self.prefix.num_blocks, self.prefix.block_size
        per_block = gradient[:, : blocks * size].reshape(len(gradient), blocks, size, -1)
        self.key_sums[layer] = per_block.sum(2)
        self.key_norms[layer] = per_block.norm(dim=-1).sum(2)
        self.tails[layer] = gradient[:, blocks * size :].sum(1)

    def _keep_own(self, layer: int, gradient: Tensor) -> None:
        self.own_keys[layer] = gradient.sum(1)

    def gradients(self, scale: float) -> Gradients:
        """Everything kept, of a loss that was `scale` times as large."""

        def stacked(kept: dict[int, Tensor]) -> Tensor:
            return torch.stack([kept[layer].cpu() / scale for layer in sorted(kept)])

        others = stacked(self.tails) + stacked(self.own_keys)
        sums, norms = stacked(self.key_sums), stacked(self.key_norms)
        return Gradients(sums, norms, others, stacked(self.outputs))


def _attend(query: Tensor, keys: Tensor, own: Tensor, values: Tensor, first: int) -> Tensor:
    """Some tokens' attention over the document and, causally, the text, [q_head, token, head_dim].

    query: [q_head, token, head_dim], times the logits' scaling; keys, own: [kv_head, token,
    head_dim], the document's and the text's; values: of both; first: the first query's own index.
    """
    tokens, past = query.shape[1], keys.shape[1]
    grouped = query.reshape(len(keys), -1, query.shape[-1])  # [kv_head, group · token, head_dim]
    scores = grouped @ torch.cat([keys, own], 1).mT
    columns = torch.arange(values.shape[1], device=query.device)
    rows = torch.arange(past + first, past + first + tokens, device=query.device)
    later = (columns > rows[:, None]).repeat(len(query) // len(keys), 1)
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    return (weights @ values).view(query.shape)


def _steps(query: Tensor, columns: int) -> Iterator[slice]:
    """Consecutive tokens, as many as one step's weights have room for."""
    heads, tokens, _ = query.shape
    step = max(1, STEP_BYTES // (heads * columns * query.element_size()))
    for start in range(0, tokens, step):
        yield slice(start, min(start + step, tokens))


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Within the block no parameter takes a gradient, or keeps what its own would need."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


def _finite(model: HfModel, gradients: Gradients) -> Gradients:
    """A norm of NaN is no score, and one of infinity hides all others."""
    parts = (gradients.key_norms, gradients.other_keys, gradients.head_outputs)
    if not all(bool(part.isfinite().all()) for part in parts):
        raise EngineError(
            f"{model.identity.model_id} computed gradients of NaN or infinity in {model.dtype}; "
            "give --dtype float32 or bfloat16, or a checkpoint without NaN"
        )
    return gradients
