"""A repair done once for a fixed selection, and kept as a file that a server reads instead."""

from __future__ import annotations

from kri_core.artifacts import Overlay, block_major, seal_overlay
from kri_core.errors import ConfigError
from kri_core.repairing import repair_params
from kri_core.routing import Router
from kri_core.substrate.hf.model import HfModel
from kri_core.substrate.hf.repair import Repair, run_repairs
from kri_core.types import Cartridge, Manifest


def check_overlay(router: Router) -> None:
    """Refuse a stack whose repairs leave nothing to keep for later, before the work."""
    config, repairs = router.stack.config, router.stack.repairs
    if not repairs:
        raise ConfigError(
            f"{config} repairs nothing, so its overlay would be the cartridge's own blocks; "
            f"give a repair, such as {config}+xa25"
        )
    for member in repairs:
        if repair_params(member.params).reference == "query_first":
            raise ConfigError(
                f"{member.ref} computes KV after the question, so it is another for each; leave "
                "reference=query_first out of an overlay"
            )


def bake_overlay(
    model: HfModel, cartridge: Cartridge, router: Router, manifest: Manifest
) -> tuple[Overlay, tuple[Repair, ...]]:
    """A stack's repairs of one selection, as `run_repairs` does them, in a file's axes."""
    check_overlay(router)
    ((prefix, done),) = run_repairs(model, cartridge, router, [(manifest, ())])
    assert prefix is not None  # noqa: S101 - there is a repair
    layers = (
        (keys.cpu(), values.cpu()) for keys, values in zip(prefix.keys, prefix.values, strict=True)
    )
    layout = cartridge.layout
    kv, tail = block_major(layers, layout.num_layers, layout.block_size)
    refreshed = set[int]().union(*(repair.report.refreshed for repair in done))
    return seal_overlay(cartridge, manifest, len(refreshed), kv, tail), done
