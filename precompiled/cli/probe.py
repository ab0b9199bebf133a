"""Asks a fresh interpreter whether the hook is on in it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

TIMEOUT_S = 120.0  # `import torch` on a cold disk takes long
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
torch.compile(torch.nn.Identity())  # never called: packages are switched on with the first
packages = sys.modules.get("precompiled.packages.dynamo.lazy_switch")
print("\\n" + json.dumps({
    "state": hook.state() if bootstrap else "absent",
    "problem": (bootstrap.problem or "") if bootstrap else "", "torch": True,
    "packages": (packages.problem or "on") if packages else "off",
}))
"""


@dataclass(frozen=True)
class Probe:
    """What a fresh interpreter says about itself."""

    state: str  # bootstrap.state(), "absent" when the hook never ran, "error" when the interpreter failed
    problem: str = ""
    sitecustomize: str = ""  # the file that ended up as `sitecustomize`
    torch: bool = False  # whether torch was imported at start-up
    packages: str = ""  # once torch is imported: "on"; "off", by the setting; or why there are none with this torch


def ask(variables: Mapping[str, str]) -> Probe:
    """Start this interpreter with these environment variables, and ask whether the hook is on. Imports no torch."""
    return _ask(_QUESTION, variables)


def ask_with_torch(variables: Mapping[str, str]) -> Probe:
    """The same, after `import torch`: its state is `precompiled.hook.state()`."""
    return _ask(_QUESTION_WITH_TORCH, variables)


def _ask(question: str, variables: Mapping[str, str]) -> Probe:
    try:
        done = subprocess.run(
            [sys.executable, "-c", question], env=dict(variables), capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return Probe(state="error", problem=f"{sys.executable} could not be asked: {error}")
    try:
        # The last line: other start-up code may print before it.
        return Probe(**json.loads(done.stdout.strip().rpartition("\n")[2]))
    except (ValueError, TypeError):
        said = done.stderr.strip().rpartition("\n")[2]
        return Probe(state="error", problem=f"{sys.executable} ended with status {done.returncode}: {said}")
