"""Discovery by metadata: what is listed, what is refused, and that nothing is imported."""

import multiprocessing
import os
import re
import resource
import subprocess
import sys

import pytest

import kri_core
from kri_core.catalogue import DISTRIBUTION_OF
from kri_core.config import PluginRef
from kri_core.errors import PluginError
from kri_core.loading import load
from kri_core.registry import Registry
from kri_core.stack import Stack

TRAP = "raise AssertionError('discovery imported a plugin')"


def rows_of(dist):
    return [row for row in Registry.discover().rows if row.distribution == dist]


def only_row(dist):
    (row,) = rows_of(dist)
    return row


def listing():
    return sorted((row.slot, row.name, row.distribution) for row in Registry.discover().rows)


def test_a_row_says_what_the_metadata_says(environment):
    environment.install("Jove_Moons", {"scorer": {"Io_Moon": "io_moon"}}, {"io_moon": TRAP})

    row = only_row("jove-moons")

    assert (row.name, row.slot, row.version) == ("io-moon", "scorer", "1.0")
    assert (row.state, row.reason, row.summary) == ("ok", "", "About Jove_Moons")


def test_rows_are_ordered_by_slot_name_and_package_whatever_the_install_order(environment):
    environment.install("b", {"scorer": {"io": "io_moon"}}, {"io_moon": TRAP})
    environment.install(
        "a", {"split": {"io": "io_moon"}, "scorer": {"io": "io_moon", "ganymede": "io_moon"}}
    )

    mine = [row for row in listing() if row[2] in "ab"]

    assert mine == [
        ("scorer", "ganymede", "a"),
        ("scorer", "io", "a"),
        ("scorer", "io", "b"),
        ("split", "io", "a"),
    ]


# CASES 1, 2: damaged installations


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def broken(:", "SyntaxError: invalid syntax (io_moon.py, line 1)"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise SystemExit", "SystemExit"),
        ("raise RuntimeError('two\\n\\n  lines')", "RuntimeError: two lines"),
    ],
)
def test_an_import_that_raises_breaks_only_the_stack_that_needs_it(environment, source, error):
    """CASES 1: the listing does not even notice; loading names package, error and fix."""
    environment.install("jove", {"scorer": {"io": "io_moon"}}, {"io_moon": source})
    registry = Registry.discover()

    assert only_row("jove").state == "ok"
    Stack.load(kri_core.parse("A1R2K13"), registry)
    said = f"scorer 'io' of jove 1.0 cannot be imported: {error}; repair its installation, or: pip"
    with pytest.raises(PluginError, match=re.escape(said) + " uninstall jove$"):
        Stack.load(kri_core.parse("A1R2K13(io)"), registry)


def test_ctrl_c_during_an_import_is_not_swallowed(environment):
    environment.install(
        "jove", {"scorer": {"io": "io_moon"}}, {"io_moon": "raise KeyboardInterrupt"}
    )

    with pytest.raises(KeyboardInterrupt):
        load(only_row("jove"))


def assert_gone(row, module):
    said = f"its module '{module}' is gone; reinstall it, or: pip uninstall {row.distribution}"
    assert (row.state, row.reason) == ("broken", said)
    with pytest.raises(PluginError, match=re.escape(f"{row.label} is broken: {said}")):
        Registry.discover().find(row.slot, PluginRef(row.name))


def test_a_metadata_directory_whose_module_is_gone_is_one_row_with_the_fix(environment):
    """CASES 2."""
    environment.install("jove", {"scorer": {"io": "jove.io"}})

    assert_gone(only_row("jove"), "jove.io")


def test_a_package_that_lost_one_module_is_one_row_with_the_fix(environment):
    environment.install("jove", {"scorer": {"io": "jove.io"}}, {"jove.europa": TRAP})

    assert_gone(only_row("jove"), "jove.io")


def test_a_directory_an_uninstall_left_behind_is_no_module(environment):
    """Only __pycache__ is left of it, which Python takes for a namespace package."""
    environment.install("jove", {"scorer": {"io": "jove"}})
    (environment.root / "jove" / "__pycache__").mkdir(parents=True)

    assert_gone(only_row("jove"), "jove")


