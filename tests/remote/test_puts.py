"""Tests of the queue of puts: a remote that fails for a while loses no objects. A remote that fails for long does not
keep a helper alive forever.
"""

from __future__ import annotations

import argparse
import errno
import socket
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support_daemon import wait_until
from support_remote import host
from support_store import KEY, payload

from precompiled.remote import bucket, envelope, helper, helper_link, lease, opened_remote, puts, starting, transfer
from precompiled.remote.claims import Claims
from precompiled.remote.errors import RemoteError
from precompiled.remote.job_turns import send_answer
from precompiled.remote.opened_remote import OpenedRemote
from precompiled.remote.puts import Puts, QueuedPut
from precompiled.store.artifacts import Store


class PutLog(OpenedRemote):
    """An open remote that records its calls."""

    def __init__(self, rests: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self.done.set()
        self._rests = rests
        self.tried: list[str] = []
        self.errors: list[Exception] = []
        self.given_up: list[tuple[int, str]] = []

    def rests(self) -> bool:
        return self._rests()

    def failed(self, error: Exception) -> None:
        self.errors.append(error)

    def gave_up(self, number: int, why: str) -> None:
        self.given_up.append((number, why))


@contextmanager
def running(put: Callable[[QueuedPut], None], seen: PutLog) -> Iterator[Puts]:
    found = Puts(seen, Claims(seen.failed, may_hold=False), lambda: None, wanted=True)
    found._put = put  # type: ignore[method-assign]
    thread = threading.Thread(target=found.run)
    thread.start()
    try:
        yield found
    finally:
        found.leave(0.0)
        thread.join(30.0)
        assert not thread.is_alive()


def refuses(seen: PutLog) -> Callable[[QueuedPut], None]:
    def put(item: QueuedPut) -> None:
        seen.tried.append(item.what["key"])
        raise RemoteError("no server listens", code="remote-unreachable")

    return put


def test_failed_puts_are_retried_when_the_remote_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More puts fail than are needed to pause the remote. The puts that wait when the pause begins must not be lost."""
    monkeypatch.setattr(puts, "AGAIN_S", 0.05)
    monkeypatch.setattr(bucket, "REST_S", 0.1)
    place = tmp_path / "bucket"
    place.write_text("no directory")
    there = host(tmp_path / "a", f"file://{place}")
    keys = [f"{number:x}" * 64 for number in range(bucket.MAX_FAILURES + 2)]
    artifacts = {key: there.store.publish(payload(key)) for key in keys}

    def rests() -> bool:
        return there.bucket.reading.rests or there.bucket.writing.rests

    seen = PutLog(rests)
    with running(lambda item: there.put_artifact(artifacts[item.what["key"]]) and None, seen) as found:
        for key in keys:
            assert found.add({"key": key})
        assert found.flush() and found.waiting == len(keys) and len(seen.errors) >= len(keys)
        place.unlink()
        wait_until(lambda: found.waiting == 0)
    assert all(there.objects(envelope.ARTIFACT, key) for key in keys) and seen.given_up == []


def test_flush_tries_each_put_once() -> None:
    seen = PutLog()
    with running(refuses(seen), seen) as found:
        for key in "abc":
            found.add({"key": key})
        assert found.flush() and seen.tried == ["a", "b", "c"]
        assert found.flush() and seen.tried == ["a", "b", "c"] * 2 and found.waiting == 3
    assert [number for number, _why in seen.given_up] == [3] and "no server listens" in seen.given_up[0][1]


def test_put_that_fails_for_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puts, "AGAIN_S", 0.05)
    monkeypatch.setattr(puts, "KEPT_S", 0.5)
    seen = PutLog()
    with running(refuses(seen), seen) as found:
        found.add({"key": "a"})
        wait_until(lambda: seen.given_up)
        assert found.waiting == 0 and len(seen.tried) > 1
    [(number, why)] = seen.given_up
    assert number == 1 and "no server listens" in why


def test_put_above_the_queue_limit_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puts, "MAX_WAITING", 1)
    seen = PutLog()
    with running(refuses(seen), seen) as found:
        assert found.add({"key": "a"}) and found.flush()
        assert not found.add({"key": "b"}) and seen.given_up[0][0] == 1


def test_list_is_put_after_earlier_puts() -> None:
    """A list that was put first would not name an object that the remote accepts at the second try. An empty host would
    then miss an object that the remote has.
    """
    fails, seen = threading.Event(), PutLog()
    fails.set()

    def put(item: QueuedPut) -> None:
        seen.tried.append(item.what["do"])
        if item.what["do"] == "put" and fails.is_set():
            raise RemoteError("no server listens", code="remote-unreachable")

    with running(put, seen) as found:
        found.add({"do": "put"})
        assert found.flush()
        found.add({"do": "used"})
        assert found.flush() and found.waiting == 2 and "used" not in seen.tried
        fails.clear()
        assert found.flush() and found.flush() and found.waiting == 0
    assert seen.tried[-2:] == ["put", "used"] and seen.given_up == []


def test_put_after_the_end_is_reported() -> None:
    seen = PutLog()
    with running(refuses(seen), seen) as found:
        found.leave(0.0)
        assert not found.add({"key": "a"}) and [number for number, _why in seen.given_up] == [1]


# ---------------------------------------------------------------- a helper's end


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A place that accepts no objects until the file in its way is removed."""
    found = tmp_path / "bucket"
    found.write_text("no directory")
    return found


@contextmanager
def serving(root: Path, place: Path, idle_s: float) -> Iterator[threading.Thread]:
    """Run a helper in this process, so that the test can shorten its waiting times."""
    arguments = ["--store", str(root), "--remote", f"file://{place}", "--unsigned", "--idle-s", str(idle_s)]
    options: argparse.Namespace = helper._parser().parse_args(arguments)
    folder = helper_link.folder(root)
    folder.mkdir(parents=True, mode=0o700)
    listening: socket.socket = starting.listening(folder)
    with listening:
        thread = threading.Thread(target=helper.Helper(options, arguments).serve, args=(listening,))
        thread.start()
        try:
            yield thread
        finally:
            helper_link.ask(root, {"do": "stop"})
            thread.join(60.0)
            assert not thread.is_alive()


def last_state(tmp_path: Path, place: Path) -> dict[str, Any]:
    """Return the last state of a helper that gets one put and no further request, and then exits by itself."""
    root = tmp_path / "store"
    slot = Store(root).publish(payload()).slot
    with serving(root, place, idle_s=3.0) as thread:
        helper_link.put_artifact(root, KEY, slot)
        thread.join(60.0)
        assert not thread.is_alive()
    return helper_link.state(root) or {}


def test_helper_with_waiting_puts_outlives_its_idle_time(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puts, "AGAIN_S", 0.2)
    monkeypatch.setattr(puts, "KEPT_S", 3.0)
    state = last_state(tmp_path, place)
    assert (state["waiting"], state["put"], state["given_up"]) == (0, 0, 1)
    # The reported reason must be 3 s of failures, and not the exit of the helper.
    assert "3 s" in state["last"] and state["failed"], state


def test_helper_stops_without_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "LOOK_S", 600.0)
    with serving(tmp_path / "store", tmp_path / "bucket", idle_s=600.0):
        pass  # ``serving`` sends the stop request, and waits for a shorter time


