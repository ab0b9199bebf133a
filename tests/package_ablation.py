"""Shows which kinds of facts are needed to prove a package: runs the soundness cases with one kind omitted from the
comparison.

Usage: python tests/package_ablation.py [KIND ...]. Every case is recorded once. Then, for each kind, a process is
offered the programs that must not use the recorded packages, and the cases that use one are counted. A kind with a
count of zero is not needed, or lacks a case. Prints the table of docs/decisions/0023-the-proof-of-an-entry.md.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from packages.cases import TRACED
from packages.cases.never_kept import NEVER
from support_host import Host, new_host
from support_packages import CASES, run, write

# The names of packages_program.py.
KINDS = (
    "nothing", "requirements", "global state", "inlined", "guards", "order of keys", "globals", "same", "attributes",
    "keys", "wholes", "cells", "values", "native", "assumed constant", "guards made",
)  # fmt: skip


def used(host: Host, recorded: Path, names: list[str], kind: str) -> dict[str, bool]:
    """The cases that use a recorded package although they must not, and whether each result equals eager's."""
    packages = host.store.root / "packages"
    shutil.rmtree(packages)
    shutil.copytree(recorded, packages)  # otherwise the next kind would find packages that this kind's process recorded
    found = run(host, sys.executable, host.root / "after", names, without=kind)
    return {name: case["equal"] for name, case in found.items() if "used" in case["states"] or "error" in case}


def main() -> None:
    kinds = sys.argv[1:] or KINDS
    names = [name for name, case in CASES.items() if case.expected == TRACED and name not in NEVER]
    with new_host() as host:
        host.start_daemon()
        write(host.root / "before", after=False)
        write(host.root / "after", after=True)
        run(host, sys.executable, host.root / "before", names)
        recorded = host.root / "recorded"
        shutil.copytree(host.store.root / "packages", recorded)
        print(f"{len(names)} cases that must not be used\n\n| left out | used | of these, wrong | cases |")
        print("|---|---|---|---|", flush=True)
        for kind in kinds:
            found = used(host, recorded, names, kind)
            wrong = sorted(name for name, equal in found.items() if not equal)
            print(f"| {kind} | {len(found)} | {len(wrong)} | {', '.join(wrong)} |", flush=True)


if __name__ == "__main__":
    main()
