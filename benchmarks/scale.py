"""How costs grow: with the artifacts in the store, with clients that submit at once, with jobs in the queue.

`make bench-scale` (`python -m benchmarks.scale`). One host with a real daemon, a real worker and one real artifact; the
others in its store are copies under other keys, valid to every reader (their files are hard links, so that they take
no room). Exit status 1 when a submit was lost.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import psutil
from rich.console import Console

from benchmarks.hosts import LIMIT_S, ROOT, BenchmarkError, Command, Host, fresh_host, program
from benchmarks.result import banner, machine, markdown, save
from precompiled import wire
from precompiled.client.ask import request
from precompiled.graph.environment import of_a_worker
from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Entry, Store

Say = Callable[[str], None]
PAGE = ROOT / "docs" / "scale.md"
KNOWN = 50  # keys that are submitted again and again
BEGIN, END = "<!-- begin: make bench-scale ARGS=--docs -->", "<!-- end -->"


@dataclass(frozen=True)
class Effort:
    stores: tuple[int, ...]  # artifacts
    clients: tuple[tuple[int, int], ...]  # processes, submits over all of them
    queue: int
    repeats: int  # of what is asked or looked up


FULL = Effort((1, 10, 100, 1000, 10_000), ((1, 1000), (8, 4000), (64, 10_000), (64, 10_000)), 1000, 200)
QUICK = Effort((1, 100), ((1, 200), (4, 400)), 50, 20)


@dataclass
class Table:
    title: str
    headers: list[str]
    rows: list[list[str]] = dataclasses.field(default_factory=list)

    def text(self) -> str:
        return f"**{self.title}**\n\n{markdown(self.headers, self.rows)}"


# ---------------------------------------------------------------- the store


def copies(store: Store, entry: Entry, count: int) -> list[str]:
    """Fill the store up to ``count`` artifacts like ``entry``; all keys."""
    keys = [entry.manifest.key]
    native = entry.path / fmt.NATIVE
    for number in range(1, count):
        key = hashlib.sha256(f"{entry.manifest.key} {number}".encode()).hexdigest()
        keys.append(key)
        target = store.artifacts / f"{key}.0"
        if target.exists():
            continue
        making = store.tmp / f"copy-{key}"
        making.mkdir(mode=0o700)
        if native.is_dir():
            (making / fmt.NATIVE).mkdir(mode=0o700)
        for name in entry.manifest.files:
            os.link(entry.path / name, making / name)
        manifest = making / fmt.MANIFEST
        manifest.write_bytes(fmt.seal(dataclasses.replace(entry.manifest, key=key)))
        manifest.chmod(0o600)
        making.rename(target)
    if len(store.lookup(keys[-1])) != 1:
        raise BenchmarkError(f"the copy {keys[-1]} is no artifact to its reader")
    return keys


def measure_store(host: Host, entry: Entry, effort: Effort, say: Say) -> Table:
    """What is asked of a store with more and more artifacts in it."""
    table = Table(
        f"The store: microseconds a look, by the number of artifacts (medians of {effort.repeats})",
        ["artifacts", "lookup, hit (µs)", "lookup, miss (µs)", "read and verify a hit (µs)", "look for eviction (s)",
         "`precompiled ls` (s)", "`precompiled status` (s)", "`precompiled stats` (s)"],
    )  # fmt: skip
    store = Store(host.settings.cache_dir)
    for count in effort.stores:
        keys = copies(store, entry, count)
        chosen = [keys[(7919 * number) % len(keys)] for number in range(effort.repeats)]
        absent = [hashlib.sha256(key.encode()).hexdigest() for key in chosen]
        hit = _microseconds(lambda key: len(store.lookup(key)) == 1, chosen)
        miss = _microseconds(lambda key: not store.lookup(key), absent)
        found = [store.lookup(key)[0] for key in chosen]
        read = _microseconds(lambda item: len(store.read_files(item)) > 0, found)
        started = time.perf_counter()
        evicted = store.evict(host.settings.cache_max_bytes, host.settings.cache_max_inodes)
        evict_s = time.perf_counter() - started
        if evicted.entries:
            raise BenchmarkError(f"{evicted.entries} artifacts were evicted: the copies do not fit into the budget")
        commands = [f"{_command_s(host, verb):.2f}" for verb in ("ls", "status", "stats")]
        table.rows.append([f"{count:,}", f"{hit:.0f}", f"{miss:.0f}", f"{read:.0f}", f"{evict_s:.3f}", *commands])
        say(f"{count:,} artifacts: a hit {hit:.0f} µs, a miss {miss:.0f} µs, eviction's look {evict_s:.2f} s")
    return table


def _microseconds(look: Callable[[Any], bool], items: Sequence[Any]) -> float:
    """Median over ``items``; ``look`` says whether it found what it should."""
    seconds = []
    for item in items:
        started = time.perf_counter()
        right = look(item)
        seconds.append(time.perf_counter() - started)
        if not right:
            raise BenchmarkError(f"not found as it should be: {item}")
    return 1e6 * statistics.median(seconds)


def _command_s(host: Host, verb: str) -> float:
    started = time.perf_counter()
    subprocess.run(
        [*host.daemon_command(verb), "--json"], env=host.environment(hook=False), stdout=subprocess.DEVNULL, check=True,
        timeout=LIMIT_S,
    )  # fmt: skip
    return time.perf_counter() - started


# ---------------------------------------------------------------- the daemon


@dataclass
class Load:
    """What clients and the daemon saw of some submits."""

    accepted: list[float]
    answered: list[float]
    lost: int
    other: dict[str, int]
    submitted_s: float  # until the last client had its first replies
    seconds: float
    daemon_cpu_s: float
    daemon_bytes: tuple[int, int]  # before, after


@contextmanager
def _processes(commands: Sequence[Command]) -> Iterator[list[subprocess.Popen[str]]]:
    running = [
        subprocess.Popen(
            item["argv"], env=item["env"], cwd=item["cwd"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for item in commands
    ]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()


def submit(
    host: Host, daemon: psutil.Process, specs: Sequence[dict[str, Any]], beside: Callable[[], None] | None = None
) -> Load:
    """Processes that submit at the same time; ``beside``: what is done meanwhile."""
    environment = host.environment(hook=False, extra={"PRECOMPILED_AUTOSTART": "0"})
    commands = [{"argv": program("scale_program", spec), "env": environment, "cwd": str(ROOT)} for spec in specs]
    with _processes(commands) as running:
        for process in running:
            if _line(process) != "ready":
                raise BenchmarkError("a submitting process did not start")
        before, cpu, started = daemon.memory_info().rss, _cpu_s(daemon), time.perf_counter()
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        if beside is not None:
            beside()
        answers = [json.loads(_line(process)) for process in running]
        seconds, cpu = time.perf_counter() - started, _cpu_s(daemon) - cpu
    other: dict[str, int] = {}
    for answer in answers:
        for name, number in answer["other"].items():
            other[name] = other.get(name, 0) + number
    return Load(
        [value for answer in answers for value in answer["accepted"]],
        [value for answer in answers for value in answer["answered"]],
        sum(answer["lost"] for answer in answers),
        other, max(answer["submitted_s"] for answer in answers), seconds, cpu, (before, daemon.memory_info().rss),
    )  # fmt: skip


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise BenchmarkError(f"a submitting process ended with {process.wait()}")
    return line.strip()


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _quantiles(seconds: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile, in milliseconds."""
    ordered = sorted(seconds)
    return 1000 * statistics.median(ordered), 1000 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


