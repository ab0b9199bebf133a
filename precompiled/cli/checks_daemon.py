"""doctor's checks of the daemon: whether clients can reach or start it, and its version."""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from precompiled.core import paths
from precompiled.core.check import Check, ask_program
from precompiled.core.config import Settings
from precompiled.core.errors import ConfigError, DaemonError, PrecompiledError, UntrustedStore
from precompiled.store import trust
from precompiled.version import VERSION

if TYPE_CHECKING:
    from precompiled.wire import StatusReply

ANSWER_TIMEOUT_S = 5.0
UNIT = "precompiled.service"
UNIT_FOLDERS = tuple(f"{prefix}/systemd/system" for prefix in ("/etc", "/usr/local/lib", "/usr/lib", "/lib"))


def run(settings: Settings) -> Iterator[Check]:
    directory = runtime_dir(settings)
    yield directory
    try:
        socket = paths.socket_path(settings.runtime_dir)
    except ConfigError as error:
        yield Check("socket", "fail", error.message, error.action)
    else:
        yield from _daemon(settings, socket, directory.state != "fail")
    yield systemd_unit()


def runtime_dir(settings: Settings) -> Check:
    """Check owner and mode of the directory that has the socket and the lock."""
    directory = settings.runtime_dir
    if settings.why_no_store and directory.is_relative_to(settings.cache_dir):
        text = "it is in the store, which cannot be created"
        return Check("runtime directory", "fail", text, paths.NO_PLACE_ACTION)
    try:
        status = os.lstat(directory)
    except FileNotFoundError:
        if not (why := why_not_made(directory)):
            return Check("runtime directory", "ok", f"{directory}: the daemon will create it")
        return Check(
            "runtime directory",
            "fail",
            f"{directory} does not exist, and cannot be created: {why}",
            "Set PRECOMPILED_RUNTIME_DIR to a writable directory",
        )
    except OSError as error:
        return Check("runtime directory", "fail", f"{directory}: {error.strerror}", "Set PRECOMPILED_RUNTIME_DIR")
    try:
        trust.check_stat(status, str(directory), directory=True, setting="runtime_dir")
    except UntrustedStore as error:
        return Check("runtime directory", "fail", error.message, error.action)
    own = status.st_uid == os.geteuid() and directory != paths.SYSTEM_RUNTIME_DIR
    if own and stat.S_IMODE(status.st_mode) & 0o077:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        text = f"{directory} is open to others (mode {mode})"
        return Check("runtime directory", "warn", text, f"`chmod 700 {shlex.quote(str(directory))}`")
    return Check("runtime directory", "ok", str(directory))


def existing_parent(path: Path) -> Path:
    """The nearest existing directory above `path`."""
    for parent in path.parents:
        if os.path.exists(parent):  # unlike Path.exists, False without permission
            return parent
    return Path(path.anchor)


def why_not_made(path: Path) -> str:
    """Return why the directory `path` cannot be created, or "". Tries to create it, because modes do not reveal a
    read-only disk.
    """
    parent = existing_parent(path)
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".precompiled-doctor-", dir=parent))
    except OSError as error:
        return f"{parent} cannot get a new directory ({error.strerror or error})"
    return ""


def _daemon(settings: Settings, socket: Path, can_start: bool) -> Iterator[Check]:
    from precompiled import wire
    from precompiled.client import ask

    try:
        reply = ask.request(settings, wire.Status(), ANSWER_TIMEOUT_S)
    except DaemonError as error:
        yield no_answer(error, socket, settings.autostart, can_start)
        return
    except PrecompiledError as error:
        yield Check("daemon", "fail", error.message, error.action or "`precompiled daemon restart`")
        return
    yield Check("daemon", "ok", f"pid {reply.pid} answers at {socket}")
    yield version(reply)
    if settings.runtime_dir != paths.SYSTEM_RUNTIME_DIR:
        yield daemon_store(reply, settings.cache_dir)
    for sentence in reply.degraded:
        yield Check("daemon", "warn", sentence)


def no_answer(error: DaemonError, socket: Path, autostart: bool, can_start: bool) -> Check:
    """The check's result if no daemon answers: ok if a daemon starts on demand, a failure if one runs but refuses."""
    if error.code == "protocol-version":
        return Check("version", "fail", error.message, error.action or "`precompiled daemon restart`")
    if error.code != "no-daemon":
        return Check("daemon", "fail", f"{socket}: {error.message}", error.action or "`precompiled daemon restart`")
    if socket.parent == paths.SYSTEM_RUNTIME_DIR:
        return Check("daemon", "fail", f"the system daemon does not answer at {socket}", f"`systemctl restart {UNIT}`")
    if not can_start:
        return Check(
            "daemon",
            "fail",
            "no daemon runs, and none can start without a runtime directory",
            "See `runtime directory` above",
        )
    if not autostart:
        return Check("daemon", "warn", "no daemon runs, and autostart is off", "`precompiled daemon start`")
    left = " (a dead daemon left its socket; this is harmless)" if socket.exists() else ""
    return Check("daemon", "ok", f"no daemon runs{left}; the first graph starts one")


def daemon_store(reply: StatusReply, cache_dir: Path) -> Check:
    """Whether the user's daemon has the same store as programs of this shell. A daemon evicts artifacts only from its
    own store, and runs watch mode only for this store.
    """
    if reply.cache_dir == str(cache_dir):
        return Check("daemon store", "ok", "the daemon and this shell use the same store")
    return Check(
        "daemon store",
        "warn",
        f"the daemon's store is {reply.cache_dir}, but programs of this shell use {cache_dir}",
        "Use the same PRECOMPILED_CACHE_DIR, then run `precompiled daemon restart`",
    )


def version(reply: StatusReply) -> Check:
    if reply.version == VERSION:
        return Check("version", "ok", f"the daemon and this package are {VERSION}")
    return Check(
        "version",
        "warn",
        f"the daemon is {reply.version}, this package is {VERSION}",
        "Run `precompiled daemon restart`",
    )


def systemd_unit() -> Check:
    """Whether the systemd unit is installed, and its state."""
    if not Path("/run/systemd/system").is_dir():
        return Check("systemd", "ok", "systemd does not run; daemons start on demand")
    status, state = ask_program(["systemctl", "is-active", UNIT])
    installed = any((Path(folder) / UNIT).exists() for folder in UNIT_FOLDERS)
    return judge_unit(installed, state if status != 127 else "unknown")


def judge_unit(installed: bool, state: str) -> Check:
    if not installed:
        return Check("systemd", "ok", f"{UNIT} is not installed; daemons start on demand")
    if state == "failed":
        action = f"`journalctl -u {UNIT}`, then `systemctl restart {UNIT}`"
        return Check("systemd", "fail", f"{UNIT} has failed", action)
    if state != "active":
        return Check("systemd", "warn", f"{UNIT} is installed, but {state}", f"`systemctl enable --now {UNIT}`")
    return Check("systemd", "ok", f"{UNIT} is active")
