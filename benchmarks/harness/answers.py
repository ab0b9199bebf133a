"""What a program of a benchmark prints, line by line, while it runs."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.hosts import Command


def answers_of(command: Command, errors: Path, limit_s: float) -> Iterator[dict[str, Any]]:
    """Each line of JSON, until the program ends; it is killed where a line takes longer than ``limit_s``, and where
    nobody wants more of them. ``errors``: gets its stderr.
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
