"""Makes a base store of a store (bases.py): what a second process needs, readable by everybody, and nothing else."""

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


@dataclass(frozen=True)
class Baked:
    """What a base store holds."""

    artifacts: int
    packages: int  # entries
    bytes: int


def bake(store: Store, target: Path) -> Baked:
    """Write a base store to ``target``, which must not be there, whole or not at all. Raises StoreError, OSError."""
    new = target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}")
    count, size, entries = 0, 0, 0
    try:
        _directory(new)
        _directory(new / "artifacts")
        slots: dict[str, int] = {}
        for artifact in sorted(store.every(), key=lambda item: item.path.name):
            key = artifact.manifest.key
            slots[key] = slots.get(key, -1) + 1  # without the gaps that evictions leave: bases have none
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
        durable.sync_directory(new)
        os.rename(new, target)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return Baked(count, entries, size)


def _artifact(store: Store, artifact: Artifact, folder: Path) -> int:
    """Write what a load needs of an artifact; how many bytes."""
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
        path.chmod(0o755)  # others are meant to read it, whatever our umask is


def _file(path: Path, data: bytes) -> None:
    durable.write(path, data, 0o600)
    # Native code is mapped executable, so it may need the x bit on file systems that check it.
    path.chmod(0o755 if path.suffix == ".so" else 0o644)


def check_target(target: Path) -> None:
    """Raise StoreError where nothing can be baked to ``target``; an empty directory there is taken away."""
    with suppress(OSError):
        target.rmdir()
    if os.path.lexists(target):
        raise StoreError(f"{target} is there already", "Give another directory, or remove it", code="bake-target")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise StoreError(
            f"{target.parent} cannot be written, or is not there", "Give a directory whose parent you can write to",
            code="bake-target",
        )  # fmt: skip
