"""A sample of hits is traced all the same, and what came of it compared with the package.

A package is used where all that a trace reads is as it was. Whether we know of all that a trace reads is what no check
on an entry can tell. So in some processes (``package_audit``, a fraction of all) Dynamo traces what a package would
have spared it. Where that gives another program, the function's packages are taken out of use in this store, and the
user is told. The process itself runs what it traced, so nothing that an audit finds was wrong there.
"""

from __future__ import annotations

import logging
import os
import warnings

from precompiled.packages.describe.errors import NotPortable
from precompiled.store.package_format import About, Header
from precompiled.store.packages import PackageStore

log = logging.getLogger("precompiled.package")

SAID = "it has a package, which this process checked by a trace (PRECOMPILED_PACKAGE_AUDIT): both agree"


def is_drawn(fraction: float) -> bool:
    """Whether a process is one of those that compare. Not by ``random``: its state is the user's."""
    return int.from_bytes(os.urandom(4), "little") < fraction * 2**32


def difference(kept: tuple[Header, bytes], fresh: tuple[Header, About]) -> str | None:
    """What a trace made otherwise than an entry says, in words; None where it is the same program."""
    (before, about), (here, told) = kept, fresh
    if before.kind != here.kind:
        return f"it is {here.kind}, and a package says {before.kind}"
    if before.artifacts != here.artifacts:
        return "it has other graphs"
    if before.program != here.program:
        return "it has other bytecode"
    guarded = {(guard.source, guard.kind, guard.parameters) for guard in About.parse(about).guards}
    for guard in About.parse(told.to_bytes()).guards:
        if (guard.source, guard.kind, guard.parameters) not in guarded:
            return f"it has a guard more, {guard.kind} on {guard.source}"
    return None


def refuse(store: PackageStore, header: Header, differs: str) -> NotPortable:
    """Take the packages of an entry's function out of use; what is to be raised then."""
    name = f"{header.module}.{header.qualname}"
    said = f"a trace of {name} gave something else than its package: {differs}. Its packages are out of use here"
    store.refuse(header, said)
    log.warning("%s", said)
    warnings.warn(
        f"precompiled: {said}. This process runs what it traced. Please report this, with the function's source",
        RuntimeWarning,
        stacklevel=2,
    )
    return NotPortable(said, code="package-audit")
