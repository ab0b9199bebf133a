"""Computes digests of *units* (parts of the program as plain data, mostly source), and runs units.

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from typing import Any

import torch

from precompiled.torch_internals.user_code.program_source import OURS

Unit = dict[str, Any]


def text(unit: Unit) -> str:
    """The unit as a canonical text: equal units have equal texts."""
    return json.dumps(unit, sort_keys=True)


def digest(unit: Unit) -> str:
    return hashlib.sha256(text(unit).encode()).hexdigest()


def run(unit: Unit, name: str, file: str = "", **more: object) -> dict[str, Any]:
    """Run a unit's ``source`` in a new namespace, and return the namespace.

    ``more``: further values for the namespace, under names with the prefix OURS.
    """
    for module in unit["imports"]:
        importlib.import_module(module)
    space = {f"{OURS}{short}": value for short, value in {"torch": torch, **more}.items()}
    space["__name__"] = f"precompiled.program.{name}"
    code = compile(unit["source"], file or f"<the program's {name}>", "exec", flags=unit["flags"], dont_inherit=True)
    exec(code, space)
    return space
