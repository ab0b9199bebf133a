"""Removes files of the user's store: all files, the files of one key, or the least recently used files."""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from precompiled.core.errors import StoreError
from precompiled.store import artifact_format as fmt
from precompiled.store import recipe_lists, scratch
from precompiled.store.artifacts import Store
from precompiled.store.crashes import CRASHES, LOADING
from precompiled.store.trees import is_directory, remove_at_once, remove_tree, weigh_tree
from precompiled.store.triton_kernels import TritonKernels

# Seconds after which a file in tmp/ is removed: its writer counts as dead.
TMP_MAX_AGE_S = 3600.0
# Seconds for which quarantined files are kept for inspection.
QUARANTINE_MAX_AGE_S = 7 * 86400.0
QUARANTINE_SHARE = 1 / 10
# The share of the budget for packages (store/packages.py), which are small in comparison with artifacts.
PACKAGES_SHARE = 1 / 10
# The share of the budget for Triton kernels outside of graphs (store/triton_kernels.py).
KERNELS_SHARE = 1 / 10


@dataclass(frozen=True)
class Evicted:
    """The result of an eviction: what it removed."""

    artifacts: int
    bytes: int
    packages: int = 0  # entries of packages; ``bytes`` does not include them


def remove(store: Store, key: str) -> Evicted:
    """Remove all variants and the failure record of ``key``, even if they cannot be read or trusted."""
    fmt.check_key(key)
    removed = Evicted(0, 0)
    for slot in range(fmt.MAX_VARIANTS):
        path = store.artifacts / f"{key}.{slot}"
        if os.path.lexists(path):
            removed = _plus(removed, _remove_artifact(store, path))
    store.forget_failure(key)
    return removed


def clear(store: Store, *, with_scratch: bool = False) -> Evicted:
    """Remove every artifact, failure record, package, Triton kernel, recipe, quarantined file and temporary file.

    ``with_scratch``: also remove the workers' Inductor cache.
    """
    removed = Evicted(0, 0, store.packages.clear())
    TritonKernels(store.root).clear()
    recipe_lists.clear(store.root)
    if with_scratch:
        _remove_artifact(store, store.root / scratch.SCRATCH)
    for name in store.names():
        path = store.artifacts / name
        if is_directory(path):
            removed = _plus(removed, _remove_artifact(store, path))
        else:
            with suppress(OSError):
                path.unlink()
    for directory in (store.tmp, store.quarantined):
        with suppress(OSError):
            for child in directory.iterdir():
                # A writer may be about to rename the child to an artifact. So the removal must be atomic.
                remove_at_once(child, store.tmp)
    return removed


def evict(store: Store, max_bytes: int, max_inodes: int) -> Evicted:
    """Remove least recently used artifacts until both budgets hold.

    Also remove files of dead writers, expired failure records, and old files of the quarantine and of the workers'
    cache. The remaining quarantine, workers' cache, packages and Triton kernels count towards ``max_bytes``, each up
    to its share.
    """
    _sweep(store, store.tmp, TMP_MAX_AGE_S)
    for directory in (store.quarantined, store.root / CRASHES, store.root / LOADING):
        _sweep(store, directory, QUARANTINE_MAX_AGE_S)
    _sweep_failures(store)
    in_scratch = scratch.shrink(store.root, int(max_bytes * scratch.SHARE))
    max_bytes -= in_scratch + _shrink_quarantine(store, int(max_bytes * QUARANTINE_SHARE))
    max_bytes -= store.packages.shrink(int(max_bytes * PACKAGES_SHARE))
    max_bytes -= TritonKernels(store.root).shrink(int(max_bytes * KERNELS_SHARE))
    candidates: list[tuple[float, int, int, Path]] = []
    for name in store.names():
        path = store.artifacts / name
        if is_directory(path):
            with suppress(OSError):
                used, size, inodes = path.stat().st_mtime, *weigh_tree(path)
                candidates.append((used, size, inodes, path))
    total_bytes = sum(item[1] for item in candidates)
    total_inodes = sum(item[2] for item in candidates)
    removed = Evicted(0, 0)
    for _used, size, inodes, path in sorted(candidates, key=lambda item: item[0]):
        if total_bytes <= max_bytes and total_inodes <= max_inodes:
            break
        removed = _plus(removed, _remove_artifact(store, path))
        total_bytes -= size
        total_inodes -= inodes
    return removed


def _sweep(store: Store, directory: Path, max_age_s: float) -> None:
    with suppress(OSError):
        for child in directory.iterdir():
            with suppress(OSError):
                status = child.lstat()
                # Use ctime as well: a rename into the quarantine keeps mtime, the time of the artifact's last use.
                if time.time() - max(status.st_mtime, status.st_ctime) > max_age_s:
                    remove_at_once(child, store.tmp)


def _sweep_failures(store: Store) -> None:
    for name in store.names():
        key = name.removesuffix(fmt.FAILED_SUFFIX)
        if key != name and fmt.is_key(key):
            with suppress(StoreError):
                if store.failure(key) is None:
                    store.forget_failure(key)


def _shrink_quarantine(store: Store, max_bytes: int) -> int:
    """Remove the oldest quarantined files. Returns how many bytes of ``max_bytes`` the remaining files use."""
    quarantined: list[tuple[float, int, Path]] = []
    with suppress(OSError):
        for child in store.quarantined.iterdir():
            with suppress(OSError):
                status = child.lstat()
                size = weigh_tree(child)[0] if stat.S_ISDIR(status.st_mode) else status.st_size
                quarantined.append((status.st_ctime, size, child))  # the time of the quarantine
    total = sum(size for _, size, _ in quarantined)
    for _since, size, path in sorted(quarantined):
        if total <= max_bytes:
            break
        remove_tree(path)
        total -= size
    return total


def _remove_artifact(store: Store, path: Path) -> Evicted:
    size = remove_at_once(path, store.tmp)
    return Evicted(0, 0) if size is None else Evicted(1, size)


def _plus(left: Evicted, right: Evicted) -> Evicted:
    return Evicted(left.artifacts + right.artifacts, left.bytes + right.bytes, left.packages + right.packages)
