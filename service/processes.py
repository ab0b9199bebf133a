"""Process trees of workers, the watcher and its captures: list, measure, kill and reap them."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from contextlib import suppress

import psutil


def find(pid: int) -> psutil.Process | None:
    """The process with this pid; None if it has ended."""
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


MAX_TREE = 1000  # processes of one tree: a compile has a few per core, and each takes time to measure


def tree(root: psutil.Process | None) -> list[psutil.Process]:
    """A process and its descendants, at most MAX_TREE; empty if the process has ended."""
    with suppress(psutil.Error):
        if root is not None and root.is_running():
            if not _KERNEL_LISTS_CHILDREN:
                return [root, *root.children(recursive=True)][:MAX_TREE]
            return [root, *_descendants(root.pid)]
    return []


# If the kernel lacks this file, psutil finds the children, by reading every process of the host.
_KERNEL_LISTS_CHILDREN = os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError, ValueError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def _descendants(pid: int) -> list[psutil.Process]:
    found: dict[int, psutil.Process] = {}
    pids = _children(pid)
    while pids and len(found) < MAX_TREE - 1:
        child = pids.pop()
        if child not in found:
            with suppress(psutil.Error):
                found[child] = psutil.Process(child)
                pids += _children(child)
    return list(found.values())


def resident(members: Iterable[psutil.Process]) -> int:
    total = 0
    for member in members:
        with suppress(psutil.Error):  # it has ended
            total += member.memory_info().rss
    return total


def kill_tree(leader: int, root: psutil.Process | None) -> list[psutil.Process]:
    """Kill a child of ours that is a session leader, with its process group and descendants.

    Returns the killed processes. Call this before the child is reaped. Until then, the kernel does not reuse the
    child's pid, which is also the id of the process group.
    """
    members = tree(root)
    with suppress(ProcessLookupError, PermissionError):  # the group is empty
        os.killpg(leader, signal.SIGKILL)  # includes members whose parents have died, which ``tree`` does not find
    kill(members)
    return members


def kill(members: Iterable[psutil.Process]) -> None:
    for member in members:
        with suppress(psutil.Error):  # it has ended
            member.kill()


def become_subreaper() -> bool:
    """Make orphaned descendants our children, so that we can find and reap them; false if the system cannot."""
    try:
        import ctypes

        return ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
    except (ImportError, OSError, AttributeError):
        return False


def session_processes(session: int) -> list[psutil.Process]:
    """Our children in ``session``, and their descendants.

    They descend from the session's leader, but lost their parents.
    """
    found = []
    for pid in _children(os.getpid()) if _KERNEL_LISTS_CHILDREN else [c.pid for c in psutil.Process().children()]:
        with suppress(OSError, psutil.Error):
            if pid != session and os.getsid(pid) == session:
                found += tree(psutil.Process(pid))
    return found


def has_exited(pid: int) -> bool:
    """Whether a child of this process has ended. Does not reap the child, because its process group must be killed
    first.
    """
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def ended_child() -> int:
    """The pid of a child of this process that has ended and is not reaped; 0: none."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    return 0 if found is None else found.si_pid


def session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:  # the thread that started it has reaped it
        return os.getsid(0)


def readable(fd: int) -> bool:
    """Whether a read would not block; also true at the end of a pipe."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def describe(status: int) -> str:
    """A child's exit status, as text."""
    if status >= 0:
        return f"exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"killed by {name}"
