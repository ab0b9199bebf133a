"""The user's choices in `precompiled status --watch`: what each key does, and which graphs are shown in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from precompiled.cli.output import SHOWN_DIGITS

SORTS = ("state", "age", "program")
FILTERS = ("all", "waiting", "not served", "compiled")
# The states in the order in which the view sorts them.
STATES = ("compiling", "queued", "error", "eager", "in process", "compiled")
KEYS = "q quit ? help s sort f filter / name"
HELP = (
    "Keys",
    "  up, down   select a graph; Esc ends the selection",
    "  Enter      explain the selected graph",
    "  c          cancel the compile of the selected graph, or of a key that you type",
    "  r          retry the selected graph after a failure, or a key that you type",
    "  s          change the order of the graphs: state, age, program",
    "  f          filter by state: all, waiting, not served, compiled",
    "  /          show only programs whose name contains a text",
    "  q          quit",
    "",
    "States of a graph",
    "  compiling   a worker compiles it, and the program runs eager",
    "  queued      it waits for a worker, and the program runs eager",
    "  compiled    the program runs the daemon's code",
    "  in process  torch compiled it in the program",
    "  eager       it runs eager until the program ends",
    "  error       its calls raise NotServed",
)
ASKED = {"c": "cancel", "r": "retry"}  # maps a key of the keyboard to an action on a graph


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
class Choices:
    sort: str = SORTS[0]
    shown: str = FILTERS[0]
    program: str = ""
    typing: str = ""  # what the user is typing: "program", or the prefix of a graph's key to "cancel" or "retry"
    typed: str = ""
    asked: str = ""  # the requested action for the key ``typed``: "cancel", "retry" or "explain"
    said: str = ""  # the outcome of that action
    selected: int = -1  # the position of the selected graph, or -1
    page: tuple[str, ...] = ()  # the lines of a page over the view: the help, or an explanation

    def key(self, key: str, rows: Sequence[GraphRow] = ()) -> Choices:
        """The choices after the user has pressed a key. ``rows``: the shown graphs, which the user can select."""
        if self.page:
            return replace(self, page=())
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
        return replace(self, said="", selected=min(self.selected, len(rows) - 1))._pressed(key, rows)

    def _pressed(self, key: str, rows: Sequence[GraphRow]) -> Choices:
        selected = rows[self.selected].key if self.selected >= 0 else ""
        match key:
            case "up" | "down":
                to = self.selected + (1 if key == "down" else -1)
                return replace(self, selected=max(0, min(to, len(rows) - 1)) if rows else -1)
            case "\x1b":
                return replace(self, selected=-1)
            case "?":
                return replace(self, page=HELP)
            case "\r" | "\n":
                return replace(self, asked="explain", typed=selected) if selected else self
            case "c" | "r":
                return replace(self, typing=ASKED[key], typed=selected[:SHOWN_DIGITS])
            case "s":
                return replace(self, sort=_after(SORTS, self.sort))
            case "f":
                return replace(self, shown=_after(FILTERS, self.shown))
            case "/":
                return replace(self, typing="program", typed="", program="")
        return self


def _after(names: Sequence[str], name: str) -> str:
    return names[(names.index(name) + 1) % len(names)]


def chosen(graphs: Sequence[GraphRow], choices: Choices) -> list[GraphRow]:
    """The graphs that match the filter and the search, in the chosen order."""
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
        "program": lambda graph: (graph.program, rank_number(graph.rank), graph.name),
    }
    return sorted(found, key=orders[choices.sort])


def rank_number(rank: str) -> int:
    """The rank in a text such as "3/8"; 0 for a single process."""
    return int(rank.partition("/")[0] or 0)
