"""Runs commands at the same time and measures the CPU seconds and peak memory of all their descendants, by role.

Usage: python -m benchmarks.harness.tree SPEC. SPEC is a JSON object:
- ``before``: a command that runs first, to start a daemon, or null
- ``commands``: each with ``argv`` and ``env``
- ``stop``: a command that ends the processes that remain in the background, or null
- ``limit_s``: seconds for everything

Prints one JSON line.

This process adopts orphans (PR_SET_CHILD_SUBREAPER), so daemons, workers and compilers remain its descendants. The
process waits for each descendant, and wait4 returns the descendant's CPU time. ``before`` and ``stop`` are not counted.
Memory is Linux's VmHWM, a process's largest resident size so far. VmHWM is read four times a second, so a process's
last moments are missing.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

PR_SET_CHILD_SUBREAPER = 36
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
LOOK_S = 0.25
REAP_S = 0.02
# A process has the first role whose text is in its command line.
ROLES = (
    ("precompiled.service.worker", "worker"),
    ("precompiled.service", "daemon"),
    ("compile_worker", "torch's compile worker"),
    ("cc1plus", "compiler"),
)


class Tree:
    def __init__(self) -> None:
        # CPU seconds of each ended child, including the child's own children that it waited for.
        self.cpu_s: dict[int, float] = {}
        self.statuses: dict[int, int] = {}
        self.peaks: dict[int, int] = {}  # largest resident sizes in bytes
        self.roles: dict[int, str] = {}
        self.started: dict[int, float] = {}  # start times by the monotonic clock, with a resolution of 10 ms
        self._starts: dict[int, float] = {}
        self._next_look = 0.0

    def start(self, command: dict[str, Any], role: str, out: IO[str] | int, err: IO[str] | int) -> int:
        process = subprocess.Popen(command["argv"], env=command["env"], cwd=command.get("cwd"), stdout=out, stderr=err)
        process.returncode = 0  # subprocess must not reap the process, because ``wait`` does
        self.roles[process.pid] = role
        return process.pid

    def wait(self, pids: set[int] | None, deadline: float) -> bool:
        """Wait until all of ``pids`` (None: all descendants) have ended. Returns false after ``deadline``."""
        while True:
            try:
                while (found := os.wait4(-1, os.WNOHANG))[0]:
                    pid, status, usage = found
                    self.statuses[pid] = os.waitstatus_to_exitcode(status)
                    self.cpu_s[pid] = usage.ru_utime + usage.ru_stime
            except ChildProcessError:
                return True
            if pids is not None and pids <= self.statuses.keys():
                return True
            now = time.monotonic()
            if now > deadline:
                return False
            if now >= self._next_look:
                self._next_look = now + LOOK_S
                self._look()
            time.sleep(REAP_S)

    def kill(self) -> None:
        for pid in self._descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _descendants(self) -> list[int]:
        children: dict[int, list[int]] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    stat = Path("/proc", entry, "stat").read_text()
                except OSError:
                    continue
                fields = stat.rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry))
                self._starts[int(entry)] = int(fields[19]) / CLOCK_TICKS  # since boot, like the monotonic clock
        found = []
        left = [os.getpid()]
        while left:
            below = children.get(left.pop(), [])
            found += below
            left += below
        return found

    def _look(self) -> None:
        for pid in self._descendants():
            try:
                status = Path("/proc", str(pid), "status").read_text()
                # Read the command line each time: before exec, a process has its parent's command line.
                command = Path("/proc", str(pid), "cmdline").read_text()
            except OSError:
                continue
            _, found, rest = status.partition("VmHWM:")
            if found:
                self.started.setdefault(pid, self._starts[pid])
                self.peaks[pid] = max(self.peaks.get(pid, 0), int(rest.split()[0]) * 1024)
                if self.roles.get(pid) not in ("client", "own"):
                    self.roles[pid] = next((role for part, role in ROLES if part in command), "other")


def run(spec: dict[str, Any]) -> dict[str, Any]:
    tree = Tree()
    deadline = time.monotonic() + spec["limit_s"]
    in_time = True
    clients: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        if spec["before"]:
            own = tree.start(spec["before"], "own", subprocess.DEVNULL, subprocess.DEVNULL)
            in_time = tree.wait({own}, deadline)
            if tree.statuses.get(own) != 0:
                tree.kill()
                raise SystemExit(f"{spec['before']['argv']} ended with {tree.statuses.get(own)}")
        pids = {}
        for number, command in enumerate(spec["commands"]):
            paths = [Path(directory, f"{number}.{kind}") for kind in ("out", "err")]
            started = time.monotonic()
            with paths[0].open("w") as out, paths[1].open("w") as err:
                pids[tree.start(command, "client", out, err)] = (started, paths)
        in_time = in_time and tree.wait(set(pids), deadline)
        if spec["stop"]:
            tree.start(spec["stop"], "own", subprocess.DEVNULL, subprocess.DEVNULL)
        # `stop` ends only after the daemon was reaped. The daemon is an orphan that this process has adopted, so this
        # process must reap it meanwhile.
        if not in_time or not tree.wait(None, deadline):
            in_time = False
            tree.kill()
            tree.wait(None, time.monotonic() + 30.0)
        for pid, (started, paths) in pids.items():
            lines = paths[0].read_text().splitlines()
            status = tree.statuses.get(pid, -1)
            clients.append(
                {
                    "status": status,
                    "started": started,
                    "cpu_s": tree.cpu_s.get(pid, 0.0),
                    "errors": paths[1].read_text()[-6000:],
                    "result": json.loads(lines[-1]) if status == 0 and lines else None,
                }
            )
    memory: dict[str, list[int]] = {}
    starts: dict[str, list[float]] = {}
    for pid, peak in tree.peaks.items():
        starts.setdefault(tree.roles[pid], []).append(tree.started[pid])
        if tree.roles[pid] != "own":
            memory.setdefault(tree.roles[pid], []).append(peak)
    counted = {pid: seconds for pid, seconds in tree.cpu_s.items() if tree.roles.get(pid) != "own"}
    return {
        "in_time": in_time,
        "cpu_s": sum(counted.values()),
        "clients": clients,
        "started": starts,
        "memory": {role: sorted(peaks, reverse=True) for role, peaks in memory.items()},
    }


def main() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this process cannot take in orphans, so their times would be lost")
    print(json.dumps(run(json.loads(sys.argv[1]))))


if __name__ == "__main__":
    main()
