"""Resolves the settings: flags, environment variables, the user's TOML file, the system's TOML file, defaults, in this
order.

Each setting has an origin: the place where its value was found. Every process that imports torch runs this file, so it
imports neither torch nor msgspec.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from precompiled.core import paths
from precompiled.core import setting_values as values
from precompiled.core.errors import ConfigError
from precompiled.core.regular_file import read_bytes

ENV_PREFIX = "PRECOMPILED_"


def _setting(default: object, meaning: str) -> Any:
    """Define a setting. `precompiled config NAME` and docs/reference/settings.md show its ``meaning``."""
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Settings:
    """Every setting. The environment variable is ``PRECOMPILED_<NAME>``, the TOML key ``<name>``."""

    # -- clients
    mode: str = _setting(
        "eager",
        "`eager`: run eager until the artifact is ready. `wait`: each call waits for its artifact. `lookup`: use the "
        "store only, and compile misses in process. `off`: plain torch.compile",
    )
    wait_s: float = _setting(
        600.0,
        "limit of a wait. After this time, mode `wait` runs the graph eager, a graph that must not run eager is "
        "compiled in process, and `require` raises an error",
    )
    tiers: str = _setting(
        "quick,default",
        "what a graph runs after eager code. `quick,default`: the artifacts of its pieces, then its artifact. Only "
        "graphs with many equal layers have pieces: one piece serves all equal layers. `default`: only its artifact",
    )
    require: bool = _setting(
        False,
        "wait for each artifact, and raise NotServed instead of compiling in process or running eager",
    )
    progress: str = _setting(
        "terminal",
        "print a line when graphs run eager, when they are compiled, and when all came from the store. `terminal`: on "
        "a terminal or in a notebook. `always`: to any standard error, such as a log. `off`: never",
    )
    autostart: bool = _setting(True, "start a daemon on demand if none runs")
    packages: str = _setting(
        "program",
        "when to use a stored trace. `program`: only while the program's code has not changed. `function`: "
        "also after such a change, if nothing that the trace depended on has changed. `off`: never",
    )
    triton: str = _setting(
        "off",
        "`on`: share the Triton kernels that a program launches itself (docs/guides/triton.md). `texts`: also keep "
        "their IR and PTX. `off`: share only kernels of graphs",
    )
    compile_without_gpu: bool = _setting(
        False,
        "workers compile for a simulated copy of the GPU, so they take no GPU memory and measure no times "
        "(docs/guides/targets.md)",
    )
    package_audit: float = _setting(
        0.02, "fraction of processes in which Dynamo traces despite a package, to check the package"
    )
    check: float = _setting(
        0.02,
        "fraction of graphs whose compiled code is compared with eager code before its first call; `always`: 1, "
        "`never`: 0",
    )
    # -- both
    cache_dir: Path = field(default_factory=paths.default_cache_dir, metadata={"meaning": "directory of the store"})
    base: tuple[Path, ...] = _setting(
        (),
        "read-only base stores, as a list in TOML, or separated by colons in the environment variable",
    )
    runtime_dir: Path = field(
        default_factory=paths.default_runtime_dir, metadata={"meaning": "directory of the daemon's socket and lock"}
    )
    remote: str = _setting(
        "",
        "URL of the remote (`s3://bucket/prefix`, `gs://`, `abfs://`, `file://`, or others of fsspec); empty or "
        "`none`: no remote",
    )
    # Artifacts contain code. Unless ``remote_unsigned`` is set, a host accepts only objects that a trusted key signed.
    remote_unsigned: bool = _setting(
        False,
        "accept unsigned objects. Each user who can write to the remote can then run code as you",
    )
    remote_put: bool = _setting(True, "upload artifacts and package entries of this host")
    remote_timeout_s: float = _setting(10.0, "limit of one request to the remote")
    remote_ahead_s: float = _setting(
        2.0,
        "total time that a process waits for the remote before its traces; 0: none",
    )
    farm: str = _setting(
        "",
        "Ray cluster that compiles when all local workers are busy: `auto` (the cluster of this node or of "
        "RAY_ADDRESS) or `ray://host:port`; empty or `none`: no farm",
    )
    log: str = _setting("warning", "`debug`, `info`, `warning` or `error`; a daemon's default is `info`")
    # -- daemon
    log_file: Path | None = _setting(  # noqa: RUF009 - it is field(), by another name
        None,
        "the daemon's log, rotated at 1 MiB. Default: `daemon.log` in `runtime_dir`. `daemon serve` and systemd units "
        "log to standard error by default",
    )
    workers: int = _setting(
        0,
        "limit of simultaneous compiles over all users; 0: computed from cores and memory",
    )
    compile_threads: int = _setting(
        0,
        "threads of one compile; 0: all cores if no other compile runs, otherwise the cores divided by `workers`",
    )
    max_queue: int = _setting(1000, "limit of queued jobs over all users")
    max_queue_per_uid: int = _setting(500, "limit of queued jobs of one user")
    max_graph_bytes: int = _setting(256 << 20, "limit of a graph's size")
    job_timeout_s: float = _setting(
        1800.0,
        "limit of one compile. A graph that exceeds it stays eager, and the daemon refuses the graph for an hour",
    )
    job_memory_bytes: int = _setting(
        0,
        "limit of the resident memory of a worker and its child processes; 0: three quarters of the host's memory, "
        "divided by `workers`",
    )
    yield_s: float = _setting(
        1.0,
        "how long after its submit a job yields CPU time to running programs; a minute if the job's program already "
        "runs compiled code in pieces; 0: never",
    )
    worker_idle_s: float = _setting(900.0, "idle time after which the last worker of an environment exits")
    daemon_idle_s: float = _setting(0.0, "idle time after which a daemon exits, if a client started it; 0: never")
    failure_ttl_s: float = _setting(3600.0, "how long a failure record prevents another compile of its graph")
    cache_max_bytes: int = _setting(
        20 << 30, "limit of a store's size, above 0; the least recently used files are evicted"
    )
    cache_max_inodes: int = _setting(
        200_000, "limit of a store's files and directories, above 0; the least recently used files are evicted"
    )
    # maps a setting's name to the origin of its value: "default", "flag", "env PRECOMPILED_X" or "file
    # /etc/precompiled.toml", for example
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def text(self, name: str) -> str:
        """A setting's value as text, in the form that variables and flags have."""
        value = getattr(self, name)
        if value is None:
            return ""
        return os.pathsep.join(map(str, value)) if isinstance(value, tuple) else str(value)

    @property
    def has_helper(self) -> bool:
        """Whether a remote or a farm is set. Both need a helper (precompiled/remote/helper.py)."""
        return bool(self.remote or self.farm)

    @property
    def why_no_store(self) -> str:
        """The reason why the store does not exist and cannot be created; "" if it exists or can be created."""
        return paths.why_no_store(self.cache_dir, self.origins.get("cache_dir", "default"))

    @property
    def log_path(self) -> Path:
        """The log file of a daemon that runs in the background."""
        return self.log_file or self.runtime_dir / paths.LOG_NAME

    @property
    def starts_daemon(self) -> bool:
        """Whether a client may start a daemon if none runs. False for the system daemon, which only systemd starts."""
        return self.autostart and self.runtime_dir != paths.SYSTEM_RUNTIME_DIR


