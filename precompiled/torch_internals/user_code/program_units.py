"""Builds *units* (parts of the program as plain data) from what program_source.py has read, and runs them in a worker.

    {"source": ..., "flags": 0, "imports": ["math"], "modules": {"lib": digest of its sources}, "ops": [...]}

``imports`` lists modules of torch and the standard library. ``ops`` lists the program's custom operators that the
source calls (program_ops.py).

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from precompiled.core import interruptions
from precompiled.core.errors import Bypass
from precompiled.torch_internals.user_code import program_ops, source_units, user_modules
from precompiled.torch_internals.user_code.program_source import Source, refuse
from precompiled.torch_internals.user_code.source_units import Unit


def collect_unit(subject: str, code: str, source: Source, read: Callable[[Source], None]) -> Unit:
    """The unit of everything that ``read`` adds to ``source``. Raises Bypass if a worker could not rebuild it."""
    try:
        read(source)
        text, modules, ops = source.text(), set(source.modules), set()
        for operator in source.operators:
            units, imported = program_ops.describe(operator)
            ops.add(units)
            modules |= {*imported}
        digests = {module: user_modules.modules_digest([module], code=code) for module in sorted(modules)}
    except Bypass:
        raise
    except Exception as error:  # noqa: BLE001 - reading the user's code can raise anything
        interruptions.pass_on(error)
        refuse(subject, f"cannot be described ({type(error).__name__}: {error})", code)
    return {
        "source": text,
        "flags": source.flags,
        "imports": sorted(source.imports),
        "modules": digests,
        "ops": sorted(ops),
    }


def worker_needs(unit: Unit) -> dict[str, str]:
    """Return what a worker needs for a unit (modules, operators of the program), as names mapped to digests."""
    found = dict(unit["modules"])
    for operator in _operators(unit):
        found[operator["op"]] = source_units.digest(operator)
    return found


def run(unit: Unit, name: str, file: str = "", **more: object) -> dict[str, Any]:
    """Run a unit's source in a new namespace, and return the namespace.

    ``more``: further values besides torch, under names with the prefix OURS. Raises ValueError if a module or operator
    differs in this process. Also raises any exception of an import.
    """
    for module, digest in unit["modules"].items():
        user_modules.import_modules(module, digest)
    for operator in _operators(unit):
        program_ops.define(operator)
    return source_units.run(unit, name, file, **more)


def _operators(unit: Unit) -> list[dict[str, object]]:
    """The units of the program's operators that this unit calls."""
    return [operator for encoded in unit["ops"] for operator in json.loads(encoded)]
