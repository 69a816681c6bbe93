"""Rows of cartridges as the worker stages them: right tokens, right heads, few bytes."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

from kri_core.substrate.vllm import loading
from kri_core.substrate.vllm.loading import Loader, Rank, slots_of, staged
from kri_core.substrate.vllm.orders import LoadOrder, Orders, Row
from kri_core.substrate.vllm.overlays import Overlays
from kri_core.substrate.vllm.stats import Counts
from kri_core.substrate.vllm.working import Worker

ALL = Rank(0, 1)


def dense(cartridge, tokens):
    """[layer, 2, token, kv_head, head_dim] of some tokens, by the cartridge's own accessors."""
    keys = torch.cat([cartridge.keys(), cartridge.tail[:, 0]], 2)
    values = torch.cat([cartridge.values(), cartridge.tail[:, 1]], 2)
    return torch.stack([keys, values], 1)[:, :, :, tokens].transpose(2, 3)


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 16)],
        [(16, 16), (160, 16)],
        [(8, 8), (24, 8)],  # half blocks
        [(32, 32)],  # two blocks
        [(184, 16)],  # half a block and the tail
        [(192, 8)],  # the tail alone
        [(192, 7)],
    ],
)
def test_a_row_holds_the_tokens_it_stands_for(shop, rows):
    cartridge = shop.cartridges["plain"]
    tokens = [token for first, count in rows for token in range(first, first + count)]

    found = staged(cartridge, [Row(first, count, 1) for first, count in rows], ALL)

    assert torch.equal(found, dense(cartridge, tokens))


def test_tokens_go_to_the_slots_of_their_rows_in_order():
    assert slots_of([Row(0, 3, 5), Row(16, 2, 2)], 16).tolist() == [80, 81, 82, 32, 33]


@pytest.mark.parametrize(
    ("total", "count", "heads"),
    [
        (4, 1, [[0, 1, 2, 3]]),
        (4, 2, [[0, 1], [2, 3]]),
        (2, 2, [[0], [1]]),
        (2, 4, [[0], [0], [1], [1]]),  # more ranks than heads: each head twice
        (1, 4, [[0], [0], [0], [0]]),
    ],
)
def test_a_rank_holds_the_heads_that_the_engine_gives_it(total, count, heads):
    """CASES 34: vLLM's rule, QKVParallelLinear's num_kv_head_replicas."""
    held = [list(range(total))[Rank(index, count).heads(total)] for index in range(count)]

    assert held == heads


def loader_of(layers, cartridge, rank=ALL):
    return Loader(layers, lambda _: cartridge, rank, 16, Counts(), Overlays({}))


class FakeLayer:
    """An attention layer that remembers what it was told to write; a stand-in for a TP rank's."""

    def __init__(self, heads):
        self.kv_cache = torch.zeros(64, heads, 16, 64)
        self.kv_cache_torch_dtype = torch.float32
        self.written = []
        self.impl = self

    def do_kv_cache_update(self, layer, key, value, cache, slots):
        assert layer is self
        self.written.append((key, value, slots))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_rank_writes_the_same_rows_of_its_own_heads(shop, ranks):
    """CASES 34, on fake layers: no second device is here. Two KV heads; four ranks repeat them."""
    cartridge = shop.cartridges["plain"]
    order = LoadOrder("r", "plain", cartridge.sha256, (Row(0, 16, 7), Row(192, 8, 3)))
    wanted = dense(cartridge, [*range(16), *range(192, 200)])

    for index in range(ranks):
        rank = Rank(index, ranks)
        layers = [FakeLayer(1 if ranks > 1 else 2) for _ in range(3)]
        named = {f"layer.{number}": layer for number, layer in enumerate(layers)}
        loader = loader_of(named, cartridge, rank)

        assert loader.load(order)

        head = index * 2 // ranks
        heads = slice(None) if ranks == 1 else slice(head, head + 1)
        for number, layer in enumerate(layers):
            ((keys, values, slots),) = layer.written
            assert torch.equal(keys, wanted[number, 0][:, heads])
            assert torch.equal(values, wanted[number, 1][:, heads])
            assert slots.tolist() == [*range(112, 128), *range(48, 56)]


