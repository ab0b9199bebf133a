"""Tracks the farm's jobs and their results, in the helper. driver.py talks to Ray.

A *case* is one job from a courier. A case is *waiting* in this process until the farm has a free place. It is then
*out* on a node. A local worker with a free slot may request the same job. The worker gets the job if the case is
waiting, or if it has been out for longer than PATIENCE allows. In the second case, node and worker both compile the
job, and the first that publishes wins.
"""

from __future__ import annotations

import math
import socket
import subprocess
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from precompiled import wire
from precompiled.core.children import start_with_stream
from precompiled.core.errors import CorruptArtifact, StoreError, WireError
from precompiled.farm.messages import (
    Drop,
    Ended,
    FromDriver,
    Node,
    Nodes,
    Request,
    Result,
    Task,
    Unusable,
    receive,
    send,
)
from precompiled.store import packed
from precompiled.store.artifacts import Store

MAX_WAITING = 64  # how many cases may wait for a place; MAX_WAITING_BYTES limits the sum of their bytes
MAX_WAITING_BYTES = 256 << 20
WAITING_AGAIN_S = 2.0  # seconds until a worker or courier repeats its request for a waiting case
OUT_AGAIN_S = (1.0, 10.0)  # least and most seconds until a worker or courier repeats its request for a case that is out
FULL_AGAIN_S = 10.0  # seconds until a courier repeats an offer that the full queue refused
# seconds between offers while the driver starts, which takes up to a minute if no cluster answers
STARTING_AGAIN_S = 1.0
REST_S = 30.0  # seconds between the driver's exit and the next start
KEPT_S = 600.0  # seconds for which a key is not sent to the farm after a job of this key has ended there
USUAL_S = 30.0  # assumed seconds of a compile at the farm, until one has ended
WANTED_S = 60.0  # seconds for which a waiting case keeps the helper running after the last request for the case
# A case is late after PATIENCE times the usual seconds of a compile, but not before MIN_PATIENCE_S seconds.
PATIENCE, MIN_PATIENCE_S = 2.0, 15.0


@dataclass
class FarmCounts:
    """Counts of a farm.

    - ``refused``, ``failed``: jobs that nodes returned without an artifact, by code
    - ``last``: a text about the latest refused or failed job
    - ``taken_back``: jobs that a local worker took before a node was free
    - ``hedged``: jobs that a local worker took although they were out on a node
    - ``compile_s``: the seconds that nodes spent on compiled jobs
    """

    sent: int = 0
    compiled: int = 0
    compile_s: float = 0.0
    taken_back: int = 0
    hedged: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    last: str = ""


@dataclass
class _Case:
    key: str
    name: str
    request: bytes
    time_limit_s: float
    asked: float = 0.0
    number: int = 0  # the number of the case's task; 0 while the case waits
    out_since: float = 0.0
    hedged: bool = False


