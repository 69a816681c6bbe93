"""`kri_core.probe.Probe` over a transformers model. What it returns is on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

import torch
from attrs import Factory, frozen
from torch import Tensor

from kri_core.artifacts import find_calibration
from kri_core.calibration import Calibration
from kri_core.errors import ConfigError, PluginError
from kri_core.identity import digest
from kri_core.probe import Gradients, PrefillChunk, ProbeText, Reading, Readout, Removal
from kri_core.rope import Rope
from kri_core.substrate.hf.attention import PrefixAttention
from kri_core.substrate.hf.build import layers_of, prefill
from kri_core.substrate.hf.captures import Captures
from kri_core.substrate.hf.chat import encode
from kri_core.substrate.hf.forward import checked_rows, run_rows, stacked
from kri_core.substrate.hf.gradients import loss_gradients
from kri_core.substrate.hf.interface import attending
from kri_core.substrate.hf.journal import Journal, MemoryJournal
from kri_core.substrate.hf.model import HfModel
from kri_core.substrate.hf.observing import show_chunk
from kri_core.substrate.hf.prefix import Prefix
from kri_core.substrate.hf.projection import output_projection
from kri_core.types import Cartridge

PREFILL_TOKENS = 256  # document tokens observed at once, in whole blocks
Progress = Callable[[str, int, int], object]  # (name of the work, units done, units in all)


def probe_texts(model: HfModel, texts: Sequence[str]) -> tuple[ProbeText, ...]:
    """Texts as the tokens that follow a document: no special token is added."""
    return tuple(ProbeText(text, encode(model, text)) for text in texts)


@frozen(eq=False)
class HfProbe:
    """A model, the cartridge it made and the probe texts of this bake or request."""

    model: HfModel
    cartridge: Cartridge
    texts: tuple[ProbeText, ...]
    batch: int  # rows that `each` has run at once, at most
    journal: Journal = Factory(MemoryJournal)
    progress: Progress | None = None
    captures: Captures | None = None  # of forwards, which others may want too

    def __attrs_post_init__(self) -> None:
        self.model.check(self.cartridge)

    @property
    def rope(self) -> Rope:
        """As the protocol says."""
        return self.model.anatomy.rotary.rope

    @cached_property
    def calibration(self) -> Calibration | None:
        """As the protocol says; read once, so a prior records the one its scores are from."""
        return find_calibration(self.model.identity.fingerprint)

    @property
    def native_model(self) -> object:
        """As the protocol says: a transformers PreTrainedModel."""
        return self.model.model

    def output_projection(self, layer: int) -> Tensor:
        """As the protocol says."""
        return output_projection(self.model, layer)

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
        shown = checked_rows(
            self.cartridge.layout.num_blocks, token_ids, read, visible, removal, last
        )
        run = partial(self._forward, token_ids, read, shown, removal, last)
        if self.captures is None:
            return run()
        asked = (list(token_ids), list(read), shown.tolist(), removal, last)
        return self.captures.of(digest(self.cartridge.sha256, str(self.model.dtype), *asked), run)

    def _forward(
        self,
        token_ids: Sequence[int],
        read: Sequence[Reading],
        shown: Tensor,
        removal: Removal,
        last: int | None,
    ) -> Readout:
        keep = min(last or len(token_ids), len(token_ids))
        run = partial(run_rows, token_ids=token_ids, first=self._end, read=read, keep=keep)
        if removal == "mask":
            return run(self.model, *self._narrowed(shown))
        kept = [row.nonzero().flatten().tolist() for row in shown]
        every = (torch.ones(1, len(blocks), dtype=torch.bool) for blocks in kept)
        return stacked(
            [
                run(self.model, self._prefilled(blocks), all_visible)
                for blocks, all_visible in zip(kept, every, strict=True)
            ]
        )

    def gradients(self, token_ids: Sequence[int], targets: Sequence[int]) -> Gradients:
        """As the protocol says."""
        return loss_gradients(self.model, self._prefix, token_ids, self._end, targets)

    def each(
        self, name: str, units: Sequence[int], run: Callable[[Sequence[int]], Tensor]
    ) -> Tensor:
        """As the protocol says; the progress callback is told of every finished batch."""
        known = {unit: row for unit in units if (row := self.journal.get(name, unit)) is not None}
        missing = [unit for unit in dict.fromkeys(units) if unit not in known]
        total = len(known) + len(missing)
        for start in range(0, len(missing), self.batch):
            some = missing[start : start + self.batch]
            rows = run(some)
            if len(rows) != len(some):
                raise PluginError(
                    f"the function given to probe.each for {name!r} must return one row per unit; "
                    f"got {len(rows)} for {len(some)}"
                )
            self.journal.put(name, some, rows)
            known.update(zip(some, rows, strict=True))
            if self.progress is not None:
                self.progress(name, len(known), total)
        return torch.stack([known[unit] for unit in units])

    def prefill(self, observe: Callable[[PrefillChunk], None], first_token: int = 0) -> None:
        """As the protocol says; before a chunk come the cartridge's K and V, then its own."""
        token_ids = self._document()
        size = self.cartridge.layout.block_size
        step = max(1, PREFILL_TOKENS // size) * size
        start = first_token // size * size
        for first in range(start, len(token_ids), step):
            chunk = token_ids[first : first + step]
            show = partial(show_chunk, observe, first, self._prefix.before(first + len(chunk)).keys)
            attend = PrefixAttention(self._prefix.before(first), observe=show, with_mass=True)
            positions = self.model.positions(first, len(chunk))
            with attending(self.model.model, attend):
                self.model.run(self.model.tokens(chunk), positions, keep=0)
            if self.progress is not None:
                self.progress("prefill", first + len(chunk) - start, len(token_ids) - start)

    @property
    def _end(self) -> int:
        """The position after the document."""
        return self.cartridge.layout.num_tokens

    @cached_property
    def _prefix(self) -> Prefix:
        return Prefix.of(self.cartridge, self.model.dtype, self.model.device)

    def _narrowed(self, visible: Tensor) -> tuple[Prefix, Tensor]:
        """Only the blocks that some row sees, where they are few: less to read and to compute."""
        seen = visible.any(0).nonzero().flatten().tolist()
        if 2 * len(seen) > visible.shape[1]:
            return self._prefix, visible
        few = Prefix.of(self.cartridge, self.model.dtype, self.model.device, seen)
        return few, visible[:, seen]

    def _prefilled(self, blocks: Sequence[int]) -> Prefix:
        """The document run again without the other blocks' tokens, at the original positions."""
        token_ids, layout = self._document(), self.cartridge.layout
        kept = [*layout.tokens_of(blocks), *layout.tail]
        if not kept:
            return Prefix.of(self.cartridge, self.model.dtype, self.model.device, ())
        positions = torch.tensor([kept], device=self.model.device)
        cache = prefill(self.model, self.model.tokens([token_ids[t] for t in kept]), positions)
        keys, values = zip(*layers_of(cache), strict=True)
        return Prefix(keys, values, tuple(blocks), layout.num_blocks, layout.block_size)

    def _document(self) -> tuple[int, ...]:
        """The document's token ids, if running them gives the cartridge's KV."""
        if self.cartridge.trained or not self.cartridge.token_ids:
            what = "is trained" if self.cartridge.trained else "does not know its tokens"
            raise ConfigError(
                f"cartridge {self.cartridge.cart_id!r} {what}, so its document cannot be run; use "
                "a scorer that only reads probe texts, with removal=mask"
            )
        return self.cartridge.token_ids
