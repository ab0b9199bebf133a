"""Artifacts and failure records to put into a store."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Artifact, Store

KEY = hashlib.sha256(b"a graph").hexdigest()
OTHER = hashlib.sha256(b"another graph").hexdigest()
LIBRARY = f"native/{hashlib.sha256(b'a kernel').hexdigest()}.so"


def payload(key: str = KEY, guards: str = "", size: int = 100, tier: str = "default") -> fmt.Payload:
    manifest = fmt.Manifest(
        key=key,
        name="Model.forward [0/0]",
        components={"graph": "abc"},
        environment={"torch": "2.13.0"},
        device="cpu",
        guards=guards,
        files={},
        compile_s=1.5,
        created=time.time(),
        compiled_by={"pid": "1"},
        tier=tier,
    )
    return fmt.Payload(manifest, {fmt.BUNDLE: b"e" * size, LIBRARY: b"\x7fELF" + b"n" * size})


def failure(key: str = KEY, created: float | None = None, ttl_s: float = 60.0) -> fmt.Failure:
    return fmt.Failure(key, "Model.forward", "compile-failed", "it broke", created or time.time(), ttl_s)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x04
    path.write_bytes(data)


def quarantined(store: Store) -> list[str]:
    return [name for name in os.listdir(store.quarantined) if not name.endswith(".reason")]


def use(artifact: Artifact, when: float) -> None:
    os.utime(artifact.path, (when, when))
