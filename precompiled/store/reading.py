"""Reads one directory of artifacts: the directory of the user's own store, or of a base (bases.py). Writes nothing.

Every directory from the root down is opened relative to its parent, and checked before its content is used.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from precompiled.core.errors import CorruptArtifact, StoreError
from precompiled.store import artifact_format as fmt
from precompiled.store import trust


@dataclass(frozen=True)
class Artifact:
    """One artifact, in the user's store or in a base."""

    path: Path
    manifest: fmt.Manifest

    @property
    def slot(self) -> int:
        return int(self.path.name.rpartition(".")[2])

    @property
    def root(self) -> Path:
        """The root of the store or base that contains the artifact."""
        return self.path.parent.parent

    @property
    def variant(self) -> tuple[str, str]:
        """The properties by which the artifact differs from other artifacts of its key."""
        return self.manifest.guards, self.manifest.tier


class StoreReader:
    """Reads the artifacts of the store in the directory ``root``."""

    setting = "cache_dir"  # which names ``root``

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self.artifacts = self.root / "artifacts"

    def read(self, artifact: Artifact, names: Sequence[str]) -> dict[str, bytes]:
        """The checked contents of an artifact's files ``names``.

        Raises CorruptArtifact if a file is missing, short or altered; UntrustedStore if another user could have
        written it; FileNotFoundError if the artifact was evicted.
        """
        contents: dict[str, bytes] = {}
        with (
            reading(self.root),
            self.artifacts_fd() as artifacts_fd,
            trust.open_directory(artifact.path.name, artifacts_fd, shown=str(artifact.path)) as artifact_fd,
        ):
            try:
                for name in names:
                    contents[name] = _read_checked(artifact, name, artifact.manifest.files[name], artifact_fd)
            except CorruptArtifact as error:
                # The artifact may have been evicted since the lookup, and another artifact, which is not damaged, may
                # be in its slot. This is a miss, so nothing is quarantined.
                if self._replaced(artifact, artifacts_fd):
                    raise FileNotFoundError(f"{artifact.path} was evicted") from error
                raise
        return contents

    def every(self) -> Iterator[Artifact]:
        """Every readable artifact, in no particular order."""
        for name in self.names():
            artifact = self.readable(name)
            if artifact is not None:
                yield artifact

    def readable(self, name: str) -> Artifact | None:
        """The artifact in the directory ``name``. None if the artifact cannot be read or trusted, or if ``name`` is not
        the name of an artifact.
        """
        key, _, slot = name.rpartition(".")
        if slot.isdigit() and fmt.is_key(key):
            with suppress(StoreError, OSError), self.artifacts_fd() as artifacts_fd:
                return self.read_artifact(name, key, artifacts_fd)
        return None

    def names(self) -> list[str]:
        """The names of artifacts and failure records, readable or not. Raises StoreError."""
        with suppress(FileNotFoundError), reading(self.root), suppress(NotADirectoryError, PermissionError):
            return os.listdir(self.artifacts)
        return []

    @contextmanager
    def artifacts_fd(self) -> Iterator[int]:
        with (
            trust.open_directory(self.root, setting=self.setting) as root_fd,
            trust.open_directory("artifacts", root_fd, shown=str(self.artifacts)) as artifacts_fd,
        ):
            yield artifacts_fd

    def read_artifact(self, name: str, key: str, artifacts_fd: int) -> Artifact:
        """The artifact of this name, with a checked manifest."""
        path = self.artifacts / name
        with trust.open_directory(name, artifacts_fd, shown=str(path)) as artifact_fd:
            try:
                shown = str(path / fmt.MANIFEST)
                data = trust.read_file(fmt.MANIFEST, artifact_fd, fmt.MAX_MANIFEST_BYTES, shown=shown)
            except FileNotFoundError as error:
                if not _is_at(artifact_fd, path):
                    raise
                raise CorruptArtifact(f"{path} has no {fmt.MANIFEST}") from error
        return Artifact(path, fmt.open_manifest(data, key))

    def _replaced(self, artifact: Artifact, artifacts_fd: int) -> bool:
        """Whether ``artifact`` is gone from its slot, or another artifact has replaced it."""
        try:
            there = self.read_artifact(artifact.path.name, artifact.manifest.key, artifacts_fd)
            return there.manifest != artifact.manifest
        except FileNotFoundError:
            return True
        except StoreError:
            return False


def read_elsewhere(path: Path) -> tuple[Artifact, dict[str, bytes]]:
    """Read an artifact from a directory with any name, for example from the quarantine. Returns the artifact and the
    checked contents of its files.

    Raises StoreError or FileNotFoundError.
    """
    key = path.name.partition(".")[0]
    with trust.open_directory(path) as artifact_fd:
        manifest = trust.read_file(fmt.MANIFEST, artifact_fd, fmt.MAX_MANIFEST_BYTES, shown=str(path / fmt.MANIFEST))
        artifact = Artifact(path, fmt.open_manifest(manifest, key))
        files = artifact.manifest.files
        return artifact, {name: _read_checked(artifact, name, files[name], artifact_fd) for name in files}


@contextmanager
def reading(root: Path) -> Iterator[None]:
    """Turn errors of the file system into StoreError. The caller handles FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.ESTALE:  # NFS: another host has removed the open file
            raise FileNotFoundError(errno.ENOENT, f"removed by another host: {error}") from error
        raise StoreError(
            f"the store {root} cannot be read: {error}",
            "Make it readable, or set PRECOMPILED_CACHE_DIR to a directory that is",
            code="store-unreadable",
        ) from error


def _read_checked(artifact: Artifact, name: str, record: fmt.FileRecord, artifact_fd: int) -> bytes:
    shown, limit = str(artifact.path / name), fmt.MAX_FILE_BYTES
    try:
        if "/" in name:
            directory, _, file_name = name.partition("/")
            with trust.open_directory(directory, artifact_fd, shown=str(artifact.path / directory)) as directory_fd:
                data = trust.read_file(file_name, directory_fd, limit, shown=shown, expected=record.bytes)
        else:
            data = trust.read_file(name, artifact_fd, limit, shown=shown, expected=record.bytes)
    except FileNotFoundError as error:
        if not _is_at(artifact_fd, artifact.path):
            raise
        raise CorruptArtifact(f"{shown} is missing") from error
    if fmt.digest(data) != record.digest:
        raise CorruptArtifact(f"{shown} does not match its digest")
    return data


def _is_at(directory_fd: int, path: Path) -> bool:
    """Whether ``path`` still names the open directory. If not, the directory was evicted, which is a miss and not
    corruption.

    The inodes are compared, because another artifact may have been published at the path.
    """
    try:
        there = os.lstat(path)
    except OSError:
        return False
    opened = os.fstat(directory_fd)
    return (opened.st_dev, opened.st_ino) == (there.st_dev, there.st_ino)