def required_by_environment() -> bool:
    """Read ``require`` from its environment variable only, so that an invalid value of another setting does not disable
    it.
    """
    try:
        return values.parse_boolean(os.environ.get(f"{ENV_PREFIX}REQUIRE", ""))
    except ValueError:
        return True  # an invalid value counts as set


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "mode": lambda value: values.parse_mode(str(value)),
    "log": lambda value: values.parse_log(str(value).lower()),
    "require": values.parse_switch,
    "progress": values.parse_choice(values.PROGRESS),
    "compile_without_gpu": values.parse_switch,
    "packages": values.parse_choice(values.PACKAGES),
    "tiers": lambda value: values.parse_tiers(str(value)),
    "triton": values.parse_choice(values.TRITON),
    "check": lambda value: values.parse_fraction(str(value)),
    "package_audit": lambda value: values.parse_fraction(str(value)),
    "autostart": values.parse_switch,
    "base": values.parse_directories,
    "remote": values.parse_remote,
    "farm": values.parse_farm,
    "remote_unsigned": values.parse_switch,
    "remote_put": values.parse_switch,
    "cache_dir": lambda value: values.parse_directory(str(value)),
    "runtime_dir": lambda value: values.parse_directory(str(value)),
    "log_file": lambda value: values.parse_directory(str(value)) if str(value) else None,
}
NAMES = tuple(item.name for item in fields(Settings) if item.name != "origins")
_FIELDS = {item.name: item for item in fields(Settings)}
# When a client starts a daemon, it does not pass these settings as flags. It passes the two directories separately.
CLIENT_ONLY = tuple(
    """
    autostart base cache_dir check compile_without_gpu farm mode package_audit packages progress remote remote_ahead_s
    remote_put remote_timeout_s remote_unsigned require runtime_dir tiers triton wait_s
    """.split()
)
MEANINGS: Mapping[str, str] = {name: _FIELDS[name].metadata["meaning"] for name in NAMES}
for _name in NAMES:
    if _name not in _PARSERS:
        _PARSERS[_name] = values.parse_positive(_name, float if isinstance(_FIELDS[_name].default, float) else int)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        data = read_bytes(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", "Make it a regular file, or remove it") from error
    try:
        return parse_toml(data.decode())
    except ValueError as error:
        action = 'Correct or remove the file; texts need quotes, as in `mode = "wait"`'
        raise ConfigError(f"{path} is not valid TOML: {error}", action) from error


def parse_toml(text: str) -> dict[str, object]:
    """Raises ValueError if the text is not valid TOML."""
    # Imported late, because most machines have no configuration file.
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # type: ignore[import-not-found, no-redef, unused-ignore]
    try:
        return dict(tomllib.loads(text))
    except RecursionError as error:
        raise ValueError(f"nested too deeply: {error}") from error


def parse(name: str, value: object) -> Any:
    """Return the checked value of a setting. Raises ValueError if the setting cannot have this value."""
    try:
        return _PARSERS[name](value)
    except TypeError as error:
        raise ValueError(str(error)) from error


def load(flags: Mapping[str, object] | None = None, problems: list[ConfigError] | None = None) -> Settings:
    """Resolve all settings now.

    ``flags``: the flags of a command line; None for a flag that is not set. Raises ConfigError, with the origin, for an
    invalid value. An unknown TOML key is an error, because otherwise the user would not notice a typo. ``problems``:
    a list. If it is given, errors of files and variables are appended instead of raised, and the defaults apply. An
    invalid flag still raises.
    """

    def report(error: ConfigError) -> None:
        if problems is None:
            raise error
        problems.append(error)

    chosen: dict[str, tuple[object, str]] = {}
    for path in (paths.SYSTEM_CONFIG, paths.user_config_file()):
        try:
            content = _read_toml(path)
        except ConfigError as error:
            report(error)
            continue
        for name, value in content.items():
            if name in NAMES:
                chosen[name] = (value, f"file {path}")
            else:
                report(_unknown_key(path, name))
    for name in NAMES:
        variable = ENV_PREFIX + name.upper()
        if (text := os.environ.get(variable)) is not None and text != "":
            chosen[name] = (text, f"env {variable}")
    for name, value in (flags or {}).items():
        if value is not None:
            chosen[name] = (value, "flag")

    parsed: dict[str, Any] = {}
    origins = dict.fromkeys(NAMES, "default")
    for name, (value, origin) in chosen.items():
        try:
            parsed[name] = parse(name, value)
        except ValueError as error:
            place = "" if origin == "flag" else f" (from {origin})"  # the user has just typed the flag
            said = f"{name} = {value!r}{place} cannot be used: {error}"
            wrong = ConfigError(said, "Correct it, or leave it out")
            if origin == "flag":
                raise wrong from error
            report(wrong)
        else:
            origins[name] = origin
    if "runtime_dir" not in parsed:
        parsed["runtime_dir"] = paths.default_runtime_dir(parsed.get("cache_dir"))
    return Settings(**parsed, origins=origins)


def find_problems() -> list[ConfigError]:
    """The errors of settings in all files and environment variables."""
    problems: list[ConfigError] = []
    load(problems=problems)
    return problems


def _unknown_key(path: Path, name: str) -> ConfigError:
    from precompiled.core.words import closest  # only an error needs this import

    near = closest(name, NAMES)
    further = f"Did you mean {near}?" if near else "`precompiled config` lists all settings."
    return ConfigError(f"{path} has the unknown key {name!r}", f"{further} {_how_to_remove(path, name)}")


def _how_to_remove(path: Path, name: str) -> str:
    import shlex

    by_command = f"Run `precompiled config unset {shlex.quote(name)}`"
    return by_command if path == paths.user_config_file() else f"Remove it from {path}"
