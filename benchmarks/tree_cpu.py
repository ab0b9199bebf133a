"""Runs commands at the same time and prints the CPU seconds of everything that came of them.

Usage: tree_cpu.py SPEC, a JSON object: ``commands``, each with ``argv`` and ``env``; and ``stop``, one more, or null,
that ends what they left in the background once they have ended.

This process takes in orphans (PR_SET_CHILD_SUBREAPER), so that daemons, workers and compilers are its descendants
whatever they do; it waits for each of them, and the kernel adds up their times (RUSAGE_CHILDREN).
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this process cannot take in orphans, so their times would be lost")
    started = time.perf_counter()
    processes = [
        subprocess.Popen(item["argv"], env=item["env"], stdout=subprocess.PIPE, text=True) for item in spec["commands"]
    ]
    outputs = [process.communicate()[0] for process in processes]
    wall_s = time.perf_counter() - started
    failed = [process.returncode for process in processes if process.returncode]
    stop = None
    if command := spec["stop"]:
        stop = subprocess.Popen(command["argv"], env=command["env"], stdout=subprocess.DEVNULL)
    # Orphans too, until there is nobody left to wait for; and while `stop` runs, since a daemon is gone for it only
    # when its parent, which is us by now, has waited for it.
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            break
        if stop is not None and pid == stop.pid and status != 0:
            failed.append(os.waitstatus_to_exitcode(status))
    if failed:
        raise SystemExit(f"commands ended with {failed}")
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    results = [json.loads(output.splitlines()[-1]) for output in outputs]
    print(json.dumps({"cpu_s": usage.ru_utime + usage.ru_stime, "wall_s": wall_s, "results": results}))


if __name__ == "__main__":
    main()
