"""Tests packages with random programs that have at most one random edit.

- The first process records the programs before their edits.
- The second process runs the edited programs. The second process may use the packages of the first process.
- The third process runs the edited programs without these packages, and records packages of its own.

All results must equal eager's. If the third process records the same guards and bytecode as the first process, the
second process must have used the package. Otherwise, the second process must not have used the package.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support_host import TIMEOUT_S, Host
from support_package_programs import program

from precompiled.packages import entry_search
from precompiled.packages.describe.codes import code_digest
from precompiled.store.packages import PackageStore

pytestmark = pytest.mark.slow  # three processes, and each compiles all programs

PROGRAM = Path(__file__).parent.parent / "programs" / "packages_program.py"
SEEDS = range(int(os.environ.get("PRECOMPILED_TEST_SEEDS", "40")))


def run(host: Host, folder: Path) -> dict[str, Any]:
    extra = {"PRECOMPILED_PACKAGES": "function", "PRECOMPILED_MODE": "wait", "OMP_NUM_THREADS": "1"}
    spec = {"folder": str(folder), "cases": [f"random_{seed}" for seed in SEEDS]}
    answer: dict[str, Any] = host.start(spec, extra, program=PROGRAM).result(timeout_s=3 * TIMEOUT_S)
    return answer


def entries(host: Host) -> dict[str, set[str]]:
    """Maps each module to the guards, bytecode and inlined functions of its entries.

    Keys of artifacts are left out, because they depend on properties that Dynamo does not guard, such as whether an
    input is a view.
    """
    found: dict[str, set[str]] = {}
    for entry in PackageStore(host.store.root).entries():
        shown = entry.body.hex()
        if entry.header.kind == "compiled":
            body = entry_search.decode_body(entry)
            shown = repr((body.guards, code_digest(body.code), body.inlined, body.imports))
        found.setdefault(entry.header.module, set()).add(f"{entry.header.function} {shown}")
    return found


@pytest.fixture(scope="module")
def answers(shared_host: Host) -> dict[str, Any]:
    # The programs before and after their edits use one folder, because an entry contains file names for tracebacks.
    folder = shared_host.root / "programs"

    def write(place: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for seed in SEEDS:
            (folder / f"random_{seed}.py").write_text(getattr(program(seed), place))

    write("before")
    first = run(shared_host, folder)
    recorded = entries(shared_host)
    write("after")
    second = run(shared_host, folder)
    shutil.rmtree(shared_host.store.root / "packages")
    third = run(shared_host, folder)
    return {"first": first, "second": second, "third": third, "before": recorded, "after": entries(shared_host)}


@pytest.mark.parametrize("seed", SEEDS)
def test_package_is_used_exactly_where_a_trace_would_give_the_same(answers: dict[str, Any], seed: int) -> None:
    name = f"random_{seed}"
    for which in ("first", "second", "third"):
        found = answers[which][name]
        assert "error" not in found, found["error"]
        assert found["equal"], (which, program(seed).edited, found)
    second = answers["second"][name]
    same = answers["before"].get(name) == answers["after"].get(name)
    used = set(second["states"]) <= {"used", "skipped"}
    if program(seed).edited == "size":
        # The edit makes the argument a view. The recorded guards accept views, but a trace of a view records more.
        assert used or not same, (second, program(seed).after)
    else:
        assert used == same, (program(seed).edited, second, program(seed).after)
