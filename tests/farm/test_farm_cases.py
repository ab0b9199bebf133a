"""Tests of how a helper handles couriers' jobs and the farm's results. The tests send the driver's messages
themselves.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support_daemon import wait_until
from support_driver import Drivers, body, job
from support_store import KEY, OTHER, payload

from precompiled.farm import farm
from precompiled.farm.messages import Drop, Request, Task, Unusable, decode, send
from precompiled.store.artifacts import Store

pytestmark = pytest.mark.fault("remote")

THIRD = "c" * 64


class Drives:
    """A farm, with the test as its driver."""

    def __init__(self, root: Path, drivers: Drivers) -> None:
        self.drivers, self.store = drivers, Store(root)
        self.ended: list[tuple[str, list[int]]] = []
        self.farm = farm.Farm("auto", self.store, lambda key, slots: self.ended.append((key, slots)))

    def ready(self, places: int) -> None:
        assert self.farm.ask(KEY, courier=True) == {"keep_s": farm.STARTING_AGAIN_S}
        self.drivers.says_nodes(places)
        wait_until(lambda: self.document()["state"] == "ok")

    def bring(self, key: str) -> None:
        assert self.farm.ask(key, courier=True) is None, "it would take it"
        assert "again_s" in self.farm.take(job(key))

    def hears(self) -> Any:
        return self.drivers.hears()

    def says(self, number: int, outcome: Any, *artifacts: bytes, **more: str) -> None:
        before = len(self.ended)
        self.drivers.says_ended(number, outcome, *artifacts, **more)
        wait_until(lambda: len(self.ended) > before)

    def document(self) -> dict[str, Any]:
        return self.farm.document()


@pytest.fixture
def drives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drives]:
    drivers = Drivers(monkeypatch)
    found = Drives(tmp_path / "store", drivers)
    yield found
    found.farm.close()
    drivers.close()
    wait_until(lambda: found.document()["state"] in ("unused", "unusable"))


def test_farm_result_is_published_and_the_next_job_is_sent(drives: Drives) -> None:
    drives.ready(places=1)
    drives.bring(KEY)
    drives.bring(OTHER)
    task = drives.hears()
    assert isinstance(task, Task) and decode(task.request, Request).job.key == KEY and task.time_limit_s == 60.0
    assert (drives.document()["out"], drives.document()["waiting"]) == (1, 1)
    drives.says(task.number, "compiled", body(KEY))
    assert drives.ended == [(KEY, [0])] and drives.store.read_files(drives.store.lookup(KEY)[0]) == payload().files
    assert decode(drives.hears().request, Request).job.key == OTHER
    assert (drives.document()["sent"], drives.document()["compiled"], drives.document()["waiting"]) == (2, 1, 0)
    # Once the farm has compiled a key, this host's workers compile its further variants.
    assert drives.farm.ask(KEY, courier=True)["keep_s"] > 0 and drives.farm.ask(KEY, courier=False) is None


def test_free_worker_gets_waiting_jobs_but_not_sent_ones(drives: Drives) -> None:
    drives.ready(places=1)
    drives.bring(KEY)
    drives.bring(OTHER)
    drives.hears()
    assert drives.farm.ask(OTHER, courier=True) == {"again_s": farm.WAITING_AGAIN_S}
    assert drives.farm.ask(OTHER, courier=False) == {"compile": True}
    assert "again_s" in drives.farm.ask(KEY, courier=False)
    assert (drives.document()["taken_back"], drives.document()["hedged"], drives.document()["out"]) == (1, 0, 1)


def test_late_job_is_compiled_locally_too_and_the_first_result_counts(
    drives: Drives, monkeypatch: pytest.MonkeyPatch
) -> None:
    drives.ready(places=1)
    drives.bring(KEY)
    drives.bring(OTHER)
    task = drives.hears()
    monkeypatch.setattr(farm, "MIN_PATIENCE_S", 0.0)
    monkeypatch.setattr(farm, "PATIENCE", 0.0)
    assert "again_s" in drives.farm.ask(KEY, courier=True), "a courier compiles nothing"
    assert [drives.farm.ask(KEY, courier=False) for _ in range(2)] == [{"compile": True}] * 2
    assert drives.document()["hedged"] == 1, "it is the same worker's job, again"
    drives.farm.published_here(KEY)
    dropped = drives.hears()
    assert isinstance(dropped, Drop) and dropped.number == task.number
    second = drives.hears()
    assert isinstance(second, Task), "its place is free"
    drives.drivers.says_ended(task.number, "compiled", body(KEY))  # the artifact of the dropped job still arrives
    drives.says(second.number, "compiled", body(OTHER))
    assert drives.ended == [(OTHER, [0])] and not drives.store.lookup(KEY)


@pytest.mark.reason("farm-environment", "farm-failed", "farm-corrupt")
@pytest.mark.parametrize("code", ["farm-environment", "farm-failed", "farm-corrupt"])
def test_job_that_a_node_returns_is_left_to_local_workers(drives: Drives, code: str) -> None:
    drives.ready(places=1)
    drives.bring(KEY)
    number = drives.hears().number
    if code == "farm-corrupt":
        spoilt = bytearray(body(KEY))
        spoilt[-1] ^= 1
        drives.says(number, "compiled", bytes(spoilt), node="n")
    else:
        drives.says(number, "refused" if code == "farm-environment" else "failed", code=code, message="why")
    document = drives.document()
    assert {**document["refused"], **document["failed"]} == {code: 1} and document["last"], document
    assert drives.ended == [(KEY, [])] and not drives.store.lookup(KEY)
    assert drives.farm.ask(KEY, courier=False) is None and drives.farm.ask(KEY, courier=True)["keep_s"] > 60.0


def test_another_keys_artifact_is_not_published(drives: Drives) -> None:
    drives.ready(places=1)
    drives.bring(KEY)
    drives.says(drives.hears().number, "compiled", body(OTHER), node="n")
    assert drives.document()["failed"] == {"farm-corrupt": 1}
    assert not drives.store.lookup(KEY) and not drives.store.lookup(OTHER)


@pytest.mark.reason("farm-lost")
def test_lost_driver_loses_all_jobs_and_is_replaced_later(drives: Drives) -> None:
    drives.ready(places=1)
    for key in (KEY, OTHER):
        drives.bring(key)
    drives.hears()
    drives.drivers.streams[-1].shutdown(socket.SHUT_RDWR)
    wait_until(lambda: len(drives.ended) == 2)
    assert drives.ended == [(KEY, []), (OTHER, [])] and drives.document()["failed"] == {"farm-lost": 2}
    assert drives.document()["state"] == "unusable" and "driver" in drives.document()["reason"]
    assert drives.farm.ask(KEY, courier=False) is None
    assert drives.farm.ask(KEY, courier=True) == {"keep_s": farm.REST_S} and len(drives.drivers.streams) == 1


@pytest.mark.reason("farm-unusable")
def test_unusable_farm_reports_its_reason(drives: Drives) -> None:
    assert drives.document()["state"] == "unused", "nothing is started before the first request"
    drives.farm.ask(KEY, courier=True)
    drives.drivers.says_nodes()
    wait_until(lambda: drives.document()["state"] == "unusable")
    assert "no node" in drives.document()["reason"] and drives.farm.ask(KEY, courier=True) == {"keep_s": farm.REST_S}
    send(drives.drivers.streams[-1], Unusable("it is gone"))
    drives.drivers.streams[-1].shutdown(socket.SHUT_RDWR)
    wait_until(lambda: drives.document()["reason"] == "it is gone")
    assert drives.document()["code"] == "farm-unusable"


def test_number_of_waiting_jobs_is_limited(drives: Drives, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farm, "MAX_WAITING", 1)
    drives.ready(places=1)
    drives.bring(KEY)
    drives.bring(OTHER)
    assert drives.farm.ask(THIRD, courier=True) == {"keep_s": farm.FULL_AGAIN_S}
