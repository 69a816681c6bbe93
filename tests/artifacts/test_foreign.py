"""Cartridges of other tools: read whole, or refused with a reason."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from torch import nn

from kri_core.artifacts import (
    convert_cartridge,
    read_cartridge,
    read_foreign_cartridge,
    verify_cartridge,
    write_cartridge,
)
from kri_core.errors import ArtifactError, ConfigError

LAYERS, HEADS, DIM = 3, 2, 4


def draw(num_tokens, seed, dtype=torch.float32):
    """Keys and values by layer, each [1, kv_head, token, head_dim]."""
    source = torch.Generator().manual_seed(seed)
    shape = (2, LAYERS, 1, HEADS, num_tokens, DIM)
    keys, values = torch.randn(shape, generator=source).to(dtype)
    return list(keys.unbind()), list(values.unbind())


def trainable_cache(frozen="frozen", wrap=list, num_frozen=2, num_trainable=8):
    keys, values = draw(num_trainable, 1)
    held = {"trainable_keys": wrap(keys), "trainable_values": wrap(values)}
    if frozen:
        frozen_keys, frozen_values = draw(num_frozen, 2)
        held |= {f"{frozen}_keys": wrap(frozen_keys), f"{frozen}_values": wrap(frozen_values)}
    return held


def parameters(tensors):
    return nn.ParameterList([nn.Parameter(tensor) for tensor in tensors])


def as_tuples(keys, values):
    return list(zip(keys, values, strict=True))


def as_dicts(keys, values):
    return [{"k": key, "v": value} for key, value in zip(keys, values, strict=True)]


@pytest.fixture
def read(tmp_path, model):
    """Save as the other tool does, read it back with blocks of four."""

    def read(held):
        torch.save(held, tmp_path / "doc.pt")
        return read_foreign_cartridge(tmp_path / "doc.pt", 4, model)

    return read


@pytest.mark.parametrize("form", [as_tuples, as_dicts, lambda k, v: tuple(zip(k, v, strict=True))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lists_of_layers_are_read(read, form, dtype):
    keys, values = draw(10, 0, dtype)

    cartridge = read(form(keys, values))

    assert cartridge.kv.dtype == dtype
    assert torch.equal(cartridge.keys(), torch.cat(keys)[:, :, :8])
    assert torch.equal(cartridge.values(), torch.cat(values)[:, :, :8])
    assert torch.equal(cartridge.tail[:, 0], torch.cat(keys)[:, :, 8:])
    assert torch.equal(cartridge.tail[:, 1], torch.cat(values)[:, :, 8:])
    assert (cartridge.cart_id, cartridge.trained) == ("doc", False)


@pytest.mark.parametrize("frozen", ["frozen", "fixed"])
@pytest.mark.parametrize("wrap", [list, tuple, parameters])
def test_a_trainable_cache_is_read_frozen_tokens_first(read, frozen, wrap):
    cartridge = read(trainable_cache(frozen, wrap))

    first, second = draw(2, 2), draw(8, 1)
    for side, whole in enumerate((cartridge.keys(), cartridge.values())):
        joined = torch.cat([torch.cat(first[side]), torch.cat(second[side])], 2)
        assert torch.equal(whole, joined[:, :, :8])
        assert torch.equal(cartridge.tail[:, side], joined[:, :, 8:])
    assert cartridge.trained


@pytest.mark.parametrize("nothing", [None, [], nn.ParameterList()], ids=["None", "list", "module"])
def test_a_trainable_cache_with_nothing_frozen_is_read(read, nothing):
    held = trainable_cache(frozen=None)

    for extra in ({}, {"frozen_keys": nothing, "frozen_values": nothing}):
        assert torch.equal(read({**held, **extra}).keys(), torch.cat(draw(8, 1)[0]))


def test_without_token_ids_they_are_empty_and_that_is_said(read, caplog):
    with caplog.at_level(logging.WARNING):
        cartridge = read(as_tuples(*draw(10, 0)))

    assert cartridge.token_ids == ()
    assert "no prefix_token_ids.json beside it, so its token ids are not known" in caplog.text
    other = read(as_tuples(*draw(10, 7)))
    assert other.prefix_hash != cartridge.prefix_hash


def test_token_ids_beside_the_file_are_used(read, tmp_path):
    (tmp_path / "prefix_token_ids.json").write_text(json.dumps(list(range(50, 60))))

    assert read(as_tuples(*draw(10, 0))).token_ids == tuple(range(50, 60))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[1, 2", "prefix_token_ids.json beside it is not JSON; write it again"),
        ('{"ids": [1]}', "prefix_token_ids.json beside it must be one list of whole numbers"),
        ("[1.5]", "prefix_token_ids.json beside it must be one list of whole numbers"),
        (
            "[1, 2, 3]",
            "has 10 tokens, but prefix_token_ids.json beside it lists 3; put this cartri",
        ),
        (json.dumps([-1] * 10), "token ids must not be negative; got -1"),
    ],
)
def test_token_ids_that_do_not_fit_are_refused(read, tmp_path, text, line):
    (tmp_path / "prefix_token_ids.json").write_text(text)

    with pytest.raises(ArtifactError, match=rf"doc\.pt: {line}"):
        read(as_tuples(*draw(10, 0)))


def two_layers_short(held):
    return {**held, "trainable_values": held["trainable_values"][:1]}


KEYS, VALUES = draw(10, 0)
KNOWN = trainable_cache()


@pytest.mark.parametrize(
    ("held", "line"),
    [
        ([], r"holds a list that is neither a TrainableCache dict nor a list of \(k, v\)"),
        (torch.zeros(2), "holds a Tensor that is neither a TrainableCache dict nor"),
        ([(KEYS[0], VALUES[0], None)], "holds a list that is neither"),
        ([{"k": KEYS[0], "v": VALUES[0], "scale": 1}], "holds a list that is neither"),
        ({**KNOWN, "scale": 2}, "has unknown key scale; a TrainableCache has trainable_keys"),
        ({**KNOWN, 3: 2}, "has unknown key 3; a TrainableCache has trainable_keys"),
        ({**KNOWN, "fixed_keys": KEYS}, "has unknown key fixed_keys"),
        ({"trainable_keys": KEYS}, "lacks trainable_values"),
        ({**KNOWN, "trainable_keys": KEYS[0]}, "trainable_keys is a Tensor, wanted one tensor per"),
        (
            two_layers_short(KNOWN),
            "trainable_values has 1 layers, wanted 3 as in the",
        ),
        (
            {**KNOWN, "frozen_keys": [], "frozen_values": KNOWN["frozen_values"]},
            "frozen_keys has 0 layers, wanted 3 as",
        ),
        ({name: [] for name in KNOWN}, "trainable_keys has 0 layers, wanted 1 as in"),
        (as_tuples([k[0] for k in KEYS], VALUES), r"layer 0's keys must be \[1, kv_head, token"),
        (
            as_tuples([k.expand(2, -1, -1, -1) for k in KEYS], VALUES),
            r"layer 0's keys must be \[1, kv_head, token, head_dim\]; got \[2, 2, 10, 4\]",
        ),
        (as_tuples(KEYS, [v.half() for v in VALUES]), "layer 0's values are float16 .* must be al"),
        (as_tuples(KEYS, [v[:, :1] for v in VALUES]), "layer 0's values are .* must be alike"),
        (as_tuples([*KEYS[:2], KEYS[2][:, :, :9]], VALUES), "layer 2's keys are .* must be alike"),
        (as_tuples([k.long() for k in KEYS], [v.long() for v in VALUES]), "kv must be one of flo"),
        (as_tuples([k * torch.nan for k in KEYS], VALUES), "KV of block 0 holds NaN or infinity"),
        (
            {**KNOWN, "frozen_keys": [k.half() for k in KNOWN["frozen_keys"]]},
            "layer 0's keys differ between frozen and trainable in dtype, heads or size",
        ),
        (as_tuples([k.tolist() for k in KEYS], VALUES), "layer 0's keys is a list, wanted a tens"),
    ],
)
def test_what_is_no_cartridge_is_one_line(read, held, line):
    with pytest.raises(ArtifactError, match=rf"doc\.pt: {line}") as caught:
        read(held)
    assert "\n" not in str(caught.value)


def test_shorter_than_a_block_is_all_tail(read):
    cartridge = read(as_tuples(*draw(3, 0)))

    assert cartridge.layout.num_blocks == 0
    assert torch.equal(cartridge.tail[:, 0], torch.cat(draw(3, 0)[0]))


@pytest.mark.parametrize("target", ["out.pt", "out.safetensors"])
def test_a_foreign_cartridge_is_converted(tmp_path, model, target):
    torch.save(trainable_cache(wrap=parameters), tmp_path / "doc.pt")

    made = convert_cartridge(tmp_path / "doc.pt", tmp_path / target, 4, model)

    assert (made.cart_id, made.trained, made.model) == ("out", True, model)
    assert verify_cartridge(tmp_path / target).sha256 == made.sha256


def test_a_foreign_cartridge_needs_block_size_and_model(tmp_path, model):
    torch.save(as_tuples(*draw(10, 0)), tmp_path / "doc.pt")

    for block_size, given in ((None, model), (4, None)):
        with pytest.raises(ConfigError, match=r"records neither block size nor model.* give both"):
            convert_cartridge(tmp_path / "doc.pt", tmp_path / "o.pt", block_size, given)


@pytest.mark.parametrize("target", ["out.pt", "out.safetensors"])
def test_our_own_is_converted_unchanged(make_cartridge, tmp_path, suffix, target):
    cartridge = make_cartridge(dtype=torch.bfloat16)
    write_cartridge(cartridge, tmp_path / f"doc{suffix}")

    made = convert_cartridge(tmp_path / f"doc{suffix}", tmp_path / target, None, None)

    assert made.sha256 == cartridge.sha256
    assert torch.equal(verify_cartridge(tmp_path / target).kv, cartridge.kv)


def test_our_own_is_converted_in_place(make_cartridge, tmp_path, suffix):
    path = tmp_path / f"doc{suffix}"
    write_cartridge(make_cartridge(), path)

    convert_cartridge(path, path, None, None)

    assert verify_cartridge(path).sha256 == make_cartridge().sha256


def test_our_own_takes_no_other_block_size(make_cartridge, tmp_path):
    write_cartridge(make_cartridge(), tmp_path / "doc.pt")

    with pytest.raises(ConfigError, match="carries its own block size and model; leave"):
        convert_cartridge(tmp_path / "doc.pt", tmp_path / "o.pt", 16, None)


def test_a_damaged_one_is_not_converted(make_cartridge, tmp_path):
    cartridge = make_cartridge()
    write_cartridge(cartridge, tmp_path / "doc.safetensors")
    raw = bytearray((tmp_path / "doc.safetensors").read_bytes())
    raw[-1] ^= 1
    (tmp_path / "doc.safetensors").write_bytes(raw)

    with pytest.raises(ArtifactError, match="sha256 of its contents is"):
        convert_cartridge(tmp_path / "doc.safetensors", tmp_path / "o.pt", None, None)
    assert not (tmp_path / "o.pt").exists()


def test_a_bad_target_name_is_refused_before_the_work(tmp_path):
    with pytest.raises(ArtifactError, match=r"o\.bin: has suffix '.bin'"):
        convert_cartridge(tmp_path / "missing.pt", tmp_path / "o.bin", None, None)


def test_reading_a_foreign_one_as_ours_says_how_to_import_it(tmp_path):
    torch.save(trainable_cache(), tmp_path / "doc.pt")

    with pytest.raises(ArtifactError, match=r"cartridge convert imports other tools' \.pt files"):
        read_cartridge(tmp_path / "doc.pt")
