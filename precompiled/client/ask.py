"""To the daemon without a Connection: the command line's questions, and the counts at a program's end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from precompiled.client.link import LINGER_MS, daemon_reachable, decode_reply, import_zmq
from precompiled.core import paths
from precompiled.core.config import Settings
from precompiled.core.errors import DaemonError

if TYPE_CHECKING:
    from precompiled import wire

log = logging.getLogger("precompiled.client.connection")

NO_DAEMON_ACTION = "Start one with `precompiled start`, or `systemctl start precompiled`"


@contextmanager
def _dealer(settings: Settings, *, linger_ms: int) -> Iterator[Any]:
    """A socket to the daemon, for this thread and this once; at its end it waits for ``linger_ms`` at most."""
    zmq = import_zmq()
    context = zmq.Context()
    sock = context.socket(zmq.DEALER)
    try:
        sock.setsockopt(zmq.LINGER, linger_ms)
        sock.connect(paths.endpoint(settings.runtime_dir))
        yield sock
    finally:
        sock.close()
        context.term()


def request(settings: Settings, message: wire.ClientMessage, timeout_s: float = 5.0) -> Any:
    """Ask the daemon and wait for its reply, for at most ``timeout_s`` seconds.

    Raises DaemonError: "no-daemon" where none listens, "no-reply" when it does not answer, else the code
    of its refusal.
    """
    path = paths.socket_path(settings.runtime_dir)
    if not daemon_reachable(settings):
        raise DaemonError(f"no daemon listens on {path}", NO_DAEMON_ACTION)
    zmq = import_zmq()
    from precompiled import wire

    try:
        with _dealer(settings, linger_ms=0) as sock:
            sock.send_multipart([wire.PREAMBLE, wire.encode(message)])
            if not sock.poll(int(timeout_s * 1000)):
                raise DaemonError(
                    f"the daemon on {path} did not answer within {timeout_s:g} s", "Look into its log, or restart it",
                    code="no-reply",
                )  # fmt: skip
            reply = decode_reply(sock.recv_multipart())
    except zmq.ZMQError as error:
        raise DaemonError(f"{path}: {error}", NO_DAEMON_ACTION) from error
    if isinstance(reply, wire.Rejected):
        raise DaemonError(reply.message, reply.action, code=reply.code)
    return reply


def send_now(settings: Settings, messages: list[wire.Tally]) -> None:
    """In this thread; waits for LINGER_MS at most. What cannot be sent is dropped."""
    if not daemon_reachable(settings):
        return
    try:
        zmq = import_zmq()
        from precompiled import wire

        with _dealer(settings, linger_ms=LINGER_MS) as sock:
            for message in messages:
                sock.send_multipart([wire.PREAMBLE, wire.encode(message)], zmq.NOBLOCK)
    except Exception as error:  # noqa: BLE001 - counts, at the end of a program
        log.info("counts were not sent: %s", error)
