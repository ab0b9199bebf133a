"""IPython and notebooks: `%load_ext precompiled` switches the hook on.

A line below each cell describes the cell's graphs.

- `%precompiled` shows the report of this process.
- `%precompiled explain` explains the outcome of each graph of this process.
- `%precompiled COMMAND ...` runs any command of the command line.

Functions in cells have packages, like functions in files. The program is the text of all cells
(packages/main_program.py). So Dynamo traces nothing when you run an unchanged notebook a second time.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from precompiled import hook
from precompiled.client.process import PROCESS
from precompiled.client.run_recorder import UNTRACED, place
from precompiled.core.names import in_words
from precompiled.core.words import format_count, human_seconds

if TYPE_CHECKING:
    from precompiled.client.ledger import GraphReport

_EXTENSION = "precompiled"


def load(shell: Any) -> None:
    """Load the extension into IPython's ``shell``. Idempotent."""
    PROCESS.given.setdefault("progress", "0")  # the line below the cell replaces the progress lines
    if not hook.enable():
        click.echo("precompiled is off: PRECOMPILED=0 (or off, false, no), or PRECOMPILED_MODE=off, is set")
        return
    if not hasattr(shell, "_precompiled_lines"):
        shell._precompiled_lines = lines = CellLines(updates=type(shell).__module__.startswith("ipykernel"))
        shell.events.register("post_run_cell", lines.after_cell)
        shell.register_magic_function(magic, "line", _EXTENSION)


def unload(shell: Any) -> None:
    """Unload the extension. The hook stays on until `precompiled.disable()`."""
    lines = shell.__dict__.pop("_precompiled_lines", None)
    if lines is not None:
        shell.events.unregister("post_run_cell", lines.after_cell)
        shell.magics_manager.magics["line"].pop(_EXTENSION, None)


class CellLines:
    """Prints and updates a line below each cell in which Dynamo made graphs."""

    def __init__(self, *, updates: bool) -> None:
        """``updates``: whether the frontend can replace a printed line."""
        self._updates = updates
        self._seen = len(_reports())
        # maps each display with pending graphs to the ids of all its graphs
        self._open: dict[Any, list[str]] = {}
        self._awaits = threading.Lock()

    def after_cell(self, _result: object = None) -> None:
        from IPython.display import display

        new = _reports(self._seen)
        self._seen += len(new)
        if not new:
            return
        handle = display(_text(new), raw=True, display_id=True)
        if self._updates and any(graph.state == "pending" for graph in new):
            self._open[handle] = [graph.id for graph in new]
            threading.Thread(target=self._follow, name="precompiled-notebook", daemon=True).start()

    def _follow(self) -> None:
        """Replace the lines once no graph is pending."""
        with self._awaits:
            if PROCESS.session is not None and self._open:
                PROCESS.session.wait(None, blocks_program=False)
                reports = {graph.id: graph for graph in _reports()}
                for handle, ids in list(self._open.items()):
                    handle.update(_text([reports[id] for id in ids if id in reports]), raw=True)
                    del self._open[handle]


def _reports(start: int = 0) -> list[GraphReport]:
    return [] if PROCESS.session is None else PROCESS.session.reports(start)


def _text(graphs: list[GraphReport]) -> dict[str, str]:
    return {"text/plain": f"precompiled: {summarise_graphs(graphs)}"}


def summarise_graphs(graphs: list[GraphReport]) -> str:
    """Summarise graphs, for example: ``3 graphs: 2 found in the store (1 not traced), 1 compiles in the background
    (eager until then)``.
    """
    ways = Counter(graph.source if graph.state == "compiled" else graph.state for graph in graphs)
    found, pending = ways["hit"] + ways["package"], ways["pending"]
    parts = []
    if found:
        parts.append(f"{found} found in the store" + (f" ({ways['package']} not traced)" if ways["package"] else ""))
    if ways["swap"]:
        after = max(graph.swapped_after_s for graph in graphs)
        parts.append(f"{ways['swap']} compiled, after {human_seconds(after)}")
    if pending:
        parts.append(f"{pending} {'compiles' if pending == 1 else 'compile'} in the background (eager until then)")
    for graph in graphs:
        if graph.reason:
            parts.append(f"{graph.name}: {graph.state} ({graph.reason})")
    return f"{format_count(len(graphs), 'graph')}: {', '.join(parts)}"


def magic(line: str) -> None:
    """Handle `%precompiled`: show this process's graphs, explain them (`explain`), or run another command."""
    words = shlex.split(line)
    if not words:
        click.echo(report())
        return
    if words == ["explain"]:
        words += ["--run", place(os.environ).run]
    done = subprocess.run(
        [sys.executable, "-m", "precompiled", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    click.echo((done.stdout + done.stderr).rstrip("\n"))


def report() -> str:
    """List this process's graphs, and the functions that Dynamo traced, with reasons."""
    graphs = _reports()
    lines = [summarise_graphs(graphs) if graphs else "no graph yet: the program called no compiled function"]
    for graph in graphs:
        calls = "calls not counted"
        if graph.calls_are_counted:
            calls = f"{format_count(graph.calls_eager, 'call')} eager, {graph.calls_compiled} compiled"
        why = f"  {graph.why}"
        lines.append(f"  {graph.name}  {graph.source or graph.state}  {calls}  {graph.key[:12]}{why}".rstrip())
    traced = [item for item in (PROCESS.packages.reports if PROCESS.packages else []) if item.state not in UNTRACED]
    for item in traced:
        reasons = in_words("".join(item.reasons[:1]) or item.message)
        lines.append(f"  traced: {item.name}  {reasons}".rstrip())
    return "\n".join(lines)
