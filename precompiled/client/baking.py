"""In a process that `precompiled bake --steps N` runs: tells when it has done its steps, and all of it is kept.

``PRECOMPILED_BAKING=<N>:<directory>``. A file of this process appears in the directory when it has its first graph,
``<pid>``, and another one, ``<pid>.done``, after N calls of the graph that was called most. Calls, and not steps of an
optimizer: a hook on these would be among the things that a trace reads.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from precompiled.client.process import PROCESS

if TYPE_CHECKING:
    from precompiled.client.process import Session

VARIABLE = "PRECOMPILED_BAKING"
LOOK_S = 0.05
FLUSH_S = 60.0


def begin(session: Session) -> None:
    """Called when this process gets a session. Raises nothing."""
    described = os.environ.get(VARIABLE)
    if described:
        steps, _, directory = described.partition(":")
        threading.Thread(
            target=_follow, args=(session, int(steps), Path(directory)), name="precompiled-baking", daemon=True
        ).start()


def _follow(session: Session, steps: int, directory: Path) -> None:
    try:
        (directory / str(os.getpid())).touch()
        while max((report.calls_eager + report.calls_compiled for report in session.reports()), default=0) < steps:
            time.sleep(LOOK_S)
        session.wait(FLUSH_S)
        if PROCESS.packages is not None:
            PROCESS.packages.flush(FLUSH_S)
        session.tell_counts()
        session.flush(FLUSH_S)
        (directory / f"{os.getpid()}.done").touch()
    except OSError:
        pass  # the directory is gone: so is who waits for it
