"""A program: runs operations on a store in forks of itself, while failing_calls.c lets one call of each fork fail.

Reads requests from the standard input (support_calls.py), and checks the store after each fork.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import json
import logging
import mmap
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from precompiled.service.watch.registry import Record, Registry
from support_remote import FUNCTION, HEADER, host
from support_store import KEY, OTHER, failure, payload

from precompiled import wire
from precompiled.core.errors import PrecompiledError, StoreError
from precompiled.remote import lease
from precompiled.remote.errors import RemoteError
from precompiled.remote.lease import Claim, Found
from precompiled.store import artifact_format as fmt
from precompiled.store import eviction, lines, run_records
from precompiled.store.artifacts import Store


class Plan(ctypes.Structure):
    """``struct plan`` of failing_calls.c."""

    _fields_ = [
        ("armed", ctypes.c_int),
        ("at", ctypes.c_int),
        ("error", ctypes.c_int),
        ("to_the_end", ctypes.c_int),
        ("calls", ctypes.c_int),
        ("fired", ctypes.c_int),
        ("call", ctypes.c_char * 64),
        ("folder", ctypes.c_char * 256),
    ]


@dataclasses.dataclass(frozen=True)
class Operation:
    """``check`` gets the root and how the operation ended: "done", "raised" or "killed"."""

    prepare: Callable[[Path], object]
    run: Callable[[Path], object]
    check: Callable[[Path, str], object]
    may_raise: tuple[type[Exception], ...] = (StoreError,)


def _whole(root: Path, key: str = KEY) -> int:
    """Return the number of artifacts of a key. Each artifact must have all its files."""
    store = Store(root)
    found = store.lookup(key)
    for artifact in found:
        assert store.read_files(artifact) == payload().files, "an artifact is not whole"
    return len(found)


# ---------------------------------------------------------------- artifacts and failure records


def _check_publish(root: Path, ended: str) -> None:
    assert _whole(root) or (ended != "done" and Store(root).failure(KEY)), "neither an artifact nor the failure record"
    assert Store(root).publish(payload()).slot == 0, "a later writer is affected"


OLD, NEW = failure(created=1e9, ttl_s=1e10), failure(created=1e9 + 1, ttl_s=1e10)


def _check_failure(root: Path, ended: str) -> None:
    assert Store(root).failure(KEY) in ((NEW,) if ended == "done" else (OLD, NEW))


def _check_tuned(root: Path, ended: str) -> None:
    found = Store(root).lookup(KEY)
    assert _whole(root) and (ended != "done" or found[0].manifest.tier == fmt.DEFAULT)


def _fill(root: Path) -> None:
    store = Store(root)
    store.publish(payload())
    store.publish_failure(failure(OTHER))
    store.packages.publish(HEADER, b"{}", b"body")


def _read_all(root: Path) -> None:
    store = Store(root)
    for artifact in store.lookup(KEY):
        assert store.read_files(artifact) == payload().files, "altered files were read"
    store.failure(OTHER)
    store.packages.refused(FUNCTION)
    for name in store.packages.names(FUNCTION):
        with suppress(OSError):
            store.packages.header(FUNCTION, name)
        assert store.packages.read(FUNCTION, name).body == b"body", "an altered entry was read"


def _check_read(root: Path, _ended: str) -> None:
    store = Store(root)
    assert _whole(root) == 1, "the artifact is gone after a failed read"
    assert [store.packages.read(FUNCTION, name).body for name in store.packages.names(FUNCTION)] == [b"body"]
    assert store.failure(OTHER), "the failure record is gone after a failed read"


def _list(root: Path) -> None:
    store = Store(root)
    store.keys()
    store.is_empty()
    list(store.all_artifacts())
    list(store.failures())
    list(store.packages.entries())
    list(store.packages.refusals())


def _check_removed(root: Path, _ended: str) -> None:
    store = Store(root)
    _whole(root)
    assert all(entry.body == b"body" for entry in store.packages.entries())
    eviction.clear(store)
    assert store.is_empty() and not list(store.packages.entries()), "clear() does not remove what is left"


# ---------------------------------------------------------------- packages

SAME = dataclasses.replace(HEADER, meaning="m", sources="s")


def _fill_package(root: Path) -> None:
    store = Store(root)
    store.packages.publish(HEADER, b"{}", b"kept")
    store.packages.publish(SAME, b"{}", b"before")


def _check_package(root: Path, ended: str) -> None:
    bodies = {entry.body for entry in Store(root).packages.entries()}
    assert b"kept" in bodies and bodies <= {b"kept", b"before", b"after"}, bodies
    assert (b"after" in bodies) if ended == "done" else len(bodies) > 1, bodies


def _check_refuse(root: Path, ended: str) -> None:
    assert Store(root).packages.refused(FUNCTION) in (("wrong",) if ended == "done" else ("wrong", None))
    assert {entry.body for entry in Store(root).packages.entries()} <= {b"kept", b"before"}


# ---------------------------------------------------------------- watches, leases, records


def _record(steps: int) -> Record:
    return Record(wire.Registration("entry", ["model:build"], "/usr/bin/python3", "/", "/store", {}, steps=steps))


def _check_watch(root: Path, ended: str) -> None:
    found = [record.registration.steps for _, record in Registry(root).load()]
    assert found in ([[2]] if ended == "done" else [[1], [2]]), f"the watch is lost: {found}"


def _hold_lease(root: Path) -> None:
    claim = Claim(host(root / "a", f"file://{root}/remote"), KEY)
    if claim.look() is Found.MINE:
        claim.beat()
        claim.end()


def _check_lease(root: Path, _ended: str) -> None:
    now = [0.0]
    claim = Claim(host(root / "b", f"file://{root}/remote"), KEY, clock=lambda: now[0])
    found = claim.look()
    assert found in (Found.MINE, Found.THEIRS), f"{found}: other hosts read it as a lease that was given up"
    while found is Found.THEIRS and now[0] < 3 * lease.TTL_S:
        now[0] += claim.beat_s
        found = claim.look()
    assert found is Found.MINE, "the lease of a dead host does not expire"


def _put(root: Path) -> None:
    there = host(root / "a", f"file://{root}/remote")
    [artifact] = there.store.lookup(KEY)
    there.put_artifact(artifact)


def _check_put(root: Path, ended: str) -> None:
    there = host(root / "b", f"file://{root}/remote")
    assert bool(there.fetch(KEY)) or ended != "done", "the artifact is not in the remote"
    _whole(root / "b")


def _keep_run(root: Path) -> None:
    folder = run_records.begin(root, "run")
    lines.AppendedFile(folder / "0-1.jsonl").append({"pid": 1})
    run_records.keep_program(folder, KEY, b"{}" * 1000)


def _check_run(root: Path, ended: str) -> None:
    run_records.runs(root)
    for key, (_, run) in run_records.programs(root).items():
        try:
            assert run_records.read_program(root, run, key) == b"{}" * 1000
        except StoreError:
            assert ended != "done"


OPERATIONS = {
    "publish": Operation(
        lambda root: Store(root).publish_failure(failure()), lambda root: Store(root).publish(payload()), _check_publish
    ),
    "failure record": Operation(
        lambda root: Store(root).publish_failure(OLD), lambda root: Store(root).publish_failure(NEW), _check_failure
    ),
    "tuned over untuned": Operation(
        lambda root: Store(root).publish(payload(tier=fmt.UNTIMED)),
        lambda root: Store(root).publish(payload()),
        _check_tuned,
    ),
    "read": Operation(_fill, _read_all, _check_read, (StoreError, FileNotFoundError)),
    "list": Operation(_fill, _list, _check_read),
    "evict": Operation(_fill, lambda root: eviction.evict(Store(root), 0, 0), _check_removed),
    "clear": Operation(_fill, lambda root: eviction.clear(Store(root), with_scratch=True), _check_removed),
    "package entry": Operation(
        _fill_package, lambda root: Store(root).packages.publish(SAME, b"{}", b"after"), _check_package
    ),
    "refused package": Operation(
        _fill_package, lambda root: Store(root).packages.refuse(HEADER, "wrong"), _check_refuse
    ),
    "watch": Operation(
        lambda root: Registry(root).save("id", _record(1)),
        lambda root: Registry(root).save("id", _record(2)),
        _check_watch,
        (StoreError, OSError),
    ),
    "lease": Operation(lambda root: None, _hold_lease, _check_lease, (StoreError, RemoteError)),
    "put": Operation(lambda root: Store(root / "a").publish(payload()), _put, _check_put, (StoreError, RemoteError)),
    "run record": Operation(lambda root: None, _keep_run, _check_run, (OSError,)),
}


class Attempts:
    """Runs operations below ``folder``. The shared ``plan`` says which call fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        fd = os.open(os.environ["FAILING_CALLS"], os.O_RDWR)
        self.plan = Plan.from_buffer(mmap.mmap(fd, 4096))
        self.plan.folder = str(folder).encode()

    def all(self, operation: str, error: int, every: int, to_the_end: bool) -> dict[str, object]:
        """Let call 1, 1 + ``every``, ... fail, each in its own try."""
        tried, at, problems = 0, 1, []
        while True:
            problems += self._problems(operation, [at], error, to_the_end)
            if not self.plan.fired or len(problems) > 20:
                return {"tried": tried, "problems": problems}
            tried, at = tried + 1, at + every

    def random(self, operation: str, error: int, count: int) -> dict[str, object]:
        """Let a random call fail, repeat the operation in the same store, and let a random call fail there, too."""
        problems = self._problems(operation, [0], error, False)
        calls = self.plan.calls
        for _ in range(count):
            places = [random.randint(1, calls) for _ in range(2)]
            problems += self._problems(operation, places, error, False)
        return {"tried": count, "problems": problems}

    def _problems(self, operation: str, places: list[int], error: int, to_the_end: bool) -> list[str]:
        """Run an operation once for each number in ``places`` (the call that fails), and return the problem that a
        check found, if any.
        """
        problem = self._one(OPERATIONS[operation], places, error, to_the_end)
        call, name = self.plan.call.decode(), errno.errorcode.get(error, "SIGKILL")
        where = f"{operation}: {name} at call {places} ({call}), to_the_end={to_the_end}"
        return [f"{where}: {problem}"] if problem else []

    def _one(self, operation: Operation, places: list[int], error: int, to_the_end: bool) -> str:
        shutil.rmtree(self.folder, ignore_errors=True)
        root = self.folder / "store"
        self.folder.mkdir(mode=0o700, parents=True)
        operation.prepare(root)
        for at in places:
            ended = self._forked(operation, root, at, error, to_the_end)
            if ended not in ("done", "raised", "killed"):
                return ended
        try:
            operation.check(root, ended)
            self._check_rest(root)
        except Exception:
            return f"{ended}, then {traceback.format_exc(limit=-1)}"
        return ""

    def _forked(self, operation: Operation, root: Path, at: int, error: int, to_the_end: bool) -> str:
        """Run the operation in a fork. Returns how the operation ended, or a problem."""
        plan = self.plan
        plan.at, plan.error, plan.to_the_end, plan.calls, plan.fired, plan.call = at, error, to_the_end, 0, 0, b""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            ended = self._run(operation, root)
            os.write(writing, ended.encode())
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as file:
            ended = file.read().decode()
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return "killed"
        return ended or f"ended by {status}"

    def _run(self, operation: Operation, root: Path) -> str:
        """Return how the operation ended in this fork, or the problem that it showed."""
        self.plan.armed = 1
        try:
            operation.run(root)
            ended = "done"
        except operation.may_raise as found:
            ended = "raised" if str(found) and not isinstance(found, AssertionError) else f"no message: {found!r}"
            if isinstance(found, PrecompiledError) and not found.code:
                ended = f"no code: {found!r}"
        except BaseException:
            ended = traceback.format_exc(limit=-2)
        self.plan.armed = 0
        left = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                left.append(os.readlink(f"/proc/self/fd/{fd}"))
            except OSError:
                continue  # the descriptor of this listing
        left = [path for path in left if path.startswith(str(root))]
        return f"descriptors are left: {left}" if left else ended

    def _check_rest(self, root: Path) -> None:
        """Check that nothing is in quarantine, and that an eviction removes what a dead writer left."""
        for store in map(Store, (root, root / "a", root / "b")):
            eviction.evict(store, 1 << 40, 10**6)
            for folder in (store.tmp, store.quarantined):
                assert not folder.exists() or not os.listdir(folder), f"left: {os.listdir(folder)} in {folder}"


def main() -> None:
    logging.disable()
    eviction.TMP_MAX_AGE_S = -1.0
    attempts = Attempts(Path(sys.argv[1]))
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(attempts, request.pop("how"))(**request)), flush=True)


if __name__ == "__main__":
    main()
