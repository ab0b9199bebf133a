"""Each row's artifacts made by a daemon's worker, then interpreted in another process; what comes of each kernel."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.answers import answers_of
from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import Command, Host, fresh_host

ROW_LIMIT_S = 900.0
LOT = 20
ADDRESSES = "OutsideOfArguments"

# Of a kernel. "stopped": it ran, and its row came to no result, because of another. "unreached": an artifact has it,
# and no call of the row came to it.
KERNEL_STATES = ("equal", "wrong", "not runnable", "stopped", "unreached")


@dataclass
class Row:
    """What was found of a row; ``kernels``: digest of the source -> name, state, why. ``brought``: those of them of
    whose very source the artifact has the machine code with a launcher.
    """

    name: str
    # equal; wrong; launched (kernels, on the device, which computes nothing); stopped (by an error); no artifact;
    # no row (eager does not run on the device)
    state: str
    why: str
    kernels: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    brought: list[str] = field(default_factory=list)
    programs: int = 0
    seconds: float = 0.0

    def count(self, state: str) -> int:
        return sum(found == state for _name, found, _why in self.kernels.values())

    @property
    def tried(self) -> int:
        return len(self.kernels) - self.count("unreached")

    def cells(self) -> list[str]:
        counts = [self.tried, *(self.count(state) for state in KERNEL_STATES)]
        return [self.name, *map(str, counts), self.state, f"{self.seconds:.0f} s"]


HEADERS = ["row", "kernels tried", *KERNEL_STATES, "row is", "took"]


def row_of(told: dict[str, Any]) -> Row:
    """Of what ``asdict`` made of one."""
    return Row(**{**told, "kernels": {digest: tuple(kernel) for digest, kernel in told["kernels"].items()}})


def judge(name: str, answer: dict[str, Any]) -> Row:
    """A row of what its process told."""
    artifacts = [graph for graph in answer.get("graphs", []) if graph[1] == "hit"]
    others = [graph for graph in answer.get("graphs", []) if graph[1] != "hit"]
    kernels = answer.get("kernels", {})
    why = answer.get("error", "")
    ended = False
    if answer.get("launches") or answer.get("strangers"):
        # What the device only wrote down was computed by nobody, whatever was compared.
        state, why = "launched", f"launched and not interpreted: {answer['launches']}; unknown: {answer['strangers']}"
    elif answer.get("eager_error"):
        state, why = "no row", answer["eager_error"]
    elif any(ADDRESSES in kernel["error"] for kernel in kernels.values()):
        state = "wrong"
    elif answer.get("different"):
        state, why = "wrong", "; ".join(answer["different"])
    elif others or not artifacts:
        told = "; ".join(dict.fromkeys(str(graph[2] or graph[0]) for graph in others)) or "no graph"
        state, why = "no artifact", f"{told} ({why})" if why else told
        # What the client has compiled itself is in none.
        kernels = {digest: kernel for digest, kernel in kernels.items() if kernel["brought"]}
    elif why:
        state = "stopped"
    else:
        state, ended = "equal", True
    row = Row(name, state, why, seconds=answer.get("seconds", 0.0))
    for digest, kernel in kernels.items():
        row.kernels[digest] = (kernel["name"], *_of_kernel(kernel, ended, state))
        row.programs += kernel["programs"]
        row.brought += [digest] if kernel["brought"] else []
    return row


def _of_kernel(kernel: dict[str, Any], ended: bool, row: str) -> tuple[str, str]:
    if kernel["error"]:
        return ("wrong" if ADDRESSES in kernel["error"] else "not runnable"), kernel["error"]
    if not kernel["runs"]:
        return "unreached", ""
    if not (kernel["programs"] and kernel["stored"]):
        return "not runnable", "it ran and stored nothing"
    if row == "launched":
        return "not runnable", "launched, not by its wrapper in Python"
    return "equal" if ended else "wrong" if row == "wrong" else "stopped", ""


def examine(names: Sequence[str], say: Say) -> Iterator[Row]:
    """All rows on one host with a made-up device, some at a time: each lot is compiled, then interpreted."""
    with fresh_host() as host:
        host.start_daemon()
        for begin in range(0, len(names), LOT):
            lot = names[begin : begin + LOT]
            made = _run(host, lot, lambda text: say(f"compile:   {text}"), interpret=False)
            told = _run(host, lot, lambda text: say(f"interpret: {text}"), interpret=True)
            for name in lot:
                row = judge(name, told[name])
                if row.state == "no artifact" and made[name].get("error"):
                    row.why += f" (to compile it: {made[name]['error']})"
                yield row


def _run(host: Host, names: Sequence[str], say: Say, *, interpret: bool) -> dict[str, dict[str, Any]]:
    """What the program told of each row, all in one process; in another one from where a process died."""
    found: dict[str, dict[str, Any]] = {}
    while waiting := [name for name in names if name not in found]:
        begun = waiting[0]
        for answer in answers_of(command(host, waiting, interpret=interpret), host.root / "program.log", ROW_LIMIT_S):
            if "begun" in answer:
                begun = answer["begun"]
                continue
            found[begun] = answer
            say(f"{len(found)}/{len(names)} {_progress(begun, answer, interpret)}")
        if begun not in found:
            log = (host.root / "program.log").read_text()
            found[begun] = {"error": f"the process ended: {' '.join(log[-400:].split())}"}
            say(f"{len(found)}/{len(names)} {begun}: the process ended")
    return found


def _progress(name: str, answer: dict[str, Any], interpret: bool) -> str:
    if not interpret:
        states = [f"{graph[0]} by {graph[1]} {graph[2]}".strip() for graph in answer["graphs"]]
        return f"{name}: {', '.join(states)} {answer['error']} {answer['seconds']:.0f} s"
    row = judge(name, answer)
    counts = ", ".join(f"{row.count(state)} {state}" for state in KERNEL_STATES if row.count(state))
    return f"{name}: {row.state}; {counts or 'no kernel'}; {row.seconds:.0f} s {row.why[:300]}"


def command(host: Host, names: Sequence[str], *, interpret: bool) -> Command:
    """The program for these rows."""
    # A cache of its own: else what the client compiles itself, of no artifact, might come out of Inductor's.
    cache = str(host.root / "interpreted")
    interpreted = {"TRITON_INTERPRET": "1", "PRECOMPILED_MODE": "lookup", "TORCHINDUCTOR_CACHE_DIR": cache}
    extra = interpreted if interpret else {}
    spec = {"rows": list(names), "interpret": interpret}
    found = host.command(spec, hook=True, extra=extra, program="interpreter.program")
    return {**found, "argv": [sys.executable, "-m", "precompiled", "run", "--", *found["argv"]]}
