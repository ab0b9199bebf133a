"""Draws the view of `precompiled status --watch`: a host's state as lines of text.

The drawing functions use no terminal, no daemon and no clock.

``look`` collects the host's state. ``screen`` draws the state for a terminal's size and the user's choices. ``line``
shows the state in one line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from precompiled.cli.output import SHOWN_DIGITS
from precompiled.cli.top_choices import KEYS, STATES, Choices, GraphRow, chosen, rank_number
from precompiled.core.words import format_count, human_bytes, human_seconds
from precompiled.store.job_phases import UnderWay
from precompiled.store.run_records import Run, saved_s, way

RATE_S = 60.0  # the period over which hits and misses are counted
STYLES = {"compiling": "33", "queued": "36", "error": "31", "eager": "31", "in process": "35", "compiled": "32"}
# Maps the source of a compiled graph to the text of the column WHY.
SOURCES = {"hit": "cache hit", "package": "cache hit, not traced", "swap": "compiled in this run"}
BAR = 10  # characters of a progress bar


@dataclass(frozen=True)
class Client:
    program: str
    rank: str  # "3/8"; "" for a single process
    pid: int
    began: float
    states: dict[str, int]
    saved_s: float


@dataclass(frozen=True)
class Look:
    """A host's state at one moment. ``status``, ``stats``: the daemon's replies, or None if ``problem`` is set."""

    now: float
    status: dict[str, Any] | None
    stats: dict[str, Any] | None
    problem: str
    clients: list[Client]
    graphs: list[GraphRow]
    jobs: list[UnderWay] = field(default_factory=list)


@dataclass
class Rates:
    """The growth of the daemon's counters in the last minute."""

    _seen: deque[tuple[float, float, float]] = field(default_factory=deque)

    def add(self, now: float, stats: dict[str, Any] | None) -> None:
        if stats is None or (self._seen and stats["hits"] < self._seen[-1][1]):
            self._seen.clear()  # a new daemon counts from 0
        if stats is not None:
            self._seen.append((now, stats["hits"], stats["misses"]))
        while len(self._seen) > 2 and self._seen[1][0] <= now - RATE_S:
            self._seen.popleft()

    def said(self) -> str:
        """Hits and misses of the last minute, or since the first sample if this sample is younger than a minute.

        With a single sample, the text has all hits and misses that the daemon has counted.
        """
        if not self._seen:
            return "no counts"
        first, last = self._seen[0], self._seen[-1]
        if first is last:
            first, since = (0.0, 0, 0), "in all"
        else:
            seconds = last[0] - first[0]
            since = "in the last minute" if seconds >= RATE_S else f"in the last {seconds:.0f} s"
        hits, misses = int(last[1] - first[1]), int(last[2] - first[2])
        return f"{format_count(hits, 'hit')}, {format_count(misses, 'miss', 'misses')} {since}"


def look(
    now: float,
    runs: Iterable[Run],
    status: dict[str, Any] | None,
    stats: dict[str, Any] | None,
    problem: str,
    jobs: Iterable[UnderWay] = (),
) -> Look:
    jobs = list(jobs)
    workers = (status or {}).get("workers", ())
    compiling = {worker["job"] for worker in workers if worker["job"]}
    clients, graphs = [], []
    for run in runs:
        for process in run.processes:
            if not process.is_alive:
                continue
            rank = f"{process.rank}/{run.ranks}" if run.ranks > 1 else ""
            mine = [
                GraphRow(
                    _state(graph, compiling),
                    graph["at"],
                    process.program,
                    rank,
                    graph.get("name", "-"),
                    graph.get("key", ""),
                    _why(graph),
                )
                for graph in process.graphs.values()
            ]
            graphs += mine
            states = {state: sum(graph.state == state for graph in mine) for state in STATES}
            saved = saved_s(process)
            clients.append(Client(process.program, rank, process.pid, process.since, states, saved))
    # Add the running jobs whose clients have ended. The daemon finishes these jobs for the next run.
    known = {graph.key for graph in graphs}
    began = {worker["job"]: now - worker["job_s"] for worker in workers if worker["job"]}
    names = {job.key: job.name for job in jobs}
    others = sorted(compiling - known)
    graphs += [GraphRow("compiling", began[key], "", "", names.get(key, "-"), key, "") for key in others]
    return Look(now, status, stats, problem, clients, graphs, jobs)


def _state(graph: Mapping[str, object], compiling: set[str]) -> str:
    found = way(graph)
    if found == "pending":
        return "compiling" if graph.get("key") in compiling else "queued"
    return found