class Farm:
    """The cases of a helper. Thread-safe. When a case ends, a thread of this object calls ``ended`` with its key and
    its published slots.
    """

    def __init__(self, address: str, store: Store, ended: Callable[[str, list[int]], None]) -> None:
        self.counts = FarmCounts()
        self._address, self._store, self._ended = address, store, ended
        self._state, self._reason = "unused", ""  # unused | starting | ok | unusable
        self._nodes: list[Node] = []
        self._cases: dict[str, _Case] = {}  # maps a key to its case, in the order of arrival
        # maps a key to a time, before which the key is not sent to the farm
        self._kept: dict[str, float] = {}
        self._numbers = 0
        self._usual: deque[float] = deque(maxlen=32)
        self._began = self._rests_until = -math.inf  # when the driver was started, and when it may be started again
        self._sock: socket.socket | None = None
        self._changed = threading.Condition()

    # ------------------------------------------------ for workers and couriers

    def ask(self, key: str, *, courier: bool) -> dict[str, object] | None:
        """Reply to the request of a worker or courier about a job.

        - {"again_s"}: the worker or courier repeats its request after this time
        - {"compile"}: the worker compiles the job
        - {"keep_s"}: the farm does not take the job; the courier may request again after this time
        - None: the farm does not have the job. ``take`` then accepts the job from a courier.
        """
        with self._changed:
            now, case = time.monotonic(), self._cases.get(key)
            if case is None:
                return self._refuses(key, now) if courier else None
            case.asked = now
            if not case.number:
                if courier:
                    return {"again_s": WAITING_AGAIN_S}
                del self._cases[key]
                self.counts.taken_back += 1
                return {"compile": True}
            left = case.out_since + self._patience_s() - now
            if not courier and (left <= 0 or case.hedged):
                self.counts.hedged += not case.hedged
                case.hedged = True
                return {"compile": True}
            return {"again_s": min(max(left, OUT_AGAIN_S[0]), OUT_AGAIN_S[1])}

    def _refuses(self, key: str, now: float) -> dict[str, object] | None:
        for kept in [kept for kept, until in self._kept.items() if until <= now]:
            del self._kept[kept]
        if key in self._kept:
            return {"keep_s": self._kept[key] - now}
        self._start(now)
        if self._state == "starting":
            return {"keep_s": min(max(now - self._began, STARTING_AGAIN_S), FULL_AGAIN_S)}
        if self._state != "ok":
            return {"keep_s": REST_S}
        waiting = [case for case in self._cases.values() if not case.number]
        if len(waiting) >= MAX_WAITING or sum(len(case.request) for case in waiting) >= MAX_WAITING_BYTES:
            return {"keep_s": FULL_AGAIN_S}
        return None

    def take(self, job: wire.Job) -> dict[str, object]:
        """Take a courier's job for which ``ask`` returned None."""
        assert job.offer is not None
        with self._changed:
            self._cases[job.key] = _Case(
                job.key, job.name, wire.encode(Request(job)), job.offer.time_limit_s, asked=time.monotonic()
            )
            self._send_out()
        return {"again_s": WAITING_AGAIN_S}

    def published_here(self, key: str) -> None:
        """Drop a job that a worker of this host has published."""
        with self._changed:
            case = self._cases.pop(key, None)
            if case is not None and case.number:
                self._say(Drop(case.number))
                self._send_out()

    @property
    def busy(self) -> bool:
        """Whether a case is out, or a worker or courier has recently requested a waiting case."""
        with self._changed:
            since = time.monotonic() - WANTED_S
            return any(case.number or case.asked > since for case in self._cases.values())

    def look(self, wait_s: float) -> None:
        """Wait until the driver has reported the cluster's nodes, or the reason why it has none."""
        with self._changed:
            self._start(time.monotonic())
            self._changed.wait_for(lambda: self._state != "starting", wait_s)

    def close(self) -> None:
        """End the driver."""
        with self._changed, suppress(OSError):
            if self._sock is not None:
                self._sock.shutdown(socket.SHUT_RDWR)

    def document(self) -> dict[str, Any]:
        """The state that ``status``, ``farm status`` and ``doctor`` show. Field names are public."""
        with self._changed:
            out = sum(case.number > 0 for case in self._cases.values())
            counts = vars(self.counts) | {"refused": dict(self.counts.refused), "failed": dict(self.counts.failed)}
            return {
                "farm": self._address,
                "state": self._state,
                "code": "farm-unusable" if self._reason else "",
                "reason": self._reason,
                "places": self._places,
                "nodes": [{"name": node.name, "address": node.address, "places": node.places} for node in self._nodes],
                "out": out,
                "waiting": len(self._cases) - out,
                "usual_s": self._usual_s(),
                **counts,
            }

    # ------------------------------------------------ jobs to nodes, and their results

    @property
    def _places(self) -> int:
        return sum(node.places for node in self._nodes)

    def _usual_s(self) -> float:
        return sum(self._usual) / len(self._usual) if self._usual else USUAL_S

    def _patience_s(self) -> float:
        return max(MIN_PATIENCE_S, PATIENCE * self._usual_s())

    def _send_out(self) -> None:
        """Send out waiting cases while places are free. If other users occupy the cluster, Ray queues the task."""
        free = self._places - sum(case.number > 0 for case in self._cases.values())
        for case in [case for case in self._cases.values() if not case.number][: max(0, free)]:
            self._numbers += 1
            case.number, case.out_since = self._numbers, time.monotonic()
            self.counts.sent += 1
            name = f"precompiled {case.name or case.key[:12]}"
            self._say(Task(case.number, name, case.request, case.time_limit_s))
            case.request = b""

    def _end(self, ended: Ended) -> None:
        with self._changed:
            case = next((case for case in self._cases.values() if case.number == ended.number), None)
        if case is None:
            return  # a worker of this host has published the key meanwhile
        result, slots = ended.result, list[int]()
        if result.outcome == "compiled":
            try:
                # ``unpack`` verifies digests, but no signature. The node is trusted, because it is in the user's
                # cluster.
                for data in result.artifacts:
                    slots.append(self._store.publish(packed.unpack(data, case.key)).slot)
            except StoreError as error:
                code = "farm-corrupt" if isinstance(error, CorruptArtifact) else error.code
                result = Result("failed", code=code, message=f"from {result.node}: {error}")
        with self._changed:
            if self._cases.get(case.key) is case:
                del self._cases[case.key]
            # The key is not sent to the farm again for KEPT_S. This is also true of other sizes of the graph, because a
            # node has only the sizes of its job.
            self._kept[case.key] = time.monotonic() + KEPT_S
            if slots:
                self.counts.compiled += 1
                self.counts.compile_s += result.seconds
                self._usual.append(time.monotonic() - case.out_since)
            else:
                which = self.counts.refused if result.outcome == "refused" else self.counts.failed
                # A result has no code if the node has evicted the artifact before its files were read.
                which[result.code or "farm-lost"] += 1
                self.counts.last = f"{case.name or case.key[:12]}: {result.message}"
            self._send_out()
        self._ended(case.key, slots)

    # ------------------------------------------------ the driver

    def _start(self, now: float) -> None:
        if self._sock is not None or now < self._rests_until:
            return
        try:
            process, ours = start_with_stream("-m", "precompiled.farm.driver", "--address", self._address)
        except OSError as error:
            self._unusable(f"the farm's driver cannot be started: {error}")
            return
        self._sock, self._state, self._began = ours, "starting", now
        threading.Thread(target=self._read, args=(ours, process), name="farm", daemon=True).start()

    def _read(self, sock: socket.socket, process: subprocess.Popen[bytes]) -> None:
        why = "the farm's driver has ended: helper.log has its last output"
        try:
            stream: BinaryIO = sock.makefile("rb")
            while (message := receive(stream, FromDriver)) is not None:
                match message:
                    case Nodes(nodes):
                        self._is(nodes)
                    case Ended():
                        self._end(message)
                    case Unusable(why):
                        pass
        except (OSError, WireError) as error:
            why = f"the farm's driver cannot be understood: {error}"
        finally:
            process.kill()
            process.wait()
            with self._changed:
                sock.close()
                self._sock, self._nodes = None, []
                self._unusable(why)
                lost = list(self._cases)
                self.counts.failed.update({"farm-lost": len(lost)} if lost else {})
                self._cases.clear()
            for key in lost:
                self._ended(key, [])

    def _is(self, nodes: list[Node]) -> None:
        with self._changed:
            self._nodes, self._state, self._reason = nodes, "ok", ""
            if not nodes:
                self._state = "unusable"
                self._reason = "no node offers to compile: start one with --resources='{\"precompiled\": 1}'"
            self._changed.notify_all()
            self._send_out()

    def _unusable(self, why: str) -> None:
        self._state, self._reason, self._rests_until = "unusable", why, time.monotonic() + REST_S
        self._changed.notify_all()

    def _say(self, message: Task | Drop) -> None:
        if self._sock is not None:
            with suppress(OSError):  # if this fails, the reading thread notices the end of the stream
                send(self._sock, message)


def open_farm(address: str, root: Path, base: list[Path], ended: Callable[[str, list[int]], None]) -> Farm:
    return Farm(address, Store(root, base), ended)
