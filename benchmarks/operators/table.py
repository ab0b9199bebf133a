"""Checks for every operator with samples in torch that the daemon compiles it and that its result equals eager's.

`make operators` (`python -m benchmarks.operators`) takes about an hour on 2 cores. Exits 1 if a row differs from eager
with precompiled but not with plain torch.compile, or if the client compiled graphs in more than 1 % of the rows.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.answers import answers_of
from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import Host, fresh_host, with_precompiled
from benchmarks.harness.result import markdown
from benchmarks.harness.table_command import Report, add_every, add_files, add_only, read_records, run_table
from benchmarks.operators import samples
from benchmarks.operators.samples import Row

IN_PROCESS = 0.01  # largest share of rows that the client compiles
# GROUP: the number of rows in one function. Such a function is one graph unless a row breaks the graph. GROUP_LIMIT_S:
# a group's timeout in seconds, far above its time on a loaded machine.
GROUP, GROUP_LIMIT_S = 24, 1800.0
CLIENTS = 2

Answer = dict[str, Any]  # as in program.py

# The row equals eager if compiled alone, but not in one function with other rows.
AMONG = "different among others"
WRONG = (AMONG, "different", "error", "died")


@dataclass
class Found:
    """The results of all rows."""

    answers: dict[Row, Answer] = field(default_factory=dict)
    plain: dict[Row, Answer] = field(default_factory=dict)  # plain torch.compile's answers for wrong rows

    def states(self) -> dict[str, int]:
        """Return how many rows have each state: "equal", "as plain", "no sample", or one of WRONG."""
        return dict(Counter(self.state(row) for row in self.answers))

    def state(self, row: Row) -> str:
        state = _state(self.answers[row])
        same = state in WRONG and row in self.plain and _state(self.plain[row]) == state
        return "as plain" if same else state

    def graphs(self) -> tuple[int, dict[str, int]]:
        """Return the number of graphs, and for each reason the number of graphs that no worker compiled."""
        shown = [answer for row, answer in self.answers.items() if self.state(row) != "no sample"]
        reasons = Counter(reason for answer in shown for reason in answer.get("reasons", ()))
        return sum(answer.get("graphs", 0) for answer in shown), dict(reasons)

    def of(self, dtype: str) -> Found:
        return Found({row: answer for row, answer in self.answers.items() if row[1] == dtype}, self.plain)

    def as_json(self) -> dict[str, list[Answer]]:
        return {"rows": list(self.answers.values()), "plain": list(self.plain.values())}

    def read(self, results: Mapping[str, Sequence[Answer]]) -> None:
        """Add the rows of ``results``, which ``as_json`` made."""
        for kind, answers in (("rows", self.answers), ("plain", self.plain)):
            answers.update({(answer["row"][0], answer["row"][1]): answer for answer in results[kind]})

    def wrong(self) -> list[Row]:
        return [row for row in self.answers if self.state(row) in WRONG]

    def in_process(self) -> dict[str, list[Row]]:
        """Return, by reason, the rows with a graph that no worker compiled."""
        found: dict[str, list[Row]] = {}
        for row, answer in self.answers.items():
            for reason in dict.fromkeys(answer.get("reasons", ())):
                if self.state(row) != "no sample":
                    found.setdefault(reason, []).append(row)
        return found


def _state(answer: Answer) -> str:
    return AMONG if answer["state"] == "equal" and answer.get("among") else str(answer["state"])


def examine(rows: Sequence[Row], say: Say, found: Found | None = None) -> Found:
    """Run the rows that ``found`` lacks, then the wrong rows with plain torch.compile. Returns ``found``.

    A wrong row of an earlier, interrupted run lacks plain torch.compile's result, so the row runs again with
    precompiled and with plain torch.compile.
    """
    found = Found() if found is None else found
    for row in found.wrong():
        if row not in found.plain:
            del found.answers[row]
    groups: list[list[Row]] = []
    for row in rows:
        if row in found.answers:
            continue
        if not groups or len(groups[-1]) == GROUP or groups[-1][0][1] != row[1]:
            groups.append([])
        groups[-1].append(row)
    with fresh_host() as host:
        host.start_daemon()

        interrupted = threading.Event()

        def some(number: int) -> None:
            mine = groups[number::CLIENTS]
            for row, answer in _run(host, mine, f"client-{number}", say, hook=True):
                found.answers[row] = answer
                if interrupted.is_set():
                    return

        with ThreadPoolExecutor(CLIENTS) as clients:
            try:
                for done in clients.map(some, range(CLIENTS)):
                    del done
            except BaseException:
                interrupted.set()  # otherwise each client would first run all its groups
                raise
        again: list[list[Row]] = []
        for row in found.wrong():
            if row in found.plain:
                continue
            group = next(group for group in groups if row in group) if found.state(row) == AMONG else [row]
            again += [group] if group not in again else []
        found.plain.update(_run(host, again, "plain", say, hook=False))
    return found


def _run(host: Host, groups: list[list[Row]], name: str, say: Say, *, hook: bool) -> Iterator[tuple[Row, Answer]]:
    """Yield the answers of all rows. If the process dies, a new process runs the remaining rows."""
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
    return answers_of(with_precompiled(command) if hook else command, errors, GROUP_LIMIT_S)


HEADERS = [
    "dtype",
    "operators",
    "no sample",
    "equal",
    "as plain",
    "wrong",
    "operators in process",
    "graphs",
    "graphs in process",
]
REASONS = ["reason", "rows"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operators", description=__doc__)
    add_only(parser, "these operators")
    parser.add_argument("--dtype", action="append", choices=samples.DTYPES, help="these only (repeatable)")
    add_every(parser)
    add_files(
        parser,
        json="write each row's answer there; what it has is not run again",
        read="run nothing: such a file has the answers",
        docs="tables of docs/reference/benchmarks.md",
    )
    arguments = parser.parse_args()

    def measure(say: Say) -> Report:
        found = Found()
        for record in read_records(arguments):
            found.read(record)
        try:
            if not arguments.read:
                examine(_rows(parser, arguments), say, found)
        finally:
            if arguments.json:
                arguments.json.write_text(json.dumps(found.as_json(), indent=1))
        return report(found)

    return run_table(arguments, measure, width=160, mark="make operators ARGS=--docs")


def report(found: Found) -> Report:
    remarks: list[tuple[str, str | None]] = []
    for row in found.answers:
        if (state := found.state(row)) in ("as plain", *WRONG):
            why = found.answers[row]["why"] or found.answers[row].get("among", "")
            remarks.append((f"{' '.join(row)}: {state}: {why[-300:]}", None if state == "as plain" else "red"))
    rows = sum(len(rows) for rows in found.in_process().values())
    table, reasons = _table(found), _reasons(found)
    return Report(
        bool(found.answers) and not found.wrong() and rows <= IN_PROCESS * len(found.answers),
        tables=[(HEADERS, table), (REASONS, reasons)],
        remarks=remarks,
        record=found.as_json(),
        parts=[*map(_sentence, table[-1:]), *([markdown(REASONS, reasons)] if reasons else [])],
    )


def _sentence(totals: Sequence[str]) -> str:
    """Return the last row of the table as a sentence for the docs."""
    _, rows, no_sample, equal, as_plain, wrong, in_process, graphs, graphs_in_process = totals
    return (
        f"Of {rows} pairs of an operator and a dtype, {equal} are equal, {as_plain} as plain and {wrong} wrong;"
        f" {no_sample} have no sample.\nIn {in_process} pairs, graphs were compiled in process ({graphs_in_process} of"
        f" {graphs} graphs)."
    )


def _rows(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> list[samples.Row]:
    names = {name for item in arguments.only or [] for name in item.split(",")}
    if unknown := names - samples.operators().keys():
        parser.error(f"torch has no samples for {', '.join(sorted(unknown))}")
    rows = samples.rows(tuple(arguments.dtype or samples.DTYPES))
    return [row for row in rows if not names or row[0] in names][:: arguments.every]


def _table(found: Found) -> list[list[str]]:
    table = []
    for dtype in [*samples.DTYPES, "all"]:
        part = found if dtype == "all" else found.of(dtype)
        states, (graphs, reasons) = part.states(), part.graphs()
        if part.answers:
            numbers = (
                len(part.answers),
                states.get("no sample", 0),
                states.get("equal", 0),
                states.get("as plain", 0),
                len(part.wrong()),
                len({row for rows in part.in_process().values() for row in rows}),
                graphs,
                sum(reasons.values()),
            )
            table.append([dtype, *map(str, numbers)])
    return table


def _reasons(found: Found) -> list[list[str]]:
    cells = []
    for reason, rows in sorted(found.in_process().items(), key=lambda item: -len(item[1])):
        dtypes: dict[str, list[str]] = {}
        for name, dtype in rows:
            dtypes.setdefault(name, []).append(dtype)
        cells.append([f"`{reason}`", ", ".join(f"{name} ({', '.join(types)})" for name, types in dtypes.items())])
    return cells
