"""What the routed attention back ends have in common, whatever kernels they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.attention.backend import AttentionMetadataBuilder, CommonAttentionMetadata
from vllm.v1.kv_cache_interface import FullAttentionSpec

from kri_core.substrate.vllm.capture import captured
from kri_core.substrate.vllm.compaction import Compacted
from kri_core.substrate.vllm.placement import RoutedFullAttentionSpec
from kri_core.substrate.vllm.plugin import CONNECTOR

if TYPE_CHECKING:
    from torch import Tensor


def routed_spec(spec: Any) -> Any:  # noqa: ANN401 - vLLM's spec, whatever it is
    """A plain full-attention spec as a routed one, any other as it is.

    Without our connector no request has a plan, and the routed cache behaves as vLLM's own.
    """
    plain = (
        type(spec) is FullAttentionSpec
        and spec.sliding_window is None
        and spec.attention_chunk_size is None
    )
    return RoutedFullAttentionSpec.of(spec) if plain else spec


class CompactingBuilder(AttentionMetadataBuilder):
    """Put before a back end's own builder: what that one is given has no absent rows."""

    supports_update_block_table = False  # it would go past the compaction

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - passed through
        super().__init__(*args, **kwargs)
        self.supports_draft_decode_metadata_update = False  # so would this
        transfer = self.vllm_config.kv_transfer_config
        self._routes = (
            isinstance(self.kv_cache_spec, RoutedFullAttentionSpec)
            and transfer is not None
            and transfer.kv_connector == CONNECTOR
        )
        self._compacted: Compacted | None = None

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Any:  # noqa: ANN401 - the back end's metadata
        """As the back end builds it, over the rows that are there."""
        step = common_attn_metadata
        if self._routes:
            table, seq_lens = step.block_table_tensor, step.seq_lens
            query_lens = step.query_start_loc[1:] - step.query_start_loc[:-1]
            size = self.kv_cache_spec.block_size  # the kernel's
            per_block = self.vllm_config.cache_config.block_size // size
            rows, lengths = self._room(table).fill(table, seq_lens, query_lens, size, per_block)
            step = step.replace(block_table_tensor=rows, seq_lens=lengths)
        return super().build(common_prefix_len, step, fast_build)

    def _room(self, table: Tensor) -> Compacted:
        if self._compacted is None or not self._compacted.holds(table):
            count = max(table.shape[0], self.vllm_config.scheduler_config.max_num_seqs)
            self._compacted = Compacted.for_requests(count, table.shape[1], table.device)
        return self._compacted


class CapturedImpl:
    """Put before a back end's own layer: a running repair sees and changes what is written."""

    def do_kv_cache_update(
        self,
        layer: Any,  # noqa: ANN401
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
    ) -> None:
        """As the back end's, of what a repair leaves to be written."""
        written = captured(layer, key, value, slot_mapping)
        if written is not None:
            keys, values, slots = written
            super().do_kv_cache_update(layer, keys, values, kv_cache, slots)  # type: ignore[misc]
