"""lm-eval's model interface over a reader; imported only where lm-eval is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs

from kri_core.errors import ConfigError
from kri_core.grammar import parse
from kri_core.models import kri_home, resolve_model
from kri_core.routing import Router
from kri_core.running.caching import Cache
from kri_core.running.lm_eval_reading import ContextReader
from kri_core.substrate.hf import load_model


@register_model("kri-core")
class RoutedLM(LM):
    """A causal model that attends to the blocks a stack keeps of each context's document."""

    def __init__(self, reader: ContextReader) -> None:
        super().__init__()
        self.reader = reader

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, str], additional_config: object = None
    ) -> RoutedLM:
        """By name: simple_evaluate("kri-core", {"model": ..., "stack": ..., "split_at": ...})."""
        wanted = {"model", "stack", "split_at"}
        if set(arg_dict) != wanted:
            came = ", ".join(sorted(arg_dict)) or "none"
            raise ConfigError(
                f"the model kri-core got the arguments {came}; give {', '.join(sorted(wanted))}"
            )
        model = load_model(resolve_model(arg_dict["model"]), None, "float32", "auto")
        router = Router.from_config(parse(arg_dict["stack"]))
        return cls(ContextReader(model, router, Cache(kri_home() / "eval"), arg_dict["split_at"]))

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
