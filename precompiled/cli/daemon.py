"""start, stop, restart, serve, status, stats: everything that is about the daemon."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

import click

from precompiled.cli import farm, remote, runs
from precompiled.cli.app import command
from precompiled.cli.output import Output, pairs, table
from precompiled.core import paths
from precompiled.core.config import NAMES, Settings
from precompiled.core.errors import DaemonError
from precompiled.core.words import counted, human_bytes, human_seconds
from precompiled.store.jobs import UnderWay, under_way

ANSWER_TIMEOUT_S = 5.0
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0


def _timeout_option(default: float) -> Any:
    return click.option(
        "--timeout", type=click.FloatRange(min=0.0), default=default, show_default=True, metavar="SECONDS",
        help="How long to wait.",
    )


@command("start", overrides=True)
@_timeout_option(START_TIMEOUT_S)
def start_command(out: Output, settings: Settings, timeout: float) -> int:
    """Start this user's daemon, and wait until it answers."""
    return _start(out, settings, timeout)


@command("stop")
@_timeout_option(STOP_TIMEOUT_S)
def stop_command(out: Output, settings: Settings, timeout: float) -> int:
    """Stop the daemon and its workers; what is published stays. Not running: nothing to do, status 0."""
    pid = stop_daemon(settings, timeout)
    text = "No daemon was running." if pid is None else f"Stopped the daemon (pid {pid})."
    out.result({"stopped": pid is not None, "pid": pid}, text)
    return 0


@command("restart", overrides=True)
@_timeout_option(STOP_TIMEOUT_S)
def restart_command(out: Output, settings: Settings, timeout: float) -> int:
    """Stop the daemon if one runs, and start it again."""
    stop_daemon(settings, timeout)
    return _start(out, settings, timeout)


@command("serve", overrides=True)
@click.option("--system", is_flag=True, help="Serve all users, as root.")
def serve_command(out: Output, settings: Settings, system: bool) -> int:
    """Run the daemon in the foreground (what systemd runs)."""
    # The daemon is exec'ed, never imported: the command line stays a client of it. It resolves the settings anew,
    # so only what was given as a flag is handed on; a client hands on more (client/start.arguments).
    arguments = [sys.executable, "-m", "precompiled.service", *(["--system"] if system else [])]
    for name in NAMES:
        if settings.origins[name] == "flag":
            arguments += ["--" + name.replace("_", "-"), settings.text(name)]
    sys.stdout.flush()
    os.execv(sys.executable, arguments)


@command("status")
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(min=0.1), default=2.0, show_default=True, metavar="SECONDS",
              help="With --watch: between two looks.")  # fmt: skip
@_timeout_option(ANSWER_TIMEOUT_S)
def status_command(out: Output, settings: Settings, watch: bool, interval: float, timeout: float) -> int:
    """Show the daemon and its workers. Exit status 1 when no daemon runs; with --watch 0."""
    if not watch:
        return _status(out, settings, timeout)
    try:
        while True:
            if sys.stdout.isatty():
                click.clear()
            elif not out.as_json:
                click.echo(time.strftime("%H:%M:%S"))
            _status(out, settings, timeout)
            if not sys.stdout.isatty() and not out.as_json:
                click.echo()
            sys.stdout.flush()
            time.sleep(interval)
    except KeyboardInterrupt:
        return 0


def _status(out: Output, settings: Settings, timeout: float) -> int:
    from precompiled import wire

    try:
        reply = fields(ask_daemon(settings, wire.Status(), timeout))
    except DaemonError as error:
        if error.code not in _NOT_RUNNING:
            raise
        document: dict[str, Any] = {
            "running": False, "pid": None, "version": None, "socket": _socket(settings),
            "cache_dir": str(settings.cache_dir), "uptime_s": None, "queue_depth": 0, "workers": [],
            "watches": [], "runs": [], "jobs": [], "remote": remote.told(settings),
            "farm": farm.told(settings),
        }  # fmt: skip
        further = f"None can start: {why}. {paths.NO_PLACE_ACTION}." if (why := settings.why_no_store) else (
            "`precompiled start` starts one."
        )
        out.result(document, f"No daemon runs at {document['socket']}. {further}")
        return 1
    reply["runs"], reply["remote"], reply["farm"] = runs.live(settings), remote.told(settings), farm.told(settings)
    reply["jobs"] = [dataclasses.asdict(job) for job in under_way(settings.cache_dir)]
    out.result(reply, lambda: _show_status(reply))
    return 0


