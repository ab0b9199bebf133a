"""status: show the daemon, its workers, and the running programs."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from precompiled import parts
from precompiled.cli import runs, top
from precompiled.cli.app import command
from precompiled.cli.daemon import ANSWER_TIMEOUT_S, NOT_RUNNING, ask_daemon, fields, socket_of, timeout_option
from precompiled.cli.output import JSON_HAS, Output, pairs, table
from precompiled.core import paths
from precompiled.core.config import Settings
from precompiled.core.errors import DaemonError
from precompiled.core.words import format_count, human_bytes, human_seconds
from precompiled.store.job_phases import UnderWay, under_way

STATES = {"remote": parts.REMOTE_STATE, "farm": parts.FARM_STATE}


@command("status", examples=["precompiled status", "precompiled status --watch"])
@click.option("--watch", is_flag=True, help="Show a live view of programs, graphs, workers and the queue.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="With --watch: update this often.",
)
@click.option("--once", is_flag=True, help="With --watch: print one view as text and exit.")
@timeout_option(ANSWER_TIMEOUT_S)
def status_command(out: Output, settings: Settings, watch: bool, interval: float, once: bool, timeout: float) -> int:
    """Show the daemon, its workers, and the running programs.

    The exit status is 1 if no daemon runs (with --watch always 0).

    In the live view, ? lists the keys. The arrow keys select a graph, and Enter explains it. Without a terminal,
    --watch prints a line for each change; with --json it prints one view.
    """
    if watch:
        return top.watch(out, settings, interval, once)
    return _status(out, settings, timeout)


def _status(out: Output, settings: Settings, timeout: float) -> int:
    from precompiled import wire

    try:
        reply = fields(ask_daemon(settings, wire.Status(), timeout))
    except DaemonError as error:
        if error.code not in NOT_RUNNING:
            raise
        document: dict[str, Any] = {
            "running": False,
            "pid": None,
            "version": None,
            "socket": socket_of(settings),
            "cache_dir": str(settings.cache_dir),
            "uptime_s": None,
            "queue_depth": 0,
            "workers": [],
            "watches": [],
            "runs": [],
            "jobs": [],
            **last_states(settings),
        }
        further = (
            f"None can start: {why}. {paths.NO_PLACE_ACTION}."
            if (why := settings.why_no_store)
            else ("The first graph that the store lacks starts one; so does `precompiled daemon start`.")
        )
        out.result(document, f"No daemon runs at {document['socket']}. {further}")
        return 1
    reply |= last_states(settings)
    reply["runs"] = runs.live(settings)
    reply["jobs"] = [dataclasses.asdict(job) for job in under_way(settings.cache_dir)]
    out.result(reply, lambda: _show_status(reply), JSON_HAS)
    return 0


def last_states(settings: Settings) -> dict[str, dict[str, Any] | None]:
    """The last state of the remote and that of the farm. None instead of a state if that part is not set up."""
    installed = {name: entry.get() for name, entry in STATES.items()}
    return {name: None if part is None else part.last_state(settings) for name, part in installed.items()}


def _show_status(reply: dict[str, Any]) -> None:
    pairs(
        [
            ("running", f"yes, pid {reply['pid']}, version {reply['version']}, up {human_seconds(reply['uptime_s'])}"),
            ("socket", reply["socket"]),
            ("cache", reply["cache_dir"]),
            ("memory", human_bytes(reply["rss_bytes"])),
            ("queued", str(reply["queue_depth"])),
            *(("degraded", text) for text in reply["degraded"]),
            *((name, STATES[name].require().line(reply[name])) for name in STATES if reply[name]),
        ]
    )
    _show_workers(reply)
    runs.show_live(reply["runs"])
    if reply["watches"] and (watch := parts.WATCH.get()) is not None:
        click.echo()
        watch.show_watches(reply["watches"])


def _now(worker: dict[str, Any], jobs: list[dict[str, Any]]) -> str:
    """A worker's current job as a line; "" if it has none. A column would wrap over several lines."""
    if not worker["job"]:
        return ""
    found = next((UnderWay(**job) for job in jobs if job["worker"] == worker["pid"]), None)
    said = found.said(worker["job_s"]) if found is not None and found.key == worker["job"] else ""
    return f"{worker['pid']} compiles {worker['job'][:12]} for {human_seconds(worker['job_s'])}{said}"


def _show_workers(reply: dict[str, Any]) -> None:
    if not reply["workers"]:
        click.echo("no workers (the first graph to compile starts one)")
        return
    click.echo(f"\n{format_count(len(reply['workers']), 'worker')}")
    table(
        ("PID", "DEVICE", "PYTHON", "TORCH", "STATE", "MEMORY", "JOBS"),
        [
            (
                str(worker["pid"]),
                worker["device"],
                worker["python"],
                worker["torch"],
                worker["state"],
                human_bytes(worker["rss_bytes"]),
                str(worker["jobs_done"]),
            )
            for worker in reply["workers"]
        ],
        right=("PID", "MEMORY", "JOBS"),
    )
    for line in filter(None, (_now(worker, reply["jobs"]) for worker in reply["workers"])):
        click.echo(line)
