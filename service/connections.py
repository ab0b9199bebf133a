"""The daemon's client connections, with per-user limits on their number, their memory and the daemon's time.

The kernel identifies a peer at the accept (``SO_PEERCRED``), before the daemon reads a byte. The limits:

- **Connections** of all users: as many as the descriptors allow. When all descriptors are taken, the daemon closes a
  connection of the user who has the most.
- **Memory** of each user: the bytes of incomplete messages and of unread replies.
- **Time**: each turn serves the users in rotation, each for a bounded time. All other work waits for the next turn.
  Preparing an accepted connection counts as its user's time. A user who opens connections faster than the daemon
  prepares them is denied the socket for a while, because the new connections of all users share one queue in the
  kernel.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import TypeVar

from precompiled.service.budget import require_memory

from precompiled.core import kernel, zmtp
from precompiled.core.errors import WireError, code_of
from precompiled.core.outgoing import Outgoing

log = logging.getLogger("precompiled.connections")

T = TypeVar("T")

BACKLOG = 4096  # some kernels cap this at a lower number
ACCEPT_S = 0.02  # accepting time per turn; the kernel keeps the other new connections for the next turn
MAX_NEW = 512  # accepted, unprepared connections of one user; beyond this number, the user is denied the socket
DENIED_S = 10.0  # how long a user is denied the socket
EVENTS_PER_TURN = 1 << 15  # more than MAX_CONNECTIONS, so that one user's events cannot hide another's
CHUNK_BYTES = 1 << 18  # the maximum size of one read, in bytes
TURN_S = 0.02  # time per turn for the messages of all users together
USER_TURN_S = 0.002  # minimum for one user's messages, and for the user's new connections; the last item may exceed it
HANDSHAKE_S = 10.0  # a peer is dropped if its handshake takes longer
STALLED_S = 30.0  # a peer that stops within a message or reads no reply for this long is dropped
PAUSED_S = 120.0  # a peer that the daemon has paused is dropped after this time
SWEEP_S = 1.0  # seconds between two checks of the three times above
CANDIDATES = 64  # connections examined to find one to close
# a connection that was silent for this long may be closed to make room for the same user's next connection
IDLE_S = 10.0
PART_BYTES = 64 << 20  # limit for one user's incomplete messages; the largest message may exceed it
REPLY_BYTES = 1 << 20  # limit for the replies that one peer has not read; further replies are dropped
REPLIES_BYTES = 16 << 20  # limit for the replies that all peers of one user have not read
SEND_BUFFER_BYTES = 1 << 16  # size of the kernel's send buffer for one connection
MAX_CONNECTIONS = 16384
RESERVED = 512  # descriptors: three per worker, and a few for files, /proc, and starting processes
CLOSE_S = 0.5  # seconds for sending the last replies when the daemon exits
_BUSY_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(eq=False)
class Connection:
    name: bytes  # the daemon's name for the connection, used to address replies
    sock: socket.socket
    uid: int
    gid: int
    pid: int
    reader: zmtp.Reader
    out: Outgoing
    accepted: float
    active: float  # time of the last read
    fd: int = -1  # -1 after the drop
    unread_since: float = 0.0  # the time since which the kernel has accepted no bytes of ``out``
    held: int = 0  # the reader's bytes, as counted in Connections
    events: int = 0  # the epoll events in effect


class Connections:
    """All connections. One thread calls ``open`` with a bound socket, and then ``collect``, ``messages`` and ``send``
    in turns.
    """

    def __init__(
        self,
        max_message_bytes: int,
        max_parts_bytes: int,
        note: Callable[[str, str], None],
        identify: Callable[[socket.socket], tuple[int, int, int]] | None = None,
        deny: Callable[[Iterable[int]], None] | None = None,
    ) -> None:
        """``max_parts_bytes``: limit for the incomplete messages of all users. ``note``: counts bad input.
        ``identify``: pid, uid and gid of a peer. ``deny``: makes the kernel refuse exactly these users.
        """
        self._identify = identify or kernel.peer_of
        self._deny = deny or (lambda _uids: None)
        self._max_message_bytes = max_message_bytes
        self._max_parts_bytes = max_parts_bytes
        self._note = note
        self._listening: socket.socket | None = None
        self._epoll = select.epoll()
        self._by_fd: dict[int, Connection] = {}
        self._by_name: dict[bytes, Connection] = {}
        self._of: dict[int, dict[Connection, None]] = {}  # maps a uid to its connections, oldest first
        # maps a uid to accepted sockets, with pid and gid
        self._new: dict[int, deque[tuple[socket.socket, int, int]]] = {}
        self._denied: dict[int, float] = {}  # maps a uid to the time at which it may connect again
        # maps a uid to readable connections; the first uid is served next
        self._ready: dict[int, deque[Connection]] = {}
        self._queued: set[Connection] = set()  # the members of _ready
        self._held: Counter[int] = Counter()  # maps a uid to the bytes of its incomplete messages
        self._unread: Counter[int] = Counter()  # maps a uid to the bytes of replies that the kernel has not accepted
        # maps a uid to the connections that are not read because the user holds too much
        self._paused: dict[int, set[Connection]] = {}
        self._sequence = 0
        self._sweep_at = 0.0
        self._accepts = True  # False until the next sweep if the host has no descriptors left
        self._limit = self._capacity = MAX_CONNECTIONS

    def __len__(self) -> int:
        return len(self._by_fd)

    def open(self, listening: socket.socket, capacity: int) -> None:
        listening.setblocking(False)
        listening.listen(BACKLOG)
        self._listening = listening
        self._limit = self._capacity = max(1, min(capacity, MAX_CONNECTIONS))
        self._epoll.register(listening.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        """The descriptor that is readable when ``collect`` has something to do."""
        return self._epoll.fileno()

    def next_wake(self, now: float) -> float | None:
        """Seconds until the next turn that is due even if ``fileno`` is not readable; None if there is none."""
        if self._ready or self._new:
            return 0.0
        return max(0.0, self._sweep_at - now) if self._by_fd or self._denied or not self._accepts else None

    def close(self) -> None:
        """Send the last replies for at most CLOSE_S, then close everything."""
        deadline = time.monotonic() + CLOSE_S
        while any(c.out.waiting for c in self._by_fd.values()) and time.monotonic() < deadline:
            for connection in list(self._by_fd.values()):
                self._flush(connection)
            time.sleep(0.005)
        for connection in list(self._by_fd.values()):
            self._drop(connection)
        for sock, _pid, _gid in chain.from_iterable(self._new.values()):
            sock.close()
        self._new.clear()
        if self._listening is not None:
            self._listening.close()
        self._epoll.close()

    # ------------------------------------------------ a turn

    def collect(self) -> None:
        """Accept connections, send waiting replies, and queue the connections that can be read."""
        now = time.monotonic()
        for fd, events in self._epoll.poll(0, EVENTS_PER_TURN):
            connection = self._by_fd.get(fd)
            if connection is None:
                if self._listening is not None and fd == self._listening.fileno():
                    self._accept(now)
                continue
            if events & select.EPOLLOUT:
                self._flush(connection)
            if events & ~select.EPOLLOUT and connection.fd >= 0:
                self._queue(connection)
        for uid, queue in _rotate(self._new, USER_TURN_S):
            self._prepare(*queue.popleft(), uid, now)
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_S
            self._sweep(now)

    def messages(self) -> Iterator[tuple[Connection, list[bytes]]]:
        """Whole messages, in rotation over the users.

        The time that the caller spends on a message counts against the user who sent it.
        """
        for _uid, queue in _rotate(self._ready, max(USER_TURN_S, TURN_S / max(1, len(self._ready)))):
            connection = queue.popleft()
            self._queued.discard(connection)
            if connection.fd >= 0:
                yield from self._step(connection, queue)

    def _step(self, connection: Connection, queue: deque[Connection]) -> Iterator[tuple[Connection, list[bytes]]]:
        """Yield one buffered message of a connection, or read from it once."""
        reader = connection.reader
        try:
            frames = reader.next_message()
            if frames is None and self._may_read(connection):
                frames = reader.next_message() if self._read(connection) else None
                again = frames is not None
            else:
                again = frames is not None
        except (WireError, MemoryError) as error:
            why = error.message if isinstance(error, WireError) else "the daemon has no memory for its message"
            self._note(code_of(error, "no-memory"), f"a connection of uid {connection.uid} is closed: {why}")
            self._drop(connection)
            return
        if reader.reply:
            self.send(connection.name, reader.reply)
            reader.reply = b""
        self._count(connection)
        if again and connection.fd >= 0 and connection not in self._queued:  # epoll does not report buffered data
            self._queued.add(connection)
            queue.append(connection)
        if frames is not None:
            yield connection, frames

    # ------------------------------------------------ reading

    def _queue(self, connection: Connection) -> None:
        if connection not in self._queued:
            self._queued.add(connection)
            self._ready.setdefault(connection.uid, deque()).append(connection)

    def _may_read(self, connection: Connection) -> bool:
        """Whether the connection's user may hold more bytes; if not, pause the connection."""
        uid = connection.uid
        mine, total = self._held[uid], self._held.total()
        if (mine < PART_BYTES and total < self._max_parts_bytes) or mine == 0:
            return True
        # Let the user's largest message complete. Otherwise all messages of the user would wait for memory that other
        # users hold.
        fair = total < self._max_parts_bytes or mine <= self._max_parts_bytes // len(self._held)
        if fair and connection is self._largest(uid):
            return True
        self._paused.setdefault(uid, set()).add(connection)
        self._watch(connection)
        return False

    def _largest(self, uid: int) -> Connection:
        return max(self._of[uid], key=lambda connection: connection.held)

    def _read(self, connection: Connection) -> bool:
        """Read once; false if there was no data, or if the stream has ended. Raises MemoryError."""
        if connection.held >= CHUNK_BYTES:  # a large message must not take the rest of the memory
            require_memory()
        try:
            data = connection.sock.recv(CHUNK_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return False
        connection.active = time.monotonic()
        connection.reader.feed(data)
        return True

    def _count(self, connection: Connection) -> None:
        """Update how many bytes the connection's user holds. If the number falls, resume paused connections."""
        held = connection.reader.held if connection.fd >= 0 else 0
        if held == connection.held:
            return
        shrunk = held < connection.held
        self._held[connection.uid] += held - connection.held
        if self._held[connection.uid] <= 0:
            del self._held[connection.uid]
        connection.held = held
        if shrunk:
            for uid in list(self._paused):
                self._resume(uid)

    def _resume(self, uid: int) -> None:
        """Resume a user's paused connections: all if there is much room, otherwise only the connection with the largest
        message.
        """
        room = self._held[uid] < PART_BYTES // 2 and self._held.total() < self._max_parts_bytes
        paused = self._paused[uid]
        again = list(paused) if room else [self._largest(uid)] if uid in self._of else []
        for connection in again:
            if connection in paused:
                paused.discard(connection)
                self._watch(connection)
        if not paused:
            del self._paused[uid]

    # ------------------------------------------------ writing

    def send(self, name: bytes, data: bytes) -> bool:
        """Send the data now, or when the peer reads. Returns false if the reply is dropped."""
        connection = self._by_name.get(name)
        if connection is None:
            return True  # the peer has disconnected and needs no reply
        uid, out = connection.uid, connection.out
        if (out.waiting and self._unread[uid] + len(data) > REPLIES_BYTES) or not out.add([data]):
            return False
        self._add_unread(uid, len(data))
        self._flush(connection)
        return True

    def _flush(self, connection: Connection) -> None:
        sent = connection.out.flush()
        self._add_unread(connection.uid, -sent)
        if connection.out.closed:
            self._drop(connection)
            return
        had = bool(connection.unread_since)
        if sent:
            connection.unread_since = 0.0
        if connection.out.waiting:
            connection.unread_since = connection.unread_since or time.monotonic()
        if had != bool(connection.unread_since):
            self._watch(connection)

    def _add_unread(self, uid: int, size: int) -> None:
        self._unread[uid] += size
        if self._unread[uid] <= 0:
            del self._unread[uid]

    # ------------------------------------------------ connections

    def _accept(self, now: float) -> None:
        assert self._listening is not None
        until = now + ACCEPT_S
        taken = len(self._by_fd) + sum(map(len, self._new.values()))
        while time.monotonic() < until:
            try:
                sock, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _BUSY_ERRORS:
                    # The daemon is below its own limit, so the host is out of files, or other code in this process
                    # holds descriptors.
                    self._note("no-descriptors", f"no connection can be accepted: {error}")
                    self._capacity = max(1, len(self._by_fd))
                    if not self._make_room(-1, now):
                        self._accepts = False
                        self._epoll.modify(self._listening.fileno(), 0)
                    return
                continue  # the peer has disconnected already
            try:
                pid, uid, gid = self._identify(sock)
            except OSError:
                sock.close()
                continue
            mine = self._new.setdefault(uid, deque())
            if len(mine) >= MAX_NEW:
                self._refuse(
                    sock, uid, f"{MAX_NEW} new connections of this user wait, so the socket now denies the user"
                )
                if uid not in self._denied:
                    self._denied[uid] = now + DENIED_S
                    self._deny(self._denied)
            elif mine and taken >= self._capacity:
                self._refuse(sock, uid, f"all {self._capacity} are taken")
            else:
                mine.append((sock, pid, gid))
                taken += 1

    def _refuse(self, sock: socket.socket, uid: int, why: str) -> None:
        self._note("too-many-connections", f"a connection of uid {uid} is refused: {why}")
        sock.close()

    def _prepare(self, sock: socket.socket, pid: int, gid: int, uid: int, now: float) -> None:
        """Turn an accepted socket into a connection, or close it if there is no room."""
        if len(self._by_fd) >= self._capacity and not self._make_room(uid, now):
            self._refuse(sock, uid, f"all {len(self)} are taken")
            return
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        except OSError:
            sock.close()
            return
        self._sequence += 1
        name = self._sequence.to_bytes(8, "big")
        reader = zmtp.Reader(self._max_message_bytes)
        connection = Connection(name, sock, uid, gid, pid, reader, Outgoing(sock, REPLY_BYTES), now, now, sock.fileno())
        self._watch(connection)
        self._by_fd[connection.fd] = self._by_name[name] = connection
        self._of.setdefault(uid, {})[connection] = None
        self.send(name, zmtp.hello(b"ROUTER"))

    def _make_room(self, uid: int, now: float) -> bool:
        """Close a connection of the user who has the most, if this user has at least two more than ``uid``.

        Otherwise close a connection of ``uid`` that is idle, or whose handshake is unfinished. Returns whether a
        connection was closed, so that ``uid`` may have one more.
        """
        largest = max(self._of, key=lambda user: len(self._of[user]), default=uid)
        own = len(self._of.get(uid, ()))
        others = len(self._of.get(largest, ())) > own + 1
        found: Connection | None = None
        for connection in islice(self._of.get(largest if others else uid, ()), CANDIDATES):
            if not connection.reader.ready or now - connection.active > IDLE_S:
                found = connection
                break
            if found is None or connection.active < found.active:
                found = connection if others else None
        if found is None:
            return False
        count = len(self._of[found.uid])
        self._note("connection-displaced", f"uid {found.uid} has {count} connections, so the daemon closed one")
        self._drop(found)
        return True

    def _watch(self, connection: Connection) -> None:
        """Update a connection's epoll events.

        Unregister a paused connection, because epoll would report the end of its stream forever.
        """
        if connection.fd < 0:
            return
        events = select.EPOLLIN | (select.EPOLLOUT if connection.unread_since else 0)
        if connection in self._paused.get(connection.uid, ()):
            events = 0
        if events == connection.events:
            return
        if events == 0:
            self._epoll.unregister(connection.fd)
        elif connection.events == 0:
            self._epoll.register(connection.fd, events)
        else:
            self._epoll.modify(connection.fd, events)
        connection.events = events

    def _drop(self, connection: Connection) -> None:
        if connection.fd < 0:
            return
        if connection.events:
            self._epoll.unregister(connection.fd)
        del self._by_fd[connection.fd], self._by_name[connection.name]
        mine = self._of[connection.uid]
        del mine[connection]
        if not mine:
            del self._of[connection.uid]
        connection.fd = -1
        connection.sock.close()
        if connection in (paused := self._paused.get(connection.uid, set())):
            paused.discard(connection)
        self._add_unread(connection.uid, -connection.out.waiting)
        connection.out.clear()
        self._count(connection)

    def _sweep(self, now: float) -> None:
        """Drop peers that finish no handshake, stop within a message, or read no replies; end expired denials."""
        self._capacity = self._limit
        if over := [uid for uid, until in self._denied.items() if now >= until]:
            for uid in over:
                del self._denied[uid]
            self._deny(self._denied)
        if not self._accepts and self._listening is not None:
            self._accepts = True
            self._epoll.modify(self._listening.fileno(), select.EPOLLIN)
        for connection in list(self._by_fd.values()):
            paused = connection in self._paused.get(connection.uid, ())
            waits = connection in self._queued  # this daemon has not handled its bytes yet
            if not waits and not connection.reader.ready and now - connection.accepted > HANDSHAKE_S:
                self._note("no-handshake", f"a connection of uid {connection.uid} sent nothing")
            elif not waits and connection.held and now - connection.active > (PAUSED_S if paused else STALLED_S):
                self._note("stalled", f"uid {connection.uid} sent an incomplete message")
            elif connection.unread_since and now - connection.unread_since > STALLED_S:
                self._note("unread", f"uid {connection.uid} does not read replies")
            else:
                continue
            self._drop(connection)


def _rotate(queues: dict[int, deque[T]], share_s: float) -> Iterator[tuple[int, deque[T]]]:
    """Yield each user's queue until it is empty or ``share_s`` has passed.

    The caller removes one item from each yielded queue. Users with items left come last in the next turn.
    """
    for uid in list(queues):
        until = time.monotonic() + share_s
        queue = queues.pop(uid, None)
        while queue:
            yield uid, queue
            if time.monotonic() >= until:
                break
        if queue:
            queues[uid] = queue


def capacity() -> int:
    """How many descriptors clients may use: the process's limit, minus the descriptors for workers and files."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    taken = len(os.listdir("/proc/self/fd"))
    return max(1, soft - taken - min(RESERVED, soft // 4))
