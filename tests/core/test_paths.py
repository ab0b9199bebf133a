"""Tests of the paths of store, socket and settings, for users with and without a home directory. All paths are
absolute, and none is in the working directory.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from precompiled.core import config, paths, worker_variables
from precompiled.core.errors import ConfigError

_VARIABLES = (
    "HOME",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "PRECOMPILED_CACHE_DIR",
    "PRECOMPILED_RUNTIME_DIR",
)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(paths, "SYSTEM_CONFIG", tmp_path / "etc.toml")
    monkeypatch.setattr(paths, "SYSTEM_RUNTIME_DIR", tmp_path / "run")


@pytest.fixture
def without_account(monkeypatch: pytest.MonkeyPatch) -> None:
    def getpwuid(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)


@pytest.mark.fault("file-systems")
@pytest.mark.parametrize("home", [None, "", "~", "rel/ative"])
@pytest.mark.usefixtures("without_account")
def test_without_a_home_there_is_no_store_and_no_daemon(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    if home is not None:
        monkeypatch.setenv("HOME", home)
    settings = config.load()
    assert settings.cache_dir.is_relative_to(paths.NO_HOME) and settings.runtime_dir.is_relative_to(paths.NO_HOME)
    assert "HOME is" in settings.why_no_store and (home or "not set") in settings.why_no_store
    with pytest.raises(OSError, match="No such file"):  # not even root can create this directory
        settings.cache_dir.mkdir(parents=True)
    with pytest.raises(ConfigError, match="no home directory"):
        config.load({"cache_dir": "~/store"})
    assert os.path.isabs(worker_variables.variables(os.environ, {}, "")["HOME"])


@pytest.mark.parametrize(("given", "home"), [({}, None), ({"HOME": "~/x"}, None), ({"HOME": "/x"}, "/x")])
def test_worker_of_another_user_has_no_home_of_the_daemon(given: dict[str, str], home: str | None) -> None:
    assert worker_variables.variables({}, given, "").get("HOME") == home


@pytest.mark.fault("file-systems")
@pytest.mark.parametrize("home", [None, "", "~", "rel/ative"])
def test_home_that_is_not_an_absolute_path_counts_as_unset(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    if home is not None:
        monkeypatch.setenv("HOME", home)
    account = Path(pwd.getpwuid(os.getuid()).pw_dir)
    settings = config.load({"log_file": "~/x"})
    assert settings.cache_dir == account / ".cache" / "precompiled" and settings.log_file == account / "x"
    assert paths.user_config_file() == account / ".config" / "precompiled" / "config.toml"
    assert settings.why_no_store == ""


@pytest.mark.fault("file-systems")
@pytest.mark.usefixtures("without_account")
def test_a_cache_dir_is_enough_without_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRECOMPILED_CACHE_DIR", str(tmp_path / "volume"))
    settings = config.load()
    assert settings.why_no_store == "" and settings.runtime_dir == tmp_path / "volume" / "run"


@pytest.mark.fault("file-systems")
@pytest.mark.usefixtures("without_account")
def test_xdg_variables_are_enough_without_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    settings = config.load()
    assert settings.cache_dir == tmp_path / "cache" / "precompiled"
    assert settings.runtime_dir == tmp_path / "precompiled"
    assert paths.user_config_file().is_relative_to(paths.NO_HOME)


def test_one_daemon_serves_all_stores_of_a_user_with_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PRECOMPILED_CACHE_DIR", str(tmp_path / "another"))
    assert config.load().runtime_dir == tmp_path / ".cache" / "precompiled" / "run"


def test_a_runtime_directory_of_another_user_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert config.load().runtime_dir == tmp_path / "precompiled"
    monkeypatch.setattr(os, "getuid", lambda: 12345)  # `su` changes the user but keeps XDG_RUNTIME_DIR
    assert config.load().runtime_dir == tmp_path / ".cache" / "precompiled" / "run"
