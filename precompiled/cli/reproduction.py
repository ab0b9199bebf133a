"""Writes a script that compares the eager and compiled results of a stored graph, for `cache show --repro`."""

from __future__ import annotations

import base64
import json
import textwrap
from collections.abc import Sequence

from precompiled.cli.graph import read_program
from precompiled.core.errors import StoreError
from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Artifact, Store

_SCRIPT = '''\
"""Compares eager and compiled results of the graph {key} ({name}) on random inputs.

Usage: python FILE [DIRECTORY]. Compiles the graph with Inductor in this process, or runs the code of the artifact in
DIRECTORY (the quarantine of its store: {quarantine}).
"""

import sys

from precompiled.client import reproduction

PROGRAM = """
{program}
"""

if __name__ == "__main__":
    sys.exit(reproduction.main(PROGRAM, sys.argv[1:]))
'''


def script(store: Store, key: str, artifacts: Sequence[Artifact], failure: fmt.Failure | None) -> str:
    """The text of the script. Raises StoreError if the store has no program of the graph."""
    data = next((found for artifact in artifacts if (found := store.read_program(artifact)) is not None), None)
    if data is None and failure is not None:
        data = fmt.program_of_failure(failure)
    if data is None:
        kept = next(store.quarantined.glob(f"{key}.*/{fmt.PROGRAM}"), None)
        data = fmt.unpack_program(kept.read_bytes()) if kept is not None else None
    program = read_program(data) if data is not None else None
    if program is None:
        raise StoreError(f"the store has no readable program of {key[:12]}", code="unreadable")
    # Lines of the user's code are left out, because the script may become part of a bug report.
    program["about"] = {"inputs": program.get("about", {}).get("inputs", [])}
    packed = base64.b64encode(fmt.pack_program(json.dumps(program, separators=(",", ":")).encode())).decode()
    name = artifacts[0].manifest.name if artifacts else failure.name if failure is not None else "?"
    return _SCRIPT.format(
        key=key, name=name, quarantine=store.quarantined, program="\n".join(textwrap.wrap(packed, 118))
    )
