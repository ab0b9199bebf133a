"""Starts a new interpreter to find out whether the hook is on in that interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

TIMEOUT_S = 120.0  # `import torch` from a cold disk is slow
_QUESTION = """
import json, os, sys
bootstrap = sys.modules.get("precompiled.bootstrap")
other = sys.modules.get("sitecustomize")
error = ""
if bootstrap is None:
    try:
        import precompiled.bootstrap
    except Exception as caught:
        error = type(caught).__name__ + ": " + str(caught)
print("\\n" + json.dumps({
    "state": bootstrap.state() if bootstrap else "absent",
    "problem": (bootstrap.problem or "") if bootstrap else error,
    "sitecustomize": getattr(other, "__file__", None) or "",
    "torch": "torch" in sys.modules,
}))
"""

_QUESTION_WITH_TORCH = """
import json, sys
import torch
bootstrap = sys.modules.get("precompiled.bootstrap")
if bootstrap:
    from precompiled import hook
if {compiles}:
    torch.compile(torch.nn.Identity())  # never called: packages are switched on with the first
packages = sys.modules.get("precompiled.packages.dynamo.lazy_switch")
if packages and sys.modules["precompiled.client.process"].PROCESS.settings().packages == "off":
    packages = None  # it only reports errors of traces
print("\\n" + json.dumps({{
    "state": hook.state() if bootstrap else "absent",
    "problem": (bootstrap.problem or "") if bootstrap else "", "torch": True,
    "packages": (packages.problem or "on") if packages else "off",
}}))
"""


@dataclass(frozen=True)
class Probe:
    """The report of a new interpreter."""

    state: str  # bootstrap.state(); "absent" if the hook did not run; "error" if the interpreter failed
    problem: str = ""
    sitecustomize: str = ""  # the file of the imported `sitecustomize`
    torch: bool = False  # whether torch was imported at start-up
    packages: str = ""  # set by ask_with_torch: "on", "off" (the setting), or why this torch does not support packages


def ask(variables: Mapping[str, str]) -> Probe:
    """Start this interpreter with these environment variables, and report its hook's state. Does not import torch."""
    return _ask(_QUESTION, variables)


def ask_with_torch(variables: Mapping[str, str], *, packages: bool) -> Probe:
    """Like ``ask``, but the new interpreter imports torch first. The state is `precompiled.hook.state()`.

    ``packages``: also find the state of packages. This takes as long as `import torch`.
    """
    # This interpreter compiles nothing, so it must not find a daemon and request a worker (client/early_worker.py).
    without_daemon = {**variables, "PRECOMPILED_RUNTIME_DIR": "/nonexistent"}
    return _ask(_QUESTION_WITH_TORCH.format(compiles=packages), without_daemon)


def _ask(question: str, variables: Mapping[str, str]) -> Probe:
    try:
        done = subprocess.run(
            [sys.executable, "-c", question],
            env=dict(variables),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Probe(state="error", problem=f"{sys.executable} cannot be run: {error}")
    try:
        # Parse only the last line, because other start-up code may print.
        return Probe(**json.loads(done.stdout.strip().rpartition("\n")[2]))
    except (ValueError, TypeError):
        said = done.stderr.strip().rpartition("\n")[2]
        return Probe(state="error", problem=f"{sys.executable} ended with status {done.returncode}: {said}")
