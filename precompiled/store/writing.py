"""Publishes artifacts and failure records in the user's store, each by one rename.

Names appear in ``artifacts/`` only by rename, so a reader finds a complete artifact or none. ``artifacts/`` contains no
temporary files, because a scan that finds a temporary file may fail. Such failures ended runs on 512 GPUs
(pytorch#172144).
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from precompiled.core import durable
from precompiled.core.errors import StoreError, UntrustedStore
from precompiled.store import artifact_format as fmt
from precompiled.store import trust
from precompiled.store.reading import Artifact, StoreReader
from precompiled.store.trees import remove_at_once, remove_tree, temporary_name


def full(key: str) -> StoreError:
    """Return the error for a key that has no free slot."""
    return StoreError(f"all {fmt.MAX_VARIANTS} variants of {key[:12]} are in use", code="too-many-variants")


class StoreWriter(StoreReader):
    """Reads and adds artifacts of the store in ``root``. No directory is created before something is published."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.tmp = self.root / "tmp"
        self.quarantined = self.root / "quarantine"

    def prepare(self) -> None:
        """Create the directories, for this user only. Raises StoreError if a directory cannot be written or trusted."""
        try:
            for directory in (self.root, self.artifacts, self.tmp, self.quarantined):
                directory.mkdir(mode=0o700, parents=directory is self.root, exist_ok=True)
                setting = self.setting if directory is self.root else ""
                trust.check_stat(os.lstat(directory), str(directory), directory=True, setting=setting)
        except UntrustedStore:
            raise
        except OSError as error:
            raise StoreError(
                f"the store {self.root} cannot be created: {error}",
                "Make it writable, or set PRECOMPILED_CACHE_DIR to a directory that is",
                code="store-unwritable",
            ) from error

    def publish(self, payload: fmt.Payload) -> Artifact:
        """Publish an artifact, completely and durably, in the first free slot of its key.

        If another writer has published the same variant meanwhile, returns that writer's artifact. A tuned artifact
        replaces an untimed one. If the store has a tuned artifact, an untimed one is not published, and the tuned one
        is returned. Raises StoreError if the artifact cannot be written or all MAX_VARIANTS slots are taken.
        """
        files = {name: fmt.FileRecord(len(data), fmt.digest(data)) for name, data in payload.files.items()}
        manifest = dataclasses.replace(payload.manifest, files=files)
        key = manifest.key
        fmt.check_key(key)
        sealed = fmt.seal(manifest)
        # Before the artifact takes a slot, refuse a manifest that no reader would accept, because of a file name or a
        # size.
        manifest = fmt.open_manifest(sealed, key)
        if len(sealed) > fmt.MAX_MANIFEST_BYTES or any(item.bytes > fmt.MAX_FILE_BYTES for item in files.values()):
            raise StoreError(f"the artifact of {key[:12]} is larger than readers accept", code="too-large")
        for again in (True, False):
            self.prepare()
            if manifest.tier == fmt.UNTIMED and (tuned := self._twin(manifest, fmt.DEFAULT)) is not None:
                return tuned
            try:
                return self._place(manifest, sealed, payload.files)
            except StoreError as error:
                # The store was cleared. Or an eviction, on a host whose clock is ahead, took these files for the files
                # of a dead writer.
                if not again or not isinstance(error.__cause__, FileNotFoundError):
                    raise
        raise AssertionError("the loop has returned or raised")

    def _place(self, manifest: fmt.Manifest, sealed: bytes, files: Mapping[str, bytes]) -> Artifact:
        """Write an artifact's files, and rename their directory to the first free slot. Raises StoreError."""
        key = manifest.key
        with self._temporary_directory() as directory:
            for name, data in files.items():
                path = directory / name
                path.parent.mkdir(mode=0o700, exist_ok=True)
                # Native code is mapped executable, which needs the x bit on some file systems.
                durable.write(path, data, 0o700 if name.endswith(".so") else 0o600)
            durable.write(directory / fmt.MANIFEST, sealed, 0o600)
            for parent in {(directory / name).parent for name in files} | {directory}:
                durable.sync_directory(parent)
            for slot in range(fmt.MAX_VARIANTS):
                target = self.artifacts / f"{key}.{slot}"
                try:
                    os.rename(directory, target)  # fails if the slot is taken, because its directory is not empty
                except OSError as error:
                    # These errors mean that the slot was taken, even if the target is gone now: an eviction may have
                    # removed the artifact in the slot since the rename failed.
                    if error.errno in (errno.ENOTEMPTY, errno.EEXIST) or os.path.lexists(target):
                        if (other := self._same_variant(target, manifest)) is not None:
                            return other
                        continue
                    raise StoreError(f"{target} cannot be published: {error}", code="store-unwritable") from error
                durable.sync_directory(self.artifacts)
                self.forget_failure(key)
                if manifest.tier == fmt.DEFAULT and (untimed := self._twin(manifest, fmt.UNTIMED)) is not None:
                    remove_at_once(untimed.path, self.tmp)
                return Artifact(target, manifest)
        raise full(key)

    def publish_failure(self, failure: fmt.Failure) -> None:
        """Publish a failure record. The record replaces an earlier one of its key."""
        fmt.check_key(failure.key)
        self.prepare()
        target = self.artifacts / (failure.key + fmt.FAILED_SUFFIX)
        try:
            with durable.replacing(target, 0o600, temporary=self.tmp / temporary_name()) as file:
                file.write(fmt.encode_failure(failure))
            durable.sync_directory(self.artifacts)
        except OSError as error:
            raise StoreError(f"{self.artifacts} cannot be written: {error}", code="store-unwritable") from error

    def forget_failure(self, key: str) -> None:
        fmt.check_key(key)
        with suppress(OSError):
            (self.artifacts / (key + fmt.FAILED_SUFFIX)).unlink()

    # ------------------------------------------------------------------ inside

    @contextmanager
    def _temporary_directory(self) -> Iterator[Path]:
        """A directory in ``tmp/``, removed at the end unless it was renamed."""
        directory = self.tmp / temporary_name()
        try:
            directory.mkdir(mode=0o700)
            yield directory
        except OSError as error:
            raise StoreError(
                f"an artifact cannot be written to {self.tmp}: {error}",
                "Free some space, or run `precompiled cache gc`",
                code="store-unwritable",
            ) from error
        finally:
            remove_tree(directory)

    def _same_variant(self, path: Path, manifest: fmt.Manifest) -> Artifact | None:
        """The artifact at ``path`` if it is the same variant as ``manifest``, else None."""
        try:
            with self.artifacts_fd() as artifacts_fd:
                artifact = self.read_artifact(path.name, manifest.key, artifacts_fd)
        except (StoreError, OSError):
            return None
        return artifact if artifact.variant == (manifest.guards, manifest.tier) else None

    def _twin(self, manifest: fmt.Manifest, tier: str) -> Artifact | None:
        """The store's own artifact with the key and guards of ``manifest`` and the tier ``tier``, or None."""
        for slot in range(fmt.MAX_VARIANTS):
            path = self.artifacts / f"{manifest.key}.{slot}"
            if (found := self._same_variant(path, dataclasses.replace(manifest, tier=tier))) is not None:
                return found
        return None
