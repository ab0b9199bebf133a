"""Settings: flags > environment > TOML (user's, then system's) > defaults, each with the place it came from.

Importable without torch, zmq or msgspec: it runs in every process that imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from precompiled.core import paths
from precompiled.core.errors import ConfigError

MODES = ("eager", "wait", "lookup", "off")
PACKAGES = ("program", "function", "off")
ENV_PREFIX = "PRECOMPILED_"
MAX_BASES = 16


@dataclass(frozen=True)
class Settings:
    """Every setting. The environment variable is ``PRECOMPILED_<NAME>``, the TOML key ``<name>``."""

    # -- clients
    mode: str = "eager"  # eager | wait | lookup | off
    wait_s: float = 600.0  # until mode "wait" goes on eager, what must not is compiled in process, and `require` raises
    # Raise NotServed where a graph would be compiled in process or run eager; waits, as mode "wait" (decision 0045).
    require: bool = False
    progress: bool = True  # say on a terminal, or in a notebook, when a first run runs eager, and when compiled
    autostart: bool = True  # start a daemon on demand where none runs
    # Whether traces of Dynamo are kept, so that later processes skip tracing, too. "program": used where all source
    # files of the program are the same; "function": where all that a trace has read is the same (docs/packages.md).
    packages: str = "program"
    package_audit: float = 0.02  # fraction of processes that trace nevertheless, and compare (0: none)
    # -- both
    cache_dir: Path = field(default_factory=paths.default_cache_dir)  # the store
    # Base stores below it: read, never written. The variable has them with colons between, TOML as a list.
    base: tuple[Path, ...] = ()
    runtime_dir: Path = field(default_factory=paths.default_runtime_dir)  # socket and lock
    # The remote behind it: a URL of fsspec's (s3://bucket/prefix, gs://, abfs://, file://), "" for none. It is code of
    # others: objects are believed that are signed by a key that this host names, or all, where it says so.
    remote: str = ""
    remote_unsigned: bool = False
    remote_put: bool = True  # put there what is compiled here
    remote_timeout_s: float = 10.0  # of one request
    # For how long, in all, a process's traces may wait for what is on its way from there (decision 0047); 0: never.
    remote_ahead_s: float = 2.0
    # The farm: a Ray cluster that compiles what no worker here has room for. "auto" (the cluster that this host is a
    # node of, or RAY_ADDRESS names), "ray://host:port", "" for none.
    farm: str = ""
    log: str = "warning"  # debug | info | warning | error
    # -- daemon
    workers: int = 0  # workers that compile at the same time, over all users; 0: from the cores and the memory
    compile_threads: int = 0  # threads of one compile; 0: all cores for one that is alone, else cores / workers
    max_queue: int = 1000  # queued jobs over all users
    max_queue_per_uid: int = 500
    max_graph_bytes: int = 256 << 20
    job_timeout_s: float = 1800.0
    job_memory_bytes: int = 0  # resident bytes of a worker's process tree; 0: 3/4 of the memory / workers
    # Seconds after its submit in which a job gives way to the programs that run: its client is in its first step.
    yield_s: float = 4.0
    worker_idle_s: float = 900.0  # the last worker of a seat is released after this
    daemon_idle_s: float = 0.0  # an on-demand daemon leaves after this long without work; 0: never
    failure_ttl_s: float = 3600.0  # how long a failure record keeps a graph from being compiled again
    cache_max_bytes: int = 20 << 30  # eviction by least recent use above this, per store
    cache_max_inodes: int = 200_000
    # name -> where its value came from: "default", "flag", "env PRECOMPILED_X", "file /etc/precompiled.toml"
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def text(self, name: str) -> str:
        """A setting as it is written in a variable or a flag."""
        value = getattr(self, name)
        return os.pathsep.join(map(str, value)) if isinstance(value, tuple) else str(value)

    @property
    def has_helper(self) -> bool:
        """Whether there is something to do for a helper (precompiled/remote/helper.py)."""
        return bool(self.remote or self.farm)

    @property
    def starts_daemon(self) -> bool:
        """Whether a client may start a daemon where none runs; only systemd starts the system daemon."""
        return self.autostart and self.runtime_dir != paths.SYSTEM_RUNTIME_DIR


def required_by_environment() -> bool:
    """``require``, where the settings as a whole cannot be used, which must not switch it off."""
    try:
        return _boolean(os.environ.get(f"{ENV_PREFIX}REQUIRE", ""))
    except ValueError:
        return True  # somebody wanted it


def _switch(value: Any) -> bool:
    return value if isinstance(value, bool) else _boolean(str(value))


def _boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("expected 1 or 0")


def _mode(text: str) -> str:
    if text not in MODES:
        raise ValueError(f"expected one of {', '.join(MODES)}")
    return text


def _packages(text: str) -> str:
    if text in PACKAGES:
        return text
    try:
        return "program" if _boolean(text) else "off"
    except ValueError:
        raise ValueError(f"expected one of {', '.join(PACKAGES)}, or 1 or 0") from None


def _log(text: str) -> str:
    if text not in ("debug", "info", "warning", "error"):
        raise ValueError("expected debug, info, warning or error")
    return text


def _directory(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_absolute():
        raise ValueError("expected an absolute path")
    return path


def _directories(value: Any) -> tuple[Path, ...]:
    given = value if isinstance(value, (list, tuple)) else str(value).split(os.pathsep)
    found = tuple(dict.fromkeys(_directory(str(item)) for item in given if str(item)))
    if len(found) > MAX_BASES:
        raise ValueError(f"expected at most {MAX_BASES} directories")
    return found


def _remote(value: Any) -> str:
    text = "" if str(value) == "none" else str(value)  # over a file that names one
    if text and "://" not in text:
        raise ValueError("expected a URL, such as s3://bucket/prefix or file:///shared/precompiled")
    return text


def _farm(value: Any) -> str:
    text = "" if str(value) == "none" else str(value)
    if text and text != "auto" and not text.startswith("ray://"):
        raise ValueError('expected "auto", ray://host:port, or none')
    return text


def _positive(kind: type) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        number = kind(value)
        if not 0 <= number < 1 << 62:  # also false for NaN
            raise ValueError("expected a number of 0 or more")
        return number

    return parse


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "mode": lambda value: _mode(str(value)),
    "log": lambda value: _log(str(value).lower()),
    "require": _switch,
    "progress": _switch,
    "packages": lambda value: _packages(str(value)),
    "autostart": _switch,
    "base": _directories,
    "remote": _remote,
    "farm": _farm,
    "remote_unsigned": _switch,
    "remote_put": _switch,
    "cache_dir": lambda value: _directory(str(value)),
    "runtime_dir": lambda value: _directory(str(value)),
}
NAMES = tuple(item.name for item in fields(Settings) if item.name != "origins")
_FIELDS = {item.name: item for item in fields(Settings)}
for _name in NAMES:
    if _name not in _PARSERS:
        _PARSERS[_name] = _positive(float if isinstance(_FIELDS[_name].default, float) else int)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    # Imported here: a machine without a configuration file (the usual one) never pays for the parser.
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # type: ignore[import-not-found, no-redef, unused-ignore]
    try:
        return dict(tomllib.loads(data.decode()))
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are both ValueErrors
        raise ConfigError(f"{path} is not valid TOML: {error}", "Correct or remove the file") from error


def load(flags: Mapping[str, Any] | None = None) -> Settings:
    """Resolve all settings now.

    ``flags``: values given on a command line, None for those not given. Raises ConfigError for a value that cannot
    be used, naming where it came from; unknown TOML keys are errors too (a typo would otherwise be silent).
    """
    chosen: dict[str, tuple[Any, str]] = {}
    for path in (paths.SYSTEM_CONFIG, paths.user_config_file()):
        for name, value in _read_toml(path).items():
            if name not in NAMES:
                raise ConfigError(f"{path} has the unknown key {name!r}", f"Known keys: {', '.join(NAMES)}")
            chosen[name] = (value, f"file {path}")
    for name in NAMES:
        variable = ENV_PREFIX + name.upper()
        if (text := os.environ.get(variable)) is not None and text != "":
            chosen[name] = (text, f"env {variable}")
    for name, value in (flags or {}).items():
        if value is not None:
            chosen[name] = (value, "flag")

    values: dict[str, Any] = {}
    origins = dict.fromkeys(NAMES, "default")
    for name, (value, origin) in chosen.items():
        try:
            values[name] = _PARSERS[name](value)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{name} = {value!r} (from {origin}) cannot be used: {error}") from error
        origins[name] = origin
    return Settings(**values, origins=origins)