def test_a_module_is_looked_up_without_importing_its_parents(environment):
    environment.install("jove", {"scorer": {"io": "jove.io"}}, {"jove.io": TRAP})
    (environment.root / "jove" / "__init__.py").write_text(TRAP)

    assert only_row("jove").state == "ok"


@pytest.mark.parametrize("value", ["", "not a module", ".io", "io:", "io.", "io:a:b"])
def test_an_entry_point_that_is_no_module_is_broken(environment, value):
    environment.install("jove", {"scorer": {"io": value}})

    said = f"its entry point {value!r} is no module; its author must name one"
    assert (only_row("jove").state, only_row("jove").reason) == ("broken", said)


@pytest.mark.parametrize("metadata", [b"", b"\xff\xfe\x00", b"Summary: no name\n\n"])
def test_damaged_metadata_is_a_row_named_by_its_directory(environment, metadata):
    """An empty METADATA is not written: the file is missing."""
    environment.install("jove", {"scorer": {"io": "io_moon"}}, {"io_moon": TRAP}, metadata=metadata)

    row = only_row("jove-1.0.dist-info")

    assert (row.name, row.version, row.state) == ("io", "?", "broken")
    assert row.reason.startswith("its METADATA cannot be read; reinstall it, or: pip uninstall jov")


def test_an_entry_point_file_that_cannot_be_parsed_is_one_row_for_each_group(environment):
    broken = b"[kri_core.scorers]\nio io\n"
    environment.install("jove", {}, entry_points=broken)
    environment.install("mars", {"scorer": {"deimos": "deimos"}}, {"deimos": TRAP})

    assert only_row("jove").reason.startswith("its entry_points.txt cannot be read; reinstall it")
    assert only_row("mars").state == "ok"


def test_another_tool_s_broken_entry_points_are_none_of_our_business(environment, caplog):
    environment.install("pluto", {}, entry_points=b"[console_scripts]\npluto pluto\n")
    environment.install("ceres", {}, entry_points=b"\xff\xfe[console_scripts]")
    environment.install("mars", {"scorer": {"deimos": "deimos"}}, {"deimos": TRAP})

    assert only_row("mars").state == "ok"
    assert rows_of("pluto") == rows_of("ceres") == []
    assert "entry_points.txt of ceres-1.0.dist-info is not UTF-8" in caplog.text


def test_a_misspelt_group_is_a_row_that_says_so(environment):
    """An author's first mistake: without a row, the plugin would be missing without a word."""
    environment.install("jove", {"kri_core.scorer": {"io": "io_moon"}}, {"io_moon": TRAP})

    row = only_row("jove")

    assert (row.slot, row.state) == ("scorer", "broken")
    assert row.reason == (
        "there is no entry-point group 'kri_core.scorer'; its author must write 'kri_core.scorers'"
    )


@pytest.mark.parametrize("name", ["a b", "A1R2K13", "io!"])
def test_a_name_no_stack_can_spell_is_broken(environment, name):
    environment.install("jove", {"split": {name: "io_moon"}}, {"io_moon": TRAP})

    assert only_row("jove").state == "broken"
    assert only_row("jove").reason.startswith("no stack can name it: ")


def test_of_one_distribution_on_two_paths_the_first_counts(environment, tmp_path, monkeypatch):
    other = type(environment)(tmp_path / "later")
    other.root.mkdir()
    environment.install("jove", {"scorer": {"io": "io_moon"}}, {"io_moon": TRAP})
    other.install("Jove", {"scorer": {"io": "io_moon", "europa": "io_moon"}})
    monkeypatch.setattr("sys.path", [*__import__("sys").path, str(other.root)])

    assert [row.name for row in rows_of("jove")] == ["io"]


# CASES 3: filters


@pytest.fixture
def three(environment):
    points = {"scorer": {"io": "io_moon", "europa": "io_moon", "ganymede": "io_moon"}}
    environment.install("jove", points, {"io_moon": TRAP})
    return environment


