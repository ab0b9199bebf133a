"""Where things lie: the store, the socket, the lock, the log. Never ``/tmp``.

A running system daemon's directories come first, then the user's own (XDG)::

    system   /run/precompiled            socket, lock        /var/cache/precompiled/<uid>   store of that uid
    user     $XDG_RUNTIME_DIR/precompiled                    $XDG_CACHE_HOME/precompiled

Importable without torch, zmq or msgspec.
"""

from __future__ import annotations

import os
from pathlib import Path

from precompiled.core import filesystems
from precompiled.core.errors import ConfigError

SYSTEM_RUNTIME_DIR = Path("/run/precompiled")
SYSTEM_CACHE_DIR = Path("/var/cache/precompiled")
SYSTEM_CONFIG = Path("/etc/precompiled.toml")

SOCKET_NAME = "socket"
LOCK_NAME = "lock"
LOG_NAME = "daemon.log"

# sizeof(sockaddr_un.sun_path) is 108 on Linux, with the terminating NUL; a longer path fails in bind() with a
# message that does not say so.
MAX_SOCKET_PATH = 107
# The environment variable of a watch's capture and its children, which says where to report:
# <token>:<steps, 0 for an entry point>:<the watcher's socket>
CAPTURE_VARIABLE = "PRECOMPILED_CAPTURE"
# That of a command below `--target`, whose GPU is made up: which kind. Its graphs run eager (client/session.py).
TARGET_VARIABLE = "PRECOMPILED_TARGET"
# That of the processes which `precompiled timeline` starts: a name, by which it finds what they have left.
TIMELINE_VARIABLE = "PRECOMPILED_TIMELINE"


def socket_path(runtime_dir: Path) -> Path:
    """The daemon's socket below ``runtime_dir``; raises ConfigError when no socket can have that path."""
    path = runtime_dir / SOCKET_NAME
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise ConfigError(
            f"the socket path {path} is longer than the {MAX_SOCKET_PATH} bytes a Unix socket may have",
            "Set PRECOMPILED_RUNTIME_DIR to a shorter directory",
            code="socket-path-too-long",
        )
    return path


def endpoint(runtime_dir: Path) -> str:
    """The ZeroMQ endpoint of the daemon below ``runtime_dir``."""
    return f"ipc://{socket_path(runtime_dir)}"


def system_daemon_runs() -> bool:
    """Whether a system daemon's socket exists (its directory is root's, so only root can have put it there)."""
    return (SYSTEM_RUNTIME_DIR / SOCKET_NAME).exists()


def user_config_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "precompiled" / "config.toml"


def default_runtime_dir() -> Path:
    """The system daemon's directory where one runs, else a directory of this user's that only he can enter."""
    if system_daemon_runs():
        return SYSTEM_RUNTIME_DIR
    return user_runtime_dir()


def user_runtime_dir() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return Path(runtime) / "precompiled"
    # Without a login session there is no XDG_RUNTIME_DIR, and what is left is /tmp, where somebody
    # else could have made the directory first. The cache directory is the user's own.
    return of_this_host(user_cache_dir() / "run")


def of_this_host(directory: Path) -> Path:
    """Where this host has sockets and locks: nobody listens here on those of another host that shares ``directory``."""
    return directory / os.uname().nodename if filesystems.is_shared(directory) else directory


def default_cache_dir() -> Path:
    if system_daemon_runs():
        return SYSTEM_CACHE_DIR / str(os.getuid())
    return user_cache_dir()


def user_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "precompiled"
