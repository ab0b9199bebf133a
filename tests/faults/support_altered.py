"""Stores whose files a test alters, reads, and puts back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support_remote import FUNCTION, HEADER
from support_store import KEY, OTHER, failure, payload

from precompiled.core.errors import CorruptArtifact
from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Store

LIBRARY = next(name for name in payload().files if name.startswith(fmt.NATIVE))
PROGRAM = b'{"graph":[]}' * 10
# The files that a test can alter: those of an artifact, and an entry of a package.
FILES = (fmt.MANIFEST, fmt.BUNDLE, LIBRARY, fmt.PROGRAM, "entry")


class AlteredStore:
    """A store with one artifact of KEY, another of OTHER, an entry of a package and a failure record."""

    def __init__(self, root: Path, size: int = 100) -> None:
        self.store = Store(root)
        self.paths: dict[str, Path] = {}
        for key in (KEY, OTHER):
            sent = payload(key, size=size)
            self.wanted = {**sent.files, fmt.PROGRAM: fmt.pack_program(PROGRAM)}
            artifact = self.store.publish(fmt.Payload(sent.manifest, self.wanted))
        for name in (*self.wanted, fmt.MANIFEST):
            self.paths[name] = self.store.artifacts / f"{KEY}.0" / name
        self.other = artifact.path
        self.entry = self.store.packages.publish(HEADER, b"{}", b"b" * size)
        self.body = b"b" * size
        self.paths["entry"] = self.store.packages.packages / FUNCTION / self.entry

    def read(self, file: str) -> object:
        """Return what a client that needs this file gets. Returns None for a miss."""
        if file == "entry":
            return self._quiet(lambda: self.store.packages.read(FUNCTION, self.entry).body)
        found = self._quiet(lambda: self.store.lookup(KEY))
        if not found:
            return None
        if file == fmt.PROGRAM:
            return self._quiet(lambda: self.store.read_program(found[0]))
        return self._quiet(lambda: self.store.read_files(found[0]))

    def whole(self, file: str) -> object:
        """Return what ``read`` returns if the file is unaltered."""
        if file == "entry":
            return self.body
        return PROGRAM if file == fmt.PROGRAM else {n: d for n, d in self.wanted.items() if n != fmt.PROGRAM}

    def assert_refused(self, file: str, what: str) -> None:
        """Check that the altered file is not served, and that it is in quarantine."""
        assert self.read(file) is None, f"{what} was not noticed"
        if file != fmt.MANIFEST or not self._is_of_another_format():
            assert not self.paths[file].exists(), f"{what} was not put into quarantine"

    def _is_of_another_format(self) -> bool:
        """An artifact of another format is a miss and stays in the store, because the version that wrote it can still
        use it.
        """
        path = self.paths[fmt.MANIFEST]
        return path.exists() and f'"format":{fmt.FORMAT}'.encode() not in path.read_bytes()

    def put_back(self, file: str, data: bytes | None = None) -> None:
        """Take the artifact or entry out of the quarantine, and restore the file's bytes."""
        path = self.paths[file]
        place = path if file == "entry" else self.store.artifacts / f"{KEY}.0"
        for name in os.listdir(self.store.quarantined):
            if name.endswith(".reason"):
                (self.store.quarantined / name).unlink()
            else:
                os.rename(self.store.quarantined / name, place)
        if data is not None:
            path.write_bytes(data)

    def _quiet(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (CorruptArtifact, FileNotFoundError):
            return None


def flip_bit(path: Path, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def open_record(store: Store, data: bytes) -> fmt.Failure | None:
    """Write these bytes to the file of KEY's failure record, and return the record that the store reads from the
    file.
    """
    path = store.artifacts / f"{KEY}{fmt.FAILED_SUFFIX}"
    path.write_bytes(data)
    path.chmod(0o600)
    return store.failure(KEY)


RECORD = fmt.encode_failure(failure(created=1e9, ttl_s=1e10))
