"""What an attention layer shows of a document's prefill, as the protocol's chunk of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from kri_core.probe import PrefillChunk
from kri_core.substrate.hf.interface import AttentionCall


def show_chunk(
    observe: Callable[[PrefillChunk], None],
    first: int,
    keys: Sequence[Tensor],
    call: AttentionCall,
    mass: Tensor,
    _output: Tensor,
) -> None:
    """An `Observe`, after the first three: float32, on the CPU."""
    observe(
        PrefillChunk(
            layer=call.layer,
            first_token=first,
            queries=call.query[0].float().cpu(),
            keys=keys[call.layer].cpu(),
            scaling=call.scaling,
            block_mass=mass[0].cpu(),
        )
    )
