"""Writes notes about sound artifacts that this host could not use, to prevent further fetches.

A note is a file in the quarantine. The file's name is the digest of the packed artifact (packed.py), because a remote's
listing shows this digest. Evictions remove a note at the same age as other files in the quarantine. An artifact that
was damaged on disk gets no note, because a new fetch repairs it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from precompiled.core.errors import StoreError
from precompiled.store import artifact_format as fmt
from precompiled.store import packed
from precompiled.store.reading import Artifact, StoreReader

NOTE_SUFFIX = ".unfit.reason"


def note(artifact: Artifact, quarantine: Path, reason: str) -> None:
    """Write the note, best effort. If the write fails, the next process finds the problem itself."""
    with suppress(OSError, StoreError):
        files = StoreReader(artifact.root).read(artifact, fmt.names_for_others(artifact.manifest))
        quarantine.mkdir(mode=0o700, parents=True, exist_ok=True)
        digest = fmt.digest(packed.pack(artifact.manifest, files))
        _path(quarantine, artifact.manifest.key, digest).write_text(reason + "\n")


def is_noted(quarantine: Path, key: str, digest: str) -> bool:
    return os.path.lexists(_path(quarantine, key, digest))


def _path(quarantine: Path, key: str, digest: str) -> Path:
    return quarantine / f"{key}.{digest[:16]}{NOTE_SUFFIX}"
