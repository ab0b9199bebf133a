"""Tests that readers see complete artifacts and entries, or none, while other processes publish, evict and clear."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support_remote import HEADER
from support_store import failure, payload

from precompiled.core.errors import StoreError
from precompiled.store import artifact_format as fmt
from precompiled.store import eviction
from precompiled.store.artifacts import Store

KEYS = [fmt.digest(b"%d" % number) for number in range(12)]
FUNCTIONS = [fmt.digest(b"f%d" % number) for number in range(4)]


def _read(store: Store, numbers: random.Random, key: str) -> None:
    for artifact in store.lookup(key):
        assert store.read_files(artifact) == payload(key).files, "an artifact is not whole"
        store.touch(artifact)
    store.failure(key)
    function = numbers.choice(FUNCTIONS)
    for name in store.packages.names(function)[:3]:
        store.packages.header(function, name)
        entry = store.packages.read(function, name)
        assert set(entry.body) == {ord("b")} and entry.header.function == function, "an entry is not whole"
        store.packages.touch(entry)


def _publish(store: Store, numbers: random.Random, key: str) -> None:
    store.publish(payload(key))
    header = replace(HEADER, function=numbers.choice(FUNCTIONS), sources=str(numbers.randrange(50)))
    store.packages.publish(header, b"{}", b"b" * numbers.randrange(1, 20_000))
    if not numbers.randrange(20):
        store.publish_failure(failure(key))


def _evict(store: Store, numbers: random.Random, key: str) -> None:
    eviction.evict(store, 40_000, 1000)


def _clear(store: Store, numbers: random.Random, key: str) -> None:
    eviction.clear(store) if not numbers.randrange(3) else eviction.remove(store, key)
    time.sleep(0.1)


ROLES: dict[str, Callable[[Store, random.Random, str], None]] = {
    "reader": _read,
    "publisher": _publish,
    "evictor": _evict,
    "clearer": _clear,
}

LONGEST_S = 3600.0  # of a reader


def _act(role: str, root: Path, seed: int, rounds: int, ended: Any, answers: Any) -> None:
    """Act in a role. A reader does ``rounds`` rounds, for at most LONGEST_S. Processes in all other roles go on until
    all readers have ended.
    """
    until = time.monotonic() + LONGEST_S
    store, numbers, found = Store(root), random.Random(seed), Counter[str]()
    before = len(os.listdir("/proc/self/fd"))
    while (found["rounds"] < rounds and time.monotonic() < until) if role == "reader" else not ended.is_set():
        found["rounds"] += 1
        try:
            ROLES[role](store, numbers, numbers.choice(KEYS))
            found["done"] += 1
        except FileNotFoundError:
            found["miss"] += 1
        except StoreError as error:
            # A writer tries again after one clear. If a second clear hits the same write, the write is an error.
            is_cleared_twice = role == "publisher" and isinstance(error.__cause__, (FileNotFoundError, FileExistsError))
            found["cleared" if is_cleared_twice else f"{role}: {error}"[:300]] += 1
        except BaseException as error:
            found[f"RAW {role}: {error!r}"[:300]] += 1
    if len(os.listdir("/proc/self/fd")) > before:
        found["descriptors are left"] += 1
    answers.put((role, found))


@pytest.mark.fault("eviction")
@pytest.mark.timeout(7200)
def test_readers_see_whole_artifacts_or_none(
    tmp_path: Path, tries: Callable[..., int], record_property: Callable[[str, object], None]
) -> None:
    fork = multiprocessing.get_context("fork")
    root = tmp_path / "store"
    memory = Path("/dev/shm") / f"pc-readers-{os.getpid()}"
    if os.access("/dev/shm", os.W_OK):
        root = memory / "store"
        memory.mkdir(mode=0o700)
    rounds = tries(40, 30_000, 360_000)
    roles = ["reader"] * (6 if rounds == 40 else 32) + ["publisher"] * 2 + ["evictor"] * 2 + ["clearer"]
    ended, answers = fork.Event(), fork.Queue()
    processes = [
        fork.Process(target=_act, args=(role, root, number, rounds, ended, answers))
        for number, role in enumerate(roles)
    ]
    for process in processes:
        process.start()
    found: dict[str, Counter[str]] = {role: Counter() for role in ROLES}
    try:
        waiting = roles.count("reader")
        for _ in roles:
            role, counts = answers.get(timeout=7200)
            found[role] += counts
            waiting -= role == "reader"
            if not waiting:
                ended.set()
    finally:
        ended.set()
        for process in processes:
            process.join(60)
        quarantined = os.listdir(root / "quarantine") if (root / "quarantine").exists() else []
        left = os.listdir(root / "tmp") if (root / "tmp").exists() else []
        for folder, _, names in os.walk(memory, topdown=False):
            for name in names:
                with suppress(OSError):
                    os.unlink(os.path.join(folder, name))
            with suppress(OSError):
                os.rmdir(folder)
    bad = {text: count for counts in found.values() for text, count in counts.items() if " " in text}
    assert not bad, bad
    assert quarantined == [] and left == [], (quarantined, left)
    record_property("measured", f"{dict(found['reader'])} of all readers")
    assert found["reader"]["done"] and found["publisher"]["done"], found
