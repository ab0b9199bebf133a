"""Sends messages to the daemon without a DaemonConnection: the command line's requests, a program's last counts, and
its request for an early worker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from precompiled.client.daemon_link import LINGER_S, Link, import_messages, is_busy
from precompiled.core import interruptions, paths
from precompiled.core.config import Settings
from precompiled.core.errors import DaemonError

if TYPE_CHECKING:
    from precompiled import wire

log = logging.getLogger("precompiled.client.connection")

RETRY_S = 0.05  # seconds before the next attempt to connect to a busy daemon


@contextmanager
def _link(settings: Settings, until: float) -> Iterator[Link]:
    """Connect and complete the handshake. Raises DaemonError if no daemon listens, or if the daemon is still busy at
    ``until``.
    """
    link = _connected(settings, until)
    try:
        yield link
    finally:
        link.close()


def _connected(settings: Settings, until: float) -> Link:
    path = paths.socket_path(settings.runtime_dir)
    while True:
        try:
            link = Link(settings)
        except OSError as error:
            if not is_busy(error):
                by_systemd = path.parent == paths.SYSTEM_RUNTIME_DIR
                how = "systemctl start precompiled" if by_systemd else "precompiled daemon start"
                raise DaemonError(f"no daemon runs at {path}", f"Start one with `{how}`") from error
        else:
            while not link.up and not link.is_lost(time.monotonic()) and (left := until - time.monotonic()) > 0:
                link.wait(left)
                link.receive()
            if link.up:
                return link
            link.abandon()  # the daemon has no room for a further client, or is stopping
        if time.monotonic() + RETRY_S >= until:
            raise DaemonError(
                f"the daemon on {path} accepts no connection", "Read its log, or restart it", code="no-reply"
            )
        time.sleep(RETRY_S)


def request(settings: Settings, message: wire.ClientMessage, timeout_s: float = 5.0) -> Any:
    """Send a request and wait for the daemon's reply, for at most ``timeout_s`` seconds.

    Raises DaemonError with the code "no-daemon" (no daemon listens), "no-reply" (the daemon does not answer) or the
    code of the daemon's refusal.
    """
    import_messages()
    from precompiled import wire

    until = time.monotonic() + timeout_s
    with _link(settings, until) as link:
        link.send(message)
        while not (replies := link.receive()):
            left = until - time.monotonic()
            if left <= 0 or link.is_lost(time.monotonic()):
                path = paths.socket_path(settings.runtime_dir)
                said = f"did not answer within {timeout_s:g} s" if left <= 0 else "closed the connection"
                raise DaemonError(f"the daemon on {path} {said}", "Read its log, or restart it", code="no-reply")
            link.wait(left)
    reply = replies[0]
    if isinstance(reply, wire.Rejected):
        raise DaemonError(reply.message, reply.action, code=reply.code)
    return reply


def send_now(settings: Settings, messages: Sequence[wire.Tally | wire.Expect]) -> None:
    """Send messages from this thread. After LINGER_S, drop the unsent messages. Raises no error."""
    until = time.monotonic() + LINGER_S
    try:
        import_messages()
        with _link(settings, until) as link:
            for message in messages:
                while not link.send(message):
                    left = until - time.monotonic()
                    if left <= 0 or link.is_lost(time.monotonic()):
                        raise DaemonError("the daemon does not read", "Look into its log", code="no-reply")
                    link.wait(left)
    except Exception as error:  # noqa: BLE001 - a program works as well without these messages
        interruptions.pass_on(error)
        log.info("counts, or a request for a worker, were not sent: %s", error)
