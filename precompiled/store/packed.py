"""Packs an artifact into one byte string, for its transfer through a remote or from a farm."""

from __future__ import annotations

import dataclasses

from precompiled.core.errors import CorruptArtifact
from precompiled.store import artifact_format as fmt


def pack(manifest: fmt.Manifest, files: dict[str, bytes]) -> bytes:
    """Return the manifest, which has the files' sizes, followed by the files, ordered by name."""
    records = {name: fmt.FileRecord(len(data), fmt.digest(data)) for name, data in files.items()}
    sealed = fmt.seal(dataclasses.replace(manifest, files=records))
    return b"".join((sealed, b"\n", *(files[name] for name in sorted(files))))


def unpack(body: bytes, key: str) -> fmt.Payload:
    """The inverse of ``pack``. Every digest is verified. Raises CorruptArtifact."""
    sealed, newline, _ = body[: fmt.MAX_MANIFEST_BYTES + 1].partition(b"\n")
    if not newline:
        raise CorruptArtifact("a packed artifact has no manifest")
    manifest = fmt.open_manifest(sealed, key)
    view, at, files = memoryview(body), len(sealed) + 1, {}
    for name in sorted(manifest.files):
        record = manifest.files[name]
        data = view[at : at + record.bytes]
        if len(data) != record.bytes or fmt.digest(data) != record.digest:
            raise CorruptArtifact(f"{name} in a packed artifact does not match its digest")
        files[name], at = bytes(data), at + record.bytes
    if at != len(body):
        raise CorruptArtifact("a packed artifact is longer than its manifest says")
    return fmt.Payload(manifest, files)