def _why(graph: Mapping[str, object]) -> str:
    source = str(graph.get("source") or "")
    return str(graph.get("reason") or SOURCES.get(source, source))


# ---------------------------------------------------------------- drawing


def screen(seen: Look, rates: Rates, choices: Choices, columns: int, rows: int, *, colour: bool) -> list[str]:
    """Draw at most ``rows`` lines of at most ``columns`` characters.

    The clients get a third of the space, and the graphs the rest.
    """
    head = _head(seen, rates)
    clients = [item for item in seen.clients if choices.program in item.program]
    if choices.page:
        foot = "any key: back"
        return [*(_plain(line, columns) for line in _filled(choices.page, rows - 1)), foot[:columns]]
    graphs = chosen(seen.graphs, choices)
    selected = min(choices.selected, len(graphs) - 1)
    workers = _workers(seen, columns)
    place = max(rows - len(head) - len(workers) - 7, 4)
    some = min(len(clients), max(place // 3, place - len(graphs), 2))
    lines = [*head, ""]
    lines += _block(
        ("PROGRAM", "RANK", "PID", "UP", "GRAPHS", "COMPILED", "WAITING", "NOT SERVED", "SAVED"),
        [_client(item, seen.now) for item in sorted(clients, key=lambda item: (item.program, rank_number(item.rank)))],
        some,
        columns,
        right=(2, 3, 4, 5, 6, 7, 8),
        none="no clients",
    )
    if workers:
        lines += ["", *workers]
    left = max(rows - len(lines) - 3, 2)
    digits = SHOWN_DIGITS if columns >= 100 else SHOWN_DIGITS // 2
    lines += [
        "",
        *_block(
            ("STATE" if selected < 0 else "  STATE", "AGE", "PROGRAM", "RANK", "GRAPH", "KEY", "WHY"),
            [
                (
                    ("" if selected < 0 else "> " if at == selected else "  ") + item.state,
                    human_seconds(max(0.0, seen.now - item.since), whole=True),
                    item.program,
                    item.rank,
                    item.name,
                    item.key[:digits],
                    item.why,
                )
                for at, item in enumerate(graphs)
            ],
            left - 1,
            columns,
            right=(1,),
            none="no graphs",
        ),
    ]
    lines = [_plain(line, columns) for line in _filled(lines, rows - 1)]
    if choices.typing == "program":
        foot = f"program: {choices.program}_  (Enter: only these, Esc: all)"
    elif choices.typing:
        foot = f"{choices.typing} key: {choices.typed}_  (Enter: yes, Esc: no)"
    elif choices.said:
        foot = choices.said
    elif selected >= 0:
        foot = "Enter explain  c cancel  r retry  Esc end the selection  ? help"
    else:
        foot = f"{KEYS}  sort: {choices.sort}, shown: {choices.shown}"
        if choices.program:
            foot += f", of {choices.program}"
    lines.append(foot[:columns])
    return [_coloured(line) for line in lines] if colour else lines


def _filled(lines: Sequence[str], rows: int) -> list[str]:
    return [*lines[:rows], *[""] * max(0, rows - len(lines))]


def _plain(line: str, columns: int) -> str:
    """A line without control sequences for the terminal, because names come from programs."""
    return "".join(char if char.isprintable() else "?" for char in line)[:columns]


def _head(seen: Look, rates: Rates) -> list[str]:
    if seen.status is None or seen.stats is None:
        return [f"no daemon: {seen.problem}"]
    status, stats = seen.status, seen.stats
    lines = [
        f"daemon {status['pid']}, up {human_seconds(status['uptime_s'])}, {human_bytes(status['rss_bytes'])}; "
        f"{_working(status)}; {status['queue_depth']} queued",
        f"{rates.said()}; {stats['compiled']} compiled, {stats['failed']} failed, "
        f"{human_seconds(stats['saved_s'])} saved",
    ]
    return lines + [f"degraded: {text}" for text in status["degraded"]]


def _working(status: Mapping[str, Any]) -> str:
    busy = sum(worker["state"] == "busy" for worker in status["workers"])
    return f"{format_count(len(status['workers']), 'worker')}, {busy} busy" if status["workers"] else "no workers"


def _client(item: Client, now: float) -> tuple[str, ...]:
    waiting = item.states["compiling"] + item.states["queued"]
    left = item.states["error"] + item.states["eager"] + item.states["in process"]
    return (
        item.program,
        item.rank,
        str(item.pid),
        human_seconds(max(0.0, now - item.began), whole=True),
        str(sum(item.states.values())),
        str(item.states["compiled"]),
        str(waiting),
        str(left),
        human_seconds(item.saved_s),
    )


def _workers(seen: Look, columns: int) -> list[str]:
    """One line per worker, with its job. If earlier compiles of the graph give an estimate, also a progress bar."""
    if seen.status is None or not seen.status["workers"]:
        return []
    names = {graph.key: graph.name for graph in seen.graphs if graph.key}
    jobs = {job.worker: job for job in seen.jobs}
    rows = []
    for worker in seen.status["workers"]:
        key, what, progress, phase = worker["job"], worker["state"], "", ""
        if key:
            what = names.get(key, key[: SHOWN_DIGITS // 2])
            job = jobs.get(worker["pid"])
            progress, phase = _progress(worker["job_s"], job if job is not None and job.key == key else None)
        rows.append(
            (
                str(worker["pid"]),
                worker["device"],
                what,
                progress,
                phase if key else f"{format_count(worker['jobs_done'], 'job')} done",
                human_bytes(worker["rss_bytes"]),
            )
        )
    titles = ("WORKER", "DEVICE", "COMPILES", "PROGRESS", "PHASE", "MEMORY")
    return _block(titles, rows, len(rows), columns, right=(0, 3, 5), whole=(4,), none="")


def _progress(elapsed_s: float, job: UnderWay | None) -> tuple[str, str]:
    """A bar with the elapsed and estimated seconds, and the phase with its kernels."""
    if job is None:
        return human_seconds(elapsed_s), ""
    built, kernels = job.kernels
    phase = job.phase + (f" {built:,}/{kernels:,}" if kernels else "")
    if not job.estimate_s or elapsed_s > job.estimate_s:
        return human_seconds(elapsed_s), phase
    full = min(BAR, round(BAR * elapsed_s / job.estimate_s))
    return f"{'█' * full}{'░' * (BAR - full)} {elapsed_s:.0f}/{job.estimate_s:.0f} s", phase


def _block(
    names: Sequence[str],
    cells: Sequence[Sequence[str]],
    most: int,
    columns: int,
    *,
    right: Sequence[int],
    whole: Sequence[int] = (),
    none: str,
) -> list[str]:
    """A table of at most ``most`` rows. If the table is too wide, the widest text columns are cut, except ``whole``."""
    if not cells:
        return [none]
    shown = cells[:most] if len(cells) <= most else cells[: max(most - 1, 1)]
    widths = [max(len(name), *(len(row[at]) for row in shown)) for at, name in enumerate(names)]
    text = [at for at in range(len(names)) if at not in right and at not in whole]
    while sum(widths) + 2 * (len(widths) - 1) > columns:
        widest = max(text, key=lambda at: widths[at] - len(names[at]))
        if widths[widest] <= max(len(names[widest]), 4):
            break
        widths[widest] -= 1
    lines = [
        "  ".join(_cell(cell, widths[at], at in right) for at, cell in enumerate(row)).rstrip()
        for row in (names, *shown)
    ]
    if len(shown) < len(cells):
        lines.append(f"and {len(cells) - len(shown)} more")
    return lines


def _cell(text: str, width: int, right: bool) -> str:
    if len(text) > width:
        text = text[: width - 2] + ".."
    return text.rjust(width) if right else text.ljust(width)


def _coloured(line: str) -> str:
    """Colour the states, and make headings bold. Colours only repeat the text."""
    if line.startswith("> "):
        return f"\x1b[7m{line}\x1b[0m"
    for state, style in STYLES.items():
        if line.startswith(f"  {state} "):
            return f"  \x1b[{style}m{state}\x1b[0m{line[len(state) + 2 :]}"
        if line.startswith(state + " "):
            return f"\x1b[{style}m{state}\x1b[0m{line[len(state) :]}"
    if line.startswith(("PROGRAM ", "WORKER ", "STATE ", "  STATE ")):
        return f"\x1b[1m{line}\x1b[0m"
    if line.startswith(("no daemon", "degraded")):
        return f"\x1b[31m{line}\x1b[0m"
    return line


# ---------------------------------------------------------------- without a terminal


def line(seen: Look, rates: Rates) -> str:
    """The state in one line, for a pipe or a file."""
    states = {state: sum(graph.state == state for graph in seen.graphs) for state in STATES}
    graphs = ", ".join(f"{number} {state}" for state, number in states.items() if number) or "none"
    said = f"{format_count(len(seen.clients), 'client')}; graphs: {graphs}"
    if seen.status is None or seen.stats is None:
        return f"no daemon; {said}"
    workers = f"{_working(seen.status)}, {seen.status['queue_depth']} queued"
    return f"{workers}; {said}; {rates.said()}; {human_seconds(seen.stats['saved_s'])} saved"
