"""All rows by a daemon, and what is not equal to eager by plain ``torch.compile`` as well."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import Host, fresh_host
from benchmarks.operators.samples import Row

# Rows in one function, so in one graph where nothing breaks it; and what no group takes on a loaded machine.
GROUP, GROUP_LIMIT_S = 12, 600.0
CLIENTS = 2

Answer = dict[str, Any]  # of program.py


@dataclass
class Found:
    """What became of all rows."""

    answers: dict[Row, Answer] = field(default_factory=dict)
    plain: dict[Row, Answer] = field(default_factory=dict)  # of those that were not equal

    def states(self) -> dict[str, int]:
        """How many rows are in which state: "equal", "as plain", "different", "error", "no sample", "died"."""
        return dict(Counter(self.state(row) for row in self.answers))

    def state(self, row: Row) -> str:
        state = str(self.answers[row]["state"])
        same = state not in ("equal", "no sample") and self.plain.get(row, {}).get("state") == state
        return "as plain" if same else state

    def graphs(self) -> tuple[int, dict[str, int]]:
        """All graphs, and those that no worker compiled, by reason."""
        shown = [answer for row, answer in self.answers.items() if self.state(row) != "no sample"]
        reasons = Counter(reason for answer in shown for reason in answer.get("reasons", ()))
        return sum(answer.get("graphs", 0) for answer in shown), dict(reasons)

    def wrong(self) -> list[Row]:
        return [row for row in self.answers if self.state(row) in ("different", "error", "died")]


def examine(rows: Sequence[Row], say: Say) -> Found:
    groups: list[list[Row]] = []
    for row in rows:
        if not groups or len(groups[-1]) == GROUP or groups[-1][0][1] != row[1]:
            groups.append([])
        groups[-1].append(row)
    found = Found()
    with fresh_host() as host:
        host.start_daemon()

        def some(number: int) -> None:
            mine = groups[number::CLIENTS]
            for row, answer in _run(host, mine, f"client-{number}", say, hook=True):
                found.answers[row] = answer

        with ThreadPoolExecutor(CLIENTS) as clients:
            for done in clients.map(some, range(CLIENTS)):
                del done
        again = [[row] for row in found.wrong()]
        found.plain.update(_run(host, again, "plain", say, hook=False))
    return found


def _run(host: Host, groups: list[list[Row]], name: str, say: Say, *, hook: bool) -> Iterator[tuple[Row, Answer]]:
    """The answers for all rows, by one process; by another one from where a process died."""
    waiting, log, done = list(groups), host.root / f"{name}.log", 0
    while waiting:
        begun: list[Row] = waiting[0]
        answered: set[Row] = set()
        for answer in _answers(host, waiting, log, hook=hook):
            if "begun" in answer:
                begun = [(row[0], row[1]) for row in answer["begun"]]
                done += 1
                say(f"{name}: {done}/{len(groups)} {begun[0][0]} ... {begun[-1][0]} {begun[0][1]}")
                continue
            row = answer["row"][0], answer["row"][1]
            answered.add(row)
            yield row, answer
        rest = [row for row in begun if row not in answered]
        waiting = waiting[waiting.index(begun) + 1 :]
        if len(rest) > 1:
            waiting = [*([row] for row in rest), *waiting]
        elif rest:
            yield rest[0], {"row": rest[0], "state": "died", "why": log.read_text()[-1000:]}


def _answers(host: Host, groups: list[list[Row]], errors: Path, *, hook: bool) -> Iterator[Answer]:
    extra = {"PRECOMPILED_MODE": "wait", "OMP_NUM_THREADS": "1"}
    command = host.command({"groups": groups}, hook=hook, extra=extra, program="operators.program")
    before = [sys.executable, "-m", "precompiled", "run", "--"] if hook else []
    with errors.open("w") as log:
        process = subprocess.Popen(
            [*before, *command["argv"]], env=command["env"], cwd=command["cwd"], stdout=subprocess.PIPE, stderr=log,
            text=True,
        )  # fmt: skip
    assert process.stdout is not None
    try:
        while True:
            limit = threading.Timer(GROUP_LIMIT_S, process.kill)
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
