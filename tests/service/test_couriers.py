"""Tests of couriers, with fake events and time: the scheduler offers jobs without a free slot to their user's farm."""

from __future__ import annotations

from precompiled.service.couriers import COURIER_S, MAX_COURIERS
from precompiled.service.events import (
    COURIER,
    KillWorker,
    RunJob,
    StartWorker,
    StopWorker,
    Tick,
    WorkerGone,
    WorkerReady,
)
from support_scheduler import Host, interpreter


def courier(host: Host, said: list) -> int:
    """Check that the instructions ``said`` start a courier, and return its number."""
    start = host.only(StartWorker, said)
    assert (start.device, start.interpreter) == (COURIER, interpreter())
    return start.worker


def test_only_jobs_without_a_slot_are_offered_to_the_farm() -> None:
    host = Host()
    worker = host.warm()
    first = host.only(RunJob, host.submit("a", farm=True))
    assert (first.worker, first.job.offer) == (worker, None)
    number = courier(host, host.submit("b", farm=True))
    assert not [item for item in host.submit("c") if isinstance(item, StartWorker)], "its user has no farm"
    offered = host.only(RunJob, host.tell(WorkerReady(number)))
    assert (offered.worker, offered.job.key) == (number, "b") and offered.job.offer.interpreter == interpreter()
    # The farm compiles job "b", so job "b" is parked for 5 s and the free slot goes to job "c".
    host.done(offered, "parked", again_s=5.0)
    assert host.only(RunJob, host.done(first)).job.key == "c"


def test_a_job_for_which_a_worker_starts_is_not_offered() -> None:
    host = Host()
    start = host.only(StartWorker, host.submit("a", farm=True))
    assert start.device == "cpu", "a worker and no courier, since a slot is free"
    courier(host, host.submit("b", farm=True))
    assert host.only(RunJob, host.tell(WorkerReady(start.worker))).job.key == "a"


def test_a_job_that_the_farm_rejects_gets_the_next_slot() -> None:
    host = Host()
    worker = host.warm()
    first = host.only(RunJob, host.submit("a", farm=True))
    number = courier(host, host.submit("b", farm=True))
    offered = host.only(RunJob, host.tell(WorkerReady(number)))
    assert not [item for item in host.done(offered, "kept", again_s=20.0) if isinstance(item, RunJob)]
    host.now += 19.0
    assert not [item for item in host.tell(Tick()) if isinstance(item, RunJob)]
    host.now += 2.0
    assert host.only(RunJob, host.tell(Tick())).worker == number, "the job is offered again"
    host.done(host.all(RunJob)[-1], "kept", again_s=20.0)
    again = host.only(RunJob, host.done(first))
    assert (again.worker, again.job.key, again.job.attempt, again.job.offer) == (worker, "b", 1, None)


def test_a_parked_job_goes_to_a_free_worker_or_else_to_a_courier() -> None:
    host = Host()
    worker = host.warm()
    first = host.only(RunJob, host.submit("a", farm=True))
    number = courier(host, host.submit("b", farm=True))
    host.done(host.only(RunJob, host.tell(WorkerReady(number))), "parked", again_s=5.0)
    host.now += 5.1
    asked = host.only(RunJob, host.tell(Tick()))
    assert asked.worker == number
    host.done(asked, "parked", again_s=5.0)
    host.done(first)
    host.now += 5.1
    assert host.only(RunJob, host.tell(Tick())).worker == worker
    assert host.reply(host.done(host.all(RunJob)[-1], "exists")).state == "published"


def test_a_courier_takes_no_slot_and_no_process_and_exits_soon() -> None:
    host = Host(slots=1, processes=1)
    host.warm()
    host.submit("a", farm=True)
    number = courier(host, host.submit("b", farm=True))
    host.done(host.only(RunJob, host.tell(WorkerReady(number))), "exists")
    host.now += host.scheduler.limits.extra_idle_s + 1
    assert host.only(StopWorker, host.tell(Tick())).worker == number
    host.tell(WorkerGone(number, "idle"))
    courier(host, host.submit("c", farm=True))


def test_the_number_of_a_users_couriers_is_limited() -> None:
    """A user gets one courier per interpreter. A courier is a process that uses file descriptors of the daemon. Without
    a limit, a user with many interpreters could exhaust the host's processes and the daemon's descriptors.
    """
    host = Host()
    host.warm()
    host.submit("a", farm=True)
    for number in range(MAX_COURIERS + 3):
        host.submit(f"b{number}", env=f"e{number}", farm=True)
    starts = host.all(StartWorker)
    assert [start.device for start in starts] == [COURIER] * MAX_COURIERS
    host.submit("c", uid=2, farm=True)
    assert len(host.all(StartWorker)) == MAX_COURIERS + 1, "another user gets a courier"
    # When a courier has exited, the user's next interpreter gets a courier.
    host.tell(WorkerReady(starts[0].worker))
    host.done(host.all(RunJob)[-1], "exists")
    host.now += host.scheduler.limits.extra_idle_s + 1
    host.tell(Tick())
    host.tell(WorkerGone(starts[0].worker, "idle"))
    assert host.all(StartWorker)[-1].interpreter == interpreter(f"e{MAX_COURIERS}")


def test_a_courier_that_hangs_or_dies_does_not_quarantine_its_job() -> None:
    host = Host()
    host.warm()
    first = host.only(RunJob, host.submit("a", farm=True))
    number = courier(host, host.submit("b", farm=True))
    host.tell(WorkerReady(number))
    host.now += COURIER_S + 1
    assert host.only(KillWorker, host.tell(Tick())).worker == number
    host.tell(WorkerGone(number, "timeout"))
    for _death in range(3):
        host.now += COURIER_S + 1
        number = courier(host, host.tell(Tick()))
        host.tell(WorkerReady(number))
        host.tell(WorkerGone(number, "died"))
    assert host.only(RunJob, host.done(first)).job.key == "b", "the key is not quarantined"


def test_a_courier_that_does_not_start_is_not_retried_for_a_while() -> None:
    host = Host(start_refused_s=60.0)
    host.warm()
    first = host.only(RunJob, host.submit("a", farm=True))
    number = courier(host, host.submit("b", farm=True))
    assert not [item for item in host.tell(WorkerGone(number, "died")) if isinstance(item, StartWorker)]
    assert host.only(RunJob, host.done(first)).job.key == "b"


def test_a_courier_that_fails_on_a_full_host_delays_no_worker() -> None:
    host = Host(processes=3, slots=2, start_refused_s=60.0)
    host.warm()
    host.submit("a", farm=True)
    host.submit("b", farm=True)
    number = courier(host, host.submit("c", farm=True))
    assert not host.tell(WorkerGone(number, "host-full")), "no other courier is started at once"
    waiting = host.all(StartWorker)[0].worker
    host.tell(WorkerGone(waiting, "died"))
    assert host.all(StartWorker)[-1].device == "cpu", "a worker is started"
