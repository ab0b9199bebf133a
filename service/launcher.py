"""Becomes a worker: ``python -I -S launcher.py --fd N``, with a JSON order in the file N.

It becomes the client's user and executes the client's interpreter. That may wait for as long as the user likes: for a
lease on the file, a FUSE or NFS mount that hangs, a directory service that is asked for the user's groups. So it must
not happen in the daemon, whose Popen would wait with it. Until the launcher is through it is a worker that starts, and
is ended as one.

It is a file by itself and imports nothing of ours. In a system daemon it begins as root: nothing of the user's may
reach it before it has become the user, and the order's variables only count for what it executes.
"""

import json
import os
import pwd
import signal
import stat
import sys

CANNOT_START = 127  # exit status; the last words say why
OOM_SCORE = 800  # when memory is short, a worker goes before the daemon and before its users' programs


def store_root(cache_dir: str, uid: int, gid: int) -> None:
    """Make ``<cache_dir>/<uid>``, 0700 and that user's: the one directory that is made for another user.

    Its parent is root's and nobody else can write to it, so no user can put a link there.
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
        # It is root's: a launcher made it, and ended before its chown.
    os.chown(path, uid, gid, follow_symlinks=False)


def become(uid: int, gid: int) -> dict[str, str]:
    """Become a user; the variables of its account."""
    variables, groups = {"HOME": "/"}, [gid]
    try:
        entry = pwd.getpwuid(uid)
        variables = {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}
        groups = os.getgrouplist(entry.pw_name, gid)
    except (KeyError, OSError):
        pass  # a uid without an account: containers have such
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
        pass  # a container that may not
    executable, variables = order["executable"], order["variables"]
    try:
        if order["user"] is not None:
            uid, gid = order["user"]
            if order["cache_dir"]:
                store_root(order["cache_dir"], uid, gid)
            variables = {**become(uid, gid), **variables}
        for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and an exec would hand that on
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.execve(executable, [executable, *order["arguments"]], variables)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{executable} cannot be executed: {error}\n")
        sys.stderr.flush()
        os._exit(CANNOT_START)


if __name__ == "__main__":
    main(sys.argv[1:])