@pytest.mark.parametrize(
    ("allowed", "shown", "unknown"),
    [
        ("", {"io", "europa", "ganymede"}, ()),
        (" , ", {"io", "europa", "ganymede"}, ()),
        ("io", {"io"}, ()),
        (" IO , ", {"io"}, ()),
        ("io,io", {"io"}, ()),
        ("io,europa", {"io", "europa"}, ()),
        ("io,callisto,amalthea", {"io"}, ("amalthea", "callisto")),
    ],
)
def test_the_allow_list(three, monkeypatch, allowed, shown, unknown):
    """CASES 3."""
    monkeypatch.setenv("KRI_PLUGINS", allowed)
    registry = Registry.discover()

    assert {row.name for row in registry.rows if row.distribution == "jove"} == shown
    hidden = {row.name for row in registry.hidden if row.distribution == "jove"}
    assert hidden == {"io", "europa", "ganymede"} - shown
    assert registry.unknown == unknown


def test_the_allow_list_never_hides_what_stacks_are_written_with(three, monkeypatch):
    monkeypatch.setenv("KRI_PLUGINS", "io")
    mine = {row.name for row in Registry.discover().rows if row.distribution == "kri-core"}

    assert {"tag", "top-k", "whole"} <= mine


def test_the_deny_list_wins_over_the_allow_list_and_over_built_ins(three, monkeypatch):
    monkeypatch.setenv("KRI_PLUGINS", "io,europa")
    monkeypatch.setenv("KRI_DISABLE_PLUGINS", "europa,TOP_K,callisto")
    registry = Registry.discover()
    names = {row.name for row in registry.rows}

    assert names & {"io", "europa", "top-k"} == {"io"}
    assert registry.unknown == ("callisto",)
    said = "'europa' is switched off by KRI_PLUGINS or KRI_DISABLE_PLUGINS; change those"
    with pytest.raises(PluginError, match=said):
        registry.find("scorer", PluginRef("europa"))


# CASES 4, 11: conflicts


def test_two_packages_with_one_name_conflict_until_one_is_named(environment):
    """CASES 4."""
    environment.install("jove", {"scorer": {"io": "jove_io"}}, {"jove_io": TRAP})
    environment.install("kri-plugin-mars", {"scorer": {"IO": "mars_io"}}, {"mars_io": TRAP})
    registry = Registry.discover()

    assert [(row.state, row.reason) for row in registry.rows if row.name == "io"] == [
        ("conflict", "also in kri-plugin-mars; write jove:io to use this one"),
        ("conflict", "also in jove; write kri-plugin-mars:io to use this one"),
    ]
    with pytest.raises(PluginError) as caught:
        registry.find("scorer", PluginRef("io", at=8), "A1R2K13(io)")
    assert str(caught.value) == (
        "'io' is in several packages; write jove:io or kri-plugin-mars:io\n"
        "  A1R2K13(io)\n          ^"
    )
    for written in ("kri-plugin-mars:io", "mars:io", "Kri_Plugin.Mars:IO"):
        ref = kri_core.parse(f"A1R2K13({written})").scorer
        assert registry.find("scorer", ref).distribution == "kri-plugin-mars"


def test_a_scorer_and_a_split_of_one_name_are_fine(environment):
    """CASES 4, its second half."""
    environment.install(
        "jove", {"scorer": {"io": "io_moon"}, "split": {"io": "io_moon"}}, {"io_moon": TRAP}
    )

    assert [row.state for row in rows_of("jove")] == ["ok", "ok"]


def test_a_plugin_that_cannot_be_used_is_no_rival(environment):
    """What a renamed package leaves behind must not lock its successor out."""
    environment.install("jove-old", {"scorer": {"io": "gone"}})
    environment.install("jove-new", {"scorer": {"io": "io_moon"}}, {"io_moon": TRAP})
    registry = Registry.discover()

    assert only_row("jove-new").state == "ok"
    assert registry.find("scorer", PluginRef("io")).distribution == "jove-new"
    with pytest.raises(PluginError, match=r"scorer 'io' of jove-old 1.0 is broken: its module"):
        registry.find("scorer", PluginRef("io", dist="jove-old"))


