"""The JSON that people write, over every format of cartridge and prior that exists in the world."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")

from kri_core.artifacts import write_cartridge, write_prior
from kri_core.prior import Prior
from kri_core.types import BlockScores

KEPT = [3, 5, 7, 9]


def per_layer(cartridge):
    """Keys and values [1, kv_head, token, head_dim] of each layer, as other tools keep them."""
    sides = [
        torch.cat([blocks, cartridge.tail[:, side]], 2)
        for side, blocks in enumerate((cartridge.keys(), cartridge.values()))
    ]
    return [(keys[None], values[None]) for keys, values in zip(*sides, strict=True)]


def save_foreign(cartridge, kind, folder):
    """A cartridge of another tool, with its tokens beside it."""
    folder.mkdir()
    pairs = per_layer(cartridge)
    if kind == "pairs":
        held = pairs
    elif kind == "named pairs":
        held = [{"k": keys, "v": values} for keys, values in pairs]
    else:  # a TrainableCache: a frozen first token, the rest trained
        held = {
            f"{part}_{name}": [pair[side][:, :, place].clone() for pair in pairs]
            for part, place in (("frozen", slice(0, 1)), ("trainable", slice(1, None)))
            for side, name in enumerate(("keys", "values"))
        }
    torch.save(held, folder / "cache.pt")
    (folder / "prefix_token_ids.json").write_text(json.dumps(list(cartridge.token_ids)))
    return folder / "cache.pt"


def save_prior(kind, folder):
    """Block 9 first, then 7, 5 and 3."""
    path = folder / f"prior.{'safetensors' if kind == 'safetensors' else 'pt'}"
    if kind == "perK":
        torch.save({"kmeans_blocks_perK": {4: [9, 7, 5, 3]}}, path)
    elif kind == "legacy":
        torch.save({"kmeans_blocks": [9, 7, 5, 3, 1]}, path)
    else:
        scores = torch.zeros(1, 1, 12)
        scores[0, 0, KEPT] = torch.tensor([1.0, 2.0, 3.0, 4.0])
        write_prior(Prior(scores=BlockScores(scores)), path)
    return path


def test_every_format_is_served_by_the_published_json(start, shop, agree, tmp_path):
    """A cartridge of each format under an id of its own, named by the request."""
    cartridge = shop.cartridges["plain"]
    write_cartridge(cartridge, tmp_path / "own.pt")
    paths = {"own": tmp_path / "own.pt", "mapped": shop.paths["plain"]}
    for kind in ("pairs", "named pairs", "trained"):
        paths[kind] = save_foreign(cartridge, kind, tmp_path / kind)
    kinds = dict(zip(paths, ("pt", "safetensors", "perK", "legacy", "pt"), strict=True))
    priors = {}
    for cart_id, kind in kinds.items():
        (tmp_path / f"prior of {cart_id}").mkdir()
        priors[cart_id] = str(save_prior(kind, tmp_path / f"prior of {cart_id}"))
    extra = {
        "cartridges": {cart_id: str(path) for cart_id, path in paths.items()},
        "routing": {"enabled": True, "K": 4, "priors": priors},
    }
    with start(extra) as engine:
        prompt = engine.prompt("plain")
        answers = engine.ask_all([(prompt, [], {"cartridge_id": name}) for name in paths])
        reference = engine.reference("plain", KEPT)

    for name, said in zip(paths, answers, strict=True):
        assert (said.kri["cartridge"], said.kri["stack"]) == (name, "A0R0K4")
        assert said.kri["selected"] == KEPT
        agree(said, reference)
