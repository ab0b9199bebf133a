"""Audits packages: in some processes Dynamo traces although a package fits. This file compares trace and package.

A package is used only if each recorded read of its trace would give the same value now. But only a new trace can show
whether the records are complete. So in a fraction of all processes (the setting ``package_audit``) Dynamo traces the
first frame of each function although a package would have served it. If a trace differs from its package, this file
warns, and the store refuses the function's packages from then on. The audited process runs its own trace, so a wrong
package does not affect it.
"""

from __future__ import annotations

import logging

from precompiled.core import user_warnings
from precompiled.packages.describe.errors import NotPortable
from precompiled.store.package_format import About, Header
from precompiled.store.packages import PackageStore

log = logging.getLogger("precompiled.package")

SAID = "this process checked the package by a trace (PRECOMPILED_PACKAGE_AUDIT): both agree"


def difference(kept: tuple[Header, bytes], fresh: tuple[Header, About]) -> str | None:
    """Return a phrase that says how a fresh trace differs from a stored entry. None if the trace has the entry's graphs
    and bytecode, and no further guards.
    """
    (before, about), (here, fresh_about) = kept, fresh
    if before.kind != here.kind:
        return f"the trace is {here.kind}, but the package has {before.kind}"
    if before.artifacts != here.artifacts:
        return "its graphs differ"
    if before.program != here.program:
        return "its bytecode differs"
    guarded = {(guard.source, guard.kind, guard.parameters) for guard in About.parse(about).guards}
    for guard in About.parse(fresh_about.to_bytes()).guards:
        if (guard.source, guard.kind, guard.parameters) not in guarded:
            return f"it has an additional guard, {guard.kind} on {guard.source}"
    return None


def refuse(store: PackageStore, header: Header, differs: str) -> NotPortable:
    """Refuse the packages of the entry's function in this store, and warn. Returns the error to raise."""
    name = f"{header.module}.{header.qualname}"
    said = f"a trace of {name} differs from its package: {differs}. This store disabled the packages of {name}"
    store.refuse(header, said)
    log.warning("%s", said)
    user_warnings.warn(f"{said}. This process runs the traced code. Please report this bug, with the function's source")
    return NotPortable(said, code="package-audit")