def test_a_cartridge_that_was_replaced_meanwhile_is_not_loaded(shop):
    cartridge = shop.cartridges["plain"]
    loader = loader_of({"layer": FakeLayer(2)}, cartridge)

    assert not loader.load(LoadOrder("r", "plain", "another", (Row(0, 16, 1),)))
    assert loader.counts.total == {"load_failures": 1}


def test_a_file_that_changes_while_it_is_read_is_not_loaded(shop, monkeypatch):
    """The shelf maps a changed file anew, whatever its header says."""
    cartridge = shop.cartridges["plain"]
    loader = loader_of({str(number): FakeLayer(2) for number in range(3)}, cartridge)
    mapped = iter([cartridge, evolve(cartridge)])
    loader.cartridge_of = lambda _: next(mapped)
    lines = []
    monkeypatch.setattr(loading.logger, "error", lambda line, *of: lines.append(line % of))

    assert not loader.load(LoadOrder("r", "plain", cartridge.sha256, (Row(0, 16, 1),)))
    assert loader.counts.total == {"load_failures": 1}
    (line,) = lines
    assert line == (
        "request r cannot be loaded: ArtifactError: the file of 'plain' changed while it was read; "
        "send the request again"
    )


def test_whatever_a_load_fails_of_ends_its_request_and_not_the_engine(shop):
    """A device without memory left, for one; what vLLM sees of a start_load_kv that raises."""
    cartridge = shop.cartridges["plain"]
    layers = {str(number): FakeLayer(2) for number in range(3)}
    loader = loader_of(layers, cartridge)

    def out_of_memory(*_):
        raise RuntimeError("out of memory")

    layers["1"].do_kv_cache_update = out_of_memory
    assert not loader.load(LoadOrder("r", "plain", cartridge.sha256, (Row(0, 16, 1),)))
    assert loader.counts.total == {"load_failures": 1}


def test_a_rank_copies_its_own_heads_alone(shop):
    """One of two heads: 16 tokens of three layers, keys and values, 32 float32 numbers each."""
    found = staged(shop.cartridges["plain"], [Row(0, 16, 1)], Rank(0, 2))

    assert found.untyped_storage().nbytes() == 16 * 3 * 2 * 32 * 4


@pytest.mark.parametrize("engine", [torch.float16, torch.bfloat16, torch.float32])
def test_kv_is_cast_to_the_engine_s_dtype_and_never_reinterpreted(shop, engine):
    """CASES 19."""
    cartridge = shop.cartridges["plain"]
    layers = {str(number): FakeLayer(2) for number in range(3)}
    for layer in layers.values():
        layer.kv_cache_torch_dtype = engine
    loader_of(layers, cartridge).load(LoadOrder("r", "plain", cartridge.sha256, (Row(0, 16, 1),)))

    keys = layers["0"].written[0][0]
    assert keys.dtype == engine
    torch.testing.assert_close(keys, dense(cartridge, range(16))[0, 0].to(engine))


def test_a_load_counts_its_rows_and_bytes(shop):
    """Three layers, keys and values, two heads of 32 float32 numbers: 1 536 bytes a token."""
    cartridge = shop.cartridges["plain"]
    loader = loader_of({str(n): FakeLayer(2) for n in range(3)}, cartridge)

    loader.load(LoadOrder("r", "plain", cartridge.sha256, (Row(0, 16, 1), Row(192, 8, 2))))

    assert loader.counts.total["rows_loaded"] == 2
    assert loader.counts.total["bytes_read"] == 24 * 1536


def test_what_all_ranks_do_is_told_once(shop):
    """The engine adds up what its workers tell it."""
    cartridge = shop.cartridges["plain"]
    told = []
    for index in range(2):
        worker = Worker(lambda _: cartridge, Rank(index, 2), 16)
        worker.use({str(number): FakeLayer(1) for number in range(3)})
        worker.carry_out(Orders((LoadOrder("r", "plain", cartridge.sha256, (Row(0, 16, 1),)),)))
        told.append(worker.take_counts())

    assert told[0].data["rows_loaded"] == 1
    assert told[1] is None
