"""Who made a KV cache: the model and tokenizer, field by field, so that a mismatch has a name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from attrs import asdict, frozen


def canonical_json(value: object) -> str:
    """JSON that is equal for equal values in every process, whatever PYTHONHASHSEED is."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(*parts: object) -> str:
    """sha256 over the canonical JSON of the parts, in hex."""
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()


@frozen
class ModelIdentity:
    """The model and tokenizer a cartridge was made with.

    `model_id` is where it was loaded from and is not compared: the same weights under another path
    are the same model. None means not known (a foreign cartridge) and agrees with everything.
    """

    model_id: str
    revision: str | None = None
    architecture: str | None = None  # class and the sizes that shape the KV cache
    rope: str | None = None  # canonical JSON of every RoPE parameter, scaling included
    weights: str | None = None  # digest of sampled weights
    tokenizer: str | None = None  # digest of the tokenizer's vocabulary and special tokens

    @property
    def fingerprint(self) -> str:
        """One digest of everything that decides the KV cache of given token ids."""
        return digest(self.architecture, self.rope, self.weights)

    def mismatch(self, other: ModelIdentity) -> str | None:
        """Name of the first field, most telling first, in which two known values differ."""
        mine, theirs = asdict(self), asdict(other)
        for name in ("architecture", "rope", "weights", "revision", "tokenizer"):
            if None not in (mine[name], theirs[name]) and mine[name] != theirs[name]:
                return name
        return None


def prefix_hash(
    model: ModelIdentity, block_size: int, dtype: str, tokens: Iterable[int] | str
) -> str:
    """Content address of a prefix (ALGORITHMS 10.5); the model's path is left out.

    `tokens` is the cartridge's sha256 where no prefill of known tokens gives its KV: a trained
    cartridge must not pass for the prefilled one of the same tokens.
    """
    content = tokens if isinstance(tokens, str) else list(tokens)
    return digest(model.fingerprint, model.revision, model.tokenizer, block_size, dtype, content)
