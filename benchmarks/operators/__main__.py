"""Every operator that torch has samples for: is it compiled by the daemon, and equal to eager?

`make operators` (`python -m benchmarks.operators`); about an hour on 2 cores. The exit status is 1 when a row differs
from eager and plain torch.compile's does not, or of more than 1 % of the rows a graph was compiled in the client.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.console import begin, show
from benchmarks.harness.hosts import BenchmarkError
from benchmarks.harness.result import markdown, write_part
from benchmarks.operators import samples
from benchmarks.operators.table import WRONG, Found, examine

IN_PROCESS = 0.01

HEADERS = ["dtype", "operators", "no sample", "equal", "not, as plain", "wrong", "in process", "graphs", "in process"]
MARK = "make operators ARGS=--docs"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operators", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="these operators (repeatable; a,b)")
    parser.add_argument("--dtype", action="append", choices=samples.DTYPES, help="these only (repeatable)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth row: a look, no figure")
    parser.add_argument("--json", metavar="FILE", help="write each row's answer there; what it has is not run again")
    parser.add_argument(
        "--read", action="append", type=Path, metavar="FILE", help="run nothing: such a file has the answers"
    )
    parser.add_argument("--docs", action="store_true", help="write the tables of docs/reference/benchmarks.md")
    arguments = parser.parse_args()
    console, say = begin(160)
    started = time.monotonic()
    found = Found()
    file = Path(arguments.json) if arguments.json else None
    for path in arguments.read or ([file] if file and file.exists() else []):
        found.read(json.loads(path.read_text()))
    try:
        if not arguments.read:
            examine(_rows(parser, arguments), say, found)
            console.print(f"\n{time.monotonic() - started:.0f} s", highlight=False)
    except BenchmarkError as error:
        console.print(str(error), style="bold red", markup=False, highlight=False)
        return 1
    finally:
        if file is not None:
            file.write_text(json.dumps(found.as_json(), indent=1))
    _show(console, found)
    if arguments.docs:
        reasons = _reasons(found)
        write_part(
            MARK, [markdown(HEADERS, _table(found)), *([markdown(["reason", "rows"], reasons)] if reasons else [])]
        )
    rows = sum(len(rows) for rows in found.in_process().values())
    return 0 if found.answers and not found.wrong() and rows <= IN_PROCESS * len(found.answers) else 1


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
                len(part.answers), states.get("no sample", 0), states.get("equal", 0), states.get("as plain", 0),
                len(part.wrong()), len({row for rows in part.in_process().values() for row in rows}), graphs,
                sum(reasons.values()),
            )  # fmt: skip
            table.append([dtype, *map(str, numbers)])
    return table


def _reasons(found: Found) -> list[list[str]]:
    told = []
    for reason, rows in sorted(found.in_process().items(), key=lambda item: -len(item[1])):
        dtypes: dict[str, list[str]] = {}
        for name, dtype in rows:
            dtypes.setdefault(name, []).append(dtype)
        told.append([f"`{reason}`", ", ".join(f"{name} ({', '.join(types)})" for name, types in dtypes.items())])
    return told


def _show(console: Any, found: Found) -> None:
    show(console, HEADERS, _table(found))
    show(console, ["reason", "rows"], _reasons(found))
    for row in found.answers:
        if found.state(row) in ("as plain", *WRONG):
            answer = found.answers[row]
            said = f"{' '.join(row)}: {found.state(row)}: {(answer['why'] or answer.get('among', ''))[-300:]}"
            style = None if found.state(row) == "as plain" else "red"
            console.print(said, style=style, markup=False, highlight=False)


if __name__ == "__main__":
    raise SystemExit(main())
