"""What a worker's process is launched with: variables, groups, and the root of its user's store.

A worker runs as the client's user, with what the client says of its surroundings (interpreter, variables), and with
nothing of the daemon's own but where things lie.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What a process needs to find its home and its files; everything a compile depends on comes from the client.
INHERITED = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "XDG_CACHE_HOME",
             "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "PATH")  # fmt: skip
# Never from a client: the daemon pins the device, and the hook stays off in workers.
OWN_VARIABLES = ("CUDA_VISIBLE_DEVICES", "PRECOMPILED", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class StartError(Exception):
    """A worker cannot be started; the message says why."""


def variables(uid: int, given: Mapping[str, str], visible: str, *, system: bool) -> dict[str, str]:
    """A worker's environment variables. Those of the client (``given``) reach the executed process, not the daemon.

    ``visible``: what it sees of the GPUs. ``system``: the daemon is root's, so its own variables are another user's.
    """
    found = {"PATH": DEFAULT_PATH, "LANG": "C.UTF-8"}
    if system:
        found.update(_home_of(uid))
    else:
        found.update({name: os.environ[name] for name in INHERITED if name in os.environ})
    found.update(usable_variables(given))
    found.update(CUDA_VISIBLE_DEVICES=visible, CUDA_DEVICE_ORDER="PCI_BUS_ID", PRECOMPILED="0")
    return found


def usable_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """A client's variables, without those that exec refuses and those that are the daemon's to set."""
    return {
        name: value
        for name, value in variables.items()
        if name and "=" not in name and "\0" not in name and "\0" not in value and name not in OWN_VARIABLES
    }


def _home_of(uid: int) -> dict[str, str]:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return {"HOME": "/"}
    return {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}


def groups(uid: int, gid: int) -> list[int]:
    try:
        return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except (KeyError, OSError):
        return [gid]  # a uid without an account: containers have such


def make_store_root(cache_dir: Path, uid: int, gid: int) -> None:
    """Make ``<cache_dir>/<uid>``, 0700 and that user's: the one directory that the daemon makes for another user.
    Raises StartError.

    Its parent is root's and nobody else can write to it, so no user can put a link there.
    """
    path = cache_dir / str(uid)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (uid, 0):
            raise StartError(f"{path} is not a directory of uid {uid}") from None
        if found.st_uid == uid:
            return
        # It is root's: a daemon made it, and ended before its chown.
    except OSError as error:
        raise StartError(f"{path} cannot be made: {error}") from error
    try:
        os.chown(path, uid, gid, follow_symlinks=False)
    except OSError as error:
        raise StartError(f"{path} cannot be given to uid {uid}: {error}") from error
