"""tools metrics: serves the numbers of `status` and `cache stats` to Prometheus, or writes or prints these numbers.

The command is a separate process, because the system daemon has no network access and must not parse HTTP as root.
"""

from __future__ import annotations

import os
import signal
import socketserver
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from precompiled import parts
from precompiled.cli.app import command
from precompiled.cli.output import Output
from precompiled.cli.top import look
from precompiled.cli.top_view import Rates
from precompiled.core import words
from precompiled.core.config import Settings
from precompiled.core.errors import PrecompiledError
from precompiled.metrics.families import families

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class _Host:
    """A collector for prometheus_client. The collector queries the host at each scrape."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def collect(self) -> Iterator[object]:
        remote = parts.REMOTE_STATE.get()
        state = None if remote is None else remote.last_state(self._settings)
        return families(look(self._settings, Rates()), state)

    def describe(self) -> list[object]:
        return []  # otherwise the registration would call collect()


@command("metrics", examples=["precompiled tools metrics --listen 9464", "precompiled tools metrics --textfile p.prom"])
@click.option("--listen", metavar="[HOST:]PORT|PATH", help="Serve on a port (of 127.0.0.1) or a Unix socket.")
@click.option(
    "--textfile",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write to FILE (*.prom) for node_exporter's textfile collector.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=1.0),
    metavar="SECONDS",
    help="With --textfile: write again after this time, until Ctrl-C.",
)
def metrics_command(
    out: Output, settings: Settings, listen: str | None, textfile: Path | None, interval: float | None
) -> int:
    """Print or serve metrics for Prometheus.

    The metrics count your own programs; root counts all users' programs. Needs prometheus-client (the extra `metrics`).
    """
    if listen and textfile:
        raise click.UsageError("--listen and --textfile are mutually exclusive")
    if interval and not textfile:
        raise click.UsageError("--interval needs --textfile")
    registry = _registry(settings)
    signal.signal(signal.SIGTERM, _leave)
    try:
        if listen:
            _serve(out, registry, listen)
        elif textfile:
            _keep(registry, textfile, interval)
        else:
            _show(out, registry)
    except KeyboardInterrupt:
        pass
    return 0


def _leave(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _registry(settings: Settings) -> CollectorRegistry:
    try:
        from prometheus_client import CollectorRegistry
    except ImportError as error:
        raise PrecompiledError(
            "metrics need prometheus-client, which is not installed",
            words.install("metrics"),
            code="metrics-unavailable",
        ) from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Host(settings))  # type: ignore[arg-type, unused-ignore]
    return registry


def _show(out: Output, registry: CollectorRegistry) -> None:
    from prometheus_client import generate_latest

    def samples() -> list[dict[str, object]]:
        return [
            {"name": sample.name, "labels": sample.labels, "value": sample.value}
            for family in registry.collect()
            for sample in family.samples
        ]

    if out.as_json:
        out.result(samples(), "")
    else:
        sys.stdout.write(generate_latest(registry).decode())


def _keep(registry: CollectorRegistry, file: Path, interval: float | None) -> None:
    from prometheus_client import write_to_textfile

    while True:
        try:
            write_to_textfile(str(file), registry)  # atomic, by a rename
        except OSError as error:
            raise PrecompiledError(
                f"{file} cannot be written: {error.strerror or error}",
                "Give another file",
                code="output-unwritable",
            ) from error
        if interval is None:
            return
        time.sleep(interval)


# ---------------------------------------------------------------- served


class _Port(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


class _Socket(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


def _serve(out: Output, registry: CollectorRegistry, where: str) -> None:
    from prometheus_client import MetricsHandler

    handler = MetricsHandler.factory(registry)
    host, _, port = where.rpartition(":")
    try:
        if port.isdecimal():
            server: socketserver.BaseServer = _Port((host or "127.0.0.1", int(port)), handler)
            bound: Any = server.server_address  # type: ignore[attr-defined, unused-ignore]
            shown = f"http://{bound[0]}:{bound[1]}/metrics"
        elif host and os.sep not in where:
            raise OSError("not a port or a path")  # a text with a colon needs a slash to be a path
        else:
            path = Path(where).absolute()
            _remove_socket(path)
            before = os.umask(0o177)  # only the owner may connect, until the owner changes the mode
            try:
                server = _Socket(str(path), handler)  # type: ignore[arg-type, unused-ignore]
            finally:
                os.umask(before)
            shown = str(path)
    except (OSError, OverflowError) as error:
        raise PrecompiledError(
            f"nothing can listen at {where}: {error}",
            "Give another port or path",
            code="listen",
        ) from error
    with server:
        out.note(f"precompiled: metrics at {shown}")
        try:
            server.serve_forever()
        finally:
            if not port.isdecimal():
                with suppress(OSError):
                    path.unlink()


def _remove_socket(path: Path) -> None:
    """Remove the socket that a killed process left. Removes only sockets."""
    with suppress(OSError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
