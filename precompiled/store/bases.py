"""Searches base stores: read-only directories in the layout of a store. The user's own store is searched first.

A base can be in a container image, a cluster's module tree or a network file system. A miss costs one stat per base. A
problem in a base is reported, and counts as a miss.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from precompiled.core import interruptions
from precompiled.core.errors import CorruptArtifact, StoreError
from precompiled.store import artifact_format as fmt
from precompiled.store.reading import Artifact, StoreReader, reading

NOTE_SUFFIX = ".base"
# A function that the store calls with a sentence about a problem in a base store. The store then works without the
# unusable artifact, entry or base.
OnProblem = Callable[[str], None]


class Base(StoreReader):
    """The artifacts of one base store. The base's path need not exist."""

    setting = "base"

    def lookup(self, key: str, on_problem: OnProblem) -> list[Artifact]:
        """The variants of ``key``, which are numbered from 0 without a gap. Errors of the base are reported, never
        raised.
        """
        found: list[Artifact] = []
        # A miss costs only this stat: no directory is opened or checked.
        if not is_there(self.artifacts / f"{key}.0", on_problem):
            return found
        try:
            with reading(self.root), self.artifacts_fd() as artifacts_fd:
                for slot in range(fmt.MAX_VARIANTS):
                    try:
                        found.append(self.read_artifact(f"{key}.{slot}", key, artifacts_fd))
                    except FileNotFoundError:
                        break
                    except CorruptArtifact as error:
                        # An artifact in a different format is not corrupt: another version of precompiled can read it.
                        if error.code != "artifact-format":
                            on_problem(str(error))
        except StoreError as error:
            interruptions.pass_on(error)
            on_problem(error.message)
        except FileNotFoundError:
            pass  # the base was removed meanwhile; a later load of a found artifact reports it
        return found

    def keys(self) -> Iterator[str]:
        """Every key for which the base has an artifact or failure record."""
        for name in self.names():
            key = name.partition(".")[0]
            if fmt.is_key(key):
                yield key


def is_there(path: Path, on_problem: OnProblem) -> bool:
    """Whether a path in a base exists. Costs one stat."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:  # no permission, or a stale handle of a network file system
        interruptions.pass_on(error)
        on_problem(f"the base store {path.parent.parent} cannot be read: {error.strerror}")
        return False
    return True


def note_name(artifact: Artifact) -> str:
    """The name of the file that, in the quarantine of the user's store, excludes a base's artifact from lookups."""
    what = fmt.digest(f"{artifact.path}\0{artifact.manifest.digest}".encode())
    return f"{artifact.path.name}.{what[:16]}{NOTE_SUFFIX}"


def leave_out(artifact: Artifact, quarantine: Path, reason: str) -> None:
    """Write the file that excludes the artifact (``note_name``), best effort. If the write fails, the next process
    finds the problem itself.
    """
    with suppress(OSError):
        quarantine.mkdir(mode=0o700, parents=True, exist_ok=True)
        (quarantine / note_name(artifact)).write_text(reason + "\n")


def is_left_out(artifact: Artifact, quarantine: Path) -> bool:
    return os.path.lexists(quarantine / note_name(artifact))
