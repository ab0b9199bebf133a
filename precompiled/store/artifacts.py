"""Looks up artifacts in a user's store and its bases, and quarantines damaged artifacts.

writing.py publishes artifacts, eviction.py removes them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from precompiled.core import interruptions
from precompiled.core.errors import CorruptArtifact, StoreError
from precompiled.store import artifact_format as fmt
from precompiled.store import bases, trees, trust, unfit
from precompiled.store.last_use import mark_used
from precompiled.store.packages import PackageStore
from precompiled.store.reading import Artifact, StoreReader, reading
from precompiled.store.writing import StoreWriter


class Store(StoreWriter):
    """A user's store: the cache directory at ``root``. Opening a store creates no directory.

    ``base``: base stores (bases.py), searched in this order after the user's own store. If an artifact or package of a
    base is left out, ``on_problem`` is called with a sentence about the reason. Writes, removals and counts affect only
    the user's own store.
    """

    def __init__(
        self, root: Path, base: Sequence[Path] = (), on_problem: bases.OnProblem = lambda reason: None
    ) -> None:
        super().__init__(root)
        self.bases = [bases.Base(path) for path in base if Path(path) != self.root]
        self.packages = PackageStore(self.root, [item.root for item in self.bases], on_problem)
        self._on_problem = on_problem

    # ------------------------------------------------------------------ reading

    def lookup(self, key: str) -> list[Artifact]:
        """Return all variants of ``key``. This method checks only the manifests; ``read_files`` checks the other files.

        Untimed artifacts come last. Before them come the store's own variants, by slot, and then the variants that only
        a base has. A corrupt artifact is quarantined and left out. Raises UntrustedStore if another user could have
        written the store or an artifact of the key.
        """
        fmt.check_key(key)
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
        fmt.check_key(key)
        name = key + fmt.FAILED_SUFFIX
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
        # Leave out the captured graph (program.json.gz): a load does not need it, and reading it would slow down a hit.
        return self.read_some(artifact, [name for name in artifact.manifest.files if name != fmt.PROGRAM])

    def read_for_others(self, artifact: Artifact) -> dict[str, bytes]:
        """Those files of an artifact that another host or user needs. Raises the errors of ``read_files``."""
        return self.read_some(artifact, fmt.names_for_others(artifact.manifest))

    def read_program(self, artifact: Artifact) -> bytes | None:
        """The captured graph from which an artifact was compiled (program.json.gz), checked like the artifact's other
        files. None if the artifact has no such file.
        """
        if fmt.PROGRAM not in artifact.manifest.files:
            return None
        return fmt.unpack_program(self.read_some(artifact, [fmt.PROGRAM])[fmt.PROGRAM])

    def program_for_failure(self, artifact: Artifact) -> str:
        """An artifact's captured graph in the form of ``Failure.program``, for `cache show --repro` and `explain`. ""
        if the graph cannot be read.
        """
        try:
            program = self.read_program(artifact)
        except (StoreError, OSError) as error:
            interruptions.pass_on(error)
            return ""
        return "" if program is None else fmt.program_for_failure(program)

    def read_some(self, artifact: Artifact, names: list[str]) -> dict[str, bytes]:
        """The checked contents of the files ``names``. Raises the errors of ``read_files``."""
        if not self.is_own(artifact):
            try:
                return StoreReader(artifact.root).read(artifact, names)
            except StoreError as error:
                interruptions.pass_on(error)
                self.set_aside(artifact, str(error))
                raise
        try:
            return self.read(artifact, names)
        except CorruptArtifact as error:
            interruptions.pass_on(error)
            self.quarantine(artifact.path, str(error))
            raise

    def touch(self, artifact: Artifact) -> None:
        """Mark an artifact as used now. An artifact of a base stays unchanged."""
        if self.is_own(artifact):
            mark_used(artifact.path)

    def all_artifacts(self) -> Iterator[Artifact]:
        """Every readable artifact of the store and its bases, in no particular order."""
        for reader in (self, *self.bases):
            yield from reader.every()

    def keys(self) -> set[str]:
        """Every key for which the store or a base has an artifact or failure record."""
        own = {name.partition(".")[0] for name in self.names()}
        return own.union(*(base.keys() for base in self.bases))

    def is_empty(self) -> bool:
        """Whether the store and its bases are empty, so that each graph will be a miss. Raises StoreError."""
        for reader in (self, *self.bases):
            with suppress(FileNotFoundError), reading(reader.root), os.scandir(reader.artifacts) as found:
                if next(found, None) is not None:
                    return False
        return True

    def failures(self) -> Iterator[fmt.Failure]:
        """Every failure record that has not expired, in no particular order."""
        for name in self.names():
            key = name.removesuffix(fmt.FAILED_SUFFIX)
            if key != name and fmt.is_key(key):
                failure = None
                with suppress(StoreError):
                    failure = self.failure(key)
                if failure is not None:
                    yield failure

    # ------------------------------------------------------------------ quarantine

    def quarantine(self, path: Path, reason: str) -> None:
        """Move an artifact or failure record to the quarantine. Best effort."""
        trees.quarantine(path, self.quarantined, reason)

    def set_aside(self, artifact: Artifact, reason: str) -> None:
        """Exclude an artifact from lookups, because a read or a load found that it is unusable. The helper does not
        fetch this artifact again.
        """
        unfit.note(artifact, self.quarantined, reason)
        if self.is_own(artifact):
            self.quarantine(artifact.path, reason)
        else:
            bases.leave_out(artifact, self.quarantined, reason)

    # ------------------------------------------------------------------ inside

    def _quarantine_unless_newer(self, path: Path, error: CorruptArtifact) -> None:
        interruptions.pass_on(error)
        # An artifact in a different format is not corrupt: another version of precompiled can read it.
        if error.code != "artifact-format":
            self.quarantine(path, str(error))
