"""Makes a base store (bases.py) from a store.

The base store has only the files that other hosts and users need. Every user can read them.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from precompiled.core import durable
from precompiled.core.errors import StoreError
from precompiled.store import artifact_format as fmt
from precompiled.store import package_format
from precompiled.store.artifacts import Store
from precompiled.store.reading import Artifact
from precompiled.store.triton_kernels import KERNELS, TritonKernels, open_kernel


@dataclass(frozen=True)
class Baked:
    """The contents of a base store."""

    artifacts: int
    packages: int  # entries
    kernels: int  # Triton's, outside of graphs
    bytes: int


def bake(store: Store, target: Path) -> Baked:
    """Write a base store to ``target``, completely or not at all. ``target`` must not exist. Raises StoreError,
    OSError.
    """
    new = target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}")
    count, size, entries, kernels = 0, 0, 0, 0
    try:
        _directory(new)
        _directory(new / "artifacts")
        slots: dict[str, int] = {}
        for artifact in sorted(store.every(), key=lambda item: item.path.name):
            key = artifact.manifest.key
            # Evictions leave gaps in the slots of a store, but the slots of a base must have no gaps.
            slots[key] = slots.get(key, -1) + 1
            size += _artifact(store, artifact, new / "artifacts" / f"{key}.{slots[key]}")
            count += 1
        for entry in store.packages.entries():
            if entry.root != store.root or store.packages.refused(entry.header.function) is not None:
                continue
            folder = new / "packages" / entry.header.function
            for directory in (folder.parent, folder):
                _directory(directory)
            name, content = package_format.seal(entry.header, entry.about, entry.body)
            _file(folder / name, content)
            entries, size = entries + 1, size + len(content)
        own = TritonKernels(store.root)
        for key in own.all_keys():
            content = own.content(key)
            open_kernel(key, content)
            _directory(new / KERNELS)
            _file(new / KERNELS / own.path(key).name, content)
            kernels, size = kernels + 1, size + len(content)
        durable.sync_directory(new)
        os.rename(new, target)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return Baked(count, entries, kernels, size)


def _artifact(store: Store, artifact: Artifact, folder: Path) -> int:
    """Write those files of an artifact that another host or user needs. Returns their bytes."""
    files = store.read_for_others(artifact)
    records = {name: record for name, record in artifact.manifest.files.items() if name in files}
    _directory(folder)
    for name, data in files.items():
        with suppress(FileExistsError):
            _directory((folder / name).parent)
        _file(folder / name, data)
    sealed = fmt.seal(dataclasses.replace(artifact.manifest, files=records))
    _file(folder / fmt.MANIFEST, sealed)
    return len(sealed) + sum(map(len, files.values()))


def _directory(path: Path) -> None:
    with suppress(FileExistsError):
        path.mkdir()
        path.chmod(0o755)  # other users must be able to read it under any umask


def _file(path: Path, data: bytes) -> None:
    durable.write(path, data, 0o600)
    # Native code is mapped executable, which needs the x bit on some file systems.
    path.chmod(0o755 if path.suffix == ".so" else 0o644)


def check_target(target: Path) -> None:
    """Raise StoreError if nothing can be baked to ``target``. An empty directory at ``target`` is removed."""
    with suppress(OSError):
        target.rmdir()
    if os.path.lexists(target):
        raise StoreError(f"{target} is there already", "Give another directory, or remove it", code="bake-target")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise StoreError(
            f"{target.parent} cannot be written, or is not there",
            "Give a directory whose parent you can write to",
            code="bake-target",
        )
