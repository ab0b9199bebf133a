"""Base stores: directories below the user's own store, in its layout, that are read where they lie and never written.

For container images, module trees of a cluster, network file systems (docs/decisions/0043). A miss costs one stat for
each base; whatever is wrong with what is there is told, and a miss.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from precompiled.core.errors import CorruptArtifact, StoreError
from precompiled.store import artifact_format as fmt
from precompiled.store.reading import Artifact, Reader, reading

NOTE_SUFFIX = ".base"
# Told of what is left out of a base, in a sentence.
Told = Callable[[str], None]


class Base(Reader):
    """The artifacts of one base store. The path need not be there."""

    def lookup(self, key: str, told: Told) -> list[Artifact]:
        """The variants of ``key``, which are numbered from 0 without a gap. Raises nothing of what is there."""
        found: list[Artifact] = []
        # The one stat of a miss: before any directory is opened and checked.
        if not is_there(self.artifacts / f"{key}.0", told):
            return found
        try:
            with reading(self.root), self.artifacts_fd() as artifacts_fd:
                for slot in range(fmt.MAX_VARIANTS):
                    try:
                        found.append(self.read_artifact(f"{key}.{slot}", key, artifacts_fd))
                    except FileNotFoundError:
                        break
                    except CorruptArtifact as error:
                        # Another format is not corruption: it is for the version of precompiled that wrote it.
                        if error.code != "artifact-format":
                            told(str(error))
        except StoreError as error:
            told(error.message)
        except FileNotFoundError:
            pass  # it was taken away meanwhile: what was read of it may go the same way, and a load says so
        return found

    def keys(self) -> Iterator[str]:
        """Every key of which there is something."""
        for name in self.names():
            key = name.partition(".")[0]
            if fmt.is_key(key):
                yield key


def is_there(path: Path, told: Told) -> bool:
    """Whether a name of a base is there: by one stat."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:  # no permission, a stale handle of a network file system
        told(f"the base store {path.parent.parent} cannot be read: {error.strerror}")
        return False
    return True


def note_name(artifact: Artifact) -> str:
    """The name, in the own store's quarantine, of the note that leaves out an artifact of a base."""
    what = fmt.digest(f"{artifact.path}\0{artifact.manifest.digest}".encode())
    return f"{artifact.path.name}.{what[:16]}{NOTE_SUFFIX}"


def leave_out(artifact: Artifact, quarantine: Path, reason: str) -> None:
    """Write that note; best effort: without it the next process finds out by itself."""
    with suppress(OSError):
        quarantine.mkdir(mode=0o700, parents=True, exist_ok=True)
        (quarantine / note_name(artifact)).write_text(reason + "\n")


def is_left_out(artifact: Artifact, quarantine: Path) -> bool:
    return os.path.lexists(quarantine / note_name(artifact))
