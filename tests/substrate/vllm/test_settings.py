"""The JSON people write, and what is wrong with the JSON people write."""

from __future__ import annotations

from pathlib import Path

import pytest

from kri_core.errors import ConfigError
from kri_core.substrate.vllm.settings import CartridgeEntry, Settings

PUBLISHED = {
    "cartridges": {"patient_00": "/data/carts/patient_00.pt"},
    "routing": {"enabled": True, "K": 16, "priors": {"patient_00": "/data/priors/patient_00.pt"}},
}


def test_the_published_json_is_pure_top_k_by_its_prior():
    """DESIGN 8, as it stands."""
    settings = Settings.parse(PUBLISHED)

    assert settings.stack == "A0R0K16"
    assert settings.on_error == "fail"
    assert settings.cartridges == (
        CartridgeEntry(
            "patient_00",
            Path("/data/carts/patient_00.pt"),
            None,
            (Path("/data/priors/patient_00.pt"),),
        ),
    )


def test_cartridges_may_be_a_list():
    row = {"cartridge_id": "a", "path": "a.pt", "manifest_path": "a.json"}

    (entry,) = Settings.parse({"cartridges": [row]}).cartridges

    assert entry == CartridgeEntry("a", Path("a.pt"), Path("a.json"))


def test_a_cartridge_may_have_several_priors():
    routing = {"stack": "A1R2K13", "priors": {"a": ["x.pt", "y.pt"]}}

    (entry,) = Settings.parse({"cartridges": {"a": "a.pt"}, "routing": routing}).cartridges

    assert entry.priors == (Path("x.pt"), Path("y.pt"))


@pytest.mark.parametrize("routing", [None, {"enabled": False, "K": 16}])
def test_without_routing_every_block_is_served(routing):
    extra = {"cartridges": {"a": "a.pt"}} | ({"routing": routing} if routing else {})

    assert Settings.parse(extra).stack == "whole"


def test_the_stack_is_canonical():
    routing = {"stack": "a1r2k13( KRI_D_KV_SUM )"}

    assert Settings.parse({"cartridges": {}, "routing": routing}).stack == "A1R2K13(kri-d-kv-sum)"


@pytest.mark.parametrize(
    ("extra", "line"),
    [
        ({"cartridge": {}}, "kv_connector_extra_config has no cartridge; it knows cartridges, on"),
        ({}, "cartridges is None; give a mapping of ids to paths"),
        ({"cartridges": {"a": 3}}, "the path of cartridge 'a' is 3; give a text"),
        ({"cartridges": [3]}, "an entry of cartridges is 3; give a mapping"),
        (
            {"cartridges": [{"cartridge_id": "a", "path": "x"}] * 2},
            "cartridges lists 'a' twice; give each its own id",
        ),
        (
            {"cartridges": [{"cartridge_id": "a", "file": "x"}]},
            "an entry of cartridges has no file; it knows cartridge_id, manifest_path, path",
        ),
        (
            {"cartridges": {"a": "x"}, "routing": {"budget": 3}},
            "routing has no budget; it knows K, enabled,",
        ),
        (
            {"cartridges": {"a": "x"}, "routing": {}},
            "routing is enabled but names neither K nor stack",
        ),
        ({"cartridges": {"a": "x"}, "routing": {"K": 0}}, "routing.K is 0; give a whole number"),
        ({"cartridges": {"a": "x"}, "routing": {"K": True}}, "routing.K is True; give a whole"),
        (
            {"cartridges": {"a": "x"}, "routing": {"K": 8, "stack": "A1R2K13"}},
            "routing.K is 8, but A1R2K13 has budget 16; leave one out",
        ),
        (
            {"cartridges": {"a": "x"}, "routing": {"K": 8, "priors": {"b": "y"}}},
            "routing.priors names b, which is no cartridge here; give priors of a",
        ),
        (
            {"cartridges": {"a": "x"}, "on_error": "ignore"},
            "on_error is 'ignore'; give one of fail, dense",
        ),
        ({"cartridges": {"a": "x"}, "share": "yes"}, "share is 'yes'; give true or false"),
        ({"cartridges": {"a": "x"}, "trace": 1}, "trace is 1; give a text"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_name(extra, line):
    with pytest.raises(ConfigError) as raised:
        Settings.parse(extra)

    assert str(raised.value).startswith(line)
