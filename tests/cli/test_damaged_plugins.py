"""Plugins that cannot be used: every command that does not need one works, and says so."""

import json

import pytest

SOURCES = {
    "ImportError": "import no_such_module",
    "SyntaxError": "def broken(:",
    "SystemExit": "raise SystemExit(0)",
}


@pytest.mark.parametrize("error", SOURCES)
def test_an_import_that_raises_ends_no_command_but_the_one_that_needs_it(
    kri, here, environment, error
):
    """CASES 1."""
    environment.install("jove", {"scorer": {"io": "io_moon"}}, {"io_moon": SOURCES[error]})
    route = ("route", "--cartridge", "doc.safetensors", "--stack")

    assert kri("--help").code == 0
    listed = kri("list-plugins")
    assert (listed.code, "jove" in listed.out) == (0, True)
    checked = kri("doctor", "--json")
    assert checked.code == 0
    (finding,) = [row for row in checked.json["findings"] if row["subject"] == "scorer io"]
    assert finding["state"] == "broken"
    assert "scorer 'io' of jove 1.0 cannot be imported" in finding["detail"]
    assert "pip uninstall jove" in finding["detail"]
    assert kri(*route, "recency[budget=2]").code == 0
    needed = kri(*route, "A1R1K1(io)")
    assert (needed.code, needed.out) == (3, "")
    assert needed.err.startswith("error: scorer 'io' of jove 1.0 cannot be imported: ")
    assert needed.err.count("\n") == 1


def test_a_module_that_is_gone_is_one_row_with_the_fix(kri, environment):
    """CASES 2."""
    environment.install("jove", {"scorer": {"io": "jove.io"}})
    fix = "its module 'jove.io' is gone; reinstall it, or: pip uninstall jove"

    for command, rows in (("list-plugins", "plugins"), ("doctor", "findings")):
        assert kri(command).out.count(fix) == 1
        shown = kri(command, "--json")
        assert shown.code == 0
        assert json.dumps(shown.json[rows]).count(fix) == 1


def test_two_plugins_of_one_name_are_both_listed_and_refused_unqualified(kri, here, environment):
    """CASES 4."""
    hook = "from kri_core import hookimpl\n@hookimpl\ndef kri_score_blocks(cartridge):\n"
    body = "    import torch\n    return torch.ones(1, 1, cartridge.layout.num_blocks)\n"
    for dist in ("jove", "mars"):
        environment.install(dist, {"scorer": {"io": f"{dist}_io"}}, {f"{dist}_io": hook + body})
    route = ("route", "--cartridge", "doc.safetensors", "--json", "--stack")

    rows = [row for row in kri("list-plugins", "--json").json["plugins"] if row["name"] == "io"]
    assert [(row["distribution"], row["state"]) for row in rows] == [
        ("jove", "conflict"),
        ("mars", "conflict"),
    ]
    refused = kri(*route, "A1R1K1(io)")
    assert (refused.code, "write jove:io or mars:io" in refused.err) == (3, True)
    assert kri(*route, "A1R1K1(mars:io)").json["stack"] == "A1R1K1(mars:io)"
