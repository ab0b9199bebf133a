"""Support: publishes artifacts with made-up contents, so that tests need no compile."""

from __future__ import annotations

import json
import time
from typing import Any

from precompiled.graph import key as keys
from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Artifact, Store


def publish_artifact(
    store: Store, key: str, program: dict[str, Any] | bytes | None = None, *, size: int = 100, **fields: Any
) -> Artifact:
    """Publish an artifact of ``size`` bytes. ``program``: its captured graph. ``fields``: fields of the manifest."""
    data = json.dumps(program, separators=(",", ":")).encode() if isinstance(program, dict) else program
    facts: dict[str, Any] = {
        "name": "forward [0/0]",
        "components": keys.components(data) if isinstance(program, dict) and data is not None else {},
        "environment": {"torch": "2.13.0"},
        "device": "cpu",
        "guards": "",
        "files": {},
        "compile_s": 12.5,
        "created": time.time() - 100,
        "compiled_by": {"pid": "7"},
        **fields,
    }
    files = {fmt.BUNDLE: b"x" * size}
    if data is not None:
        files[fmt.PROGRAM] = fmt.pack_program(data)
    return store.publish(fmt.Payload(fmt.Manifest(key=key, **facts), files))
