"""Notifies systemd of the daemon's state, by datagrams to the socket ``NOTIFY_SOCKET``.

Does nothing if the variable is missing.
"""

from __future__ import annotations

import os
import socket


class Notifier:
    """Sends states to systemd. ``watchdog_s``: systemd's limit between two watchdog messages; None: no watchdog."""

    def __init__(self) -> None:
        # Remove the variables from os.environ, so that workers cannot notify systemd in the daemon's name.
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        usec = os.environ.pop("WATCHDOG_USEC", "")
        pid = os.environ.pop("WATCHDOG_PID", "")
        wanted = usec.isdigit() and int(usec) > 0 and (not pid or pid == str(os.getpid()))
        self.watchdog_s: float | None = int(usec) / 1e6 if self._address and wanted else None

    def send(self, *lines: str) -> bool:
        """Send lines such as "READY=1"; false if that fails (systemd then acts on its own timeouts)."""
        if not self._address:
            return False
        # A leading "@" stands for the NUL of an abstract socket.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(1.0)
                sock.sendto("\n".join(lines).encode(), address)
        except OSError:
            return False
        return True
