"""A forward of the loaded model over one request's rows alone, inside another step's forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import define, frozen
from torch import Tensor
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import AttentionMetadataBuilder, CommonAttentionMetadata

from kri_core.substrate.vllm.capture import Watcher, watching
from kri_core.substrate.vllm.loading import Rank, slots_of
from kri_core.substrate.vllm.orders import Row


@define(eq=False)
class NestedForward:
    """Runs tokens at their own positions; each sees the rows' tokens up to itself, no others."""

    runner: Any  # vLLM's model runner
    block_size: int
    _builders: list[AttentionMetadataBuilder] | None = None

    def run(self, rows: Sequence[Row], token_ids: Sequence[int], watcher: Watcher) -> None:
        """`watcher` decides what each layer writes of the tokens' fresh KV, before it attends."""
        runner, count = self.runner, len(token_ids)
        slots = slots_of(rows, self.block_size).to(runner.device)
        step = self._step(rows, count, slots)
        metadata = {
            name: built
            for builder in self._own_builders()
            for built in [builder.build(0, self._in_kernel_blocks(step, builder))]
            for name in builder.layer_names
        }
        positions = [torch.arange(row.num_tokens) + row.first_token for row in rows]
        context = set_forward_context(
            metadata,
            runner.vllm_config,
            num_tokens=count,
            slot_mapping=dict.fromkeys(metadata, slots),
            skip_compiled=True,  # a graph of another number of tokens would be compiled
        )
        with torch.inference_mode(), context, watching(watcher):
            runner.model(
                input_ids=torch.tensor(token_ids, device=runner.device),
                positions=torch.cat(positions).to(runner.device),
                intermediate_tensors=None,
                inputs_embeds=None,
            )

    def _step(self, rows: Sequence[Row], count: int, slots: Tensor) -> CommonAttentionMetadata:
        device = self.runner.device
        bounds = torch.tensor([0, count], dtype=torch.int32)
        ids = [row.block_id for row in rows]
        return CommonAttentionMetadata(
            query_start_loc=bounds.to(device),
            query_start_loc_cpu=bounds,
            seq_lens=torch.tensor([count], dtype=torch.int32, device=device),
            num_reqs=1,
            num_actual_tokens=count,
            max_query_len=count,
            max_seq_len=count,
            block_table_tensor=torch.tensor([ids], dtype=torch.int32, device=device),
            slot_mapping=slots,
            causal=True,
        )

    def _in_kernel_blocks(
        self, step: CommonAttentionMetadata, builder: AttentionMetadataBuilder
    ) -> CommonAttentionMetadata:
        """A table in blocks of the kernel's size, where that is smaller than the cache's."""
        each = self.block_size // builder.kv_cache_spec.block_size
        table = step.block_table_tensor
        parts = table[..., None] * each + torch.arange(each, dtype=table.dtype, device=table.device)
        return step.replace(block_table_tensor=parts.flatten(1))

    def _own_builders(self) -> list[AttentionMetadataBuilder]:
        """Their memory is their own: the engine's builders hold the outer step's tables."""
        if self._builders is None:
            groups = (group for held in self.runner.attn_groups for group in held)
            engine = [group.get_metadata_builder(0) for group in groups]
            self._builders = [
                type(one)(one.kv_cache_spec, one.layer_names, one.vllm_config, one.device)
                for one in engine
            ]
        return self._builders


@frozen
class OverRanks:
    """Sums over the ranks of a model, each of which holds some of its KV heads."""

    rank: Rank
    all_reduce: Callable[[Tensor], Tensor] = tensor_model_parallel_all_reduce

    def summed(self, per_token: Tensor, num_kv_heads: int) -> Tensor:
        """Over all KV heads, each counted once, however many ranks repeat it."""
        if self.rank.count == 1:
            return per_token
        return self.all_reduce(per_token) / max(1, self.rank.count // num_kv_heads)

    def all(self, here: bool, device: torch.device) -> bool:
        """Whether it holds on every rank: what one cannot do none may start."""
        if self.rank.count == 1:
            return here
        return not self.all_reduce(torch.tensor([float(not here)], device=device)).any()
