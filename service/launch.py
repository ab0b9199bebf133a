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

from precompiled.core import worker_variables


class StartError(Exception):
    """A worker cannot be started; the message says why."""


def variables(uid: int, given: Mapping[str, str], visible: str, *, system: bool) -> dict[str, str]:
    """A worker's environment variables. Those of the client (``given``) reach the executed process, not the daemon.

    ``visible``: what it sees of the GPUs. ``system``: the daemon is root's, so its own variables are another user's.
    """
    return worker_variables.variables(_home_of(uid) if system else os.environ, given, visible)


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
