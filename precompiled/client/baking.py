"""Reports to `precompiled bake --steps N` that a process has done N steps and its results are stored.

``PRECOMPILED_BAKING=<N>:<directory>``. The process creates the file ``<pid>`` in the directory when it has its first
graph, and ``<pid>.done`` after N calls of its most-called graph. Optimizer steps are not counted, because a hook on the
optimizer would change what Dynamo reads in a trace.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from precompiled.client.process import PROCESS

if TYPE_CHECKING:
    from precompiled.client.process import SessionProtocol

VARIABLE = "PRECOMPILED_BAKING"
LOOK_S = 0.05
FLUSH_S = 60.0


def begin(session: SessionProtocol) -> None:
    """Start the reporting thread if `precompiled bake` runs this process. Call this function once the process has a
    session.
    """
    described = os.environ.get(VARIABLE)
    if described:
        steps, _, directory = described.partition(":")
        threading.Thread(
            target=_follow, args=(session, int(steps), Path(directory)), name="precompiled-baking", daemon=True
        ).start()


def _follow(session: SessionProtocol, steps: int, directory: Path) -> None:
    try:
        (directory / str(os.getpid())).touch()
        while max((report.calls_eager + report.calls_compiled for report in session.reports()), default=0) < steps:
            time.sleep(LOOK_S)
        session.wait(FLUSH_S, blocks_program=False)
        if PROCESS.packages is not None:
            PROCESS.packages.flush(FLUSH_S)
        session.tell_counts()
        session.flush(FLUSH_S)
        (directory / f"{os.getpid()}.done").touch()
    except OSError:
        pass  # `precompiled bake` has removed the directory and waits no longer