@command("stats")
@click.option("--run", metavar="NAME", help="Of one run, rank by rank; `last` is the last one.")
@_timeout_option(ANSWER_TIMEOUT_S)
def stats_command(out: Output, settings: Settings, run: str | None, timeout: float) -> int:
    """Show what was counted for you since the daemon started."""
    if run is not None:
        out.result(*runs.stats(settings, run))
        return 0
    from precompiled import wire

    reply = fields(ask_daemon(settings, wire.Stats(), timeout))
    reply["remote"], reply["farm"] = remote.told(settings), farm.told(settings)

    def show() -> None:
        rows = []
        for name, value in reply.items():
            if name == "remote":
                rows.append((name, remote.line(value) if value else "-"))
            elif name == "farm":
                rows.append((name, farm.line(value) if value else "-"))
            elif isinstance(value, dict):
                rows.append((name, ", ".join(f"{reason} {count}" for reason, count in sorted(value.items())) or "-"))
            elif name.endswith("_s"):
                rows.append((name.removesuffix("_s"), human_seconds(value) + _mean(name, reply)))
            else:
                rows.append((name, f"{value}{_share(name, reply)}"))
        pairs(rows)

    out.result(reply, show)
    return 0


def _share(name: str, reply: Mapping[str, Any]) -> str:
    lookups = reply["hits"] + reply["misses"]
    return f" ({reply['hits'] / lookups:.0%} of {counted(lookups, 'lookup')})" if name == "hits" and lookups else ""


def _mean(name: str, reply: Mapping[str, Any]) -> str:
    compiled = reply["compiled"]
    return f" ({human_seconds(reply[name] / compiled)} a graph)" if name == "compile_s" and compiled else ""


# ---------------------------------------------------------------- inside

# Codes of DaemonError that mean that there is nobody to talk to; any other is a daemon with a problem.
_NOT_RUNNING = ("no-daemon",)


def ask_daemon(settings: Settings, message: Any, timeout: float) -> Any:
    from precompiled.client import ask

    return ask.request(settings, message, timeout)


def fields(reply: Any) -> dict[str, Any]:
    """A reply as plain fields, without the wire's own "type"."""
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(reply)
    found.pop("type", None)
    return found


def _socket(settings: Settings) -> str:
    return str(paths.socket_path(settings.runtime_dir))


def _start(out: Output, settings: Settings, timeout: float) -> int:
    from precompiled import wire
    from precompiled.client.start import start_daemon

    outcome = start_daemon(settings, timeout)
    if outcome.code == "no-place":
        raise outcome.error()
    if not outcome.runs:
        raise DaemonError(
            f"the daemon did not start ({outcome.kind}): {outcome.reason}",
            f"See {settings.log_path}, or run `precompiled doctor`" if settings.log_path.exists()
            else "Run `precompiled doctor`",
            code=f"start-{outcome.kind}",
        )
    verb = "The daemon is ready" if outcome.kind == "ready" else "A daemon is running already"
    pid = outcome.pid or ask_daemon(settings, wire.Status(), ANSWER_TIMEOUT_S).pid
    document = {"outcome": outcome.kind, "pid": pid, "socket": _socket(settings)}
    out.result(document, f"{verb} (pid {pid}, {document['socket']}).")
    return 0


