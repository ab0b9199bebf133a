"""Measures lookups and other reads of a store with a growing number of artifacts."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import LIMIT_S, BenchmarkError, Host
from benchmarks.harness.result import Table
from precompiled.store import artifact_format as fmt
from precompiled.store import eviction
from precompiled.store.artifacts import Artifact, Store


def copies(store: Store, artifact: Artifact, count: int) -> list[str]:
    """Fill the store up to ``count`` artifacts like ``artifact`` and return all keys."""
    keys = [artifact.manifest.key]
    native = artifact.path / fmt.NATIVE
    for number in range(1, count):
        key = hashlib.sha256(f"{artifact.manifest.key} {number}".encode()).hexdigest()
        keys.append(key)
        target = store.artifacts / f"{key}.0"
        if target.exists():
            continue
        making = store.tmp / f"copy-{key}"
        making.mkdir(mode=0o700)
        if native.is_dir():
            (making / fmt.NATIVE).mkdir(mode=0o700)
        for name in artifact.manifest.files:
            os.link(artifact.path / name, making / name)
        manifest = making / fmt.MANIFEST
        manifest.write_bytes(fmt.seal(dataclasses.replace(artifact.manifest, key=key)))
        manifest.chmod(0o600)
        making.rename(target)
    if len(store.lookup(keys[-1])) != 1:
        raise BenchmarkError(f"the copy {keys[-1]} cannot be read as an artifact")
    return keys


def measure_store(host: Host, artifact: Artifact, counts: Sequence[int], repeats: int, say: Say) -> Table:
    """Return the table of the times."""
    table = Table(
        f"The store: time of one operation, by number of artifacts (medians of {repeats})",
        [
            "artifacts",
            "lookup, hit (µs)",
            "lookup, miss (µs)",
            "read and verify a hit (µs)",
            "search for eviction (s)",
            "`precompiled cache ls` (s)",
            "`precompiled status` (s)",
            "`precompiled cache stats` (s)",
        ],
    )
    store = Store(host.settings.cache_dir)
    for count in counts:
        keys = copies(store, artifact, count)
        chosen = [keys[(7919 * number) % len(keys)] for number in range(repeats)]
        absent = [hashlib.sha256(key.encode()).hexdigest() for key in chosen]
        hit = _microseconds(lambda key: len(store.lookup(key)) == 1, chosen)
        miss = _microseconds(lambda key: not store.lookup(key), absent)
        found = [store.lookup(key)[0] for key in chosen]
        read = _microseconds(lambda item: len(store.read_files(item)) > 0, found)
        started = time.perf_counter()
        evicted = eviction.evict(store, host.settings.cache_max_bytes, host.settings.cache_max_inodes)
        evict_s = time.perf_counter() - started
        if evicted.artifacts:
            raise BenchmarkError(f"{evicted.artifacts} artifacts were evicted: the copies do not fit into the budget")
        commands = [f"{_command_s(host, name):.2f}" for name in ("cache ls", "status", "cache stats")]
        table.rows.append([f"{count:,}", f"{hit:.0f}", f"{miss:.0f}", f"{read:.0f}", f"{evict_s:.3f}", *commands])
        say(f"{count:,} artifacts: a hit {hit:.0f} µs, a miss {miss:.0f} µs, eviction's look {evict_s:.2f} s")
    return table


def _microseconds(look: Callable[[Any], bool], items: Sequence[Any]) -> float:
    """Return the median time of ``look``, called with each of ``items``. Raises BenchmarkError if ``look`` returns
    false.
    """
    seconds = []
    for item in items:
        started = time.perf_counter()
        right = look(item)
        seconds.append(time.perf_counter() - started)
        if not right:
            raise BenchmarkError(f"not found as it should be: {item}")
    return 1e6 * statistics.median(seconds)


def _command_s(host: Host, name: str) -> float:
    command = host.precompiled(*name.split(), "--json", hook=False)
    started = time.perf_counter()
    subprocess.run(command["argv"], env=command["env"], stdout=subprocess.DEVNULL, check=True, timeout=LIMIT_S)
    return time.perf_counter() - started
