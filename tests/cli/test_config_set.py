"""Tests that `config set` writes one checked line to the user's file, and keeps all other lines."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from support_cli import answer, invoke

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
    assert answer("config", "unset", "mode")["removed"] is False and not file.exists()
    file.parent.mkdir(parents=True)
    file.write_text('# mine\nbase = [\n  "/a",\n  "/b",\n]\nmode = "wait"\n')
    assert invoke("config", "unset", "base").output == f"Removed base from {file}.\n"
    assert file.read_text() == '# mine\nmode = "wait"\n'
    answer("config", "unset", "PRECOMPILED_MODE")
    assert file.read_text() == "# mine\n" and answer("config")["mode"]["origin"] == "default"


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
    assert invoke("config").exit_code == 1
    assert invoke("config", "set", "mode", "wait").exit_code == 0
    assert config.load().mode == "wait"


def test_an_invalid_toml_file_is_not_changed(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("mode wait\n")
    error = answer("config", "set", "workers", "4", status=1)["error"]
    assert error["code"] == "bad-config" and file.read_text() == "mode wait\n"


def test_an_environment_variable_that_takes_precedence_is_reported(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECOMPILED_MODE", "eager")
    said = invoke("config", "set", "mode", "wait").output
    assert said.endswith("\nPRECOMPILED_MODE is set in this shell, and takes precedence.\n")
