"""Measures a daemon with many clients and with a long queue."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
import psutil

from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import Child, Host
from benchmarks.harness.result import Table
from precompiled import wire
from precompiled.client.ask import request
from precompiled.graph.environment import interpreter_of_a_worker

KNOWN = 50  # number of keys that clients submit repeatedly


@dataclass
class Load:
    """Figures of a series of submits, from the clients and the daemon."""

    accepted: list[float]
    answered: list[float]
    lost: int
    other: dict[str, int]
    submitted_s: float  # seconds until the last client had its first replies
    seconds: float
    daemon_cpu_s: float
    daemon_bytes: tuple[int, int]  # the daemon's memory before and after


def submit(
    host: Host, daemon: psutil.Process, specs: Sequence[dict[str, Any]], beside: Callable[[], None] | None = None
) -> Load:
    """Run processes that submit at the same time. Calls ``beside`` meanwhile."""
    extra = {"PRECOMPILED_AUTOSTART": "0"}
    commands = [host.command(spec, hook=False, extra=extra, program="scale.program") for spec in specs]
    with ExitStack() as stack:
        running = [stack.enter_context(Child(command)) for command in commands]
        for process in running:
            process.wait_ready()
        before, cpu, started = daemon.memory_info().rss, _cpu_s(daemon), time.perf_counter()
        for process in running:
            process.tell("go")
        if beside is not None:
            beside()
        answers = [process.answer() for process in running]
        seconds, cpu = time.perf_counter() - started, _cpu_s(daemon) - cpu
    other: Counter[str] = Counter()
    for answer in answers:
        other.update(answer["other"])
    return Load(
        [value for answer in answers for value in answer["accepted"]],
        [value for answer in answers for value in answer["answered"]],
        sum(answer["lost"] for answer in answers),
        dict(other),
        max(answer["submitted_s"] for answer in answers),
        seconds,
        cpu,
        (before, daemon.memory_info().rss),
    )


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _quantiles(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile in milliseconds."""
    ordered = sorted(seconds)
    return 1000 * statistics.median(ordered), 1000 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


def client_spec(host: Host, keys: Sequence[str], submits: int, window: int) -> dict[str, Any]:
    interpreter = msgspec.to_builtins(interpreter_of_a_worker())
    return {
        "submits": submits,
        "window": window,
        "keys": list(keys),
        "blob": str(host.root / "blob"),
        "environment": interpreter,
    }


def measure_clients(
    host: Host, daemon: psutil.Process, keys: Sequence[str], loads: Sequence[tuple[int, int]], say: Say
) -> tuple[Table, int]:
    """Measure clients that submit the graphs of ``keys``. Each client waits for a reply before its next submit.

    Also returns the number of lost submits.
    """
    table = Table(
        f"The daemon: submits of {KNOWN} known keys; each client submits again after each reply",
        [
            "clients",
            "submits",
            "lost",
            "reply, median (ms)",
            "p99 (ms)",
            "replies per second",
            "all published after (s)",
            "daemon's CPU per submit (µs)",
            "daemon's memory before; after (MB)",
        ],
    )
    lost = 0
    for count, total in loads:
        # Clients start at different keys, so that they submit a key at different times.
        specs = [
            client_spec(host, [keys[(number * 31 + offset) % KNOWN] for offset in range(KNOWN)], -(-total // count), 1)
            for number in range(count)
        ]
        found = submit(host, daemon, specs)
        lost += found.lost
        table.rows.append(_load_row(str(count), found))
        say(f"{count} clients: " + ", ".join(table.rows[-1][1:]) + (f"; {found.other}" if found.other else ""))
    return table, lost


def _load_row(title: str, found: Load) -> list[str]:
    done = len(found.answered) + found.lost
    first = _quantiles(found.accepted)
    return [
        title,
        f"{done:,}",
        str(found.lost),
        f"{first[0]:.1f}",
        f"{first[1]:.1f}",
        f"{done / found.submitted_s:.0f}",
        f"{found.seconds:.1f}",
        f"{1e6 * found.daemon_cpu_s / done:.0f}",
        f"{found.daemon_bytes[0] / 1e6:.1f}; {found.daemon_bytes[1] / 1e6:.1f}",
    ]


def measure_queue(host: Host, keys: Sequence[str], most: int, say: Say) -> tuple[Table, int]:
    """Measure one client that submits all keys while the worker starts. Also returns the number of lost submits."""
    table = Table(
        "The queue: clients submit all jobs before a worker runs, and constantly request status and stats",
        [
            "jobs",
            "lost",
            "first reply, median (ms)",
            "p99 (ms)",
            "all done (s)",
            "daemon's CPU per job (µs)",
            "deepest seen",
            "`status` meanwhile, median (ms)",
            "`stats` meanwhile, median (ms)",
        ],
    )
    lost = 0
    sizes = sorted({max(1, most // 100), max(1, most // 10), most})
    for count in sizes:
        host.stop_daemon()
        daemon = psutil.Process(host.start_daemon())
        seen: dict[str, list[float]] = {"status": [], "stats": [], "depth": [0]}

        def ask(until: int = count, seen: dict[str, list[float]] = seen) -> None:
            """Request status and stats repeatedly until the queue has filled and half of it is done."""
            filled = False
            while len(seen["status"]) < 2000:
                started = time.perf_counter()
                depth = request(host.settings, wire.Status(), 60.0).queue_depth
                seen["status"].append(time.perf_counter() - started)
                started = time.perf_counter()
                request(host.settings, wire.Stats(), 60.0)
                seen["stats"].append(time.perf_counter() - started)
                seen["depth"].append(depth)
                filled = filled or depth >= until / 2
                if (filled and depth < until / 2) or (depth == 0 and len(seen["depth"]) > 100):
                    return
                time.sleep(0.1)  # sample the queue's depth

        found = submit(host, daemon, [client_spec(host, keys[:count], count, count)], ask)
        lost += found.lost
        first = _quantiles(found.accepted)
        table.rows.append(
            [
                f"{count:,}",
                str(found.lost),
                f"{first[0]:.1f}",
                f"{first[1]:.1f}",
                f"{found.seconds:.1f}",
                f"{1e6 * found.daemon_cpu_s / count:.0f}",
                f"{max(seen['depth']):.0f}",
                f"{_quantiles(seen['status'])[0]:.1f}",
                f"{_quantiles(seen['stats'])[0]:.1f}",
            ]
        )
        say(f"{count} jobs: " + ", ".join(table.rows[-1][1:]) + (f"; {found.other}" if found.other else ""))
    return table, lost