def test_where_every_namesake_is_unusable_each_says_why(environment):
    environment.install("jove", {"scorer": {"io": "gone"}})
    environment.install(
        "mars", {"scorer": {"io": "io_moon"}}, {"io_moon": TRAP}, requires=["kri-core>=9"]
    )

    with pytest.raises(
        PluginError, match=r"of jove 1.0 is broken: .*; scorer 'io' of mars 1.0 is i"
    ):
        Registry.discover().find("scorer", PluginRef("io"))


def test_one_package_that_registers_a_name_twice_is_broken(environment):
    points = {"scorer": {"io_moon": "io_moon", "IO-Moon": "io_moon"}}
    environment.install("jove", points, {"io_moon": TRAP})

    said = "its package registers 'io-moon' twice; its author must rename one"
    assert [(row.state, row.reason) for row in rows_of("jove")] == [("broken", said)] * 2


def test_a_stranger_with_a_built_in_s_name_is_used_only_when_qualified(environment):
    """CASES 11."""
    environment.install("jove", {"selector": {"topk": "io_moon"}}, {"io_moon": TRAP})
    registry = Registry.discover()
    states = {row.distribution: row.state for row in registry.rows if row.name == "top-k"}

    assert states == {"jove": "conflict", "kri-core": "ok"}
    assert only_row("jove").reason == "the built-in wins; write jove:top-k to use this one"
    assert registry.find("selector", PluginRef("top-k")).distribution == "kri-core"
    assert registry.find("selector", PluginRef("top-k", dist="jove")).distribution == "jove"


# CASES 6: compatibility


@pytest.mark.parametrize(
    ("requires", "needs"),
    [
        (["kri-core>=2,<3"], "kri-core<3,>=2"),
        (["Kri_Core[hf] >=2"], "kri-core>=2"),
        (["kri-core>=1.0", "kri-core<1.2"], "kri-core<1.2"),
        (["kri-core>=one"], "kri-core>=one"),
    ],
)
def test_a_plugin_built_for_another_major_is_refused(environment, monkeypatch, requires, needs):
    """CASES 6."""
    monkeypatch.setattr(kri_core, "__version__", "1.3.0")
    environment.install("jove", {"scorer": {"io": "io_moon"}}, {"io_moon": TRAP}, requires=requires)

    row = only_row("jove")
    said = f"it needs {needs}, this is kri-core 1.3.0; pip install --upgrade kri-core jove"
    assert (row.state, row.reason) == ("incompatible", said)
    with pytest.raises(PluginError, match=re.escape(f"{row.label} is incompatible: {said}")):
        Registry.discover().find("scorer", PluginRef("io"))


@pytest.mark.parametrize(
    "requires",
    [
        ["kri-core>=1.1,<2"],
        ["torch>=2", "kri-core~=1.1"],
        ["kri-core>=1; python_version >= '3'", "kri-core>=9; extra == 'next'"],
        ["kri-core-extras>=9"],
        ["kri-core"],
        [],
    ],
)
def test_a_plugin_built_for_an_older_minor_works(environment, monkeypatch, requires):
    """CASES 6, its second half; so does one with a pre-release of the core."""
    environment.install("jove", {"scorer": {"io": "io_moon"}}, {"io_moon": TRAP}, requires=requires)

    for version in ("1.3.0", "1.3.0rc1"):
        monkeypatch.setattr(kri_core, "__version__", version)
        assert only_row("jove").state == "ok"


# CASES 8: discovery again and elsewhere


def test_discovery_twice_gives_the_same_rows(three):
    """CASES 8."""
    assert Registry.discover() == Registry.discover()


