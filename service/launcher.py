"""Becomes a worker: ``python -I -S launcher.py --fd N ARGUMENTS``, with a JSON order on file descriptor N.

The worker's arguments are those of the order, followed by ARGUMENTS.

The launcher switches to the client's user and executes the client's interpreter. A user can delay both steps without
limit (a lease on the file, a hanging FUSE or NFS mount, a slow directory service for the groups). So the launcher does
both steps: in Popen they would block the daemon. Until the exec, the daemon treats the launcher as a starting worker.

The file imports nothing of this project. In a system daemon, the launcher starts as root. Until the launcher has
switched to the user, no data of the user may affect the launcher. So the order's variables are used only for the exec.
"""

import json
import os
import pwd
import signal
import stat
import sys

CANNOT_START = 127  # exit status; stderr says why
OOM_SCORE = 800  # when memory is short, the kernel kills workers before the daemon and the users' programs


def store_root(cache_dir: str, uid: int, gid: int) -> None:
    """Make ``<cache_dir>/<uid>``, mode 0700, owned by that user. Root makes no other directory for a user.

    Only root can write to ``cache_dir``, so no user can put a link into it.
    """
    path = os.path.join(cache_dir, str(uid))
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (uid, 0):
            raise PermissionError(f"{path} is not a directory of uid {uid}") from None
        if found.st_uid == uid:
            return
        # The directory is still owned by root if an earlier launcher made it and ended before its chown.
    os.chown(path, uid, gid, follow_symlinks=False)


def become(uid: int, gid: int) -> dict[str, str]:
    """Switch to a user; returns the environment variables of its account."""
    variables, groups = {"HOME": "/"}, [gid]
    try:
        entry = pwd.getpwuid(uid)
        variables = {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}
        groups = os.getgrouplist(entry.pw_name, gid)
    except (KeyError, OSError):
        pass  # a uid without an account, as in some containers
    os.setgroups(groups)
    os.setgid(gid)
    os.setuid(uid)
    return variables


def main(argv: list[str]) -> None:
    fd = int(argv[argv.index("--fd") + 1])
    with os.fdopen(fd, "rb") as file:
        order = json.load(file)
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            if int(file.read()) < OOM_SCORE:
                file.seek(0)
                file.write(str(OOM_SCORE))
    except (OSError, ValueError):
        pass  # some containers forbid it
    executable, variables = order["executable"], order["variables"]
    try:
        if order["user"] is not None:
            uid, gid = order["user"]
            if order["cache_dir"]:
                store_root(order["cache_dir"], uid, gid)
            variables = {**become(uid, gid), **variables}
        for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and an exec inherits that
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.execve(executable, [executable, *order["arguments"], *argv[2:]], variables)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{executable} cannot be executed: {error}\n")
        sys.stderr.flush()
        os._exit(CANNOT_START)


if __name__ == "__main__":
    main(sys.argv[1:])
