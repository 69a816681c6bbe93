"""lm-eval's model interface over a reader; imported only where lm-eval is installed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs

from kri_core.errors import ConfigError
from kri_core.running.lm_eval_reading import Reader


@register_model("kri-core")
class RoutedLM(LM):
    """A causal model that attends to the blocks a stack keeps of each context's document."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.reader = reader

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """The continuations of one context are read together."""
        found: list[tuple[float, bool]] = []
        for context, group in groupby((one.args for one in requests), key=lambda args: args[0]):
            found += self.reader.scores(context, [continuation for _, continuation in group])
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Refused: such a text is no question about a document."""
        raise ConfigError(
            f"{requests[0].task_name} asks for the likelihood of whole texts (loglikelihood_rolling"
            "), which have no question to route by; give a task with contexts"
        )

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Greedy."""
        found = []
        for context, options in (one.args for one in requests):
            wanted = normalize_gen_kwargs(options)
            if wanted["do_sample"] or wanted.get("num_beams", 1) != 1:
                raise ConfigError(
                    f"{requests[0].task_name} asks for sampling or beams, but answers are greedy; "
                    "set do_sample: false and num_beams: 1 in its generation_kwargs"
                )
            found.append(self.reader.text(context, wanted["until"], wanted["max_gen_toks"]))
        return found
