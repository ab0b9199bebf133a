"""Notes, in the quarantine, of artifacts that were whole and could not be used here: no remote is to bring them again.

By the digest of the artifact as it travels (packed.py), which a remote's listing shows. They are kept as long as what
else is in the quarantine. One that was spoiled on this disk has none: to fetch it again mends it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from precompiled.core.errors import StoreError
from precompiled.store import artifact_format as fmt
from precompiled.store import packed
from precompiled.store.reading import Artifact, Reader

NOTE_SUFFIX = ".unfit.reason"


def note(artifact: Artifact, quarantine: Path, reason: str) -> None:
    """Best effort: without it the next process finds out by itself."""
    with suppress(OSError, StoreError):
        files = Reader(artifact.root).read(artifact, fmt.names_for_others(artifact.manifest))
        quarantine.mkdir(mode=0o700, parents=True, exist_ok=True)
        digest = fmt.digest(packed.pack(artifact.manifest, files))
        _path(quarantine, artifact.manifest.key, digest).write_text(reason + "\n")


def is_noted(quarantine: Path, key: str, digest: str) -> bool:
    return os.path.lexists(_path(quarantine, key, digest))


def _path(quarantine: Path, key: str, digest: str) -> Path:
    return quarantine / f"{key}.{digest[:16]}{NOTE_SUFFIX}"
