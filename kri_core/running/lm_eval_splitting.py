"""Where a context of lm-eval is cut: what comes first is the document, the rest the question."""

from __future__ import annotations

from attrs import evolve, frozen

from kri_core.errors import ConfigError
from kri_core.running.caching import BLOCK_SIZE
from kri_core.substrate.hf import HfModel, document_ids, encode_with

PARAGRAPH = "\n\n"
FEWEST_BLOCKS = 4  # whole ones; a shorter document leaves a stack nothing to choose from
FEWEST_TOKENS = 2  # of a context that is read dense: the first stands for the document


@frozen(eq=False)
class Cut:
    """A context in two: the document's tokens, and the question's text."""

    model: HfModel
    document: tuple[int, ...]
    text: str
    routed: bool  # False: the document is the first token alone, and all is attended to

    def question(self, continuation: str = "") -> tuple[int, ...]:
        """The question's tokens, together with what continues it."""
        text = self.text + continuation
        if self.routed:
            return encode_with(self.model.tokenizer, text)
        return document_ids(self.model, text)[len(self.document) :]

    def scored(self, continuation: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The question's tokens and those scored behind it, cut as lm-eval's own models do.

        Spaces that end the question belong to the continuation.
        """
        asked = evolve(self, text=self.text.rstrip()).question()
        return asked, self.question(continuation)[len(asked) :]


def cut_context(model: HfModel, context: str, split_at: str) -> Cut:
    """Cut before the last `split_at` with words in or behind it; the parts are tokenised apart.

    A context without one, or with too short a document, is tokenised whole and read dense.
    """
    place = context.rstrip().rfind(split_at)
    document = document_ids(model, context[:place]) if place > 0 else ()
    if len(document) >= FEWEST_BLOCKS * BLOCK_SIZE:
        return Cut(model, document, context[place:], routed=True)
    whole = document_ids(model, context.rstrip())
    if len(whole) < FEWEST_TOKENS:
        raise ConfigError(
            f"a request's context {context[:40]!r} has no words to route; give tasks whose "
            "contexts hold a document"
        )
    return Cut(model, whole[:1], context, routed=False)
