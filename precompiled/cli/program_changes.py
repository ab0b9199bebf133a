"""Says how a program differs from its previous run: edited files, and modules that it did or did not import.

If the program changes, its packages no longer apply (packages/source_files.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from precompiled.core.words import format_list
from precompiled.store.run_records import Run, RunProcess

MAX_NAMED = 3


def earlier_processes(run: Run, known: Sequence[Run]) -> list[RunProcess]:
    """The first process of each earlier run of the program, newest first. ``known``: all recorded runs."""
    found = (other for other in known if other.began < run.began)
    return [other.processes[0] for other in found if other.processes[0].identity == run.processes[0].identity]


def edited_files(run: Run, earlier: Sequence[RunProcess]) -> list[str]:
    """The program's files that changed since the program's previous run."""
    before = _comparable(run, earlier)
    return [] if before is None else _edited(before, run.processes[0])


def describe_change(run: Run, earlier: Sequence[RunProcess]) -> str:
    """How the program differs from its previous run, as a phrase. "" if no difference is recorded."""
    now, before = run.processes[0], _comparable(run, earlier)
    if before is None:
        return ""
    said = []
    if edited := _edited(before, now):
        said.append(f"the code of the program has changed since the trace: {_named(edited)}")
    added, removed = (sorted(one.files.keys() - other.files.keys()) for one, other in ((now, before), (before, now)))
    if before.modules and now.modules:  # otherwise an earlier version of precompiled wrote a record
        added += sorted(now.modules.keys() - before.modules.keys())
        removed += sorted(before.modules.keys() - now.modules.keys())
    if added:
        is_, was = _verbs(added)
        said.append(f"{_named(added)} {is_} imported now, and {was} not at the trace")
    if removed:
        is_, was = _verbs(removed)
        said.append(f"{_named(removed)} {was} imported at the trace, and {is_} not now")
    imports, installs = [], []
    for name in sorted(before.modules.keys() & now.modules.keys()):
        (names, files), (other_names, other_files) = (process.modules[name].split(" ") for process in (now, before))
        if names != other_names:
            imports.append(name)
        elif files != other_files:
            installs.append(name)
    if installs:
        said.append(f"the installed files have changed since the trace, of {_named(installs)}")
    if imports and not said:  # a changed program usually imports other modules of its libraries
        said.append(f"other modules are imported than at the trace, of {_named(imports)}")
    return "; ".join(said)


def _comparable(run: Run, earlier: Sequence[RunProcess]) -> RunProcess | None:
    """The first process of the newest earlier run that recorded its files. None if there is no such run."""
    return next((process for process in earlier if process.files), None) if run.processes[0].files else None


def _edited(before: RunProcess, now: RunProcess) -> list[str]:
    return sorted(path for path, digest in now.files.items() if before.files.get(path, digest) != digest)


def _verbs(names: list[str]) -> tuple[str, str]:
    return ("is", "was") if len(names) == 1 else ("are", "were")


def _named(names: list[str]) -> str:
    """Names of files (without their folders) or modules as text: at most MAX_NAMED names, and how many more."""
    shown = [os.path.basename(name) for name in names]
    more = len(shown) - MAX_NAMED
    return format_list([*shown[:MAX_NAMED], *([f"{more} more"] if more > 0 else [])])
