"""What a model's queries are like before RoPE, measured once per model on plain text."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from attrs import frozen

from kri_core.errors import ArtifactError
from kri_core.identity import digest

if TYPE_CHECKING:
    from torch import Tensor


@frozen(eq=False)
class Calibration:
    """Mean query and mean length of each query head in each pair of dimensions (`Rope.pairs`).

    |centre| / length, 0 to 1, says how much of a head's queries is always the same.
    """

    centre: Tensor  # complex64 [layer, q_head, pair]
    length: Tensor  # float32 [layer, q_head, pair], mean of the queries' absolute values
    model_fingerprint: str
    num_tokens: int  # it was measured on

    def __attrs_post_init__(self) -> None:
        if self.centre.ndim != 3 or self.centre.shape != self.length.shape:
            raise ArtifactError(
                "a calibration's centre and length must both be [layer, q_head, pair]; got "
                f"{list(self.centre.shape)} and {list(self.length.shape)}; run kri-core calibrate"
            )
        if not bool(self.centre.isfinite().all() and self.length.isfinite().all()):
            raise ArtifactError("a calibration holds NaN or infinity; run kri-core calibrate again")

    @property
    def sha256(self) -> str:
        """Of all it says: what a prior records."""
        import torch

        found = hashlib.sha256()
        for part in (torch.view_as_real(self.centre), self.length):
            found.update(part.contiguous().numpy().tobytes())
        return digest(self.model_fingerprint, self.num_tokens, found.hexdigest())
