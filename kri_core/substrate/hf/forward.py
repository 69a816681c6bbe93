"""One forward of a text after a document, once per row of visible blocks, and what it gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import get_args

import torch
from attrs import Factory, fields, frozen
from torch import Tensor, nn

from kri_core.errors import PluginError
from kri_core.probe import Reading, Readout, Removal
from kri_core.substrate.hf.attention import PrefixAttention
from kri_core.substrate.hf.interface import AttentionCall, attending
from kri_core.substrate.hf.model import HfModel
from kri_core.substrate.hf.prefix import Prefix


@frozen(eq=False)
class _Seen:
    """What one forward shows on its way, layer by layer."""

    queries: list[Tensor] = Factory(list)  # [row, q_head, token, head_dim], post-RoPE
    masses: list[Tensor] = Factory(list)  # [row, q_head, token, block]
    outputs: list[Tensor] = Factory(list)  # [row, q_head, token, head_dim]
    scalings: list[float] = Factory(list)
    streams: list[Tensor] = Factory(list)  # [row, token, dim]

    def observe(self, call: AttentionCall, mass: Tensor | None, output: Tensor) -> None:
        """Keep what an attention layer shows."""
        self.queries.append(call.query.float())
        self.outputs.append(output.float())
        self.scalings.append(call.scaling)
        if mass is not None:
            self.masses.append(mass)


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
    seen = _Seen()
    observed = set(read) - {"hidden", "logits"}
    attend = PrefixAttention(
        prefix,
        visible.to(model.device),
        observe=seen.observe if observed else None,
        with_mass="block_mass" in read,
    )
    positions = model.positions(first, len(token_ids))
    rows = model.tokens(token_ids).expand(len(visible), -1)
    hooked = model.anatomy.layers if "hidden" in read else ()
    with attending(model.model, attend), _streams(hooked, seen.streams):
        logits = model.run(rows, positions, keep=keep if "logits" in read else 0)
    return _readout(model, positions[:, -keep:], seen, logits, read)


def _readout(
    model: HfModel, positions: Tensor, seen: _Seen, logits: Tensor, read: Sequence[Reading]
) -> Readout:
    """What was asked for of the tokens at these positions, the last ones."""
    last = slice(-positions.shape[1], None)

    def pre_rope() -> Tensor:
        off = model.anatomy.rotary.off
        return torch.stack([off(q[:, :, last], positions, model.dtype) for q in seen.queries], 1)

    given: dict[Reading, Callable[[], Tensor]] = {
        "hidden": lambda: torch.stack([stream[:, last].float() for stream in seen.streams], 1),
        "logits": logits.float,
        "queries": lambda: torch.stack([query[:, :, last] for query in seen.queries], 1),
        "pre_rope_queries": pre_rope,
        "block_mass": lambda: torch.stack([mass[:, :, last] for mass in seen.masses], 1),
        "head_outputs": lambda: torch.stack([output[:, :, last] for output in seen.outputs], 1),
        "scaling": lambda: torch.tensor(seen.scalings).expand(len(logits), -1),
    }
    return Readout(**{name: given[name]().cpu() for name in read})


@contextmanager
def _streams(layers: Sequence[nn.Module], streams: list[Tensor]) -> Iterator[None]:
    """Collect the residual stream after each decoder layer, which is before the final norm."""

    def keep(_module: nn.Module, _inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
        streams.append(output[0] if isinstance(output, tuple) else output)

    handles = [layer.register_forward_hook(keep) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def stacked(readouts: Sequence[Readout]) -> Readout:
    """Readouts of some rows each as one readout of all rows."""
    names = [field.name for field in fields(Readout)]
    parts = {name: [getattr(readout, name) for readout in readouts] for name in names}
    return Readout(**{name: torch.cat(rows) for name, rows in parts.items() if rows[0] is not None})


def checked_rows(
    total: int,
    token_ids: Sequence[int],
    read: Sequence[Reading],
    visible: Tensor | None,
    removal: Removal,
    last: int | None,
) -> Tensor:
    """Refuse what a scorer cannot mean; give the visible blocks of every row, [row, block]."""
    if not token_ids:
        raise PluginError("probe.forward needs at least one token")
    if last is not None and last < 1:
        raise PluginError(f"last must be at least 1 token; got {last}")
    if unknown := set(read) - set(get_args(Reading)):
        raise PluginError(
            f"probe.forward cannot read {', '.join(sorted(unknown))}; "
            f"it reads {', '.join(get_args(Reading))}"
        )
    if removal not in get_args(Removal):
        raise PluginError(f"removal {removal!r} is not known; give mask or reprefill")
    if visible is None:
        return torch.ones(1, total, dtype=torch.bool)
    if visible.dtype != torch.bool or visible.ndim != 2 or visible.shape[1] != total:
        raise PluginError(
            f"visible must be bool [row, block] of {total} blocks; "
            f"got {visible.dtype} {list(visible.shape)}"
        )
    return visible