def _send_listing(pipe):
    pipe.send(listing())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_process_discovers_the_same_rows(three, monkeypatch, method):
    """CASES 8: after the parent has loaded plugins."""
    Stack.load(kri_core.parse("A1R2K13"), Registry.discover())
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_listing, args=(sender,))
    child.start()

    assert receiver.poll(60)
    assert receiver.recv() == listing()
    child.join()
    assert child.exitcode == 0


# CASES 10: nothing is imported


def test_two_hundred_distributions_are_listed_without_importing_one(environment):
    """CASES 10: one imports torch, all would fail."""
    for number in range(200):
        source = "import torch\n" + TRAP
        name = f"moon{number}"
        environment.install(name, {"scorer": {name: f"{name}.hooks"}}, {f"{name}.hooks": source})

    loaded = environment.python(
        """
        import sys
        from kri_core.registry import Registry
        rows = Registry.discover().rows
        print(sum(row.name.startswith("moon") and row.state == "ok" for row in rows))
        print([name for name in sys.modules if name.startswith(("moon", "torch"))])
        print([name for name in sys.modules if name.startswith("kri_core.builtin")])
        """
    )

    assert loaded.splitlines() == ["200", "[]", "[]"]


def test_listing_two_hundred_distributions_takes_under_three_tenths_of_a_second(environment):
    """Processor time, best of five: what else the machine is doing does not count."""
    for number in range(200):
        name = f"moon{number}"
        environment.install(name, {"scorer": {name: f"{name}.hooks"}}, {f"{name}.hooks": TRAP})
    command = [sys.executable, "-m", "kri_core.cli", "list-plugins"]
    variables = {**os.environ, "PYTHONPATH": str(environment.root)}

    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, env=variables, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)

    assert min(seconds) < 0.3, seconds


def test_the_trap_of_these_tests_springs(environment):
    """A negative control: importing one of these plugins is seen."""
    environment.install("jove", {"scorer": {"io": "io_moon"}}, {"io_moon": TRAP})

    with pytest.raises(PluginError, match="AssertionError: discovery imported a plugin"):
        load(only_row("jove"))


# What a stack is told about a name nobody has


@pytest.mark.parametrize(
    ("slot", "ref", "said"),
    [
        ("split", "io", "'io' is a scorer, not a split; write A1R2K13(io)"),
        ("scorer", "top-k", "'top-k' is a selector, not a scorer; write A0R0K16(~top-k)"),
        ("scorer", "tag", "'tag' is a split, not a scorer; write tag[budget=16]"),
        ("scorer", "deimos", "'deimos' is a repair, not a scorer; write A1R2K13+deimos"),
        ("scorer", "jove:callisto", "no scorer 'callisto' in a package 'jove'; see kri-core list-"),
        ("scorer", "ganymed", "no scorer is called 'ganymed'; did you mean ganymede?"),
        ("scorer", "zzz", "no scorer is called 'zzz'; see kri-core list-plugins"),
        ("scorer", "charon", "'charon' is not installed; pip install kri-plugin-pluto"),
        ("scorer", "sharon", "no scorer is called 'sharon'; charon comes with: pip install kri-"),
    ],
)
def test_an_unknown_name_gets_the_nearest_advice(three, monkeypatch, slot, ref, said):
    monkeypatch.setitem(DISTRIBUTION_OF, "charon", "kri-plugin-pluto")
    three.install("mars", {"repair": {"deimos": "deimos"}}, {"deimos": TRAP})
    dist, _, name = ref.rpartition(":")

    with pytest.raises(PluginError, match=re.escape(said)):
        Registry.discover().find(slot, PluginRef(name, dist=dist or None))


def test_advice_names_both_the_installed_and_the_installable_neighbour(environment, monkeypatch):
    monkeypatch.setitem(DISTRIBUTION_OF, "charon", "kri-plugin-pluto")
    environment.install("jove", {"scorer": {"charno": "io_moon"}}, {"io_moon": TRAP})

    said = "no scorer is called 'charonn'; did you mean charno? charon comes with: pip install kri-"
    with pytest.raises(PluginError, match=re.escape(said)):
        Registry.discover().find("scorer", PluginRef("charonn"))
