"""The last run that used the hook, for `precompiled watch --last`: written by each process on its first graph.

One file, 0600, in the user's own store. Not the run's environment: programs are given passwords in it, and nobody asked
for these to be kept. A watch that is made of it takes that of the shell that asks for it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from precompiled.core import durable
from precompiled.core.config import Settings
from precompiled.core.errors import PrecompiledError, StoreError
from precompiled.store import trust

log = logging.getLogger("precompiled")

NAME = "last-run"
MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class LastRun:
    argv: list[str]
    executable: str
    directory: str


def note(settings: Settings) -> None:
    """Keep how this process was started. Best effort: a run does not depend on it."""
    original = getattr(sys, "orig_argv", [])
    if len(original) < 2 or not sys.executable:
        return  # an interactive interpreter
    try:
        settings.cache_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        run = LastRun([sys.executable, *original[1:]], sys.executable, os.getcwd())
        with durable.replacing(settings.cache_dir / NAME, 0o600, sync=False) as file:
            file.write(json.dumps(asdict(run)).encode())
    except OSError as error:
        log.info("this run is not kept for `precompiled watch --last`: %s", error)


def read(settings: Settings) -> LastRun:
    """Raises PrecompiledError where there is none, or none that can be trusted."""
    try:
        with trust.open_directory(settings.cache_dir) as fd:
            data = trust.read_file(NAME, fd, MAX_BYTES, shown=str(Path(settings.cache_dir) / NAME))
        return LastRun(**json.loads(data))
    except FileNotFoundError as error:
        raise PrecompiledError(
            "no run has used the hook yet", "Run it once: `precompiled run -- python train.py`", code="no-last-run"
        ) from error
    except (StoreError, OSError, ValueError, TypeError) as error:
        raise PrecompiledError(f"the last run cannot be read: {error}", "Run it again", code="no-last-run") from error
