"""Measuring a model's queries before RoPE in one pass over a text (ALGORITHMS 5.3)."""

from __future__ import annotations

import torch
from attrs import Factory, frozen
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kri_core.calibration import Calibration
from kri_core.errors import ConfigError
from kri_core.substrate.hf.build import Report, prefill
from kri_core.substrate.hf.chat import document_ids
from kri_core.substrate.hf.interface import AttentionCall, attending
from kri_core.substrate.hf.model import HfModel

SKIPPED = 4  # first tokens: their queries are outliers
MOST_TOKENS = 32_768  # 50 thousand and 960 thousand gave the same scores, arXiv 2604.04921


@frozen(eq=False)
class _Sums:
    """An `Attend` that is plain causal attention and adds up the queries it sees."""

    model: HfModel
    centres: dict[int, Tensor] = Factory(dict)  # layer → complex128 [q_head, pair]
    lengths: dict[int, Tensor] = Factory(dict)  # layer → float64 [q_head, pair]

    def __call__(self, call: AttentionCall) -> Tensor:
        """The keys are the cache's with the new ones at the end."""
        new, total = call.query.shape[2], call.key.shape[2]
        self._add(call, total - new)
        causal = torch.ones(new, total, dtype=torch.bool, device=call.query.device)
        return scaled_dot_product_attention(
            call.query,
            call.key,
            call.value,
            attn_mask=causal.tril(total - new),
            scale=call.scaling,
            enable_gqa=True,
        )

    def _add(self, call: AttentionCall, first: int) -> None:
        rotary = self.model.anatomy.rotary
        positions = self.model.positions(first, call.query.shape[2])
        plain = rotary.off(call.query.float(), positions, self.model.dtype)[0].cpu()
        pairs = rotary.rope.pairs(plain[:, max(0, SKIPPED - first) :])  # [q_head, token, pair]
        centre, length = pairs.sum(1), pairs.abs().sum(1)
        self.centres[call.layer] = self.centres.get(call.layer, 0) + centre
        self.lengths[call.layer] = self.lengths.get(call.layer, 0) + length


def calibrate(model: HfModel, text: str, progress: Report | None = None) -> Calibration:
    """Means over a text's tokens, as many as the model takes and 32 768 at most."""
    token_ids = document_ids(model, text)[: min(model.max_positions, MOST_TOKENS)]
    count = len(token_ids) - SKIPPED
    if count < 1:
        raise ConfigError(
            f"the text has {len(token_ids)} tokens and the first {SKIPPED} are left out; give a "
            "longer one, some thousands of words"
        )
    sums = _Sums(model)
    with attending(model.model, sums):
        prefill(model, model.tokens(token_ids), model.positions(0, len(token_ids)), progress)
    layers = sorted(sums.centres)
    return Calibration(
        centre=torch.stack([sums.centres[layer] / count for layer in layers]).to(torch.complex64),
        length=torch.stack([sums.lengths[layer] / count for layer in layers]).float(),
        model_fingerprint=model.identity.fingerprint,
        num_tokens=count,
    )
