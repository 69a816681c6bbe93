"""What holds for every command: help, exit codes, pipes, locales, what is imported."""

import contextlib
import os
import subprocess
import sys

import pytest

from kri_core.cli import cli

KRI = [sys.executable, "-m", "kri_core.cli"]
COMMANDS = [
    (name, *inner)
    for name, command in cli.commands.items()
    for inner in ([(sub,) for sub in command.commands] if hasattr(command, "commands") else [()])
]


def run(*arguments, **environment):
    return subprocess.run(
        [*KRI, *arguments], capture_output=True, text=True, env=os.environ | environment
    )


def on_a_terminal(*arguments, **environment):
    """The stdout of a command whose stdout is a terminal."""
    reading, writing = os.openpty()
    process = subprocess.Popen([*KRI, *arguments], stdout=writing, env=os.environ | environment)
    os.close(writing)
    shown = b""
    with contextlib.suppress(OSError):  # Linux ends a terminal's output with EIO
        while piece := os.read(reading, 4096):
            shown += piece
    os.close(reading)
    assert process.wait() == 0
    return shown.decode()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help(kri, command):
    done = kri(*command, "--help")

    assert done.code == 0
    assert f"{' '.join(command)} [OPTIONS]" in done.out


def test_listing_imports_neither_torch_nor_a_plugin():
    script = (
        "import sys; sys.argv = ['kri-core', 'list-plugins']\n"
        "from kri_core.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('torch', 'transformers', 'numpy') "
        "or m.startswith('kri_plugin')]\n"
        "print(bad, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert "top-k" in done.stdout
    assert done.stderr.strip() == "[]"


def test_listing_filters_by_slot_and_prints_json(kri):
    rows = kri("list-plugins", "--slot", "split", "--json").json["plugins"]

    assert {"tag", "whole", "recency", "hybrid"} <= {row["name"] for row in rows}
    assert {row["slot"] for row in rows} == {"split"}
    assert rows[0].keys() == {
        "name", "slot", "distribution", "version", "state", "reason", "summary",
    }  # fmt: skip


def test_filters_are_said_on_stderr(kri, monkeypatch):
    """CASE 3."""
    monkeypatch.setenv("KRI_PLUGINS", "recency, eigenn")
    done = kri("list-plugins")

    assert "names no installed plugin: eigenn" in done.err
    assert "hidden by KRI_PLUGINS" in done.err
    assert "random-middle" not in done.out


def test_a_closed_pipe_ends_quietly():
    """CASE 12: `list-plugins | head -1`."""
    done = subprocess.run(
        f"{' '.join(KRI)} list-plugins | head -1", shell=True, capture_output=True, text=True
    )

    assert done.stdout.startswith("name")
    assert done.stderr == ""


def shell(line):
    return subprocess.run(
        line.format(kri=" ".join(KRI)), shell=True, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{kri} list-plugins >/dev/full", "No space left on device"),
        ("{kri} --help >/dev/full", "No space left on device"),
        ("{kri} list-plugins >&-", "Bad file descriptor"),
    ],
)
def test_output_that_cannot_be_written_is_one_line(line, says):
    """Data that was lost is not a success, and Python's own complaint at exit is not a second."""
    done = shell(line)

    assert done.returncode == 1
    assert done.stderr.startswith("error: OSError: ")
    assert done.stderr.count("\n") == 1
    assert f"{says}; free space, or check" in done.stderr


def test_closed_streams_change_nothing_else():
    closed = "cartridge build --model x --out x.pt --text - <&-"

    assert shell("{kri} list-plugins 2>&- <&-").stdout == run("list-plugins").stdout
    assert shell("{kri} cartridge inspect nowhere.pt 2>&- <&- >&-").returncode == 4
    assert shell(f"{{kri}} {closed}").stderr == (
        "error: --text - cannot be read: Bad file descriptor\n"
    )


def test_an_error_nobody_can_read_keeps_its_exit_code():
    assert shell("{kri} cartridge inspect nowhere.pt 2>/dev/full").returncode == 4
    assert shell("{kri} lst-plugins 2>/dev/full").returncode == 2


def test_a_fault_of_kri_core_is_one_line_and_its_traceback_a_log(monkeypatch, kri, caplog):
    def fail():
        raise KeyError("a\nb")

    monkeypatch.setattr("kri_core.registry.Registry.discover", fail)
    with caplog.at_level("DEBUG"):
        done = kri("list-plugins")

    assert done.code == 1
    assert done.err.splitlines()[-1] == (
        "error: KeyError: 'a\\nb': a fault of kri-core; "
        "report it with what KRI_LOG_LEVEL=DEBUG shows"
    )
    assert "Traceback" in caplog.text


def test_an_empty_log_level_is_none():
    assert run("list-plugins", KRI_LOG_LEVEL="").returncode == 0


@pytest.mark.parametrize(
    "environment",
    [{"NO_COLOR": "1"}, {"COLUMNS": "40"}, {"LC_ALL": "C", "PYTHONUTF8": "0"},
     {"PYTHONIOENCODING": "ascii"}, {"TERM": "dumb"}],
    ids=str,
)  # fmt: skip
def test_terminals_and_locales_do_not_break_the_listing(environment):
    """CASE 12."""
    for command in ("list-plugins", "doctor"):
        done = run(command, **environment)
        assert done.returncode == 0, done.stderr
        assert "top-k" in done.stdout
        assert "\x1b" not in done.stdout


@pytest.mark.parametrize("columns", ["40", "100", "no number"])
def test_a_terminal_gets_lines_cut_to_its_width(columns):
    """CASES 12: the last column keeps 20 characters, however narrow the terminal."""
    lines = on_a_terminal("list-plugins", COLUMNS=columns).splitlines()

    narrow = max(lines[0].index("summary") + 20, int(columns) if columns.isdigit() else 80)
    assert max(map(len, lines)) == narrow
    assert any(line.endswith("…") for line in lines)


def test_output_to_a_file_is_not_cut(tmp_path):
    """CASE 12."""
    with (tmp_path / "out").open("w") as out:
        subprocess.run([*KRI, "list-plugins"], stdout=out, env=os.environ | {"COLUMNS": "40"})

    assert "…" not in (tmp_path / "out").read_text()


def test_an_unknown_command_or_flag_is_usage():
    assert run("lst-plugins").returncode == 2
    assert run("list-plugins", "--slto", "x").returncode == 2


def test_an_unknown_log_level_is_usage():
    done = run("list-plugins", KRI_LOG_LEVEL="loud")

    assert (done.returncode, "KRI_LOG_LEVEL=LOUD is not a level" in done.stderr) == (2, True)


def test_without_torch_a_command_says_what_to_install(tmp_path):
    """The base install: torch is made impossible to import."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')")
    done = run("ask", "x", "--cartridge", "x.pt", "--stack", "whole", PYTHONPATH=str(tmp_path))
    listed = run("list-plugins", PYTHONPATH=str(tmp_path))

    assert done.returncode == 5
    assert done.stderr == "error: this needs torch; run pip install 'kri-core[hf]'\n"
    assert listed.returncode == 0


def test_interrupted_is_130(monkeypatch, kri):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("kri_core.registry.Registry.discover", interrupt)
    assert kri("list-plugins").code == 130
