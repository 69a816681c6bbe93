"""A transformers tokenizer as a task sees it."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen
from jinja2 import TemplateError

from kri_core.substrate.hf import HfModel, encode_with
from kri_core.substrate.hf.chat import DATE, FIXED_DATE, HERE


@frozen(eq=False)
class HfTokenizer:
    """The tokenizer of a model, with its chat template."""

    model: HfModel

    def encode(self, text: str) -> Sequence[int]:
        """As the protocol says."""
        return encode_with(self.model.tokenizer, text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """As the protocol says."""
        return str(self.model.tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def open_turn(self, system: str) -> str:
        """As the protocol says; some templates take no system message."""
        tokenizer = self.model.tokenizer
        if not tokenizer.chat_template:
            whole = tokenizer("a").input_ids
            return self.decode(whole[: whole.index(self.encode("a")[0])])
        user = {"role": "user", "content": HERE}
        try:
            return self._before([{"role": "system", "content": system}, user])
        except TemplateError:
            return self._before([user])

    def _before(self, messages: list[dict[str, str]]) -> str:
        """What a conversation says before the user's words, the same on every day."""
        tokenizer = self.model.tokenizer
        text = tokenizer.apply_chat_template(
            messages,
            chat_template=FIXED_DATE + tokenizer.get_chat_template(),
            date_string=DATE,
            tokenize=False,
        )
        return str(text).split(HERE, 1)[0]
