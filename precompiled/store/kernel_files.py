"""Finds C++ kernels in artifacts of the user's store, so that a worker builds only new kernels.

A kernel's name is the SHA-256 of its types and source. The kernel's machine code also depends on torch, the compiler,
the compiler's flags and the CPU. A program's sections ``environment`` and ``configs`` contain these facts. So a job
searches only artifacts that this version of precompiled has compiled and whose sections equal its own. There is no
index besides the manifests. So an eviction leaves no stale index, and the checks of owner and digest apply.
"""

from __future__ import annotations

import heapq
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from precompiled.core.errors import StoreError
from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Store
from precompiled.store.reading import Artifact
from precompiled.version import VERSION

# The number of artifacts that a job searches. These are the most recently used ones. Reading a manifest takes 1 to 3
# ms, once per process.
MAX_ARTIFACTS = 256
# A file is used only if the job needs this share of its kernels. With a smaller share, artifacts would grow without
# limit, because an artifact contains whole files.
MIN_SHARE = 1 / 2
_SECTIONS = ("environment", "configs")

# The artifacts that this process has read, by path, each with the inode of its directory. If a later artifact has the
# same path and inode, a read notices that the manifest differs.
_read: dict[Path, tuple[int, Artifact | None]] = {}


@dataclass(frozen=True)
class KernelFile:
    """A ``.so`` of an artifact: its SHA-256, its checked content, and the names of its kernels."""

    digest: str
    content: bytes
    kernels: frozenset[str]


class KernelFiles:
    """The files with C++ kernels that a job can use. ``components``: the components of the job's key (graph/key.py)."""

    def __init__(self, store: Store, components: Mapping[str, str]) -> None:
        self._store, self._components = store, components

    def with_kernels(self, names: Collection[str]) -> Iterator[KernelFile]:
        """Yield files that contain some of the kernels ``names``, beginning with the file that contains the most.

        An artifact that cannot be read is left out, and a corrupt one is quarantined.
        """
        kernels, artifacts = self._files()
        missing = set(names)
        while kernels:
            digest = max(kernels, key=lambda file: len(kernels[file] & missing))
            contained = kernels.pop(digest)
            needed = contained & missing
            if not needed:
                return
            if len(needed) < MIN_SHARE * len(contained):
                continue
            content = self._content(artifacts[digest], fmt.native(digest))
            if content is not None:
                missing -= needed
                yield KernelFile(digest, content, frozenset(contained))

    def _files(self) -> tuple[dict[str, set[str]], dict[str, list[Artifact]]]:
        """Return two maps, both from a file's digest: to the file's kernels, and to the artifacts that contain the
        file.
        """
        kernels: dict[str, set[str]] = {}
        artifacts: dict[str, list[Artifact]] = {}
        for artifact in _most_recent(self._store):
            manifest = artifact.manifest
            if manifest.compiled_by.get("version") == VERSION and all(
                manifest.components.get(name) == self._components[name] for name in _SECTIONS
            ):
                for kernel, digest in manifest.kernels.items():
                    kernels.setdefault(digest, set()).add(kernel)
                for digest in set(manifest.kernels.values()):
                    artifacts.setdefault(digest, []).append(artifact)
        return kernels, artifacts

    def _content(self, artifacts: list[Artifact], name: str) -> bytes | None:
        for artifact in artifacts:
            try:
                return self._store.read_some(artifact, [name])[name]
            except (StoreError, FileNotFoundError) as error:
                sys.stderr.write(f"the kernels of {artifact.path} are not used: {error}\n")  # to the worker's log
        return None


def _most_recent(store: Store) -> Iterator[Artifact]:
    """Yield the readable artifacts among the MAX_ARTIFACTS that were used last."""
    found: dict[str, os.stat_result] = {}
    with suppress(OSError), os.scandir(store.artifacts) as entries:
        for entry in entries:
            with suppress(OSError):  # removed meanwhile
                found[entry.name] = entry.stat(follow_symlinks=False)
    names = heapq.nlargest(MAX_ARTIFACTS, found, key=lambda name: found[name].st_mtime)
    recent = {store.artifacts / name: found[name].st_ino for name in names}
    for path in _read.keys() - recent.keys():
        del _read[path]
    for path, inode in recent.items():
        if path not in _read or _read[path][0] != inode:
            _read[path] = inode, store.readable(path.name)
        if (artifact := _read[path][1]) is not None:
            yield artifact
