"""Sends fuzzed messages to a real daemon, whose worker compiles nothing.

Rules for the daemon:

- The daemon stays alive, and replies to another client that requests its status.
- The daemon rejects each invalid message once, and answers each valid message.
- The daemon's memory, descriptors and processes do not grow.

Prints the seed and the number of messages after which the daemon broke a rule. Saves these messages below ``--keep``.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import pickle
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import zmq

sys.path.insert(0, str(Path(__file__).parents[1]))

from precompiled.service.server import check_path, check_submit
from support_daemon import DaemonUnderTest, RawClient, raw_client, running_daemon, wait_until

from precompiled import wire
from precompiled.core.errors import WireError

from .frame_grammar import Grammar, templates

MAX_GRAPH_BYTES = 1 << 18
CONNECTIONS = 8
BATCH = 25  # messages after which the replies on a connection are checked
STREAM_EVERY = 20  # messages after which a connection that violates ZMTP is opened
STATUS_EVERY = 2000
SAMPLE_EVERY = 10_000
REPLY_S = 30.0  # a later reply counts as missing; far above the usual time
REFUSALS = ("bad-message", "protocol-version", "too-large", "not-permitted")


@dataclasses.dataclass
class Findings:
    """The counts, times and broken rules that the test has observed."""

    sent: int = 0
    invalid: int = 0
    streams: int = 0  # connections that violated ZMTP
    lost: int = 0  # connections that the daemon has closed; their messages are lost
    replies: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    status_s: list[float] = dataclasses.field(default_factory=list)
    rss: list[tuple[int, int]] = dataclasses.field(default_factory=list)  # (messages sent, bytes of the daemon)
    quiet_status_s: float = 0.0
    fds: tuple[int, int] = (0, 0)  # open descriptors of the daemon before and after the test
    seconds: float = 0.0
    faults: list[str] = dataclasses.field(default_factory=list)

    @property
    def growth(self) -> float:
        """The growth of the daemon's memory in the second half of the test, in bytes per message.

        The first half does not count, because the daemon's tables fill up then.
        """
        half = [(sent, rss) for sent, rss in self.rss if sent >= self.sent / 2]
        if len(half) < 3:
            return 0.0
        mean_sent, mean_rss = (sum(values) / len(half) for values in zip(*half, strict=True))
        above = sum((sent - mean_sent) * (rss - mean_rss) for sent, rss in half)
        return above / sum((sent - mean_sent) ** 2 for sent, _ in half)


def kind_of(frames: list[bytes]) -> type[Any] | None:
    """Returns the type of the message in these frames, or None if the daemon must reject them."""
    if frames[0] != wire.PREAMBLE or len(frames) not in (2, 3):
        return None
    try:
        message: Any = wire.decode(frames[1], wire.ClientMessage)
        if (len(frames) == 3) != isinstance(message, wire.Submit):
            return None
        if isinstance(message, wire.Submit):
            check_submit(message, frames[2], MAX_GRAPH_BYTES)
        if isinstance(message, wire.Expect) and message.store:
            check_path("store", message.store)
    except WireError:
        return None
    return type(message)


class Client:
    """A connection, the messages that were sent on it, and the number of replies that are due."""

    def __init__(self, daemon: DaemonUnderTest, findings: Findings) -> None:
        self._daemon, self._findings = daemon, findings
        self._connect()

    def _connect(self) -> None:
        self._raw = RawClient(self._daemon.settings)
        self._ends = self._raw.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._begin()

    def _begin(self) -> None:
        self._invalid = self._refused = self._stats = self._counted = 0
        self.recent: list[list[bytes]] = []

    def send(self, frames: list[bytes]) -> None:
        self.recent.append(frames)
        kind = kind_of(frames)
        self._invalid += kind is None
        self._findings.invalid += kind is None
        self._counted += kind is wire.Stats
        self._raw.send(*frames)

    def settle(self) -> None:
        """Wait for all replies.

        Replies come in the order of the messages. So the reply to one more message shows that all earlier replies have
        come.
        """
        self.send([wire.PREAMBLE, wire.encode(wire.Stats())])
        deadline = time.monotonic() + REPLY_S
        while self._stats < self._counted:
            if not self._raw.socket.poll(1000):
                if self._ends.poll(0):
                    return self._lose()
                if time.monotonic() > deadline:
                    self._findings.faults.append(f"no reply within {REPLY_S:g} s, by message {self._findings.sent}")
                    return self._lose()
                continue
            _, data = self._raw.socket.recv_multipart()
            self._note(msgspec.msgpack.decode(data))
        # If the daemon has closed the connection (because of a quota, for example), messages in transit are lost.
        if self._ends.poll(0):
            return self._lose()
        if self._refused != self._invalid:
            self._findings.faults.append(
                f"{self._invalid} messages that are none, {self._refused} refused, by message {self._findings.sent}"
            )
        self._begin()

    def _note(self, reply: dict[str, Any]) -> None:
        name = reply.get("code") or reply.get("state") or reply["type"]
        self._findings.replies[name] += 1
        self._refused += name in REFUSALS
        self._stats += reply["type"] == "statsreply"

    def _lose(self) -> None:
        """Count the connection as lost, and open a new one."""
        self._findings.lost += 1
        self.close()
        self._connect()

    def close(self) -> None:
        self._raw.socket.disable_monitor()
        self._ends.close()
        self._raw.close()


def send_stream(daemon: DaemonUnderTest, data: bytes) -> None:
    """Send bytes on a separate connection, and close the connection without reading a reply."""
    with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(OSError):
        sock.settimeout(1.0)
        sock.connect(str(daemon.runtime_dir / "socket"))
        sock.sendall(data)


def seconds_to_status(daemon: DaemonUnderTest) -> float | None:
    """Returns the seconds until a new client gets the status, or None after REPLY_S."""
    started = time.monotonic()
    with raw_client(daemon.settings) as client:
        client.send(wire.PREAMBLE, wire.encode(wire.Status()))
        with contextlib.suppress(AssertionError):
            client.receive(REPLY_S)
            return time.monotonic() - started
    return None


@contextlib.contextmanager
def daemon_for_frames(directory: Path) -> Iterator[DaemonUnderTest]:
    with running_daemon(directory, max_graph_bytes=MAX_GRAPH_BYTES, workers=1, job_timeout_s=20) as daemon:
        yield daemon


def fuzz(daemon: DaemonUnderTest, count: int, seed: int, *, keep: Path | None = None, shown: bool = False) -> Findings:
    """Send ``count`` fuzzed messages to the daemon, and return the findings."""
    findings = Findings()
    ps = psutil.Process(daemon.pid)
    findings.quiet_status_s = sorted(seconds_to_status(daemon) or REPLY_S for _ in range(20))[10]
    grammar = Grammar(seed, templates(daemon.store, daemon.interpreter), MAX_GRAPH_BYTES)
    before = ps.num_fds()
    started = time.monotonic()
    findings.rss.append((0, ps.memory_info().rss))
    clients = [Client(daemon, findings) for _ in range(CONNECTIONS)]
    recent: collections.deque[list[list[bytes]]] = collections.deque(maxlen=2 * CONNECTIONS)
    try:
        while findings.sent < count and not findings.faults:
            for client in clients:
                for _ in range(BATCH):
                    client.send(grammar.frames())
                    findings.sent += 1
                    if findings.sent % STREAM_EVERY == 0:
                        findings.streams += 1
                        send_stream(daemon, grammar.stream())
                    if findings.sent % STATUS_EVERY == 0:
                        _look(daemon, findings)
                    if findings.sent % SAMPLE_EVERY == 0:
                        _sample(ps, findings, started, shown)
                recent.append(client.recent)
            for client in clients:
                client.settle()
    finally:
        for client in clients:
            client.close()
        if findings.faults and keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{seed}-{findings.sent}.pickle").write_bytes(pickle.dumps(list(recent)))
    if not findings.faults:
        _look(daemon, findings)
        _afterwards(daemon, ps, findings, before)
    findings.seconds = time.monotonic() - started
    return findings


def _look(daemon: DaemonUnderTest, findings: Findings) -> None:
    assert daemon.process is not None
    status = daemon.process.poll()
    if status is not None:
        findings.faults.append(f"the daemon ended with {status} by message {findings.sent}: {daemon.log()[-2000:]}")
        return
    waited = seconds_to_status(daemon)
    if waited is None:
        findings.faults.append(f"no status within {REPLY_S:g} s, by message {findings.sent}")
    else:
        findings.status_s.append(waited)


def _sample(ps: psutil.Process, findings: Findings, started: float, shown: bool) -> None:
    with contextlib.suppress(psutil.Error):  # if the daemon has ended, the next check reports it
        findings.rss.append((findings.sent, ps.memory_info().rss))
        if shown:
            seconds, rss = time.monotonic() - started, findings.rss[-1][1] / 2**20
            print(
                f"{findings.sent} messages, {seconds:.0f} s, {rss:.1f} MiB, {ps.num_fds()} descriptors, "
                f"longest status {max(findings.status_s):.3f} s",
                flush=True,
            )


def _afterwards(daemon: DaemonUnderTest, ps: psutil.Process, findings: Findings, before: int) -> None:
    """Check the daemon after all clients have disconnected: it must not hold descriptors or jobs of clients."""
    try:
        # The daemon's children are workers and the watcher. For each worker the daemon needs three descriptors: the
        # stream, the output, the process. For the watcher the daemon needs one descriptor.
        wait_until(lambda: ps.num_fds() <= before + 3 * len(ps.children()), "descriptors are closed")
        with raw_client(daemon.settings) as client:
            # The queued jobs are given up, because each would start a worker, which takes long.
            client.send(wire.PREAMBLE, wire.encode(wire.GiveUp([""])))
            client.receive()
        wait_until(lambda: daemon.status().queue_depth == 0, "the queue is empty")
    except AssertionError as error:
        findings.faults.append(f"{error}: {ps.num_fds()} descriptors, {before} before")
    findings.fds = (before, ps.num_fds())
    findings.rss.append((findings.sent, ps.memory_info().rss))
    if "Traceback" in daemon.log():
        findings.faults.append("the daemon's log has a traceback: " + daemon.log().partition("Traceback")[2][:2000])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.frames", description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=1_000_000, help="messages (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--keep", type=Path, help="folder for the last messages before a fault")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="frames-") as folder, daemon_for_frames(Path(folder)) as daemon:
        found = fuzz(daemon, options.frames, options.seed, keep=options.keep, shown=True)
        logged = len(daemon.log())
    waits = sorted(found.status_s) or [0.0]
    print(
        f"{found.sent} messages ({found.invalid} invalid) and {found.streams} bad streams in {found.seconds:.0f} s, "
        f"seed {options.seed}; {found.lost} connections lost"
    )
    print(
        f"status of another client: median {waits[len(waits) // 2]:.4f} s, longest {waits[-1]:.3f} s; "
        f"{found.quiet_status_s:.4f} s while nothing was sent"
    )
    print(
        f"memory {found.rss[0][1] / 2**20:.1f} MiB before, {found.rss[-1][1] / 2**20:.1f} MiB after; "
        f"{found.growth * 1e6 / 2**20:+.1f} MiB per million messages in the second half"
    )
    print(f"descriptors {found.fds[0]} before, {found.fds[1]} after; log {logged / 2**20:.1f} MiB")
    print(f"replies {dict(found.replies.most_common())}")
    print(f"{len(found.faults)} faults", *found.faults, sep="\n")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
