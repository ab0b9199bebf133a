"""Defines the paths of the store, the socket, the lock, the log and the settings. All other files use these paths.

Of the directories in each list, the first that can be used is chosen (docs/reference/settings.md has a table)::

    store      /var/cache/precompiled/<uid>   while a system daemon runs
               $XDG_CACHE_HOME/precompiled
               <home>/.cache/precompiled
    socket     /run/precompiled               while a system daemon runs
               $XDG_RUNTIME_DIR/precompiled   if the user owns $XDG_RUNTIME_DIR and can write there
               run/ in the user's store       if the user can write there
               run/ in the store of the settings
    settings   $XDG_CONFIG_HOME/precompiled, <home>/.config/precompiled

<home> is $HOME, or the home of the user's account. A variable without an absolute path counts as unset, because its
meaning would depend on the working directory. If there is no home, paths begin with ``NO_HOME``, where no process can
create a file.

This file imports neither torch nor msgspec.
"""

from __future__ import annotations

import os
from pathlib import Path

from precompiled.core import filesystems
from precompiled.core.errors import ConfigError

SYSTEM_RUNTIME_DIR = Path("/run/precompiled")
SYSTEM_CACHE_DIR = Path("/var/cache/precompiled")
SYSTEM_CONFIG = Path("/etc/precompiled.toml")

# The path that is used in place of a missing home directory. Not even root can create it.
NO_HOME = Path("/proc/no-home-directory")

NO_PLACE_ACTION = "Set PRECOMPILED_CACHE_DIR to a directory that this user can write to"

SOCKET_NAME = "socket"
LOCK_NAME = "lock"
LOG_NAME = "daemon.log"

# sizeof(sockaddr_un.sun_path) is 108 on Linux, with the terminating NUL. For a longer path, bind() fails without naming
# the cause.
MAX_SOCKET_PATH = 107
# Watch mode sets this environment variable in the processes that capture graphs, so that they and their children find
# the watcher.
# The variable's form is <token>:<steps, 0 for an entry point>:<the watcher's socket>
CAPTURE_VARIABLE = "PRECOMPILED_CAPTURE"
# For its command, `--target` sets this variable to the kind of the made-up GPU. The command's graphs run eager
# (client/session.py).
TARGET_VARIABLE = "PRECOMPILED_TARGET"
# `precompiled timeline` sets this variable to a temporary directory. The processes that `timeline` starts record the
# directory's name. A process with the hook on creates the file HOOK_MARK in the directory (bootstrap.py).
TIMELINE_VARIABLE = "PRECOMPILED_TIMELINE"
HOOK_MARK = "hook"


def socket_path(runtime_dir: Path) -> Path:
    """The daemon's socket below ``runtime_dir``. Raises ConfigError if the path is too long for a socket."""
    path = runtime_dir / SOCKET_NAME
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise ConfigError(
            f"the socket path {path} is longer than the {MAX_SOCKET_PATH} bytes a Unix socket may have",
            "Set PRECOMPILED_RUNTIME_DIR to a shorter directory",
            code="socket-path-too-long",
        )
    return path


def system_daemon_runs() -> bool:
    """Whether the system daemon's socket exists. Only root can create this socket, because root owns its directory."""
    return (SYSTEM_RUNTIME_DIR / SOCKET_NAME).exists()


def home() -> Path | None:
    """The user's home directory, or None if neither ``$HOME`` nor the user's account names one."""
    import pwd  # imported late, because most processes have $HOME

    if given := _variable("HOME"):
        return given
    try:
        account = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a uid without an account, as in containers
        return None
    return Path(account) if os.path.isabs(account) else None


def user_config_file() -> Path:
    return _of_user("XDG_CONFIG_HOME", ".config") / "config.toml"


def user_cache_dir() -> Path:
    return _of_user("XDG_CACHE_HOME", ".cache")


def default_cache_dir() -> Path:
    if system_daemon_runs():
        return SYSTEM_CACHE_DIR / str(os.getuid())
    return user_cache_dir()


def default_runtime_dir(cache_dir: Path | None = None) -> Path:
    """The system daemon's directory if a system daemon runs, else a directory that only this user can enter.

    ``cache_dir``: the store's directory in the settings.
    """
    if system_daemon_runs():
        return SYSTEM_RUNTIME_DIR
    session = _variable("XDG_RUNTIME_DIR")
    # Check the owner, because sudo and su may keep the variable of the calling user.
    if session is not None and os.path.isdir(session) and os.stat(session).st_uid == os.getuid() and _takes(session):
        return session / "precompiled"
    # One daemon serves all stores of a user. So the daemon's directory should not depend on the store in the settings.
    store = user_cache_dir()
    if cache_dir is not None and not _takes(store):
        store = cache_dir
    return of_this_host(store / "run")


def of_this_host(directory: Path) -> Path:
    """Return the directory for this host's sockets and locks. If other hosts share ``directory``, each host has a
    subdirectory, because sockets and locks work on one host only.
    """
    return directory / os.uname().nodename if filesystems.is_shared(directory) else directory


def why_no_store(cache_dir: Path, origin: str) -> str:
    """Return why no store can exist at ``cache_dir``; "" if one exists (writable or not) or can be created.

    ``origin``: where the setting comes from, as in ``Settings.origins``.
    """
    if os.path.lexists(cache_dir) or _takes(cache_dir):
        return ""
    uid = os.getuid()
    if origin != "default":
        return f"uid {uid} cannot create the store {str(cache_dir)!r} (from {origin})"
    if not cache_dir.is_relative_to(NO_HOME):
        return f"uid {uid} cannot create the store {str(cache_dir)!r}"
    given = os.environ.get("HOME")
    said = "HOME is not set" if not given else f"HOME is {given!r}, which is not an absolute path"
    return f"there is no directory for the store: {said}, and uid {uid} has no account with a home directory"


def _of_user(variable: str, below_home: str) -> Path:
    return (_variable(variable) or (home() or NO_HOME) / below_home) / "precompiled"


def _variable(name: str) -> Path | None:
    """The directory that an environment variable names, or None if its value is not an absolute path."""
    text = os.environ.get(name, "")
    return Path(text) if os.path.isabs(text) else None


def _takes(directory: Path) -> bool:
    """Whether this user can write to ``directory`` or create it."""
    if directory.is_relative_to(NO_HOME):
        return False
    while not os.path.lexists(directory) and directory != directory.parent:
        directory = directory.parent
    return os.path.isdir(directory) and os.access(directory, os.W_OK | os.X_OK)
