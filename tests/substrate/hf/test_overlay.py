"""Baking overlays: the repair as it is at run time, in a file's axes."""

import pytest
import torch

from kri_core.errors import ConfigError
from kri_core.grammar import parse
from kri_core.routing import Router
from kri_core.substrate.hf import load_prefix, run_repairs
from kri_core.substrate.hf.overlay import bake_overlay, check_overlay

STACK = "A1R1K1(knorm)+xa25"


def router(stack=STACK):
    return Router.from_config(parse(stack))


def sides(overlay):
    """Keys and values, each [layer, kv_head, token, head_dim]."""
    kept = [*overlay.kv.values()]
    return [
        torch.cat([*(block[:, side] for block in kept), overlay.tail[:, side]], 2)
        for side in (0, 1)
    ]


def test_it_holds_what_the_repair_leaves(tiny_llama, tiny_cartridge):
    routes = router()
    manifest = routes.route(tiny_cartridge)
    ((prefix, _),) = run_repairs(tiny_llama, tiny_cartridge, routes, [(manifest, (1, 2))])
    stored = load_prefix(tiny_llama, tiny_cartridge, manifest.kept)

    overlay, (done,) = bake_overlay(tiny_llama, tiny_cartridge, routes, manifest)

    keys, values = sides(overlay)
    assert torch.equal(keys, torch.stack(prefix.keys))
    assert torch.equal(values, torch.stack(prefix.values))
    changed = (keys != torch.stack(stored.keys)).any(-1).any(1).any(0).nonzero().flatten()
    assert set(changed.tolist()) == set(done.report.refreshed)
    assert overlay.header.refreshed_tokens == len(done.report.refreshed) == 7  # of 26
    assert overlay.header.kept == manifest.kept
    assert overlay.header.stack == manifest.stack
    assert overlay.serves(tiny_cartridge, manifest)


def test_a_stack_without_repair_has_no_overlay():
    with pytest.raises(ConfigError, match=r"repairs nothing, so its overlay would be .*\+xa25$"):
        check_overlay(router("A1R1K1(knorm)"))


def test_a_repair_that_reads_the_question_has_no_overlay():
    check_overlay(router("A1R1K1(knorm)+xa25[reference=full]"))
    with pytest.raises(ConfigError, match="computes KV after the question, so it is another for"):
        check_overlay(router("A1R1K1(knorm)+xa25[reference=query_first]"))
