"""One forward of a text after a document, once per row of visible blocks, and what it gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from attrs import fields
from torch import Tensor, nn

from kri_core.probe import Reading, Readout
from kri_core.substrate.hf.attention import PrefixAttention
from kri_core.substrate.hf.interface import attending
from kri_core.substrate.hf.model import HfModel
from kri_core.substrate.hf.prefix import Prefix


def run_rows(
    model: HfModel,
    prefix: Prefix,
    visible: Tensor,
    token_ids: Sequence[int],
    first: int,
    read: Sequence[Reading],
    keep: int,
) -> Readout:
    """Run tokens at positions from `first`, one row per row of `visible`; keep the last `keep`.

    visible: bool [row, one per block the prefix holds]. Readings are float32, on the CPU.
    """
    queries: list[Tensor] = []  # per layer [row, q_head, token, head_dim]
    masses: list[Tensor] = []  # per layer [row, q_head, token, block]

    def observe(_layer: int, query: Tensor, mass: Tensor | None) -> None:
        queries.append(query[:, :, -keep:])
        if mass is not None:
            masses.append(mass[:, :, -keep:])

    asked = {"queries", "pre_rope_queries", "block_mass"} & set(read)
    attend = PrefixAttention(
        prefix, visible.to(model.device), observe if asked else None, "block_mass" in read
    )
    positions = model.positions(first, len(token_ids))
    rows = model.tokens(token_ids).expand(len(visible), -1)
    with attending(model.model, attend), _streams(model, "hidden" in read) as streams:
        logits = model.run(rows, positions, keep=keep if "logits" in read else 0)
    plain = partial(model.anatomy.rotary.off, positions=positions[:, -keep:], dtype=model.dtype)
    given: dict[Reading, Callable[[], Tensor]] = {
        "hidden": lambda: torch.stack([stream[:, -keep:].float() for stream in streams], 1),
        "logits": logits.float,
        "queries": lambda: torch.stack(queries, 1),
        "pre_rope_queries": lambda: torch.stack([plain(query) for query in queries], 1),
        "block_mass": lambda: torch.stack(masses, 1),
    }
    return Readout(**{name: given[name]().cpu() for name in read})


@contextmanager
def _streams(model: HfModel, wanted: bool) -> Iterator[list[Tensor]]:
    """The residual stream [row, token, dim] after each decoder layer, before the final norm."""
    streams: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
        streams.append(output[0] if isinstance(output, tuple) else output)

    layers = model.anatomy.layers if wanted else ()
    handles = [layer.register_forward_hook(keep) for layer in layers]
    try:
        yield streams
    finally:
        for handle in handles:
            handle.remove()


def stacked(readouts: Sequence[Readout]) -> Readout:
    """Readouts of some rows each as one readout of all rows."""
    names = [field.name for field in fields(Readout)]
    parts = {name: [getattr(readout, name) for readout in readouts] for name in names}
    return Readout(**{name: torch.cat(rows) for name, rows in parts.items() if rows[0] is not None})
