"""Tests of settings: precedence, origin of each value, and invalid values."""

from __future__ import annotations

from pathlib import Path

import pytest

from precompiled.core import config, paths
from precompiled.core.errors import ConfigError


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Remove all settings of this host, so that only the settings of the test apply."""
    for name in config.NAMES:
        monkeypatch.delenv(config.ENV_PREFIX + name.upper(), raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(paths, "SYSTEM_CONFIG", tmp_path / "etc.toml")
    monkeypatch.setattr(paths, "SYSTEM_RUNTIME_DIR", tmp_path / "run")
    return tmp_path


def write_user(text: str) -> Path:
    path = paths.user_config_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_defaults(bare: Path) -> None:
    settings = config.load()
    assert settings == config.Settings() and settings.mode == "eager" and settings.packages == "program"
    assert set(settings.origins.values()) == {"default"} and set(settings.origins) == set(config.NAMES)
    assert settings.cache_dir == bare / "cache" / "precompiled"
    assert settings.runtime_dir == bare / "cache" / "precompiled" / "run"


def test_flags_over_environment_over_user_file_over_system_file(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths.SYSTEM_CONFIG.write_text('mode = "off"\nwait_s = 1\nmax_queue = 1\nworkers = 1\n')
    user = write_user("wait_s = 2\nmax_queue = 2\nworkers = 2\n")
    monkeypatch.setenv("PRECOMPILED_MAX_QUEUE", "3")
    monkeypatch.setenv("PRECOMPILED_WORKERS", "3")
    settings = config.load({"workers": 4, "mode": None})
    assert (settings.mode, settings.wait_s, settings.max_queue, settings.workers) == ("off", 2.0, 3, 4)
    assert [settings.origins[name] for name in ("mode", "wait_s", "max_queue", "workers", "log")] == [
        f"file {paths.SYSTEM_CONFIG}",
        f"file {user}",
        "env PRECOMPILED_MAX_QUEUE",
        "flag",
        "default",
    ]


def test_an_empty_variable_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECOMPILED_MODE", "")
    assert config.load().origins["mode"] == "default"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("require", "1", True),
        ("require", "no", False),
        ("autostart", "OFF", False),
        ("log", "DEBUG", "debug"),
        ("packages", "0", "off"),
        ("packages", "1", "program"),
        ("packages", "function", "function"),
        ("wait_s", "1.5", 1.5),
        ("workers", "2", 2),
        ("cache_dir", "~/x", Path("~/x").expanduser()),
        ("base", "/opt/a:/opt/b:/opt/a", (Path("/opt/a"), Path("/opt/b"))),
        ("base", ":", ()),
        ("remote", "s3://bucket/prefix", "s3://bucket/prefix"),
        ("remote", "none", ""),
        ("remote_put", "0", False),
    ],
)
def test_values_from_the_environment(name: str, text: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(config.ENV_PREFIX + name.upper(), text)
    found = getattr(config.load(), name)
    assert found == value and type(found) in (type(value), type(Path()))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mode", "fast"),
        ("log", "loud"),
        ("require", "maybe"),
        ("wait_s", "-1"),
        ("wait_s", "nan"),
        ("wait_s", "inf"),
        ("workers", "1.5"),
        ("workers", "many"),
        ("cache_dir", "relative/path"),
        ("runtime_dir", "."),
        ("remote", "/shared/precompiled"),
        ("remote_unsigned", "maybe"),
        ("base", "/opt/a:b"),
        ("base", ":".join(f"/opt/{number}" for number in range(17))),
    ],
)
def test_bad_values_name_their_origin(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = config.ENV_PREFIX + name.upper()
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigError, match=variable):
        config.load()
    monkeypatch.delenv(variable)
    with pytest.raises(ConfigError, match=f"^{name} = .* cannot be used"):
        config.load({name: text})


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("1.5 GiB", 3 << 29), ("500M", 500 << 20), ("2k", 2048), ("7", 7), ("10 mb", 10**7)],
)
def test_size_may_have_a_unit(text: str, size: int) -> None:
    assert config.load({"cache_max_bytes": text}).cache_max_bytes == size


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("wait_s", "10m", "a number of seconds"),
        ("cache_max_bytes", "20 apples", "a size above 0, such as 500000000, 500MB or 20GiB"),
        ("max_graph_bytes", "-1G", "a size of 0 or more"),
        ("max_graph_bytes", "B", "a size of 0 or more"),
        ("cache_max_bytes", "0", "a size above 0.*; `precompiled cache clear` empties the store"),
        ("cache_max_inodes", "0", "a whole number above 0.*; `precompiled cache clear` empties the store"),
        ("job_timeout_s", "0", "a number of seconds above 0"),
        ("remote_timeout_s", "0", "a number of seconds above 0"),
        ("workers", "many", "a whole number"),
        ("package_audit", "few", "a number"),
        ("package_audit", "2", "a number from 0 to 1"),
        ("wait_s", "-1", "0 or more"),
    ],
)
def test_error_for_an_invalid_number_names_the_expected_kind(name: str, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"expected .*{expected}") as caught:
        config.load({name: text})
    assert "convert" not in str(caught.value) and "literal" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["mode = ", "\x00", "wat = 1", "[mode]\nx = 1", "workers = []", "workers = true_", "workers = inf"]
)
def test_bad_files_are_named(text: str) -> None:
    path = write_user(text)
    with pytest.raises(ConfigError, match=str(path)):
        config.load()


def test_running_system_daemon_determines_the_directories(bare: Path) -> None:
    paths.SYSTEM_RUNTIME_DIR.mkdir()
    (paths.SYSTEM_RUNTIME_DIR / paths.SOCKET_NAME).touch()
    settings = config.load()
    assert settings.runtime_dir == paths.SYSTEM_RUNTIME_DIR
    assert settings.cache_dir.parent == paths.SYSTEM_CACHE_DIR


def test_login_session_determines_the_runtime_directory(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "session").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(bare / "session"))
    assert config.load().runtime_dir == bare / "session" / "precompiled"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(bare / "gone"))
    assert config.load().runtime_dir == bare / "cache" / "precompiled" / "run"


@pytest.mark.reason("socket-path-too-long")
def test_socket_path_that_is_too_long_is_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        paths.socket_path(Path("/" + "x" * 120))
    assert caught.value.code == "socket-path-too-long" and "PRECOMPILED_RUNTIME_DIR" in caught.value.action


def test_base_stores_are_a_list_in_toml(bare: Path) -> None:
    file = paths.user_config_file()
    file.parent.mkdir(parents=True)
    file.write_text('base = ["/opt/a", "/opt/b"]\n')
    assert config.load().base == (Path("/opt/a"), Path("/opt/b"))
    assert config.load().text("base") == "/opt/a:/opt/b"


def test_common_mistakes_in_a_configuration_file_get_advice(bare: Path) -> None:
    for text, said in (
        ("mode = wait", 'mode = "wait"'),
        ('moed = "wait"', "Did you mean mode?"),
        ("mode = 3", "leave it out"),
    ):
        write_user(text)
        with pytest.raises(ConfigError) as error:
            config.load()
        assert said in error.value.action, error.value
