"""What a plugin may ask of a model. A substrate answers; plugins see only this protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from attrs import frozen

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core.calibration import Calibration
    from kri_core.rope import Rope

Removal = Literal["mask", "reprefill"]
Reading = Literal[
    "hidden", "logits", "queries", "pre_rope_queries", "block_mass", "head_outputs", "scaling"
]


@frozen
class ProbeText:
    """One text the model is run on after the document; who needs one averages over all."""

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
    head_outputs: Tensor | None = None  # float32 [row, layer, q_head, token, head_dim], what the
    #                                     attention gave before the output projection
    scaling: Tensor | None = None  # float32 [row, layer], of the logits: softmax(scaling · q·k)


@frozen(eq=False)
class Gradients:
    """Derivatives of one text's loss by what its attention read and gave.

    In float32, from a float64 model in float64. The keys are post-RoPE, as stored; the query heads
    of a group are summed in theirs.
    """

    key_sums: Tensor  # [layer, kv_head, block, head_dim], sum over the block's tokens
    key_norms: Tensor  # [layer, kv_head, block], sum of the norms of the block's tokens
    other_keys: Tensor  # [layer, kv_head, head_dim], sum over the tail and the text's own keys
    head_outputs: Tensor  # [layer, q_head, token, head_dim], before the output projection


@frozen(eq=False)
class PrefillChunk:
    """One layer's attention of some consecutive document tokens, reduced to block sums."""

    layer: int
    first_token: int
    queries: Tensor  # float32 [q_head, token, head_dim], post-RoPE
    keys: Tensor  # [kv_head, document token, head_dim], post-RoPE, up to the chunk's last token
    scaling: float  # of the logits: softmax(scaling · q·k)
    block_mass: Tensor  # float32 [q_head, token, block]; the rest of 1 is on the tail

    def token_mass(self, blocks: Sequence[int], block_size: int) -> Tensor:
        """Softmax mass of each token of some blocks, float32 [q_head, token, block, block token].

        Recomputed from queries and keys and scaled to `block_mass`, so it costs only what it asks.
        """
        import torch

        tokens = torch.tensor([range(b * block_size, (b + 1) * block_size) for b in blocks])
        seen = tokens.clamp(max=self.keys.shape[1] - 1)
        group = self.queries.shape[0] // self.keys.shape[0]
        keys = self.keys[:, seen.flatten()].float().repeat_interleave(group, 0)
        logits = self.queries @ keys.mT * self.scaling
        logits = logits.reshape(*logits.shape[:-1], *tokens.shape)
        rows = self.first_token + torch.arange(self.queries.shape[1])
        later = tokens > rows[:, None, None]  # [token, block, block token]
        share: Tensor = logits.masked_fill(later, -torch.inf).softmax(-1).nan_to_num(0.0)
        return share * self.block_mass[..., list(blocks), None]

    def without_sinks(self, count: int, block_size: int) -> Tensor:
        """`block_mass` as if the document's first `count` tokens were absent, same shape.

        Their columns are 0 and each row sums to 1 again, the tail included; a row that sees no
        other token is 0.
        """
        import torch

        if count == 0:
            return self.block_mass
        num_blocks = self.block_mass.shape[-1]
        whole, part = divmod(count, block_size)
        mass = self.block_mass.clone()
        mass[..., :whole] = 0
        if part and whole < num_blocks:
            mass[..., whole] = self.token_mass([whole], block_size)[..., 0, part:].sum(-1)
        rows = self.first_token + torch.arange(mass.shape[1])
        on_tail = (1 - self.block_mass.sum(-1)).clamp(min=0) * (rows >= num_blocks * block_size)
        # A sum of what is left: 1 − sinks would be rounding noise where a sink takes nearly all.
        rest = (mass.sum(-1) + on_tail).clamp(min=torch.finfo(mass.dtype).tiny)
        return mass / rest[..., None]


class PrefillWatcher(Protocol):
    """A scorer's eyes on the document's own prefill; all watchers of a bake share one pass."""

    @property
    def first_token(self) -> int:
        """The first document token it wants to see; what lies before is not run for it."""

    def see(self, chunk: PrefillChunk) -> None:
        """Take one layer's chunk: token chunks ascend, and layers within each."""

    def scores(self) -> Tensor:
        """Asked once, at the end: as `kri_score_blocks`."""


class Probe(Protocol):
    """A model, the cartridge it is asked about, and the probe texts of this bake or request."""

    @property
    def texts(self) -> tuple[ProbeText, ...]:
        """The probe texts, at least one: the user's, or generic ones."""

    @property
    def rope(self) -> Rope:
        """The model's rotary position embedding."""

    @property
    def calibration(self) -> Calibration | None:
        """How the model's queries lie before RoPE; None where `kri-core calibrate` has not run."""

    @property
    def native_model(self) -> object:
        """The substrate's own model object, for an adapter to code that is written for one.

        What it is, the substrate says (hf: a transformers model). A scorer that takes it runs on
        that substrate alone: it refuses any other object by name, and leaves this one as it was.
        """

    def output_projection(self, layer: int) -> Tensor:
        """What a layer's heads are mixed by, float32 [q_head, head_dim, dim]; refused if unknown.

        `head_outputs` times this, summed over the heads, is what attention adds to the stream.
        """

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

    def gradients(self, token_ids: Sequence[int], targets: Sequence[int]) -> Gradients:
        """Run tokens after the whole document, and back from how well they foretell the targets.

        `targets` holds what each of the last so many tokens should be followed by; the loss is the
        mean of their negative log likelihoods. Only what is returned is kept: of the gradient of
        the keys, as large as the cartridge's, one layer is held at a time.
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

    def prefill(self, observe: Callable[[PrefillChunk], None], first_token: int = 0) -> None:
        """Run the document itself and show its attention, chunk by chunk, layer by layer.

        Starts at the block that holds `first_token`; the tokens before it are the cartridge's.
        Never holds more than one chunk's [q_head, token, token] weights.
        """
