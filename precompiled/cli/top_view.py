"""Draws the view of `precompiled status --watch`: a host's state as lines of text.

The drawing functions use no terminal, no daemon and no clock.

``look`` collects the state. ``screen`` draws it for a size and the user's choices. ``line`` shows it in one line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from precompiled.cli.output import SHOWN_DIGITS
from precompiled.core.words import format_count, human_bytes, human_seconds
from precompiled.store.job_phases import UnderWay
from precompiled.store.run_records import Run, way

SORTS = ("state", "age", "program")
FILTERS = ("all", "waiting", "not served", "compiled")
RATE_S = 60.0  # the period over which hits and misses are counted
# The states in the order in which the view sorts them.
STATES = ("compiling", "queued", "error", "eager", "in process", "compiled")
STYLES = {"compiling": "33", "queued": "36", "error": "31", "eager": "31", "in process": "35", "compiled": "32"}
KEYS = "q quit s sort f filter / name c cancel r retry"
ASKED = {"c": "cancel", "r": "retry"}  # maps a key of the keyboard to an action on a graph


@dataclass(frozen=True)
class Client:
    program: str
    rank: str  # "3/8"; "" for a single process
    pid: int
    began: float
    states: dict[str, int]
    saved_s: float


@dataclass(frozen=True)
class GraphRow:
    state: str  # one of STATES
    since: float
    program: str
    rank: str
    name: str
    key: str
    why: str


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


@dataclass(frozen=True)
class Choices:
    sort: str = SORTS[0]
    shown: str = FILTERS[0]
    program: str = ""
    typing: str = ""  # what the user is typing: "program", or the prefix of a graph's key to "cancel" or "retry"
    typed: str = ""
    asked: str = ""  # the requested action for the key ``typed``: "cancel" or "retry"
    said: str = ""  # the outcome of that action

    def key(self, key: str) -> Choices:
        if self.typing:
            typed = self.typed
            if key in ("\r", "\n", "\x1b"):
                done = replace(self, typing="", typed="")
                if key == "\x1b":
                    return replace(done, program="") if self.typing == "program" else done
                return done if self.typing == "program" else replace(done, asked=self.typing, typed=typed)
            if key in ("\x7f", "\b"):
                typed = typed[:-1]
            elif key.isprintable():
                typed += key
            return replace(self, typed=typed, program=typed if self.typing == "program" else self.program)
        return self._pressed(key) if not self.said else replace(self, said="")._pressed(key)

    def _pressed(self, key: str) -> Choices:
        match key:
            case "c" | "r":
                return replace(self, typing=ASKED[key], typed="")
            case "s":
                return replace(self, sort=_after(SORTS, self.sort))
            case "f":
                return replace(self, shown=_after(FILTERS, self.shown))
            case "/":
                return replace(self, typing="program", typed="", program="")
        return self


def _after(names: Sequence[str], name: str) -> str:
    return names[(names.index(name) + 1) % len(names)]


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
        """Hits and misses of the last minute, or since the first sample.

        If there is a single sample, all that the daemon has counted.
        """
        if not self._seen:
            return "no counts"
        first, last = self._seen[0], self._seen[-1]
        if first is last:
            first, since = (0.0, 0, 0), "in all"
        else:
            since = "in the last minute"
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
            saved = sum(graph.get("saved_s", 0.0) for graph in process.graphs.values())
            clients.append(Client(process.program, rank, process.pid, process.since, states, saved))
    # Add running jobs of ended clients: the daemon finishes these for the next run.
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
    return str(graph.get("reason") or graph.get("source") or "")


# ---------------------------------------------------------------- choice of rows


def _chosen(graphs: Sequence[GraphRow], choices: Choices) -> list[GraphRow]:
    states = {
        "all": STATES,
        "waiting": ("compiling", "queued"),
        "not served": ("error", "eager", "in process"),
        "compiled": ("compiled",),
    }[choices.shown]
    found = [graph for graph in graphs if graph.state in states and choices.program in graph.program]
    orders: dict[str, Callable[[GraphRow], Any]] = {
        "state": lambda graph: (STATES.index(graph.state), -graph.since, graph.name),
        "age": lambda graph: (-graph.since, graph.name),
        "program": lambda graph: (graph.program, _number(graph.rank), graph.name),
    }
    return sorted(found, key=orders[choices.sort])


def _number(rank: str) -> int:
    return int(rank.partition("/")[0] or 0)


# ---------------------------------------------------------------- drawing


def screen(seen: Look, rates: Rates, choices: Choices, columns: int, rows: int, *, colour: bool) -> list[str]:
    """Draw at most ``rows`` lines of at most ``columns`` characters.

    The clients get a third of the space, and the graphs the rest.
    """
    head = _head(seen, rates)
    clients = [item for item in seen.clients if choices.program in item.program]
    graphs = _chosen(seen.graphs, choices)
    workers = _workers(seen)
    place = max(rows - len(head) - len(workers) - 7, 4)
    some = min(len(clients), max(place // 3, place - len(graphs), 2))
    lines = [*head, ""]
    lines += _block(
        ("PROGRAM", "RANK", "PID", "UP", "GRAPHS", "COMPILED", "WAITING", "NOT SERVED", "SAVED"),
        [_client(item, seen.now) for item in sorted(clients, key=lambda item: (item.program, _number(item.rank)))],
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
            ("STATE", "AGE", "PROGRAM", "RANK", "GRAPH", "KEY", "WHY"),
            [
                (
                    item.state,
                    human_seconds(max(0.0, seen.now - item.since)),
                    item.program,
                    item.rank,
                    item.name,
                    item.key[:digits],
                    item.why,
                )
                for item in graphs
            ],
            left - 1,
            columns,
            right=(1,),
            none="no graphs",
        ),
    ]
    # Names come from programs, so remove control sequences for the terminal.
    lines = ["".join(char if char.isprintable() else "?" for char in line)[:columns] for line in lines]
    lines = lines[: rows - 1] + [""] * max(0, rows - 1 - len(lines))
    if choices.typing == "program":
        foot = f"program: {choices.program}_  (Enter: only these, Esc: all)"
    elif choices.typing:
        foot = f"{choices.typing} key: {choices.typed}_  (Enter: yes, Esc: no)"
    elif choices.said:
        foot = choices.said
    else:
        foot = f"{KEYS}  sort: {choices.sort}, shown: {choices.shown}"
        if choices.program:
            foot += f", of {choices.program}"
    lines.append(foot[:columns])
    return [_coloured(line) for line in lines] if colour else lines


def _head(seen: Look, rates: Rates) -> list[str]:
    if seen.status is None or seen.stats is None:
        return [f"no daemon: {seen.problem}"]
    status, stats = seen.status, seen.stats
    busy = sum(worker["state"] == "busy" for worker in status["workers"])
    lines = [
        f"daemon {status['pid']}, up {human_seconds(status['uptime_s'])}, {human_bytes(status['rss_bytes'])}; "
        f"{format_count(len(status['workers']), 'worker', zero='no')}, {busy} busy; {status['queue_depth']} queued",
        f"{rates.said()}; {stats['compiled']} compiled, {stats['failed']} failed, "
        f"{human_seconds(stats['saved_s'])} saved",
    ]
    return lines + [f"degraded: {text}" for text in status["degraded"]]


def _client(item: Client, now: float) -> tuple[str, ...]:
    waiting = item.states["compiling"] + item.states["queued"]
    left = item.states["error"] + item.states["eager"] + item.states["in process"]
    return (
        item.program,
        item.rank,
        str(item.pid),
        human_seconds(max(0.0, now - item.began)),
        str(sum(item.states.values())),
        str(item.states["compiled"]),
        str(waiting),
        str(left),
        human_seconds(item.saved_s),
    )


def _workers(seen: Look) -> list[str]:
    if seen.status is None:
        return []
    names = {graph.key: graph.name for graph in seen.graphs if graph.key}
    jobs = {job.worker: job for job in seen.jobs}
    lines = []
    for worker in seen.status["workers"]:
        now = ""
        if worker["job"]:
            known = names.get(worker["job"])
            key = worker["job"][: SHOWN_DIGITS // 2]
            what = f"{known} {key}" if known else key
            now = f", {what} for {human_seconds(worker['job_s'])}"
            if (job := jobs.get(worker["pid"])) is not None and job.key == worker["job"]:
                now += job.said()
        done = format_count(worker["jobs_done"], "job")
        # The state comes first, because a narrow window cuts off the end.
        lines.append(
            f"worker {worker['pid']}, {worker['device']}: {worker['state']}{now} ({done} done, "
            f"{human_bytes(worker['rss_bytes'])})"
        )
    return lines


def _block(
    names: Sequence[str], cells: Sequence[Sequence[str]], most: int, columns: int, *, right: Sequence[int], none: str
) -> list[str]:
    """A table of at most ``most`` rows. If it is too wide, the widest text columns are cut."""
    if not cells:
        return [none]
    shown = cells[:most] if len(cells) <= most else cells[: max(most - 1, 1)]
    widths = [max(len(name), *(len(row[at]) for row in shown)) for at, name in enumerate(names)]
    text = [at for at in range(len(names)) if at not in right]
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
    for state, style in STYLES.items():
        if line.startswith(state + " "):
            return f"\x1b[{style}m{state}\x1b[0m{line[len(state) :]}"
    if line.startswith(("PROGRAM ", "STATE ")):
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
    busy = sum(worker["state"] == "busy" for worker in seen.status["workers"])
    workers = f"{format_count(len(seen.status['workers']), 'worker')}, {busy} busy, {seen.status['queue_depth']} queued"
    return f"{workers}; {said}; {rates.said()}; {human_seconds(seen.stats['saved_s'])} saved"
