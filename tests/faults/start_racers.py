"""Starts many daemons at once. The starters are forks of this process, because a new interpreter takes far longer than
a start.

Reads a line of JSON (``{"arguments": [...], "racers": 16}``), runs the daemon's command line in that many forks, and
prints their reports. The daemons detach, and this process adopts them: its children are the daemons that run.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

from precompiled.service import __main__ as service
from precompiled.service import daemon, journal, log_lines, notify  # noqa: F401  (imported once, not in each fork)
from precompiled.service.processes import become_subreaper

from precompiled.client import daemon_link  # noqa: F401


def race(arguments: list[str], racers: int) -> list[dict[str, object]]:
    """Let all forks begin at the same moment, and return their reports."""
    gate, opening = os.pipe()
    reading, report = os.pipe()
    for _ in range(racers):
        if os.fork() == 0:
            os.close(opening)
            os.close(reading)
            os.read(gate, 1)  # returns when the other end is closed
            os.close(gate)
            os._exit(service.main(["--detach", "--ready-fd", str(report), *arguments]))
    for fd in (gate, report, opening):
        os.close(fd)
    with os.fdopen(reading) as lines:
        return [json.loads(line) for line in lines]


def reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def main() -> None:
    become_subreaper()
    for line in sys.stdin:
        request = json.loads(line)
        reports = race(request["arguments"], request["racers"])
        reap()
        print(json.dumps(reports), flush=True)


if __name__ == "__main__":
    main()
