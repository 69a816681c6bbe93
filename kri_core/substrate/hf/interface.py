"""The door into transformers: while it is open, a model's attention is computed by our function.

transformers looks the function up by name (`AttentionInterface`) in every attention layer. No mask
function is registered under that name, so transformers builds no [row, 1, token, token] mask: what
may see what is the function's own business. What to compute travels in a context variable and not
as a forward keyword, since some families do not hand their keywords down to the attention layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from attrs import frozen
from torch import Tensor, nn
from transformers import AttentionInterface

NAME = "kri_core"


@frozen(eq=False)
class AttentionCall:
    """What one attention layer asks for: the new tokens' queries, keys and values, post-RoPE."""

    module: nn.Module
    query: Tensor  # [row, q_head, token, head_dim]
    key: Tensor  # [row, kv_head, token, head_dim]
    value: Tensor  # [row, kv_head, token, head_dim]
    scaling: float
    mask: Tensor | None
    options: Mapping[str, Any]  # whatever else the layer passes: softcap, sinks, a window

    @property
    def layer(self) -> int:
        """The decoder layer's number."""
        return int(self.module.layer_idx)  # type: ignore[arg-type]


Attend = Callable[[AttentionCall], Tensor]  # answers [row, q_head, token, head_dim]
_attend: ContextVar[Attend] = ContextVar("kri_core_attend")


def _dispatch(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,  # in transformers' own order: whoever wraps it (kvpress) gives places
    scaling: float | None = None,
    **options: Any,  # noqa: ANN401 - each family passes its own
) -> tuple[Tensor, None]:
    """Called by transformers; the dropout of an evaluated model is 0."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    call = AttentionCall(module, query, key, value, scaling, attention_mask, options)
    return _attend.get()(call).transpose(1, 2), None  # [row, token, q_head, head_dim]


AttentionInterface.register(NAME, _dispatch)


@contextmanager
def attending(model: Any, attend: Attend) -> Iterator[None]:  # noqa: ANN401 - a PreTrainedModel
    """Within the block the model's attention is `attend`; afterwards it is what it was."""
    previous = model.config._attn_implementation
    token = _attend.set(attend)
    try:
        model.set_attn_implementation(NAME)
        yield
    finally:
        model.set_attn_implementation(previous)
        _attend.reset(token)
