"""Simulates hosts: each has its own store and claims, and runs the helper's code. Only the compile is simulated.

A host is a coroutine with one worker, like a real host with two cores. A simulated compile uses no CPU time. Requests
to the store and the remote run in threads that all hosts share.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import heapq
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.harness.effort import Say
from precompiled.remote.bucket import Bucket
from precompiled.remote.claims import LOOK_S
from precompiled.remote.errors import RemoteError
from precompiled.remote.lease import TTL_S, Claim, Found
from precompiled.remote.transfer import Transfer
from precompiled.remote.trusting import Trust
from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Store

_T = TypeVar("_T")

THREADS = 64
TIMEOUT_S = 120.0  # seconds for a request; long, because one machine runs the server and 1,000 clients
SAY_S = 10.0
PARTS = 5  # steps of a compile; a host may be killed between two of them


@dataclass(frozen=True)
class Plan:
    hosts: int
    graphs: int
    killed: float = 0.0  # share of hosts that die at a random step; also the chance to die in a compile
    compile_s: tuple[float, float] = (2.0, 20.0)  # range of a compile's seconds
    seed: int = 0


@dataclass
class Outcome:
    """Results. ``killed``: the number of killed hosts. ``lost``: surviving hosts, each with a graph that it lacks."""

    plan: Plan
    seconds: float = 0.0
    killed: int = 0
    killed_holding: int = 0  # killed hosts that held a lease
    started: Counter[str] = field(default_factory=Counter)  # compiles by key
    completed: Counter[str] = field(default_factory=Counter)
    fetched: int = 0
    lost: list[tuple[int, str]] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)  # seconds of each check of a key in the remote
    gaps: list[float] = field(default_factory=list)  # seconds from a holder's death until another host holds the lease
    errors: int = 0

    @property
    def duplicates(self) -> int:
        """The number of superfluous compiles: another host compiled the same key."""
        return sum(count - 1 for count in self.completed.values())

    @property
    def wanted(self) -> int:
        return self.plan.hosts * self.plan.graphs


class _Killed(Exception):
    pass


class Fleet:
    """Simulates all hosts of a plan, once. ``root``: the directory of the stores."""

    def __init__(self, plan: Plan, root: Path, url: str, trust: Trust, say: Say) -> None:
        self.plan, self._say = plan, say
        self._trust, self._root, self._url = trust, root, url
        self._random = random.Random(plan.seed)
        self.keys = [hashlib.sha256(f"graph {number}".encode()).hexdigest() for number in range(plan.graphs)]
        self.outcome = Outcome(plan)
        self._pool = ThreadPoolExecutor(THREADS)
        self._deaths: dict[str, float] = {}  # maps a key to the time at which the holder of its lease died

    async def run(self) -> Outcome:
        began = time.monotonic()
        hosts = [self._host(number) for number in range(self.plan.hosts)]
        victims = self._random.sample(hosts, int(self.plan.killed * len(hosts)))
        for host in victims:  # each one dies at a random step
            host.dies_after = self._random.randrange(1, 2 * self.plan.graphs + PARTS)
        done = asyncio.gather(*[host.run() for host in hosts])
        while not (await asyncio.wait([done], timeout=SAY_S))[0]:
            fetched = sum(host.there.counts.fetched for host in hosts)
            self._say(
                f"{time.monotonic() - began:.0f} s: {fetched} of {self.outcome.wanted} fetched, "
                f"{sum(self.outcome.completed.values())} compiled, {self.outcome.killed} hosts killed"
            )
        await done
        self.outcome.seconds = time.monotonic() - began
        self.outcome.fetched = sum(host.there.counts.fetched for host in hosts)
        for host in hosts:
            if not host.is_dead:
                self.outcome.lost += [(host.number, key) for key in await self.do(host.missing)]
        self._pool.shutdown()
        return self.outcome

    def _host(self, number: int) -> _Host:
        store = Store(self._root / str(number))
        return _Host(self, number, Transfer(store, Bucket(self._url, TIMEOUT_S), self._trust))

    async def do(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def compile_s(self) -> float:
        return self._random.uniform(*self.plan.compile_s)

    def dies_compiling(self) -> bool:
        return self._random.random() < self.plan.killed

    def jitter(self) -> float:
        return self._random.uniform(0.7, 1.0)

    def died(self, claims: dict[str, Claim]) -> None:
        self.outcome.killed += 1
        held = [key for key, claim in claims.items() if claim.fence]
        self.outcome.killed_holding += bool(held)
        self._deaths.update((key, time.monotonic()) for key in held)

    def holds(self, key: str) -> None:
        if (died := self._deaths.pop(key, None)) is not None:
            self.outcome.gaps.append(time.monotonic() - died)


class _Host:
    def __init__(self, fleet: Fleet, number: int, there: Transfer) -> None:
        self._fleet, self.number, self.there = fleet, number, there
        self._claims = {key: Claim(there, key) for key in fleet.keys}
        self._steps = 0
        self.dies_after: int | None = None
        self.is_dead = False

    async def run(self) -> None:
        try:
            await self._all()
        except _Killed:  # a killed host releases no lease
            self.is_dead = True
            self._fleet.died(self._claims)

    async def _all(self) -> None:
        # Pending checks of keys: (time, tie breaker, key, next pause). Parked keys that are due precede new keys.
        due: list[tuple[float, int, str, float]] = []
        fresh = list(reversed(self._fleet.keys))
        while due or fresh:
            now = time.monotonic()
            if due and due[0][0] <= now:
                _at, _number, key, pause = heapq.heappop(due)
            elif fresh:
                key, pause = fresh.pop(), LOOK_S[0]
            else:
                await asyncio.sleep(due[0][0] - now)
                continue
            found = await self._look(key)
            if found is Found.THEIRS:
                wait = min(pause, self._claims[key].beat_s) * self._fleet.jitter()
                heapq.heappush(due, (time.monotonic() + wait, len(due), key, min(2 * pause, LOOK_S[1])))
            elif found is not Found.HERE:
                await self._compile(key)

    async def _look(self, key: str) -> Found:
        began = time.monotonic()
        try:
            found = await self._step(self._claims[key].look)
        except RemoteError:
            self._fleet.outcome.errors += 1
            return Found.THEIRS  # the host retries later; an error must not excuse a duplicate compile
        self._fleet.outcome.looks.append(time.monotonic() - began)
        return found

    async def _compile(self, key: str) -> None:
        claim, seconds = self._claims[key], self._fleet.compile_s()
        self._fleet.holds(key)
        self._fleet.outcome.started[key] += 1
        if self._fleet.dies_compiling():
            self.dies_after = self._steps + PARTS // 2
        began = beaten = time.monotonic()
        while (left := began + seconds - time.monotonic()) > 0:
            await asyncio.sleep(min(left, seconds / PARTS))
            if time.monotonic() - beaten >= claim.beat_s:
                beaten = time.monotonic()
                await self._step(claim.beat)
            else:
                await self._step(lambda: None)
        artifact = await self._step(functools.partial(self.there.store.publish, payload(key)))
        await self._step(functools.partial(self.there.put_artifact, artifact))
        # Count the compile only now: if the host dies before the upload, no other host gets the artifact.
        self._fleet.outcome.completed[key] += 1
        await self._step(claim.end)

    async def _step(self, call: Callable[[], _T]) -> _T:
        self._steps += 1
        if self.dies_after is not None and self._steps > self.dies_after:
            raise _Killed
        return await self._fleet.do(call)

    def missing(self) -> list[str]:
        """Return the keys whose artifact is missing or different on this host."""
        return [key for key in self._fleet.keys if self._files(key) != payload(key).files]

    def _files(self, key: str) -> dict[str, bytes]:
        found = self.there.store.lookup(key)
        return self.there.store.read_files(found[0]) if found else {}


def payload(key: str) -> fmt.Payload:
    """A small artifact that is the same on each host except for its time stamp, as with a real compiler."""
    manifest = fmt.Manifest(
        key=key,
        name="simulated",
        components={},
        environment={},
        device="cpu",
        guards="",
        files={},
        compile_s=1.0,
        created=time.time(),
        compiled_by={},
    )
    return fmt.Payload(manifest, {fmt.BUNDLE: bytes.fromhex(key) * 8})


def run(plan: Plan, root: Path, url: str, trust: Trust, say: Say) -> Outcome:
    return asyncio.run(Fleet(plan, root, url, trust, say).run())


def row(place: str, outcome: Outcome) -> list[str]:
    """Return the table's row for an outcome."""
    looks = sorted(outcome.looks)
    gaps: list[Any] = outcome.gaps
    return [
        place,
        f"{outcome.plan.hosts:,}",
        str(outcome.plan.graphs),
        str(outcome.killed),
        str(sum(outcome.started.values())),
        f"{outcome.duplicates} ({outcome.duplicates / outcome.wanted:.2%})",
        f"{outcome.fetched:,}",
        str(len(outcome.lost)),
        f"{outcome.killed_holding}; {max(gaps):.0f}" if gaps else str(outcome.killed_holding),
        f"{looks[len(looks) // 2] * 1000:.0f}; {looks[-1] * 1000:.0f}",
        f"{outcome.seconds:.0f}",
    ]


HEADERS = [
    "remote",
    "hosts",
    "graphs",
    "killed",
    "compiles begun",
    "duplicates",
    "fetched",
    "lost",
    "killed while compiling; longest time until another host compiled (s)",
    "a listing, median; longest (ms)",
    "total (s)",
]
TITLE = f"A cold start of all at once, leases of {TTL_S:.0f} s"