def stop_daemon(settings: Settings, timeout: float) -> int | None:
    """Stop the daemon and wait until its process is gone; its pid, or None when none ran."""
    from precompiled import wire

    try:
        pid: int = ask_daemon(settings, wire.Stop(), min(timeout, ANSWER_TIMEOUT_S)).pid
    except DaemonError as error:
        if error.code in _NOT_RUNNING:
            return None
        skewed = _own_listener(settings) if error.code == "protocol-version" else None
        if skewed is None:
            raise
        pid = skewed
        os.kill(pid, signal.SIGTERM)  # as systemd would: it has been upgraded in place, and understands no word of ours
    if not _wait_for_end(pid, timeout):
        raise DaemonError(
            f"the daemon (pid {pid}) was told to stop, but still runs after {timeout:g} s",
            f"Wait with a longer --timeout, or `kill -9 {pid}`",
            code="stop-timed-out",
        )
    return pid


def _own_listener(settings: Settings) -> int | None:
    """The process that listens on the daemon's socket, where that is a daemon of this user's; else None."""
    import psutil  # type: ignore[import-untyped, unused-ignore]

    from precompiled.client.link import listener

    found = listener(settings)
    if found is None or found.uid != os.geteuid():
        return None
    try:  # where systemd listens for it, it is systemd
        command = psutil.Process(found.pid).cmdline()
    except psutil.Error:
        return None
    return found.pid if any("precompiled" in word for word in command) else None


def _wait_for_end(pid: int, timeout: float) -> bool:
    """Whether the process ended in time. One that nobody reaps (a container's PID 1 may not) has ended, too."""
    import select

    import psutil  # type: ignore[import-untyped, unused-ignore]

    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except (AttributeError, OSError):  # a kernel before 5.3
        try:
            psutil.Process(pid).wait(timeout)
        except psutil.NoSuchProcess:
            return True
        except psutil.TimeoutExpired:
            return False
        return True
    try:
        return bool(select.select([fd], [], [], timeout)[0])
    finally:
        os.close(fd)


def _show_status(reply: dict[str, Any]) -> None:
    pairs(
        [
            ("running", f"yes, pid {reply['pid']}, version {reply['version']}, up {human_seconds(reply['uptime_s'])}"),
            ("socket", reply["socket"]),
            ("cache", reply["cache_dir"]),
            ("memory", human_bytes(reply["rss_bytes"])),
            ("queued", str(reply["queue_depth"])),
            *(("degraded", text) for text in reply["degraded"]),
            *([("remote", remote.line(reply["remote"]))] if reply["remote"] else []),
            *([("farm", farm.line(reply["farm"]))] if reply["farm"] else []),
        ]
    )
    _show_workers(reply)
    runs.show_live(reply["runs"])
    if reply["watches"]:
        from precompiled.cli.watch import show_watches

        click.echo()
        show_watches(reply["watches"])


def _now(worker: dict[str, Any], jobs: list[dict[str, Any]]) -> str:
    """What a worker is at."""
    if not worker["job"]:
        return ""
    found = next((UnderWay(**job) for job in jobs if job["worker"] == worker["pid"]), None)
    said = found.said() if found is not None and found.key == worker["job"] else ""
    return f"{worker['job'][:12]} for {human_seconds(worker['job_s'])}{said}"


def _show_workers(reply: dict[str, Any]) -> None:
    if not reply["workers"]:
        click.echo("no workers (they are started when the first graph comes)")
        return
    click.echo(f"\n{counted(len(reply['workers']), 'worker')}")
    table(
        ("PID", "DEVICE", "PYTHON", "TORCH", "STATE", "MEMORY", "JOBS", "NOW"),
        [
            (
                str(worker["pid"]), worker["device"], worker["python"], worker["torch"], worker["state"],
                human_bytes(worker["rss_bytes"]), str(worker["jobs_done"]),
                _now(worker, reply["jobs"]),
            )
            for worker in reply["workers"]
        ],
        right=("PID", "MEMORY", "JOBS"),
    )  # fmt: skip
