"""Implements `precompiled timeline` (writes an HTML page) and `precompiled tools trace` (writes a Perfetto trace)."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from precompiled.cli import runs
from precompiled.cli.app import command
from precompiled.cli.output import Output
from precompiled.cli.switch import hook_environment, print_start_error
from precompiled.core.config import Settings
from precompiled.core.errors import PrecompiledError
from precompiled.core.paths import HOOK_MARK, TIMELINE_VARIABLE
from precompiled.core.words import format_count, human_bytes
from precompiled.store import run_records
from precompiled.timeline.facts import Facts, gather

_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_SINCE = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d)")
LAST = "last"
# How many seconds before the run the trace file begins, so that it includes the start of the daemon and of its worker.
BEFORE_S = 1.0


@command("trace", examples=["precompiled tools trace --since last"])
@click.option(
    "--output",
    "-o",
    default="precompiled-trace.json",
    show_default=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the trace to FILE.",
)
@click.option(
    "--since",
    default="1h",
    show_default=True,
    metavar="TIME",
    help="Begin this long ago (30s, 10min, 2h, 1d), or with your last run (`last`).",
)
def trace_command(out: Output, settings: Settings, output: Path, since: str) -> int:
    """Write a trace of programs, the queue and workers.

    Open the trace in ui.perfetto.dev or chrome://tracing. It comes from records in the store, so no daemon has to run.
    """
    now = time.time()
    if since == LAST:
        run = runs.find_run(settings, LAST, run_records.runs(settings.cache_dir))
        began = run.since - BEFORE_S
    else:
        began = now - _seconds(since)
    facts = gather(settings.cache_dir, began, now)
    document = _write(facts, output)
    out.result(document, f"{_said(document)} Open it in ui.perfetto.dev or chrome://tracing.")
    return 0


@command(
    "timeline",
    context_settings={"allow_interspersed_args": False},
    examples=["precompiled timeline -- python train.py"],
)
@click.option(
    "--output",
    "-o",
    default="precompiled-timeline.html",
    show_default=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the page to FILE, and the trace to a .json file beside it.",
)
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD...")
def timeline_command(out: Output, settings: Settings, output: Path, cmd: tuple[str, ...]) -> int:
    """Run a command and draw where its start-up time went.

    Writes a page for a browser. The page also shows how long plain torch.compile would have taken, computed from the
    measured compile times.

    The exit status is that of CMD, 127 if CMD is not found, and 126 if CMD cannot be executed.
    """
    if not cmd:
        raise click.UsageError("Give a command after `--`: `precompiled timeline -- python train.py`")
    _refuse_unwritable(output)  # now, because the command may run for hours
    began = time.time()
    with tempfile.TemporaryDirectory(prefix="precompiled-", ignore_cleanup_errors=True) as place:
        variables = {**hook_environment(settings), TIMELINE_VARIABLE: place}
        try:
            # With --json, stdout is for the JSON document.
            process = subprocess.Popen(list(cmd), env=variables, stdout=2 if out.as_json else None)
        except OSError as error:
            return print_start_error(out, "precompiled timeline", cmd[0], error)
        status = _wait(process)
        now = time.time()
        hook_was_on = settings.mode != "off" and Path(place, HOOK_MARK).exists()
    name = Path(place).name
    facts = gather(settings.cache_dir, began - BEFORE_S, now, lambda process: process.timeline == name)
    if any(process.graphs for process in facts.processes):
        from precompiled.timeline.page import headline, page

        traced = output.with_suffix(".json")
        document = {**_write(facts, traced), "page": str(output), "headline": headline(facts)}
        _save(output, page(facts, cmd, now - began, traced.name))
        out.note(f"precompiled: {document['headline']}")
        out.note(f"precompiled: wrote {output} (open it in a browser) and {traced} (the trace).")
    else:
        document = {"trace": None, "bytes": 0, **_counts(facts), "page": None, "headline": ""}
        out.note(f"precompiled: {_why_empty(facts, status, hook_was_on)}, so there is no page.")
        if not hook_was_on:
            out.note("  `precompiled doctor` says why.")
    if out.as_json:
        out.result({**document, "status": status}, "")
    return status


def _why_empty(facts: Facts, status: int, hook_was_on: bool) -> str:
    """Say why no process of the command had a graph."""
    if not hook_was_on:
        return "No process of the command had the hook on"
    if status:
        return f"The command ended with status {status} before its first graph"
    if facts.processes:
        return "The hook was on, but Dynamo found no graph to compile (`precompiled explain` says why)"
    return "The hook was on, but the program compiled nothing"


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the command. Returns its exit status as a shell reports it.

    Ctrl-C ends only the command, so that the page is written.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        status = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return status if status >= 0 else 128 - status


def _seconds(text: str) -> float:
    found = _SINCE.fullmatch(text.strip())
    if found is None:
        raise click.UsageError(f"--since takes a time such as 30s, 10min, 2h or 1d, or `{LAST}`; {text!r} is neither")
    return float(found[1]) * _UNITS[found[2]]


def _write(facts: Facts, output: Path) -> dict[str, object]:
    from precompiled.timeline import events

    text = json.dumps(events.trace(facts), separators=(",", ":"))
    _save(output, text)
    return {"trace": str(output), "bytes": len(text), **_counts(facts)}


def _counts(facts: Facts) -> dict[str, object]:
    return {
        "began": facts.began,
        "processes": len(facts.processes),
        "workers": len(facts.workers),
        "graphs": sum(len(process.graphs) for process in facts.processes),
        "jobs": sum(len(worker.jobs) for worker in facts.workers),
    }


def _refuse_unwritable(path: Path) -> None:
    if path.is_dir():
        raise _unwritable(path, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


def _save(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> PrecompiledError:
    return PrecompiledError(
        f"{path} cannot be written: {error.strerror or error}", "Give another file with -o", code="output-unwritable"
    )


def _said(document: dict[str, Any]) -> str:
    return (
        f"{document['trace']}: {format_count(document['graphs'], 'graph')} of "
        f"{format_count(document['processes'], 'process', 'processes')}, {format_count(document['jobs'], 'job')} of "
        f"{format_count(document['workers'], 'worker')}, {human_bytes(document['bytes'])}."
    )
