"""Whatever bytes are changed, a reader gives a value or one line, never another exception."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from kri_core.artifacts import (
    read_cartridge_header,
    read_foreign_cartridge,
    read_prior,
    verify_cartridge,
    write_cartridge,
    write_prior,
)
from kri_core.errors import ArtifactError
from kri_core.prior import Prior
from kri_core.types import BlockScores

pytestmark = pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")

ROUNDS = 150


def mutated(raw, draw):
    """A few bytes changed, removed or added, mostly where the structure is: the two ends."""
    changed = bytearray(raw)
    for _ in range(draw.choice((1, 2, 4, 8))):
        at = draw.randrange(min(len(changed), draw.choice((200, 1000, len(changed)))))
        if draw.random() < 0.4:
            at = len(changed) - 1 - at
        kind = draw.random()
        if kind < 0.6:
            changed[at] = draw.randrange(256)
        elif kind < 0.8:
            del changed[at : at + draw.choice((1, 2, 8))]
        else:
            changed[at:at] = draw.randbytes(draw.choice((1, 4)))
    return bytes(changed)


def reads_or_says_why(path, reader, seed):
    draw, raw, lines = random.Random(seed), path.read_bytes(), []
    for _ in range(ROUNDS):
        path.write_bytes(mutated(raw, draw))
        try:
            reader(path)
        except ArtifactError as error:
            lines.append(str(error))
    assert not [line for line in lines if "\n" in line]
    assert len(lines) > ROUNDS // 2  # the control: the changes did matter


@pytest.mark.parametrize("reader", [verify_cartridge, read_cartridge_header])
def test_cartridges(make_cartridge, tmp_path, suffix, reader):
    write_cartridge(make_cartridge(num_layers=1, kv_heads=1), tmp_path / f"a{suffix}")

    reads_or_says_why(tmp_path / f"a{suffix}", reader, seed=1)


def test_priors(tmp_path, suffix):
    prior = Prior(
        scores=BlockScores(torch.rand(1, 1, 4)), blocks_per_budget={2: (1, 0)}, blocks=(3,)
    )
    write_prior(prior, tmp_path / f"p{suffix}")

    reads_or_says_why(tmp_path / f"p{suffix}", read_prior, seed=2)


def test_foreign_cartridges(tmp_path, model):
    sides = {
        f"trainable_{side}": nn.ParameterList([torch.rand(1, 1, 5, 2)])
        for side in ("keys", "values")
    }
    torch.save(sides, tmp_path / "f.pt")

    reads_or_says_why(
        tmp_path / "f.pt", lambda path: read_foreign_cartridge(path, 4, model), seed=3
    )


def test_a_parameter_list_without_its_parameters_is_one_line(tmp_path, model):
    empty = nn.ParameterList([torch.rand(1)])
    empty._parameters.clear()
    torch.save({"trainable_keys": empty, "trainable_values": []}, tmp_path / "f.pt")

    with pytest.raises(ArtifactError, match="trainable_keys is a damaged ParameterList; save it"):
        read_foreign_cartridge(tmp_path / "f.pt", 4, model)
