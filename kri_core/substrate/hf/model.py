"""A transformers model as the substrate uses it: checked, named, and run one way."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from kri_core.artifacts import check_model
from kri_core.errors import ArtifactError, ConfigError, EngineError
from kri_core.identity import ModelIdentity
from kri_core.substrate.hf.exactness import Anatomy, examine
from kri_core.substrate.hf.identity import identify
from kri_core.types import Cartridge


@frozen(eq=False)
class HfModel:
    """A model that routing is exact for. Not thread-safe: one forward at a time."""

    model: Any  # a transformers PreTrainedModel
    tokenizer: Any  # a PreTrainedTokenizerBase; None for a model used with token ids only
    identity: ModelIdentity
    anatomy: Anatomy
    max_positions: int

    @classmethod
    def from_parts(
        cls,
        model: Any,  # noqa: ANN401 - transformers is untyped
        tokenizer: Any = None,  # noqa: ANN401
        model_id: str = "in memory",
        revision: str | None = None,
    ) -> HfModel:
        """Check and name a model that is already in memory."""
        model.eval()
        anatomy = examine(model)
        identity = identify(model, tokenizer, anatomy, model_id, revision)
        return cls(model, tokenizer, identity, anatomy, _max_positions(model.config))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights, and of the KV it makes."""
        return self.model.dtype  # type: ignore[no-any-return]

    def run(
        self,
        token_ids: Tensor,
        positions: Tensor,
        *,
        cache: Any = None,  # noqa: ANN401
        keep: int | Tensor,
    ) -> Tensor:
        """Run tokens [row, token]; logits [row, keep, vocab] of the last `keep` tokens.

        `keep` may be the places of some tokens instead, int64 [keep]. keep=0 runs the body alone
        and gives an empty tensor. A cache is extended in place.
        """
        options = {"input_ids": token_ids, "position_ids": positions, "use_cache": False}
        if cache is not None:
            options |= {"use_cache": True, self._cache_argument: cache}
        with torch.no_grad():
            if isinstance(keep, int) and keep == 0:
                self.model.base_model(**options)
                return torch.empty(len(token_ids), 0, 0)
            return self._finite(self.model(**options, logits_to_keep=keep).logits)

    def _finite(self, logits: Tensor) -> Tensor:
        """An argmax over NaN is token 0, and a score of it looks like a score."""
        if not bool(logits.amax(-1).isfinite().all()):
            raise EngineError(
                f"{self.identity.model_id} computed NaN or infinity in {self.dtype}; give --dtype "
                "float32 or bfloat16, or a checkpoint without NaN"
            )
        return logits

    @property
    def _cache_argument(self) -> str:
        """The keyword was renamed in transformers 5.24."""
        names = inspect.signature(self.model.forward).parameters
        return "cache" if "cache" in names else "past_key_values"

    def tokens(self, token_ids: Sequence[int]) -> Tensor:
        """Token ids as one row on the model's device, [1, token]."""
        return torch.tensor([list(token_ids)], dtype=torch.long, device=self.device)

    def positions(self, first: int, count: int) -> Tensor:
        """Consecutive positions, [1, token]; refuses those the model was not made for."""
        if first + count > self.max_positions:
            raise ConfigError(
                f"{first + count} tokens are needed but the model takes {self.max_positions}; "
                "give a shorter document or question, or ask for fewer new tokens"
            )
        return torch.arange(first, first + count, device=self.device)[None]

    def check(self, cartridge: Cartridge) -> None:
        """Refuse a cartridge that another model made, or that does not fit this one."""
        check_model(cartridge, self.identity)
        layout, anatomy = cartridge.layout, self.anatomy
        found = (layout.num_layers, layout.num_kv_heads, layout.head_dim)
        wanted = (len(anatomy.layers), anatomy.num_kv_heads, anatomy.head_dim)
        if found != wanted:
            raise ArtifactError(
                f"cartridge {cartridge.cart_id!r} has (layers, KV heads, head_dim) {found}, but "
                f"{self.identity.model_id} has {wanted}; give the model it was built with"
            )


def _max_positions(config: Any) -> int:  # noqa: ANN401
    """The longest text the model takes; YaRN stretches the length it states."""
    text = config.get_text_config(decoder=True)
    stated = getattr(text, "max_position_embeddings", None) or sys.maxsize
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    if rope.get("rope_type", rope.get("type")) == "yarn":
        original = rope.get("original_max_position_embeddings") or stated
        return max(stated, int(original * rope["factor"]))
    return int(stated)
