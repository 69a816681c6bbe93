"""Cartridges whose KV does not matter."""

import pytest
import torch
from hypothesis import HealthCheck, settings

from kri_core.identity import ModelIdentity
from kri_core.types import Cartridge, Layout

# A busy machine is no counterexample.
settings.register_profile("core", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("core")


@pytest.fixture
def make_cartridge():
    """Two layers of three KV heads, one token a block, all zero: routing looks at sizes alone."""

    def make(num_blocks, cart_id="doc"):
        return Cartridge(
            cart_id=cart_id,
            layout=Layout(2, 3, head_dim=1, block_size=1, num_tokens=num_blocks),
            model=ModelIdentity("tiny", architecture="tiny"),
            token_ids=tuple(range(num_blocks)),
            kv=torch.zeros(num_blocks, 2, 2, 3, 1, 1),
            tail=torch.zeros(2, 2, 3, 0, 1),
            trained=False,
            sha256=f"sha of {cart_id}",
            prefix_hash=f"hash of {cart_id}",
            created_at="2025-01-01T00:00:00+00:00",
        )

    return make
