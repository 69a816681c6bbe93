"""From scores to the order a selector ranks by: scaled per head, pooled, freed of a drift.

ALGORITHMS 10.1, steps 2, 3, 3b and 5. The parameters of every selector that ranks scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import field, frozen

from kri_core.errors import ConfigError
from kri_core.types import BlockScores, Split

if TYPE_CHECKING:
    from torch import Tensor


def _check_window(_ranking: object, _attribute: object, window: int) -> None:
    if window != 0 and (window < 3 or window % 2 == 0):
        raise ConfigError(
            f"detrend is an odd number of blocks from 3, such as 33, or 0 for off; got {window}"
        )


@frozen
class Ranking:
    """How a selector reads scores; a selector's `Params` is a subclass.

    norm: what each layer and KV head is scaled by, over all blocks, before they are pooled.
    pool: how layers and KV heads become one. detrend: the window, in blocks, of a running median
    that is taken off the logarithm of the pooled scores, because many scores drift with position.
    """

    norm: Literal["none", "zscore", "rank", "l1"] = "none"
    pool: Literal["mean", "max"] = "mean"
    detrend: int = field(default=0, validator=_check_window)

    def pooled(self, scores: BlockScores, split: Split) -> Tensor:
        """One score per block, float32 [block]; the defaults are a plain mean.

        With detrend, the trend is that of mid alone; a pinned block has that of the next mid
        block, or of the last.
        """
        # A float32 mean sums some columns in another order, so that equal blocks would not tie.
        values = _normalised(scores.values.double(), self.norm)
        pooled = values.mean((0, 1)) if self.pool == "mean" else values.amax((0, 1))
        pooled = pooled.float()
        return _detrended(pooled, split.mid, self.detrend) if self.detrend else pooled

    def order(self, scores: BlockScores, split: Split) -> tuple[int, ...]:
        """Mid blocks, the best first; ties go to the earlier block."""
        # Sorted here: torch.topk is not stable, and a CUDA sort may put −0.0 below 0.0.
        pooled = self.pooled(scores, split).tolist()
        return tuple(sorted(split.mid, key=lambda block: (-pooled[block], block)))


def _normalised(values: Tensor, norm: str) -> Tensor:
    """Scale each layer and head, [layer, kv_head, block]; one that is constant stays so."""
    if norm == "zscore":
        centred = values - values.mean(-1, keepdim=True)
        flat = values.amax(-1, keepdim=True) == values.amin(-1, keepdim=True)
        return (centred / centred.square().mean(-1, keepdim=True).sqrt()).masked_fill(flat, 0.0)
    if norm == "rank":
        import torch

        values = values.contiguous()  # searchsorted would copy, and say so
        ascending = values.sort(-1).values
        below = torch.searchsorted(ascending, values)
        up_to = torch.searchsorted(ascending, values, right=True)
        return (below + up_to + 1) / (2 * values.shape[-1])  # the mean rank of ties, 1/N to 1
    if norm == "l1":
        total = values.abs().sum(-1, keepdim=True)
        return (values / total).masked_fill(total == 0, 0.0)
    return values


def _detrended(pooled: Tensor, mid: tuple[int, ...], window: int) -> Tensor:
    """log(s + tiny) minus its running median over mid, [block]."""
    import torch

    if bool((pooled < 0).any()):
        raise ConfigError(
            f"detrend takes the logarithm of scores, and the least of these is {pooled.min():.4g}; "
            "write norm=rank beside it, or leave it out"
        )
    logs = (pooled.double() + torch.finfo(torch.float32).tiny).log()
    if not mid:
        return logs.float()
    places = torch.tensor(mid, device=logs.device)
    trend = _running_median(logs[places], window)
    blocks = torch.arange(len(logs), device=logs.device)
    nearby = torch.searchsorted(places, blocks).clamp(max=len(mid) - 1)
    return (logs - trend[nearby]).float()


def _running_median(values: Tensor, window: int) -> Tensor:
    """Median of the values at most window // 2 places away; at the edges there are fewer."""
    import torch

    half = min(window // 2, len(values) - 1)
    padded = torch.nn.functional.pad(values, (half, half), value=torch.inf)
    windows = padded.unfold(0, 2 * half + 1, 1).sort(-1).values  # [value, window]
    count = windows.isfinite().sum(-1, keepdim=True)
    middle = windows.gather(-1, (count - 1) // 2) + windows.gather(-1, count // 2)
    return middle[:, 0] / 2
