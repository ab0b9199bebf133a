"""Tests that `config set` writes one checked line to the user's file, and keeps all other lines."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path

import pytest
from support_cli import answer, invoke, precompiled

from precompiled.cli import doctor
from precompiled.core import config, paths


@pytest.fixture
def file(settled: None) -> Path:
    found = paths.user_config_file()
    assert not found.exists()
    return found


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("mode", "wait", 'mode = "wait"'),
        ("PRECOMPILED_WORKERS", "3", "workers = 3"),
        ("require", "yes", "require = true"),
        ("wait_s", "2.5", "wait_s = 2.5"),
        ("base", '/a:/b "q"', 'base = ["/a", "/b \\"q\\""]'),
        ("log_file", "/var/log/\u00fc.log", 'log_file = "/var/log/\u00fc.log"'),
        ("remote", "none", 'remote = ""'),
    ],
)
def test_a_value_is_written_as_toml_and_read_back(file: Path, name: str, value: str, line: str) -> None:
    said = answer("config", "set", name, value)
    assert said["file"] == str(file) and file.read_text() == line + "\n"
    shown = answer("config")[said["name"]]
    assert shown["value"] == said["value"] and shown["origin"] == f"file {file}"


def test_a_size_with_a_unit_is_shown_as_stored(file: Path) -> None:
    said = invoke("config", "set", "cache_max_bytes", "5GB").output
    assert said == f"Wrote `cache_max_bytes = 5000000000` (4.7 GiB) to {file}.\n"
    assert file.read_text() == "cache_max_bytes = 5000000000\n"


def test_other_lines_stay(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text('# mine\nworkers = 3  # few\nbase = [\n  "/a",  # first\n  "/b",\n]\n\nmode = "wait"')
    file.chmod(0o600)
    invoke("config", "set", "base", "/c")
    assert file.read_text() == '# mine\nworkers = 3  # few\nbase = ["/c"]\n\nmode = "wait"\n'
    invoke("config", "set", "workers", "4")
    invoke("config", "set", "max_queue", "7")
    assert file.read_text() == '# mine\nworkers = 4\nbase = ["/c"]\n\nmode = "wait"\nmax_queue = 7\n'
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and [path.name for path in file.parent.iterdir()] == [file.name]


def test_unset_removes_a_setting_alone(file: Path) -> None:
    assert answer("config", "unset", "mode")["settings"] == [{"name": "mode", "removed": False}] and not file.exists()
    file.parent.mkdir(parents=True)
    file.write_text('# mine\nbase = [\n  "/a",\n  "/b",\n]\nmode = "wait"\n')
    assert invoke("config", "unset", "base").output == f"Removed base from {file}.\n"
    assert file.read_text() == '# mine\nmode = "wait"\n'
    answer("config", "unset", "PRECOMPILED_MODE")
    assert file.read_text() == "# mine\n" and answer("config")["mode"]["origin"] == "default"


def test_unset_removes_several_settings_or_none(file: Path) -> None:
    text = 'mode = "wait"\nworkers = 3\nmax_queue = 7\n'
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert answer("config", "unset", "mode", "wrokers", status=2)["error"]["code"] == "usage"
    assert file.read_text() == text, "a wrong name changes nothing"
    assert answer("config", "unset", status=2)["error"]["code"] == "usage"
    found = answer("config", "unset", "mode", "PRECOMPILED_WORKERS", "log")
    assert [(item["name"], item["removed"]) for item in found["settings"]] == [
        ("mode", True),
        ("workers", True),
        ("log", False),
    ]
    assert file.read_text() == "max_queue = 7\n"


def test_a_symbolic_link_to_the_file_is_kept(file: Path, tmp_path: Path) -> None:
    (tmp_path / "dotfiles.toml").write_text("workers = 3\n")
    file.parent.mkdir(parents=True)
    file.symlink_to(tmp_path / "dotfiles.toml")
    invoke("config", "set", "workers", "4")
    assert file.is_symlink() and (tmp_path / "dotfiles.toml").read_text() == "workers = 4\n"


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("mode", "fast", "expected one of"),
        ("workers", "x", "0 or more"),
        ("workers", "-3", "0 or more"),
        ("log_file", "--all", "absolute path"),
    ],
)
def test_an_invalid_value_changes_nothing(file: Path, name: str, value: str, why: str) -> None:
    error = answer("config", "set", name, value, status=2)["error"]
    assert error["code"] == "usage" and why in error["message"] and not file.exists()


def test_a_bad_value_in_the_file_can_be_corrected(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text('mode = "fast"\n')
    shown = invoke("config")
    assert shown.exit_code == 1 and "mode = 'fast'" in shown.stderr and "workers" in shown.stdout
    done = invoke("config", "set", "mode", "wait")
    assert (done.exit_code, done.stderr) == (0, "") and config.load().mode == "wait"


@pytest.mark.parametrize("line", ['moode = "wait"', '"a b" = 1', "'moode' = [\n1]", 'mode = "fast"'])
def test_the_command_that_an_error_names_removes_a_key(file: Path, line: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(f"# mine\n{line}\nworkers = 3\n")
    command = "precompiled config unset mode"
    if "fast" not in line:
        command = answer("status", status=1)["error"]["action"].split("`")[-2]
    assert invoke(*shlex.split(command)[1:]).exit_code == 0
    assert file.read_text() == "# mine\nworkers = 3\n" and config.load().workers == 3


def test_every_problem_of_the_settings_is_shown(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.parent.mkdir(parents=True)
    file.write_text('mode = "fast"\nmoode = "wait"\n')
    monkeypatch.setenv("PRECOMPILED_WORKERS", "many")
    said = invoke("config", "set", "max_queue", "7")
    assert said.exit_code == 0 and "max_queue = 7" in file.read_text()
    settings_alone = {"settings": doctor.groups()["settings"]}
    monkeypatch.setattr(doctor, "groups", lambda complete: settings_alone)
    failed = [check["message"] for check in answer("doctor", status=1) if check["state"] == "fail"]
    assert len(failed) == 3
    for name in ("mode = 'fast'", "unknown key 'moode'", "workers = 'many'"):
        assert name in said.stderr and any(name in message for message in failed)


def test_a_setting_that_would_belong_to_a_table_is_not_written(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("[tool]\nx = 1\n")
    assert "has a table" in answer("config", "set", "mode", "wait", status=1)["error"]["message"]
    assert file.read_text() == "[tool]\nx = 1\n"


def test_a_setting_that_a_running_daemon_keeps_is_reported(stopped: dict[str, str], file: Path) -> None:
    assert precompiled(stopped, "daemon", "start").returncode == 0
    keeps = "The running daemon (pid "
    assert keeps in invoke("config", "set", "workers", "1").output
    assert keeps not in invoke("config", "set", "mode", "wait").output
    assert keeps not in invoke("config", "unset", "workers").output


def test_an_invalid_toml_file_is_not_changed(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("mode wait\n")
    error = answer("config", "set", "workers", "4", status=1)["error"]
    assert error["code"] == "bad-config" and file.read_text() == "mode wait\n"


def test_an_environment_variable_that_takes_precedence_is_reported(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECOMPILED_MODE", "eager")
    said = invoke("config", "set", "mode", "wait").output
    assert said.endswith("\nPRECOMPILED_MODE is set in this shell, and takes precedence.\n")