def test_stopping_helper_exits_only_after_its_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, alive = tmp_path / "store", []

    def late(file: Any, answer: dict[str, Any]) -> None:
        if not answer:
            thread.join(0.5)
            alive.append(thread.is_alive())
        send_answer(file, answer)

    monkeypatch.setattr(helper, "send_answer", late)
    with serving(root, tmp_path / "bucket", idle_s=600.0) as thread:
        assert helper_link.ask(root, {"do": "stop"}) == {}
    assert alive == [True]


def test_stopped_helper_finishes_its_puts(tmp_path: Path, place: Path) -> None:
    root, there = tmp_path / "store", host(tmp_path / "other", f"file://{place}")
    slot = Store(root).publish(payload()).slot

    def state() -> dict[str, object]:
        return helper_link.state(root) or {}

    with serving(root, place, idle_s=600.0) as thread:
        helper_link.put_artifact(root, KEY, slot)
        wait_until(lambda: state().get("failed"))
        wait_until(lambda: state()["waiting"] == 1)
        place.unlink()
        assert helper_link.ask(root, {"do": "stop"}) == {}
        assert helper_link.greeting(root) is None  # the stopped helper no longer listens, so the next helper may start
        thread.join(60.0)
    assert there.objects(envelope.ARTIFACT, KEY)
    assert (state()["waiting"], state()["put"], state()["given_up"]) == (0, 1, 0)


class _Full:
    """A log on a full disk."""

    def write(self, _text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.fault("file-systems")
def test_helper_with_a_full_disk_continues_and_exits(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puts, "AGAIN_S", 0.2)
    monkeypatch.setattr(puts, "KEPT_S", 3.0)
    monkeypatch.setattr(opened_remote, "sys", types.SimpleNamespace(stderr=_Full()))
    assert last_state(tmp_path, place)["given_up"] == 1


@pytest.mark.integration
def test_remote_that_never_opens_does_not_keep_a_helper(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(transfer, "open_transfer", lambda *_: over.wait(120.0) and None)
    last_state(tmp_path, place)
    over.set()


def test_failed_removal_of_an_empty_lease_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, place = tmp_path / "store", tmp_path / "bucket"
    there = host(tmp_path / "other", f"file://{place}")
    name = f"artifacts/{KEY}/lease-{there.trust.by}-00000001"
    there.bucket.write(name, b"")
    slot = Store(root).publish(payload()).slot
    remove, failures = lease.remove_given_up, [RemoteError("503", code="remote-unreachable")]

    def fails_once(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        remove(*arguments)

    monkeypatch.setattr(lease, "remove_given_up", fails_once)
    with serving(root, place, idle_s=600.0):
        helper_link.put_artifact(root, KEY, slot)
        wait_until(lambda: (helper_link.state(root) or {}).get("waiting") == 1 and not failures)
        assert helper_link.ask(root, {"do": "flush"}) == {}
        assert len(there.bucket.listed(f"artifacts/{KEY}")) == len(there.objects(envelope.ARTIFACT, KEY)) == 1
