"""A scheduler for tests that run no processes: the events and the clock are fake."""

from __future__ import annotations

import itertools
from typing import Any

from precompiled.service.events import (
    Count,
    Expected,
    Limits,
    Reply,
    RunJob,
    StartWorker,
    Submitted,
    WorkerDone,
    WorkerReady,
)
from precompiled.service.scheduler import Scheduler

from precompiled import wire

_ids = itertools.count()


def interpreter(name: str = "a") -> wire.Interpreter:
    return wire.Interpreter(f"/{name}/python", f"/{name}", "3.11", "2.13", "", {"PATH": "/bin"})


class Host:
    """A scheduler, its clock, and the instructions that it has returned."""

    def __init__(self, **limits: Any) -> None:
        self.scheduler = Scheduler(Limits(**{"slots": 1, "processes": 2, **limits}))
        self.now = 1000.0
        self.said: list[Any] = []

    def tell(self, event: Any) -> list[Any]:
        said = self.scheduler.handle(event, self.now)
        self.said += said
        return said

    def submit(self, key: str, *, uid: int = 1, env: str = "a", blob: bytes = b"graph", **values: Any) -> list[Any]:
        message = wire.Submit(
            id=values.pop("id", f"id{next(_ids)}"),
            key=key,
            store="/store",
            environment=interpreter(env),
            device=values.pop("device", "cpu"),
            **values,
        )
        return self.tell(Submitted(b"client-" + message.id.encode(), uid, uid, message, blob))

    def expect(self, *, uid: int = 1, env: str = "a", device: str = "cpu", tracing: bool = True) -> list[Any]:
        return self.tell(Expected(uid, uid, interpreter(env), device, tracing=tracing))

    def only(self, kind: type, said: list[Any] | None = None) -> Any:
        found = [item for item in (self.said if said is None else said) if isinstance(item, kind)]
        assert len(found) == 1, found
        return found[0]

    def all(self, kind: type) -> list[Any]:
        return [item for item in self.said if isinstance(item, kind)]

    def warm(self, env: str = "a", uid: int = 1) -> int:
        """Start a worker for an environment, and let it finish one job."""
        said = self.submit(f"warm-{env}-{uid}-{next(_ids)}", env=env, uid=uid)
        number: int = self.only(StartWorker, said).worker
        run = self.only(RunJob, self.tell(WorkerReady(number)))
        self.done(run)
        self.said.clear()
        return number

    def done(self, run: RunJob, outcome: Any = "published", **values: Any) -> list[Any]:
        return self.tell(WorkerDone(run.worker, wire.Finished(run.job.id, run.job.key, outcome, 1.0, **values)))

    def reply(self, said: list[Any]) -> Any:
        return self.only(Reply, said).message

    def counted(self, counter: str) -> float:
        return sum(item.amount for item in self.all(Count) if item.counter == counter)
