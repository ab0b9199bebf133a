"""Tests of the names of commands, their help, and the errors for wrong names."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from support_cli import answer, invoke

from precompiled.cli import tree
from precompiled.cli.app import Command, Group, cli
from precompiled.version import VERSION

GROUPS = ["", *tree.GROUPS]


def found(name: str) -> tuple[click.Command, list[str]]:
    """Returns the command to which click resolves a command line, and the remaining words."""
    command: click.Command = cli
    words = tree.replace_old_name(name.split())[1]
    while isinstance(command, Group) and words:
        _, inner, words = command.resolve_command(click.Context(command), words)
        assert inner is not None
        command = inner
    return command, words


def test_every_command_is_in_the_tree_once() -> None:
    tops = tree.children("")
    assert tops == list(dict.fromkeys(name.split()[0] for name in tree.COMMANDS)) and len(tops) == len(set(tops))
    assert {group for name in tree.COMMANDS if (group := name.rpartition(" ")[0])} == set(tree.GROUPS)


@pytest.mark.parametrize("old", tree.RENAMED)
def test_an_old_name_runs_the_command_of_its_new_name(old: str) -> None:
    command, options = found(old)
    new, new_options = found(tree.RENAMED[old])
    assert options == new_options
    assert command is new or (isinstance(command, Group) and isinstance(new, Group) and command.path == new.path)
    assert old.split(maxsplit=1)[0] not in tree.children(""), "the old name is not listed"
    shown = invoke(*old.split(), "--help")
    assert shown.exit_code == 0 and shown.stdout == invoke(*tree.RENAMED[old].split(), "--help").stdout


def test_an_old_name_has_the_same_options_and_document(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRECOMPILED_CACHE_DIR", f"{tmp_path}/store")
    monkeypatch.setenv("PRECOMPILED_RUNTIME_DIR", f"{tmp_path}/run")
    assert answer("ls") == answer("cache", "ls")
    assert set(answer("top", "--once")) == set(answer("status", "--watch", "--once")) > {"clients", "graphs"}
    assert answer("gc", "--set", "cache_max_bytes=5")["max_bytes"] == 5
    assert invoke("keys", "list").exit_code == 0


# ---------------------------------------------------------------- the help of commands and groups


@pytest.mark.parametrize("group", GROUPS)
def test_help_of_a_group_fits_a_terminal_and_cuts_nothing_off(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = invoke(*group.split(), "--help").output
    lines = shown.splitlines()
    assert len(lines) <= 23 and max(map(len, lines)) <= 80 and "..." not in shown
    assert [line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] in tree.children(group)] == (
        tree.children(group)
    )
    for name in tree.children(group):
        (row,) = (line for line in lines if line.startswith(f"  {name} "))
        assert row.endswith("."), "each summary is a whole sentence"


def test_sections_are_in_order() -> None:
    shown = invoke("--help").output
    assert [line for line in shown.splitlines() if line in tree.SECTIONS] == list(tree.SECTIONS)


@pytest.mark.parametrize("group", [group for group in GROUPS if group not in tree.DEFAULTS])
def test_a_group_without_a_command_shows_its_help(group: str) -> None:
    bare = invoke(*group.split())
    assert (bare.exit_code, bare.output) == (0, invoke(*group.split(), "--help").output)


@pytest.mark.parametrize("name", tree.COMMANDS)
def test_help_of_a_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The help must show examples, then the command's own options, then the options of every command."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = invoke(*name.split(), "--help").output
    assert max(map(len, shown.splitlines())) <= 100 and "--json" in shown.partition("Options of every command")[2]
    command, _ = found(name)
    assert isinstance(command, Command) and 1 <= len(command.examples) <= 2
    assert f"precompiled {name.replace('config show', 'config')}" in " ".join(command.examples)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help and parameter.help.endswith("."), parameter


# ---------------------------------------------------------------- wrong and old names of commands


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("stauts", "No such command 'stauts'. Did you mean 'status'?"),
        ("cache lss", "No such command 'lss'. Did you mean 'ls'?"),
        ("remote keys trsut", "No such command 'trsut'. Did you mean 'trust'?"),
        ("logs", "No such command 'logs'. Did you mean 'daemon logs'?"),
        ("restrat", "No such command 'restrat'. Did you mean 'daemon restart'?"),
        ("off", "No such command 'off'. Did you mean 'disable'?"),
        ("frobnicate", "No such command 'frobnicate'."),
        ("monitor", "No such command 'monitor'."),
        ("cache list", "No such command 'list'. Did you mean 'cache ls'?"),
        ("help stauts", "No such command 'stauts'. Did you mean 'status'?"),
        ("config mdoe", "No such setting 'mdoe'. Did you mean 'mode'?"),
        ("config mode wait", "No such setting 'wait'. To set mode: `precompiled config set mode wait`."),
        ("config mode=wait", "No such setting 'mode=wait'. To set mode: `precompiled config set mode wait`."),
        ("config set mode=wait", "No such setting 'mode=wait'. To set mode: `precompiled config set mode wait`."),
        ("config mode wrokers workers", "No such setting 'wrokers'. Did you mean 'workers'?"),
        ("config mdoe wait", "No such setting 'mdoe'. Did you mean 'mode'?"),
        ("config mdoe=wait", "No such setting 'mdoe'. Did you mean 'mode'?"),
        ("--json status", "Put --json after the command: `precompiled COMMAND --json`."),
        ("cache ls --jsn", "No such option '--jsn'. Did you mean '--json'?"),
        ("report", "No such command 'report'. Did you mean 'explain'?"),
        ("daemon logs -n x", "Invalid value for '--lines' / '-n': 'x' is not a whole number."),
        ("status --interval x", "Invalid value for '--interval': 'x' is not a number."),
        ("tools completion", "Missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish."),
    ],
)
def test_the_error_for_a_wrong_name_suggests_the_nearest(line: str, said: str) -> None:
    result = invoke(*line.split())
    assert result.exit_code == 2 and result.stderr.splitlines()[0] == f"precompiled: {said}"


@pytest.mark.parametrize("line", ["explain --run", "cache ls --cache-dir", "explain --newest=yes", "daemon logs -n x"])
def test_the_error_for_a_wrong_option_names_the_help_of_its_command(line: str) -> None:
    name = line.partition(" -")[0]
    assert invoke(*line.split()).stderr.splitlines()[1] == f"  See `precompiled {name} --help`."


def test_the_notebook_magic_suggests_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    from precompiled.notebook import magic

    magic("stauts")
    assert "No such command 'stauts'. Did you mean 'status'?" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ("version", "--version"),
        ("help", "--help"),
        ("help status", "status --help"),
        ("help cache ls", "cache ls --help"),
        ("help top", "status --watch --help"),
    ],
)
def test_help_and_version_are_commands_too(words: str, same: str) -> None:
    result = invoke(*words.split())
    assert (result.exit_code, result.stdout) == (0, invoke(*same.split()).stdout)


def test_an_old_name_prints_a_notice_on_stderr_only() -> None:
    old, new = invoke("completion", "bash", "--json"), invoke("tools", "completion", "bash", "--json")
    assert old.stdout == new.stdout and new.stderr == ""
    assert old.stderr == "precompiled: `completion` is now `tools completion`. Version 0.2 removes the old name.\n"
    assert invoke("package", "inspect", "--help").stderr.startswith(
        "precompiled: `package inspect` is now `tools package`."
    )


def test_the_version_that_removes_old_names_is_not_released() -> None:
    """The release of version REMOVED_IN must remove RENAMED. Otherwise the notices would name a past version."""
    assert tuple(map(int, VERSION.split(".")[:2])) < tuple(map(int, tree.REMOVED_IN.split(".")))


def test_completion_below_an_old_name_prints_no_notice(capfd: pytest.CaptureFixture[str]) -> None:
    items = ShellComplete(cli, {}, "precompiled", "_C").get_completions(["keys"], "t")
    assert [item.value for item in items] == ["trust"] and capfd.readouterr() == ("", "")


# ---------------------------------------------------------------- completion of words


@pytest.mark.parametrize(
    ("words", "begun", "expected"),
    [
        ([], "", tree.children("")),
        (["cache"], "s", ["show", "stats", "size"]),
        (["remote", "keys"], "t", ["trust"]),
        (["config", "set"], "wai", ["wait_s"]),
        (["explain"], "no-dae", ["no-daemon"]),
    ],
)
def test_completion(words: list[str], begun: str, expected: list[str]) -> None:
    items = ShellComplete(cli, {}, "precompiled", "_C").get_completions(words, begun)
    assert [item.value for item in items] == expected
