"""A `Probe` over a `FakeModel`: the protocol of kri_core.probe in its plainest form."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kri_core.calibration import Calibration
from kri_core.probe import Gradients, PrefillChunk, ProbeText, Reading, Readout, Removal
from kri_core.rope import Rope
from kri_core.testing.fake_model import ROPE_THETA, FakeModel, Trace
from kri_core.types import Cartridge

CHUNK = 5  # document tokens per prefill chunk: not a multiple of the fakes' block size
TEXTS = (ProbeText("first", (5, 9, 2, 7, 11)), ProbeText("second", (3, 8, 1)))


class FakeProbe:
    """Runs one row after the other, counts them, and keeps what `each` was given.

    `kept` may be shared between probes: that is a bake which was killed and resumed.
    """

    def __init__(
        self,
        model: FakeModel,
        cartridge: Cartridge,
        texts: tuple[ProbeText, ...] = TEXTS,
        batch: int = 4,
        kept: dict[str, Tensor] | None = None,
    ) -> None:
        self.model, self.cartridge, self.batch = model, cartridge, batch
        self._texts = texts
        self.kept = {} if kept is None else kept
        self.rows = 0  # how often the model was run on a probe text

    @property
    def texts(self) -> tuple[ProbeText, ...]:
        """The probe texts, at least one."""
        return self._texts

    @property
    def rope(self) -> Rope:
        """As the protocol says."""
        half = self.cartridge.layout.head_dim // 2
        return Rope(ROPE_THETA ** (-torch.arange(half).double() / half), 1.0, interleaved=False)

    @property
    def calibration(self) -> Calibration | None:
        """As the protocol says, measured on 64 tokens."""
        trace = self.model.run(range(64), range(64))
        queries = self.rope.pairs(trace.pre_rope_queries)  # [layer, q_head, token, pair]
        centre, length = queries.mean(2).to(torch.complex64), queries.abs().mean(2).float()
        return Calibration(centre, length, self.cartridge.model.fingerprint, 64)

    @property
    def native_model(self) -> object:
        """As the protocol says: a FakeModel."""
        return self.model

    def output_projection(self, layer: int) -> Tensor:
        """As the protocol says."""
        return self.model.output[layer]

    def forward(
        self,
        token_ids: Sequence[int],
        *,
        read: Sequence[Reading],
        visible: Tensor | None = None,
        removal: Removal = "mask",
        last: int | None = None,
    ) -> Readout:
        """As the protocol says."""
        layout = self.cartridge.layout
        if visible is None:
            visible = torch.ones(1, layout.num_blocks, dtype=torch.bool)
        self.rows += len(visible)
        traces = [self._row(token_ids, row, removal) for row in visible]
        first = 0 if last is None else max(0, len(token_ids) - last)
        readings = {
            "hidden": [trace.hidden[:, first:] for trace in traces],
            "logits": [trace.logits[first:] for trace in traces],
            "queries": [trace.queries[:, :, first:] for trace in traces],
            "pre_rope_queries": [trace.pre_rope_queries[:, :, first:] for trace in traces],
            "block_mass": [
                self._block_mass(trace, row)[:, :, first:]
                for trace, row in zip(traces, visible, strict=True)
            ],
            "head_outputs": [trace.outputs[:, :, first:] for trace in traces],
            "scaling": [torch.full((layout.num_layers,), layout.head_dim**-0.5) for _ in traces],
        }
        return Readout(**{name: torch.stack(readings[name]) for name in read})

    def gradients(self, token_ids: Sequence[int], targets: Sequence[int]) -> Gradients:
        """As the protocol says: the gradient by a nudge of zero is the gradient by what it nudges.

        It holds the gradient of all keys, which are few here.
        """
        layout, model = self.cartridge.layout, self.model
        columns, whole = layout.num_tokens + len(token_ids), layout.num_blocks * layout.block_size
        keys = model.key.new_zeros(*model.key.shape[:2], columns, layout.head_dim)
        outputs = model.query.new_zeros(*model.query.shape[:2], len(token_ids), layout.head_dim)
        nudges = keys.requires_grad_(), outputs.requires_grad_()
        self.rows += 1
        positions = range(layout.num_tokens, columns)
        trace = model.run(token_ids, positions, self._past(), nudges=nudges)
        wanted = torch.tensor(list(targets))
        loss = torch.nn.functional.cross_entropy(trace.logits[-len(wanted) :], wanted)
        by_key, by_output = torch.autograd.grad(loss, nudges)
        shape = (*by_key.shape[:2], layout.num_blocks, layout.block_size, layout.head_dim)
        per_block = by_key[:, :, :whole].reshape(shape)
        return Gradients(
            key_sums=per_block.sum(3),
            key_norms=per_block.norm(dim=-1).sum(3),
            other_keys=by_key[:, :, whole:].sum(2),
            head_outputs=by_output,
        )

    def each(
        self, name: str, units: Sequence[int], run: Callable[[Sequence[int]], Tensor]
    ) -> Tensor:
        """As the protocol says; what was kept for another set of units is an error."""
        if name not in self.kept:
            starts = range(0, len(units), self.batch)
            self.kept[name] = torch.cat([run(units[at : at + self.batch]) for at in starts])
        assert len(self.kept[name]) == len(units), f"{name!r} was kept for other units"
        return self.kept[name]

    def prefill(self, observe: Callable[[PrefillChunk], None], first_token: int = 0) -> None:
        """As the protocol says; the chunks do not start where blocks do."""
        layout, tokens = self.cartridge.layout, self.cartridge.token_ids
        trace = self.model.run(tokens, range(len(tokens)))
        scaling = layout.head_dim**-0.5
        begin = first_token // layout.block_size * layout.block_size
        for start in range(begin, len(tokens), CHUNK):
            rows = slice(start, min(start + CHUNK, len(tokens)))
            for layer in range(layout.num_layers):
                mass = layout.pool(trace.weights[layer, :, rows]) * layout.block_size
                queries = trace.queries[layer, :, rows].float()
                keys = trace.keys[layer, :, : rows.stop]
                observe(PrefillChunk(layer, start, queries, keys, scaling, mass))

    def _row(self, token_ids: Sequence[int], visible: Tensor, removal: Removal) -> Trace:
        layout = self.cartridge.layout
        positions = range(layout.num_tokens, layout.num_tokens + len(token_ids))
        seen = [*layout.tokens_of(visible.nonzero().flatten().tolist()), *layout.tail]
        if removal == "reprefill":
            document = self.model.run([self.cartridge.token_ids[t] for t in seen], seen)
            return self.model.run(token_ids, positions, (document.keys, document.values))
        allowed = torch.zeros(layout.num_tokens, dtype=torch.bool)
        allowed[seen] = True
        return self.model.run(token_ids, positions, self._past(), allowed)

    def _past(self) -> tuple[Tensor, Tensor]:
        """Keys and values of blocks and tail, in the model's dtype."""
        blocks = self.cartridge.keys(), self.cartridge.values()
        past = (torch.cat([blocks[side], self.cartridge.tail[:, side]], 2) for side in (0, 1))
        keys, values = (side.to(self.model.embedding.dtype) for side in past)
        return keys, values

    def _block_mass(self, trace: Trace, visible: Tensor) -> Tensor:
        """Sums of a row's weights; a block left out by reprefill has no columns and gets 0."""
        layout = self.cartridge.layout
        full = trace.weights.shape[-1] - trace.hidden.shape[1] == layout.num_tokens
        shown = layout.num_blocks if full else int(visible.sum())
        columns = trace.weights[..., : shown * layout.block_size]
        mass = columns.reshape(*columns.shape[:-1], shown, layout.block_size).sum(-1)
        if full:
            return mass
        spread = mass.new_zeros(*mass.shape[:-1], layout.num_blocks)
        spread[..., visible] = mass
        return spread
