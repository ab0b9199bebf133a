"""Runs the operations of store_operations.py in a process whose system calls fail (failing_calls.c)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).parent
KILL = 9999  # given instead of an errno, this number means SIGKILL
# The names of store_operations.OPERATIONS.
OPERATIONS = (
    "publish",
    "failure record",
    "tuned over untuned",
    "read",
    "list",
    "evict",
    "clear",
    "package entry",
    "refused package",
    "watch",
    "lease",
    "put",
    "run record",
)


class FailingCalls:
    """The process that runs the operations. The process's stores are below ``folder``, or in memory, where a sync is
    free.
    """

    def __init__(self, folder: Path) -> None:
        library, plan = folder / "failing_calls.so", folder / "plan"
        source = HERE / "failing_calls.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", library, source, "-ldl"], check=True)
        plan.write_bytes(bytes(4096))
        self._stores = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else folder) / f"pc-calls-{os.getpid()}"
        variables = {"LD_PRELOAD": str(library), "FAILING_CALLS": str(plan), "PRECOMPILED": "0"}
        variables["PYTHONPATH"] = os.pathsep.join(str(HERE.parent / name) for name in (".", "store", "remote"))
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "store_operations.py"), str(self._stores)],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def attempt(self, operation: str, error: int, every: int, *, to_the_end: bool = False) -> int:
        """Repeat an operation with an error at call 1, 1 + ``every``, ... until the operation makes fewer calls than
        that. Returns the number of tries. ``to_the_end``: all later calls fail, too. Fails the test if a check finds a
        problem.
        """
        return self._request("all", operation=operation, error=error, every=every, to_the_end=to_the_end)

    def attempt_twice_at_random(self, operation: str, error: int, count: int) -> int:
        """Repeat ``count`` times: run an operation twice in one store, each time with an error at a random call."""
        return self._request("random", operation=operation, error=error, count=count)

    def _request(self, how: str, **request: Any) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"how": how, **request}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert not answer["problems"], "\n".join(answer["problems"])
        return int(answer["tried"])

    def __enter__(self) -> FailingCalls:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        shutil.rmtree(self._stores, ignore_errors=True)
