"""What a scorer may ask of a model. A substrate answers; scorers see only this protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from attrs import frozen

if TYPE_CHECKING:
    from torch import Tensor

Removal = Literal["mask", "reprefill"]
Reading = Literal["hidden", "logits", "queries", "pre_rope_queries", "block_mass"]


@frozen
class ProbeText:
    """One text the model is run on after the document; scorers that need one average over all."""

    text: str
    token_ids: tuple[int, ...]


@frozen(eq=False)
class Readout:
    """What one forward of P tokens gave. Row is the batch axis; only what was asked for is set."""

    hidden: Tensor | None = None  # float32 [row, layer, token, dim], after each decoder layer,
    #                               before the final norm
    logits: Tensor | None = None  # float32 [row, token, vocab]
    queries: Tensor | None = None  # float32 [row, layer, q_head, token, head_dim], post-RoPE
    pre_rope_queries: Tensor | None = None  # the same before RoPE, after any q_norm
    block_mass: Tensor | None = None  # float32 [row, layer, q_head, token, block], softmax mass;
    #                                   the rest of each row's 1 is on the tail and on own keys


@frozen(eq=False)
class PrefillChunk:
    """One layer's attention of some consecutive document tokens, reduced to block sums."""

    layer: int
    first_token: int
    queries: Tensor  # [q_head, token, head_dim], post-RoPE
    block_mass: Tensor  # float32 [q_head, token, block]; the rest of 1 is on the tail


class Probe(Protocol):
    """A model, the cartridge it is asked about, and the probe texts of this bake."""

    @property
    def texts(self) -> tuple[ProbeText, ...]:
        """The probe texts, at least one; none where a question is scored."""

    def forward(
        self,
        token_ids: Sequence[int],
        *,
        read: Sequence[Reading],
        visible: Tensor | None = None,
        removal: Removal = "mask",
        last: int | None = None,
    ) -> Readout:
        """Run tokens that follow the whole document, once per row of visible blocks.

        Positions start after the document's last token, whatever is visible. `visible` is bool
        [row, block]; None is one row that sees every block. An invisible block's keys are absent
        (logit −inf, not zero). With removal="reprefill" the document is prefilled again without
        the invisible blocks' tokens, the others keeping their positions. `last` limits everything
        read to the last so many tokens.
        """

    def each(
        self, name: str, units: Sequence[int], run: Callable[[Sequence[int]], Tensor]
    ) -> Tensor:
        """Run a batch function over all units: rows of its answers, [unit, ...], in unit order.

        Batches hold at most the bake's --batch units, progress is shown, and each finished batch
        is kept until the bake is done, so a killed bake resumes and two scorers that ask for the
        same `name` share the work. `name` must say everything the answer depends on beside the
        cartridge and the model.
        """

    def prefill(self, observe: Callable[[PrefillChunk], None]) -> None:
        """Run the document itself and show its attention, chunk by chunk, layer by layer.

        Never holds more than one chunk's [q_head, token, token] weights.
        """
