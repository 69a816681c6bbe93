"""From KV tensors to a cartridge: refused if damaged, addressed by what it is."""

from __future__ import annotations

import hashlib
import math

import attrs
import pytest
import torch

from kri_core.artifacts import block_major, seal
from kri_core.errors import ArtifactError


def test_sha256_is_over_dtype_shapes_token_ids_and_kv(make_cartridge):
    """Spelt out by hand, so that another program can recompute it."""
    cartridge = make_cartridge(num_tokens=5, block_size=4, num_layers=1, kv_heads=1, head_dim=2)

    found = hashlib.sha256(b'["float32",[1,1,2,1,4,2],[1,2,1,1,2]]')
    found.update(b"".join(t.to_bytes(8, "little") for t in range(100, 105)))
    found.update(cartridge.kv.numpy().tobytes())
    found.update(cartridge.tail.numpy().tobytes())
    assert cartridge.sha256 == found.hexdigest()


def test_the_same_bytes_in_another_shape_are_another_payload(model):
    flat, tail = torch.zeros(1, 1, 2, 2, 4, 2), torch.zeros(1, 2, 2, 0, 2)
    one = seal("a", 4, model, range(4), flat, tail)
    two = seal("a", 4, model, range(4), flat.reshape(1, 1, 2, 1, 4, 4), tail.reshape(1, 2, 1, 0, 4))

    assert one.sha256 != two.sha256


def test_prefix_hash_is_over_the_tokens_of_a_prefilled_cartridge(make_cartridge):
    """Equal tokens, other rounding: the same prefix. Other tokens: another one."""
    one, two = make_cartridge(seed=0), make_cartridge(seed=1)

    assert one.sha256 != two.sha256
    assert one.prefix_hash == two.prefix_hash
    assert one.prefix_hash != make_cartridge(token_ids=range(11)).prefix_hash


@pytest.mark.parametrize("changed", [{"trained": True}, {"token_ids": ()}])
def test_prefix_hash_is_over_the_kv_where_tokens_do_not_give_it(make_cartridge, changed):
    """A trained cartridge never passes for the prefilled one of the same tokens."""
    one, two = make_cartridge(seed=0, **changed), make_cartridge(seed=1, **changed)

    assert len({one.prefix_hash, two.prefix_hash, make_cartridge().prefix_hash}) == 3


@pytest.mark.parametrize(
    "changed",
    [{"revision": "r2"}, {"rope": "{}"}, {"weights": "w2"}, {"tokenizer": "t2"}],
    ids=lambda changed: next(iter(changed)),
)
def test_prefix_hash_changes_with_what_decides_the_kv(make_cartridge, model, changed):
    cartridge = make_cartridge()
    again = seal(
        "doc",
        4,
        attrs.evolve(model, **changed),
        cartridge.token_ids,
        cartridge.kv,
        cartridge.tail,
    )

    assert again.prefix_hash != cartridge.prefix_hash


def test_the_models_path_is_not_part_of_the_address(make_cartridge, model):
    cartridge = make_cartridge()
    moved = attrs.evolve(model, model_id="elsewhere")
    again = seal("doc", 4, moved, cartridge.token_ids, cartridge.kv, cartridge.tail)

    assert again.prefix_hash == cartridge.prefix_hash


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("part", ["kv", "tail"])
def test_kv_that_is_not_finite_is_refused(make_cartridge, model, part, value):
    cartridge = make_cartridge()
    getattr(cartridge, part).view(-1)[-1] = value
    where = "block 1" if part == "kv" else "tail"

    with pytest.raises(ArtifactError, match=f"KV of {where} holds NaN or infinity; build it again"):
        seal("doc", 4, model, cartridge.token_ids, cartridge.kv, cartridge.tail)


def test_finite_kv_whose_sum_overflows_is_accepted(model):
    kv = torch.full((1, 1, 2, 1, 4, 2), 3e38)

    assert seal("doc", 4, model, (), kv, torch.zeros(1, 2, 1, 0, 2)).kv.max() == kv.max()


@pytest.mark.parametrize(
    ("kv", "tail", "line"),
    [
        (torch.zeros(2, 2), torch.zeros(1), r"kv must be \[block, .*; got \[2, 2\] and \[1\]"),
        (
            torch.zeros(0, 1, 2, 1, 4, 2),
            torch.zeros(1, 2, 1, 0, 2),
            "a cartridge of zero tokens holds nothing; give it a longer text",
        ),
        (
            torch.zeros(1, 1, 2, 1, 4, 2, dtype=torch.int64),
            torch.zeros(1, 2, 1, 0, 2, dtype=torch.int64),
            "kv must be one of float32, bfloat16, float16, float64; got int64",
        ),
        (
            torch.zeros(1, 1, 2, 1, 4, 2, device="meta"),
            torch.zeros(1, 2, 1, 0, 2),
            "kv is on the meta device: it has a shape but no values",
        ),
    ],
)
def test_tensors_that_are_no_kv_are_refused(model, kv, tail, line):
    with pytest.raises(ArtifactError, match=line):
        seal("doc", 4, model, range(4), kv, tail)


def test_negative_token_ids_are_refused(make_cartridge):
    with pytest.raises(ArtifactError, match="token ids must not be negative; got -1"):
        make_cartridge(token_ids=range(-1, 10))


@pytest.mark.parametrize("odd", [torch.zeros(1, 11, 8), torch.zeros(2, 11, 8).half()])
def test_layers_that_differ_are_refused_not_broadcast_or_cast(odd):
    alike = torch.zeros(2, 11, 8)

    with pytest.raises(ArtifactError, match=r"layer 1's values are .*; all layers must be alike"):
        block_major([(alike, alike), (alike, odd)], 2, 4)


def test_contiguous_kv_is_kept_not_copied(make_cartridge, model):
    cartridge = make_cartridge()
    again = seal("doc", 4, model, cartridge.token_ids, cartridge.kv, cartridge.tail)

    assert again.kv.data_ptr() == cartridge.kv.data_ptr()
