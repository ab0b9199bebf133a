"""Stores artifacts: lookup, atomic publish, quarantine, eviction.

Names appear in ``artifacts/`` by rename only, so a reader sees a complete artifact or none. (In another cache, a
directory scan that met temporary files of other writers ended runs on 512 GPUs: pytorch#172144.)
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from precompiled.core import durable
from precompiled.core.errors import CorruptArtifact, StoreError, UntrustedStore
from precompiled.store import artifact_format as fmt
from precompiled.store import bases, scratch, trust, unfit
from precompiled.store.packages import PackageStore, temporary_name
from precompiled.store.reading import Artifact, StoreReader, reading

FAILED_SUFFIX = ".failed"
# Seconds between two marks of an artifact as used: a loop of steps must not write metadata all the time.
TOUCH_INTERVAL_S = 60.0
# After this many seconds, files of a dead writer in tmp/ are removed.
TMP_MAX_AGE_S = 3600.0
# Quarantined files are kept this many seconds, so that people can inspect them.
QUARANTINE_MAX_AGE_S = 7 * 86400.0
QUARANTINE_SHARE = 1 / 10
# The share of the budget for packages (store/packages.py), which are small beside the artifacts of their graphs.
PACKAGES_SHARE = 1 / 10


@dataclass(frozen=True)
class Evicted:
    """The result of an eviction: what it removed."""

    artifacts: int
    bytes: int
    packages: int = 0  # entries of packages; ``bytes`` does not include them


def full(key: str) -> StoreError:
    """The error for a further variant if no slot is left."""
    return StoreError(f"all {fmt.MAX_VARIANTS} variants of {key[:12]} are taken", code="too-many-variants")


class Store(StoreReader):
    """A user's store: the cache directory at ``root``. No directory is created before something is published.

    ``base``: base stores (bases.py), searched in this order after the user's own store. ``on_problem`` is called with a
    sentence for each artifact or package of a base that is left out. Writes, removals and counts concern the user's own
    store alone.
    """

    def __init__(
        self, root: Path, base: Sequence[Path] = (), on_problem: bases.OnProblem = lambda reason: None
    ) -> None:
        super().__init__(root)
        self.tmp = self.root / "tmp"
        self.quarantined = self.root / "quarantine"
        self.bases = [bases.Base(path) for path in base if Path(path) != self.root]
        self.packages = PackageStore(self.root, [item.root for item in self.bases], on_problem)
        self._on_problem = on_problem

    # ------------------------------------------------------------------ reading

    def lookup(self, key: str) -> list[Artifact]:
        """Return all variants of ``key`` with checked manifests. Their files are checked when they are read.

        The order: the store's own variants by slot, then variants that only a base has. Untimed artifacts, which
        could be tuned, come last. A corrupt artifact is quarantined and left out. Raises UntrustedStore if another
        user could have written the store or an artifact of the key in it.
        """
        _check_key(key)
        found: list[Artifact] = []
        try:
            with reading(self.root), self.artifacts_fd() as artifacts_fd:
                for slot in range(fmt.MAX_VARIANTS):
                    name = f"{key}.{slot}"
                    try:
                        found.append(self.read_artifact(name, key, artifacts_fd))
                    except FileNotFoundError:
                        continue
                    except CorruptArtifact as error:
                        self._quarantine_unless_newer(self.artifacts / name, error)
        except FileNotFoundError:
            pass
        for base in self.bases:
            known = {artifact.variant for artifact in found}
            found += [
                artifact
                for artifact in base.lookup(key, self._on_problem)
                if artifact.variant not in known and not bases.is_left_out(artifact, self.quarantined)
            ]
        return sorted(found, key=lambda artifact: artifact.manifest.tier == fmt.UNTIMED)

    def is_own(self, artifact: Artifact) -> bool:
        """Whether an artifact is in the user's own store, and not in a base."""
        return artifact.root == self.root

    def failure(self, key: str, now: float | None = None) -> fmt.Failure | None:
        """The failure record of ``key``, or None if there is none or it has expired."""
        _check_key(key)
        name = key + FAILED_SUFFIX
        try:
            with reading(self.root), self.artifacts_fd() as artifacts_fd:
                data = trust.read_file(name, artifacts_fd, fmt.MAX_MANIFEST_BYTES, shown=str(self.artifacts / name))
            failure = fmt.open_failure(data, key)
        except FileNotFoundError:
            return None
        except CorruptArtifact as error:
            self._quarantine_unless_newer(self.artifacts / name, error)
            return None
        return None if failure.expired(time.time() if now is None else now) else failure

    def read_files(self, artifact: Artifact) -> dict[str, bytes]:
        """The checked contents, by name, of all files of an artifact that a load needs.

        Raises CorruptArtifact (and quarantines the artifact) if a file is missing, short or altered; UntrustedStore
        if another user could have written it; FileNotFoundError if the artifact was evicted.
        """
        # Leave out the captured graph (program.json.gz), which only people read: reading it would slow down a hit.
        return self.read_some(artifact, [name for name in artifact.manifest.files if name != fmt.PROGRAM])

    def read_for_others(self, artifact: Artifact) -> dict[str, bytes]:
        """The files of an artifact that another host or user needs (``names_for_others``). Raises as ``read_files``."""
        return self.read_some(artifact, fmt.names_for_others(artifact.manifest))

    def read_program(self, artifact: Artifact) -> bytes | None:
        """The captured graph from which an artifact was compiled (program.json.gz), checked like the artifact's other
        files. None if the artifact lacks this file.
        """
        if fmt.PROGRAM not in artifact.manifest.files:
            return None
        return fmt.unpack_program(self.read_some(artifact, [fmt.PROGRAM])[fmt.PROGRAM])

    def read_some(self, artifact: Artifact, names: list[str]) -> dict[str, bytes]:
        """The checked contents of these files of an artifact. Raises as ``read_files``."""
        if not self.is_own(artifact):
            try:
                return StoreReader(artifact.root).read(artifact, names)
            except StoreError as error:
                self.set_aside(artifact, str(error))
                raise
        try:
            return self.read(artifact, names)
        except CorruptArtifact as error:
            self.quarantine(artifact.path, str(error))
            raise

    def touch(self, artifact: Artifact) -> None:
        """Mark an artifact as used now, for eviction by least recent use. Best effort: the store may be read-only."""
        if self.is_own(artifact):
            with suppress(OSError):
                # abs: a clock that ran ahead must not keep an artifact the newest for ever.
                if abs(time.time() - artifact.path.stat().st_mtime) > TOUCH_INTERVAL_S:
                    os.utime(artifact.path)

    def all_artifacts(self) -> Iterator[Artifact]:
        """Every readable artifact, including the bases', in no order."""
        for reader in (self, *self.bases):
            yield from reader.every()

    def keys(self) -> set[str]:
        """Every key for which the store or a base has an artifact or failure record."""
        own = {name.partition(".")[0] for name in self.names()}
        return own.union(*(base.keys() for base in self.bases))

    def is_empty(self) -> bool:
        """Whether there is no artifact at all, so that a graph that is being traced will be a miss. Raises
        StoreError.
        """
        for reader in (self, *self.bases):
            with suppress(FileNotFoundError), reading(reader.root), os.scandir(reader.artifacts) as found:
                if next(found, None) is not None:
                    return False
        return True

    def failures(self) -> Iterator[fmt.Failure]:
        """Every failure record that has not expired, in no order."""
        for name in self.names():
            key = name.removesuffix(FAILED_SUFFIX)
            if key != name and fmt.is_key(key):
                failure = None
                with suppress(StoreError):
                    failure = self.failure(key)
                if failure is not None:
                    yield failure

    # ------------------------------------------------------------------ writing

    def prepare(self) -> None:
        """Create the directories, for this user only. Raises StoreError if they cannot be written or trusted."""
        try:
            for directory in (self.root, self.artifacts, self.tmp, self.quarantined):
                directory.mkdir(mode=0o700, parents=directory is self.root, exist_ok=True)
                trust.check_stat(os.lstat(directory), str(directory), directory=True)
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

        If another writer has published the same variant meanwhile, that one stays and is returned. A tuned artifact
        replaces an untimed one. Raises StoreError if the artifact cannot be written or all MAX_VARIANTS slots are
        taken.
        """
        files = {name: fmt.FileRecord(len(data), fmt.digest(data)) for name, data in payload.files.items()}
        manifest = dataclasses.replace(payload.manifest, files=files)
        key = manifest.key
        _check_key(key)
        sealed = fmt.seal(manifest)
        # A manifest that no reader would accept (a file name, a size) is refused before it takes a slot.
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
                # The store was cleared meanwhile, or an eviction whose clock runs ahead removed the files as a dead
                # writer's.
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
                    os.rename(directory, target)  # fails if the slot holds an artifact, a directory that is not empty
                except OSError as error:
                    if os.path.lexists(target):
                        if (other := self._same_variant(target, manifest)) is not None:
                            return other
                        continue
                    raise StoreError(f"{target} cannot be published: {error}", code="store-unwritable") from error
                durable.sync_directory(self.artifacts)
                self.forget_failure(key)
                if manifest.tier == fmt.DEFAULT and (untimed := self._twin(manifest, fmt.UNTIMED)) is not None:
                    self._remove_path(untimed.path)
                return Artifact(target, manifest)
        raise full(key)

    def publish_failure(self, failure: fmt.Failure) -> None:
        """Publish a failure record, which replaces an older one of its key."""
        _check_key(failure.key)
        self.prepare()
        target = self.artifacts / (failure.key + FAILED_SUFFIX)
        try:
            with durable.replacing(target, 0o600, temporary=self.tmp / temporary_name()) as file:
                file.write(fmt.encode_failure(failure))
            durable.sync_directory(self.artifacts)
        except OSError as error:
            raise StoreError(f"{self.artifacts} cannot be written: {error}", code="store-unwritable") from error

    def forget_failure(self, key: str) -> None:
        _check_key(key)
        with suppress(OSError):
            (self.artifacts / (key + FAILED_SUFFIX)).unlink()

    def quarantine(self, path: Path, reason: str) -> None:
        """Move an artifact or failure record to the quarantine, for people to inspect. Best effort."""
        target = self.quarantined / f"{path.name}.{temporary_name()}"
        with suppress(OSError):
            self.quarantined.mkdir(mode=0o700, exist_ok=True)
            os.rename(path, target)
            (self.quarantined / f"{target.name}.reason").write_text(reason + "\n")

    def set_aside(self, artifact: Artifact, reason: str) -> None:
        """Exclude from lookups an artifact that turned out to be unusable when it was read or loaded. The remote does
        not fetch it again either.
        """
        unfit.note(artifact, self.quarantined, reason)
        if self.is_own(artifact):
            self.quarantine(artifact.path, reason)
        else:
            bases.leave_out(artifact, self.quarantined, reason)

    def remove(self, key: str) -> Evicted:
        """Remove all variants and the failure record of ``key``, even if they cannot be read or trusted."""
        _check_key(key)
        removed = Evicted(0, 0)
        for slot in range(fmt.MAX_VARIANTS):
            path = self.artifacts / f"{key}.{slot}"
            if os.path.lexists(path):
                removed = _plus(removed, self._remove_path(path))
        self.forget_failure(key)
        return removed

    def clear(self, *, with_scratch: bool = False) -> Evicted:
        """Remove every artifact, failure record, package, quarantined file and temporary file; ``with_scratch``: the
        workers' own files, too.
        """
        removed = Evicted(0, 0, self.packages.clear())
        if with_scratch:
            self._remove_path(self.root / scratch.SCRATCH)
        for name in self.names():
            path = self.artifacts / name
            if _is_directory(path):
                removed = _plus(removed, self._remove_path(path))
            else:
                with suppress(OSError):
                    path.unlink()
        for directory in (self.tmp, self.quarantined):
            with suppress(OSError):
                for child in directory.iterdir():
                    _remove_tree(child)
        return removed

    def evict(self, max_bytes: int, max_inodes: int) -> Evicted:
        """Remove least recently used artifacts until both budgets hold.

        Also remove files of dead writers, expired failure records, and old files of the quarantine and the workers'
        cache. The remaining files of these two, and packages, count towards ``max_bytes``, each up to its share.
        """
        self._sweep(self.tmp, TMP_MAX_AGE_S)
        self._sweep(self.quarantined, QUARANTINE_MAX_AGE_S)
        self._sweep_failures()
        max_bytes -= scratch.shrink(self.root, int(max_bytes * scratch.SHARE)) + self._shrink_quarantine(
            int(max_bytes * QUARANTINE_SHARE)
        )
        max_bytes -= self.packages.shrink(int(max_bytes * PACKAGES_SHARE))
        candidates: list[tuple[float, int, int, Path]] = []
        for name in self.names():
            path = self.artifacts / name
            if _is_directory(path):
                with suppress(OSError):
                    used, size, inodes = path.stat().st_mtime, *_weigh(path)
                    candidates.append((used, size, inodes, path))
        total_bytes = sum(item[1] for item in candidates)
        total_inodes = sum(item[2] for item in candidates)
        removed = Evicted(0, 0)
        for _used, size, inodes, path in sorted(candidates, key=lambda item: item[0]):
            if total_bytes <= max_bytes and total_inodes <= max_inodes:
                break
            removed = _plus(removed, self._remove_path(path))
            total_bytes -= size
            total_inodes -= inodes
        return removed

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
            _remove_tree(directory)

    def _same_variant(self, path: Path, manifest: fmt.Manifest) -> Artifact | None:
        """The artifact at ``path`` if it is the same variant as ``manifest``, else None."""
        try:
            with self.artifacts_fd() as artifacts_fd:
                artifact = self.read_artifact(path.name, manifest.key, artifacts_fd)
        except (StoreError, OSError):
            return None
        return artifact if artifact.variant == (manifest.guards, manifest.tier) else None

    def _twin(self, manifest: fmt.Manifest, tier: str) -> Artifact | None:
        """The store's own artifact with the key and guards of ``manifest`` and this tier, or None."""
        for slot in range(fmt.MAX_VARIANTS):
            path = self.artifacts / f"{manifest.key}.{slot}"
            if (found := self._same_variant(path, dataclasses.replace(manifest, tier=tier))) is not None:
                return found
        return None

    def _quarantine_unless_newer(self, path: Path, error: CorruptArtifact) -> None:
        # Another format is not corrupt: the version of precompiled that wrote it can read it.
        if error.code != "artifact-format":
            self.quarantine(path, str(error))

    def _remove_path(self, path: Path) -> Evicted:
        # Renamed first, so that a reader sees a complete artifact or none. A reader that has opened it can read on.
        grave = self.tmp / temporary_name()
        try:
            size, _inodes = _weigh(path)
            self.tmp.mkdir(mode=0o700, exist_ok=True)
            os.rename(path, grave)
        except OSError:
            return Evicted(0, 0)  # another process has removed it
        _remove_tree(grave)
        return Evicted(1, size)

    def _sweep(self, directory: Path, max_age_s: float) -> None:
        with suppress(OSError):
            for child in directory.iterdir():
                with suppress(OSError):
                    status = child.lstat()
                    # ctime as well: a rename into quarantine keeps mtime, the time of the artifact's last use.
                    if time.time() - max(status.st_mtime, status.st_ctime) > max_age_s:
                        _remove_tree(child)

    def _sweep_failures(self) -> None:
        for name in self.names():
            key = name.removesuffix(FAILED_SUFFIX)
            if key != name and fmt.is_key(key):
                with suppress(StoreError):
                    if self.failure(key) is None:
                        self.forget_failure(key)

    def _shrink_quarantine(self, max_bytes: int) -> int:
        """Remove the oldest quarantined files. Returns how many bytes of ``max_bytes`` are in use then."""
        quarantined: list[tuple[float, int, Path]] = []
        with suppress(OSError):
            for child in self.quarantined.iterdir():
                with suppress(OSError):
                    status = child.lstat()
                    size = _weigh(child)[0] if stat.S_ISDIR(status.st_mode) else status.st_size
                    quarantined.append((status.st_ctime, size, child))  # the time of the quarantine
        total = sum(size for _, size, _ in quarantined)
        for _since, size, path in sorted(quarantined):
            if total <= max_bytes:
                break
            _remove_tree(path)
            total -= size
        return total


def _check_key(key: str) -> None:
    """Raise StoreError unless ``key`` has the form of a key: it becomes a file name."""
    if not fmt.is_key(key):
        raise StoreError(f"{key!r} is not a key", code="bad-key")


def _plus(left: Evicted, right: Evicted) -> Evicted:
    return Evicted(left.artifacts + right.artifacts, left.bytes + right.bytes, left.packages + right.packages)


def _is_directory(path: Path) -> bool:
    """Whether a path is a directory and not a link. False if the file system raises an error."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _remove_tree(path: Path) -> None:
    """Remove a file or tree, best effort. A later sweep removes what is left."""
    with suppress(OSError):
        if _is_directory(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _weigh(path: Path) -> tuple[int, int]:
    """The bytes and inodes of a directory tree."""
    size, inodes = 0, 1
    for parent, directories, files in os.walk(path):
        inodes += len(directories) + len(files)
        size += sum(os.lstat(os.path.join(parent, name)).st_size for name in files)
    return size, inodes