def _spec(host: Host, keys: Sequence[str], submits: int, window: int) -> dict[str, Any]:
    environment = msgspec.to_builtins(of_a_worker())
    return {
        "submits": submits, "window": window, "keys": list(keys), "blob": str(host.root / "blob"),
        "environment": environment,
    }  # fmt: skip


def measure_clients(
    host: Host, daemon: psutil.Process, keys: Sequence[str], effort: Effort, say: Say
) -> tuple[Table, int]:
    """Processes that submit known keys, each the next one as soon as it has a reply; and how many were lost."""
    table = Table(
        f"The daemon: submits of {KNOWN} known keys, each client the next one when it has a reply to the last",
        ["clients", "submits", "lost", "reply, median (ms)", "p99 (ms)", "replies a second", "all published after (s)",
         "daemon's CPU a submit (µs)", "daemon's memory before; after (MB)"],
    )  # fmt: skip
    lost = 0
    for count, total in effort.clients:
        # Every client another order, so that some keys are in flight already, and others are not.
        specs = [
            _spec(host, [keys[(number * 31 + offset) % KNOWN] for offset in range(KNOWN)], -(-total // count), 1)
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
        title, f"{done:,}", str(found.lost), f"{first[0]:.1f}", f"{first[1]:.1f}", f"{done / found.submitted_s:.0f}",
        f"{found.seconds:.1f}", f"{1e6 * found.daemon_cpu_s / done:.0f}",
        f"{found.daemon_bytes[0] / 1e6:.1f}; {found.daemon_bytes[1] / 1e6:.1f}",
    ]  # fmt: skip


def measure_queue(host: Host, keys: Sequence[str], effort: Effort, say: Say) -> tuple[Table, int]:
    """One client that submits everything at once, while the worker is still starting; and how many were lost."""
    table = Table(
        "The queue: all jobs submitted at once, before the worker is there; status and stats asked all the time",
        ["jobs", "lost", "first reply, median (ms)", "p99 (ms)", "all done (s)", "daemon's CPU a job (µs)",
         "deepest seen", "status then, median (ms)", "stats then, median (ms)"],
    )  # fmt: skip
    lost = 0
    sizes = sorted({max(1, effort.queue // 100), max(1, effort.queue // 10), effort.queue})
    for count in sizes:
        host.stop_daemon()
        daemon = psutil.Process(host.start_daemon())
        seen: dict[str, list[float]] = {"status": [], "stats": [], "depth": [0]}

        def ask(until: int = count, seen: dict[str, list[float]] = seen) -> None:
            """Status and stats, again and again, from when the queue fills until half of it is done."""
            filled = False
            while len(seen["status"]) < 2000:
                started = time.perf_counter()
                depth = host.status().queue_depth
                seen["status"].append(time.perf_counter() - started)
                started = time.perf_counter()
                request(host.settings, wire.Stats(), 60.0)
                seen["stats"].append(time.perf_counter() - started)
                seen["depth"].append(depth)
                filled = filled or depth >= until / 2
                if (filled and depth < until / 2) or (depth == 0 and len(seen["depth"]) > 100):
                    return
                time.sleep(0.1)

        found = submit(host, daemon, [_spec(host, keys[:count], count, count)], ask)
        lost += found.lost
        first = _quantiles(found.accepted)
        table.rows.append(
            [f"{count:,}", str(found.lost), f"{first[0]:.1f}", f"{first[1]:.1f}", f"{found.seconds:.1f}",
             f"{1e6 * found.daemon_cpu_s / count:.0f}", f"{max(seen['depth']):.0f}",
             f"{_quantiles(seen['status'])[0]:.1f}", f"{_quantiles(seen['stats'])[0]:.1f}"]
        )  # fmt: skip
        say(f"{count} jobs: " + ", ".join(table.rows[-1][1:]) + (f"; {found.other}" if found.other else ""))
    return table, lost


# ---------------------------------------------------------------- all of it


def measure(effort: Effort, say: Say) -> tuple[list[Table], int]:
    """The tables, and how many submits were lost."""
    with fresh_host() as host:
        host.start_daemon()
        spec = {
            "model": "gpt2", "size": "small", "task": "inference", "shapes": "static", "way": "compile",
            "pending": "wait",
        }  # fmt: skip
        host.run(spec, hook=True)
        store = Store(host.settings.cache_dir)
        (entry,) = store.entries()
        recorded = store.read_program(entry)
        if recorded is None:
            raise BenchmarkError("the artifact has no program")
        (host.root / "blob").write_bytes(recorded)
        weight = sum(record.bytes for record in entry.manifest.files.values())
        files = len(entry.manifest.files)
        say(f"one artifact: {weight / 1e6:.2f} MB in {files} files; its graph: {len(recorded)} bytes")
        tables = [measure_store(host, entry, effort, say)]
        keys = copies(store, entry, max(effort.stores[-1], effort.queue))
        host.stop_daemon()
        # For the daemons to come: 1,000 jobs of one user are over the default.
        roomy = dataclasses.replace(host, flags={"max_queue_per_uid": effort.queue})
        daemon = psutil.Process(roomy.start_daemon())
        submit(roomy, daemon, [_spec(roomy, keys[:10], 10, 1)])  # a warm worker, as a daemon that has served before has
        found, lost = measure_clients(roomy, daemon, keys, effort, say)
        tables.append(found)
        found, more = measure_queue(roomy, keys, effort, say)
        tables.append(found)
    return tables, lost + more


def write_page(tables: Sequence[Table]) -> None:
    """Put the figures into docs/scale.md, in place of those that are there."""
    facts = machine()
    figures = "\n\n".join(
        [
            f"On {facts['cores']} cores ({facts['cpu']}) with a load of {facts['load']:.1f} at the end, "
            f"Python {facts['python']}, torch {facts['torch']}, at {facts['commit']}:",
            *[table.text() for table in tables],
        ]
    )
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{figures}\n\n{END}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer of everything: does it work")
    parser.add_argument("--docs", action="store_true", help="put the tables into docs/scale.md")
    arguments = parser.parse_args()
    # As Ctrl-C does: daemons and directories are cleaned up on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console()
    console = console if console.is_terminal else Console(width=180)
    banner(console)
    started = time.monotonic()
    tables, lost = measure(
        QUICK if arguments.quick else FULL, lambda text: console.print(f"    {text}", markup=False, highlight=False)
    )
    print("\n" + "\n\n".join(table.text() for table in tables) + "\n")
    if arguments.docs:
        write_page(tables)
        console.print(f"Written to {PAGE}", highlight=False)
    path = save({"tables": [dataclasses.asdict(table) for table in tables]}, arguments.quick, "scale")
    console.print(f"Raw figures: {path}; {time.monotonic() - started:.0f} s", highlight=False)
    if lost:
        console.print(f"{lost} submits were lost", style="bold red")
    return 1 if lost else 0


if __name__ == "__main__":
    raise SystemExit(main())
