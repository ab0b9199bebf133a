"""Shows which kinds of facts a package needs: runs the soundness cases while one kind of fact is not compared.

Usage: python tests/package_ablation.py [KIND ...]

- Packages run in the default mode (``packages = "program"``).
- Each case is one program (support_one_text.py). An environment variable selects the case's text: before or after the
  change.
- One process records each case as it is before the change. A second process runs the case as it is after the change.
- For each kind, the table counts the cases that use their package although the change must invalidate it.
- If the count of a kind is zero, packages do not need the kind, or no case tests it.

Prints the table of docs/decisions/0023-the-proof-of-an-entry.md.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from packages.cases import HEAD, TRACED, Case
from packages.cases.never_kept import NEVER
from support_host import Host, new_host
from support_one_text import VARIABLE, one_text
from support_packages import CASES, run_alone

# The kinds of facts that packages_program.py can leave out. The value "nothing" leaves out no kind.
KINDS = (
    "nothing",
    "requirements",
    "global state",
    "inlined",
    "guards",
    "order of keys",
    "globals",
    "same",
    "attributes",
    "keys",
    "wholes",
    "cells",
    "values",
    "native",
    "assumed constant",
    "guards made",
)
JOBS = 4  # parallel processes; each forks once per case


def write(folder: Path) -> list[str]:
    """Write each case as one program, if possible. Returns the names of the written cases."""
    folder.mkdir()
    return [case.name for case in CASES.values() if case.name not in NEVER and _is_written(folder, case)]


def _is_written(folder: Path, case: Case) -> bool:
    helpers = [HEAD + textwrap.dedent(text) for text in case.helper]
    try:
        (folder / f"{case.name}.py").write_text(one_text(case.before, case.after))
        if any(case.helper):
            (folder / f"{case.name}_helper.py").write_text(one_text(*helpers))
    except SyntaxError as error:
        print(f"{case.name} is not one text: {error}", file=sys.stderr)
        return False
    return True


def run(host: Host, folder: Path, names: list[str], which: str, kind: str = "nothing") -> dict[str, dict[str, Any]]:
    """Run each case in a separate process and return its outcome. ``which``: "before" or "after" the change."""
    environment = {"PRECOMPILED_PACKAGES": "program", VARIABLE: which}

    def run_some(some: list[str]) -> dict[str, dict[str, Any]]:
        return run_alone(host, folder, some, environment, without=kind, forked=False)

    with ThreadPoolExecutor(JOBS) as pool:
        parts = pool.map(run_some, [names[first::JOBS] for first in range(JOBS)])
        return {name: answer for part in parts for name, answer in part.items()}


def is_used(case: dict[str, Any]) -> bool:
    return "used" in case["states"]


def main() -> None:
    kinds = sys.argv[1:] or KINDS
    with new_host() as host:
        host.start_daemon()
        folder, recorded, packages = host.root / "cases", host.root / "recorded", host.store.root / "packages"
        names = write(folder)
        run(host, folder, names, "before")
        shutil.copytree(packages, recorded)

        def offered(names: list[str], which: str, kind: str) -> dict[str, dict[str, Any]]:
            shutil.rmtree(packages)
            shutil.copytree(recorded, packages)  # removes the packages of earlier calls
            return run(host, folder, names, which, kind)

        unchanged = offered(names, "before", "nothing")
        names = [name for name in names if is_used(unchanged[name])]
        print(f"{len(names)} cases are used if nothing has changed", file=sys.stderr)
        names = [name for name in names if CASES[name].expected == TRACED]
        print(f"{len(names)} cases that must not be used\n\n| left out | used | of these, wrong | cases |")
        print("|---|---|---|---|", flush=True)
        for kind in kinds:
            started = time.monotonic()
            found = offered(names, "after", kind)
            used = [name for name in names if is_used(found[name])]
            wrong = sorted(name for name in names if not found[name]["equal"])
            print(f"| {kind} | {len(used)} | {len(wrong)} | {', '.join(wrong)} |", flush=True)
            print(f"{time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
