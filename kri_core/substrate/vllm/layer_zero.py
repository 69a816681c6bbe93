"""A question's queries in layer 0, had before any block is given out.

In layer 0 a token's query is its embedding, normed, times W_q, turned to its position: nothing of
the document is in it, so it is exact without the document. The engine's model is in another process
and possibly on another device; here the embedding and one layer are loaded from the model's files,
on the CPU, in the served dtype, when a request first asks: (vocabulary · width + one layer's
weights) · bytes of memory. Cost per request: the projections of one layer for the tokens that count
(usually one).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import torch
from attrs import define, frozen
from torch import Tensor
from vllm.logger import init_logger

from kri_core.artifacts import find_calibration
from kri_core.calibration import Calibration
from kri_core.errors import ConfigError, EngineError, PluginError
from kri_core.probe import Gradients, PrefillChunk, ProbeText, Reading, Readout, Removal
from kri_core.rope import Rope
from kri_core.substrate.hf.interface import AttentionCall, attending
from kri_core.substrate.hf.load import in_one_line, quiet
from kri_core.substrate.hf.model import HfModel
from kri_core.substrate.vllm.model_identity import local_files
from kri_core.types import Cartridge

logger = init_logger("vllm.kri_core.layer_zero")

LayerZeroReading = Literal["queries", "pre_rope_queries", "scaling"]


class _Reached(Exception):  # noqa: N818 - not an error: what was wanted is there
    """Carries the attention's arguments out of the layer, of which the rest need not run."""

    call: AttentionCall

    def __init__(self, call: AttentionCall) -> None:
        super().__init__()
        self.call = call


@frozen(eq=False)
class LayerZero:
    """The first layer of the served model, with a probe for each request."""

    model_config: Any  # vLLM's
    load_config: Any

    @cached_property
    def model(self) -> HfModel:
        """Loaded when first asked for."""
        start = time.perf_counter()
        model = self.model_config
        with in_one_line(f"layer 0 of {model.model} cannot be loaded for the question's queries"):
            loaded = _first_layer(local_files(model, self.load_config), model)
        parameters = list(loaded.parameters())
        size = sum(parameter.nbytes for parameter in parameters)
        seconds = time.perf_counter() - start
        logger.info("layer 0 of %s: %.0f MB in %.1f s", model.model, size / 1e6, seconds)
        return HfModel.from_parts(loaded, model_id=str(model.model))

    def probe(self, cartridge: Cartridge) -> LayerZeroProbe:
        """For one request."""
        return LayerZeroProbe(self, cartridge)

    def attention(self, token_ids: Sequence[int], first: int) -> AttentionCall:
        """What the first layer's attention is asked, for tokens at positions from `first`."""

        def reached(call: AttentionCall) -> NoReturn:
            raise _Reached(call)

        positions = self.model.positions(first, len(token_ids))
        with attending(self.model.model, reached):
            try:
                self.model.run(self.model.tokens(token_ids), positions, keep=0)
            except _Reached as found:
                return found.call
        raise EngineError(f"{self.model_config.model} has no attention in layer 0")


def _first_layer(directory: Path, model_config: Any) -> Any:  # noqa: ANN401
    """Embedding and one layer of the served model, its overrides included; nothing else is read."""
    from transformers import AutoModel

    config = copy.deepcopy(model_config.hf_config)
    text = config.get_text_config(decoder=True)
    text.num_hidden_layers = 1
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:1]
    with quiet():
        loaded, info = AutoModel.from_pretrained(
            directory, config=config, dtype=model_config.dtype, output_loading_info=True
        )
    if missing := info["missing_keys"]:
        raise EngineError(
            f"{directory} lacks {len(missing)} weights as transformers names them, such as "
            f"{min(missing)}; serve an unquantised checkpoint, or a stack that asks no question"
        )
    return loaded


@define(eq=False)
class LayerZeroProbe:
    """A `kri_core.probe.Probe` of layer 0 alone, without the document."""

    layer: LayerZero
    cartridge: Cartridge
    used: bool = False  # whether it was asked for queries

    @property
    def rope(self) -> Rope:
        """As the protocol says."""
        return self.layer.model.anatomy.rotary.rope

    @property
    def calibration(self) -> Calibration | None:
        """As the protocol says."""
        return find_calibration(self.cartridge.model.fingerprint)

    def forward(
        self,
        token_ids: Sequence[int],
        *,
        read: Sequence[Reading],
        visible: Tensor | None = None,
        removal: Removal = "mask",
        last: int | None = None,
    ) -> Readout:
        """Queries of layer 0, [1, 1, q_head, token, head_dim]; anything more is refused."""
        if others := set(read) - set(get_args(LayerZeroReading)):
            _refuse(f"reading {', '.join(sorted(others))}")
        if visible is None or bool(visible.any()) or len(visible) != 1:
            _refuse("a question over blocks of the document (source=pinned, source=full)")
        if not token_ids:
            raise PluginError("probe.forward needs at least one token")
        asked = token_ids[-(last or len(token_ids)) :]
        first = self.cartridge.layout.num_tokens + len(token_ids) - len(asked)
        call = self.layer.attention(asked, first)
        self.used = True
        positions = torch.arange(first, first + len(asked))[None]
        model = self.layer.model
        query = call.query.float()
        given: dict[str, Callable[[], Tensor]] = {
            "queries": lambda: query[:, None],
            "pre_rope_queries": lambda: model.anatomy.rotary.off(query, positions, model.dtype)[
                :, None
            ],
            "scaling": lambda: torch.tensor([[call.scaling]]),
        }
        return Readout(**{name: given[name]() for name in read})

    @property
    def texts(self) -> tuple[ProbeText, ...]:
        """A server runs none."""
        _refuse("running probe texts")

    @property
    def native_model(self) -> object:
        """There is none here."""
        _refuse("the model itself")

    def output_projection(self, layer: int) -> Tensor:
        """Not loaded."""
        _refuse("an output projection")

    def gradients(self, token_ids: Sequence[int], targets: Sequence[int]) -> Gradients:
        """Not possible."""
        _refuse("gradients")

    def each(
        self, name: str, units: Sequence[int], run: Callable[[Sequence[int]], Tensor]
    ) -> Tensor:
        """Not possible."""
        _refuse("a run over units")

    def prefill(self, observe: Callable[[PrefillChunk], None], first_token: int = 0) -> None:
        """Not possible."""
        _refuse("running the document")


def _refuse(what: str) -> NoReturn:
    raise ConfigError(
        f"{what} needs the whole model, and a server has its layer 0 alone when it chooses blocks; "
        "write source=layer0, such as A1R2K13(kri-q[source=layer0]), or give a baked prior"
    )
