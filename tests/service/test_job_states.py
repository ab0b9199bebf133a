"""Tests of the state transitions of jobs and of the processes that run them."""

from __future__ import annotations

import pytest
from precompiled.service import job_states as module
from precompiled.service.job_states import ScheduledJob, SchedulerError
from precompiled.service.workers import Worker
from support_scheduler import interpreter

from precompiled import wire


def _job(state: str) -> ScheduledJob:
    message = wire.Submit("i", "k", "/s", interpreter(), "cpu")
    return ScheduledJob(1, 1, 1, message, b"", module.Seat.of(1, "cpu", interpreter()), False, state=state)


TRIGGERS = sorted({trigger for _, trigger in module.JOB_MOVES})
STATES = ("queued", "running", "published", "failed", "quarantined", "dropped")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("trigger", TRIGGERS)
def test_only_transitions_in_the_table_are_allowed(state: str, trigger: str) -> None:
    job = _job(state)
    job.story.append((1.0, "submit"))
    if (state, trigger) in module.JOB_MOVES:
        job.move(trigger, 2.0)
        assert job.state == module.JOB_MOVES[state, trigger]
    else:
        with pytest.raises(SchedulerError) as caught:
            job.move(trigger, 2.0)
        assert caught.value.story == [(1.0, "submit"), (2.0, trigger)], "the error has the story"


@pytest.mark.reason("scheduler")
def test_a_wrong_worker_transition_raises_scheduler_error() -> None:
    worker = Worker(1, module.Seat.of(1, "cpu", interpreter()), interpreter())
    with pytest.raises(SchedulerError, match="cannot done when it is starting") as caught:
        worker.move("done", 1.0)
    assert caught.value.code == "scheduler"
