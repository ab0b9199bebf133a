"""Compares an entry's requirements: environment, settings and global state must be as in the entry's trace."""

from __future__ import annotations

import hashlib
import json
import types
from collections.abc import Mapping

from precompiled.graph import environment
from precompiled.packages.describe import difference
from precompiled.packages.describe.codes import code_digest
from precompiled.packages.describe.errors import Mismatch
from precompiled.packages.dynamo import dynamo_state
from precompiled.torch_internals.graph import compiler_config, operator_overrides, replaced_functions


def requirements(options: Mapping[str, object]) -> dict[str, str]:
    """Map the names of this process's requirements to values. A digest replaces a value of over 80 characters.

    ``options``: the options of torch.compile. Raises Bypass if no worker can compile the program's graphs because the
    program overrides operators. Dynamo has no guards on these overrides.
    """
    operator_overrides.refuse([])
    settings = compiler_config.snapshot(options)
    facts = environment.facts(dynamo_state.first_device())
    # The artifacts are already compiled, so this host's compiler is not a requirement.
    facts.pop("compiler", None)
    facts["variables"] = {
        name: value for name, value in facts["variables"].items() if name.startswith(("TORCHINDUCTOR_", "TRITON_"))
    }
    facts = {name: _shown(value) for name, value in facts.items()}
    return {
        **facts,
        **dynamo_state.process_state(),
        "replaced functions": _replaced(),
        "inductor": _digest(settings),
        "dynamo": dynamo_state.trace_configuration(),
    }


def check(wanted: dict[str, str], here: dict[str, str]) -> None:
    """Raise Mismatch for the first requirement that differs."""
    for name in sorted({*wanted, *here}):
        if wanted.get(name) != here.get(name):
            raise Mismatch(difference.requirement(name, here.get(name), wanted.get(name), "when it was traced"))


def _replaced() -> str:
    """The functions of torch that the program has replaced, and the code of the replacements.

    If Dynamo traces a replacement, the replacement's code has guards like any traced code. If only torch's own code
    calls a replacement, the graph has no artifact.
    """
    found = replaced_functions.replaced_functions()
    return _shown([[place, _code_of(value)] for place, value in sorted(found.items())]) if found else "none"


def _code_of(value: object) -> str:
    if type(value) is types.FunctionType:
        return code_digest(value.__code__)
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 80 else hashlib.sha256(text.encode()).hexdigest()


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()
