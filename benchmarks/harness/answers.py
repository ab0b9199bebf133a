"""Reads the JSON lines of a benchmark's program while it runs, and assigns them to rows."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.harness.hosts import Command

Name = TypeVar("Name")


def answers_of(command: Command, errors: Path, limit_s: float) -> Iterator[dict[str, Any]]:
    """Yield each JSON line until the program ends.

    Kills the program if a line takes longer than ``limit_s``, or if the caller closes the generator. ``errors``: the
    file for its stderr.
    """
    with errors.open("w") as log:
        process = subprocess.Popen(
            command["argv"], env=command["env"], cwd=command["cwd"], stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdout is not None
    try:
        while True:
            limit = threading.Timer(limit_s, process.kill)
            limit.start()
            line = process.stdout.readline()
            limit.cancel()
            if not line:
                return
            if line.startswith("{"):
                yield json.loads(line)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def run_rows(
    names: Sequence[Name], command: Callable[[Sequence[Name]], Command], errors: Path, limit_s: float
) -> Iterator[tuple[Name, dict[str, Any] | None]]:
    """Yield each row with its answer. One process runs the rows in order. If the process dies in a row, that row's
    answer is None, and another process runs the rest.

    ``command``: a function that returns the command for a list of rows. The program prints ``{"begun": ...}`` before
    each row, which restarts the limit.
    """
    waiting = list(names)
    while waiting:
        for answer in answers_of(command(tuple(waiting)), errors, limit_s):
            if "begun" not in answer:
                yield waiting.pop(0), answer
        if waiting:
            yield waiting.pop(0), None
