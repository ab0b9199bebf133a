"""Support: collects the cases for packages (tests/packages/cases), writes them as modules, and runs them."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import packages.cases
import pytest
from packages.cases import CASES, HEAD
from support_host import TIMEOUT_S, Host

tells_what_ran = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="only CPython 3.11 shows which functions ran: docs/explanation/packages.md"
)

PROGRAM = Path(__file__).parent / "programs" / "packages_program.py"

for _topic in pkgutil.iter_modules(packages.cases.__path__, "packages.cases."):
    importlib.import_module(_topic.name)

# Typical cases of each kind. These cases and those of NEVER run every day. All other cases run in `make test-slow`.
EVERYDAY = (
    "same_module",
    "graph_break",
    "monkeypatched_function",
    "changed_global",
    "rebound_closure",
    "subclass",
    "changed_callee",
    "set_of_operators",
    "native_call_metaclass_add",
    "native_call_metaclass_add_again",
    "native_call_enum_bool",
    "native_call_class_class_getitem",
    "cell_of_two_closures",
    "object_of_a_class_whose_metaclass_decides",
    "isinstance_of_a_class_with_types_own_check",
    "class_in_which_a_library_notes_its_id",
    "class_in_which_a_library_notes_another_number",
    "class_that_holds_an_attrgetter",
    "class_that_holds_another_attrgetter",
    "mock_in_the_place_of_a_function",
)

# These cases change the process permanently, so they run last.
LAST = ("registered_in_pytree", "monkeypatched_torch_method", "defaults_without_guards", "allowed_in_graph")
for _name in LAST:
    CASES[_name] = CASES.pop(_name)


def write(folder: Path, *, after: bool) -> None:
    """Write the modules of all cases, as they are before or after the change."""
    folder.mkdir(parents=True, exist_ok=True)
    for item in CASES.values():
        (folder / f"{item.name}.py").write_text(item.after if after else item.before)
        if any(item.helper):
            (folder / f"{item.name}_helper.py").write_text(HEAD + textwrap.dedent(item.helper[after]))


def run(
    host: Host, python: str, folder: Path, cases: list[str], *, audit: bool = False, without: str = "nothing"
) -> dict[str, Any]:
    """Run cases in one process, and return the outcome of each.

    ``audit``: trace the frames that packages would serve, and compare each trace with its package. ``without``: a kind
    of facts that is not compared (package_ablation.py).
    """
    environment = {
        "PRECOMPILED_PACKAGES": "function",
        "PRECOMPILED_PACKAGE_AUDIT": str(int(audit)),
        "PRECOMPILED_MODE": "wait",
        "OMP_NUM_THREADS": "1",
    }
    started = host.start({"folder": str(folder), "cases": cases, "without": without}, environment, python, PROGRAM)
    answer: dict[str, Any] = started.result(timeout_s=3 * TIMEOUT_S)
    return answer


def run_alone(
    host: Host, folder: Path, cases: list[str], environment: dict[str, str], *, without: str, forked: bool
) -> dict[str, dict[str, Any]]:
    """Run each case in a separate fork of one parent process that has loaded torch. Returns the outcome of each.

    ``forked``: the parent may itself be a fork (support_zygote.py). In mode "program" a fork ignores packages that are
    newer than its parent, so callers that use new packages pass ``forked=False``.
    """
    settings = {"PRECOMPILED_PACKAGE_AUDIT": "0", "PRECOMPILED_MODE": "wait", "OMP_NUM_THREADS": "1", **environment}
    spec = {"folder": str(folder), "cases": cases, "without": without, "alone": True}
    client = host.program(str(PROGRAM), json.dumps(spec), env=settings, forked=forked)
    client.ended(timeout_s=10 * TIMEOUT_S)
    answers = [json.loads(line) for line in client.lines if line.startswith('{"case"')]
    return {answer["case"]: answer for answer in answers}


def run_program(host: Host, folder: Path, *arguments: str, text: str | None = None, **extra: str) -> Any:
    """Run Python in the folder with ``arguments`` (default: ``main.py``). Returns the output's last line, parsed."""
    settings = {"PRECOMPILED_PACKAGES": "program", "PRECOMPILED_MODE": "wait", "OMP_NUM_THREADS": "1", **extra}
    done = subprocess.run(
        [sys.executable, *(arguments or ("main.py",))],
        cwd=folder,
        input=text,
        check=False,
        timeout=TIMEOUT_S,
        env=host.environment({"PYTHONPATH": str(folder), **settings}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
