"""Each architecture in training and in inference: by two processes, one with nothing cached and the next one."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.architectures.rows import Name
from benchmarks.harness.answers import answers_of
from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import Host, fresh_host
from benchmarks.models.zoo import ARCHITECTURES

# Far above what a row takes on a loaded 2-core machine: nothing hangs for ever.
WAIT_S, ROW_LIMIT_S = 600.0, 900.0
SHOWN = 4  # differences of a row


@dataclass
class Row:
    """One architecture in training or inference, in a process with nothing cached and in the next one."""

    architecture: str
    kind: str
    task: str
    graphs: int = 0
    by_daemon: int = 0  # of them
    rest: dict[str, int] = field(default_factory=dict)  # reason -> graphs that were not
    second_graphs: int = 0
    hits: int = 0
    compiles: int = 0  # in the clients themselves
    different: list[str] = field(default_factory=list)  # what was not equal to eager
    errors: list[str] = field(default_factory=list)  # what could not be examined
    messages: list[str] = field(default_factory=list)  # what precompiled says of the rest
    seconds: float = 0.0
    target: str = ""  # the architecture of a made-up GPU: no value was compared
    idle: int = 0  # graphs of the first process that were compiled and did not come again
    cubins: dict[str, int] = field(default_factory=dict)  # of the second process, new to it: by architecture
    known_cubins: bool = False  # an earlier row of the same model had some, which may be all that this one needs
    started: list[str] = field(default_factory=list)  # processes, by the second one

    @property
    def equal(self) -> bool:
        return not self.errors and not self.different

    @property
    def right(self) -> bool:
        # A size that a kernel computes is another one where kernels do not run, and the graph after it as well.
        served = self.graphs == self.by_daemon and self.second_graphs == self.hits == self.graphs - self.idle > 0
        loaded = set(self.cubins) == {self.target} or (self.known_cubins and not self.cubins)
        made = not self.target or (loaded and not self.started)
        return self.equal and served and made and self.compiles == 0

    def cells(self) -> list[str]:
        share = f"{self.by_daemon} ({self.by_daemon / self.graphs:.0%})" if self.graphs else "none"
        reasons = ", ".join(f"{reason} {number}" for reason, number in sorted(self.rest.items()))
        compared = "error" if self.errors else "no" if self.different else "not compared" if self.target else "yes"
        made = ", ".join(f"{number} {name}" for name, number in sorted(self.cubins.items()))
        return [
            self.architecture, self.kind, self.task, str(self.graphs), share, reasons,
            f"{self.hits} of {self.second_graphs}", compared, str(self.compiles),
            *([made or "none new", str(len(self.started))] if self.target else []), f"{self.seconds:.0f} s",
        ]  # fmt: skip

    def remarks(self) -> list[str]:
        more = len(self.different) - SHOWN
        shown = [*self.different[:SHOWN], *([f"and {more} more differences (--json has them)"] if more > 0 else [])]
        return [*self.errors, *self.messages, *shown, *(f"started {text}" for text in self.started if self.target)]


def headers(target: str) -> list[str]:
    """``target``: as that of a Row."""
    return [
        "architecture", "kind", "task", "graphs", "by the daemon", "the rest", "hit in the 2nd process",
        "equal to eager", "compiles in the client",
        *(["cubins in the 2nd process", "processes it started"] if target else []), "took",
    ]  # fmt: skip


def examine(names: Sequence[Name], say: Say, device: str = "cpu", target: str = "") -> list[Row]:
    """Run each in a process with nothing cached, and again in another; a daemon for both."""
    with fresh_host() as host:
        host.start_daemon()
        first = _run(host, names, device, "first", lambda text: say(f"nothing cached: {text}"))
        second = _run(host, names, device, "second", lambda text: say(f"next process:   {text}"))
    rows = [_row(name, first[name], second[name], target) for name in names]
    for index, row in enumerate(rows):
        row.known_cubins = any(other.cubins for other in rows[:index] if other.architecture == row.architecture)
    return rows


def _run(host: Host, names: Sequence[Name], device: str, caches: str, say: Say) -> dict[Name, dict[str, Any]]:
    """What the program found for each, all in one process; in another one from where a process died.

    ``caches``: a folder of Inductor's and Triton's, for GPUs: what the second process has is out of the artifacts.
    """
    found: dict[Name, dict[str, Any]] = {}
    errors = host.root / "program.log"
    while waiting := [name for name in names if name not in found]:
        begun = waiting[0]
        for answer in _answers(host, waiting, device, caches, errors):
            if "begun" in answer:
                begun = (answer["begun"][0], answer["begun"][1])
                continue
            found[begun] = answer
            say(_progress(begun, answer, len(found), len(names)))
        if begun not in found:
            found[begun] = {"error": f"the process ended:\n{errors.read_text()[-2000:]}"}
            say(_progress(begun, found[begun], len(found), len(names)))
    return found


def _answers(
    host: Host, names: Sequence[Name], device: str, caches: str, errors: Path
) -> Iterator[dict[str, Any]]:  # fmt: skip
    own = {}
    if device != "cpu":
        folder = host.root / caches
        own = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    spec = {"rows": names, "wait_s": WAIT_S, "device": device}
    command = host.command(spec, hook=True, program="architectures.program", extra=own)
    argv = [sys.executable, "-m", "precompiled", "run", "--", *command["argv"]]
    return answers_of({**command, "argv": argv}, errors, ROW_LIMIT_S)


def _progress(name: Name, answer: dict[str, Any], done: int, of: int) -> str:
    reports = answer.get("reports", [])
    states = Counter(f"{report['state']} by {report['source']}" for report in reports)
    shown = ", ".join(f"{number} {state}" for state, number in states.items()) or "no graph"
    verdict = "error" if answer["error"] else "different" if answer["different"] else "equal"
    return f"{done}/{of} {' '.join(name)}: {shown}; {verdict}; {answer.get('seconds', 0.0):.0f} s"


def _row(name: Name, first: dict[str, Any], second: dict[str, Any], target: str) -> Row:
    architecture, task = name
    row = Row(architecture, ARCHITECTURES[architecture].kind, task, target=target)
    for title, answer in (("nothing cached", first), ("next process", second)):
        if answer["error"]:
            row.errors.append(f"{title}: {answer['error']}")
        elif not answer["waited"]:
            row.errors.append(f"{title}: graphs were still pending after {WAIT_S:.0f} s")
        if idle := answer.get("idle"):
            (row.messages if target else row.errors).append(f"{title}: never ran compiled: {', '.join(idle)}")
        row.different += [f"{title}, {text}" for text in answer.get("different", [])]
        row.compiles += answer.get("compiles", 0)
        row.seconds += answer.get("seconds", 0.0)
    row.graphs, row.idle = len(first.get("reports", [])), len(first.get("idle", []))
    for report in first.get("reports", []):
        # A graph that an earlier row had as well is a hit: the daemon compiled it all the same.
        if report["state"] == "compiled" and report["source"] in ("swap", "hit"):
            row.by_daemon += 1
            continue
        reason = report["reason"] or report["state"]
        row.rest[reason] = row.rest.get(reason, 0) + 1
        row.messages.append(f"{report['name']}: {report['state']}, {reason}: {report['message']}")
    row.second_graphs = len(second.get("reports", []))
    row.cubins, row.started = second.get("cubins", {}), second.get("started", [])
    row.hits = sum(report["source"] == "hit" for report in second.get("reports", []))
    return row
