"""Compares an artifact's code with eager code before the code serves a call, for a sample of graphs (``check``).

The first call runs both codes on the same inputs (torch_internals/eager/trial_runs.py). If the results are equal up to
rounding, the artifact's code serves this call and all later ones. Otherwise, the graph stays eager in this
process, and the store no longer serves the artifact to any process of this host. The client does not compile the graph
in process, because torch would generate the same code.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from precompiled.client.dispatch import Compiled
from precompiled.client.ledger import GraphCalls
from precompiled.client.left_to_eager import leave_to_eager
from precompiled.core import forking, interruptions, sampling
from precompiled.store.artifacts import Artifact
from precompiled.torch_internals.eager.comparison import Difference
from precompiled.torch_internals.eager.stand_in import StandIn
from precompiled.torch_internals.eager.trial_runs import Trial

if TYPE_CHECKING:
    from precompiled.client.awaited import SessionView
    from precompiled.graph.capture import SerializedGraph

log = logging.getLogger("precompiled.proof")


def prove(
    session: SessionView,
    calls: GraphCalls,
    artifact: Artifact,
    function: Compiled,
    eager: Callable[[], StandIn | None],
) -> Compiled:
    """Return ``function``, the code of ``artifact``. If the graph is drawn for a check, the first call compares the
    code with the stand-in.

    ``eager`` makes the graph's stand-in, or returns None if the graph cannot be checked.
    """
    if session.stays_eager or not sampling.is_drawn(session.settings.check):
        return function
    stand_in = eager()
    return function if stand_in is None else _Proof(session, calls, artifact, function, stand_in).call


def can_check(program: SerializedGraph) -> bool:
    """Whether the graph may run eager and its code may run on copies of its inputs. A check needs both."""
    return not program.no_stand_in and not program.cudagraphs


class _Proof:
    """The check of one artifact's code. Thread-safe."""

    def __init__(
        self, session: SessionView, calls: GraphCalls, artifact: Artifact, function: Compiled, eager: StandIn
    ) -> None:
        self._session, self._calls, self._artifact = session, calls, artifact
        self._function, self._eager = function, eager
        self._lock = threading.Lock()
        run: Compiled = self._first

        def call(*args: object) -> object:
            return run(*args)

        def settle(settled: Compiled) -> None:
            nonlocal run
            run = settled

        self.call, self._settle = call, settle
        self._settled: Compiled | None = None

    def _first(self, *args: object) -> object:
        # Prevent forks, because a fork's child would inherit a lock that stays locked for ever.
        with forking.held(), self._lock:
            if self._settled is None:
                self._settled = self._choose(args)
                self._settle(self._settled)
        return self._settled(*args)

    def _choose(self, args: tuple[object, ...]) -> Compiled:
        """Return the callable that serves this call and all later ones."""
        name, started = self._calls.report.name, time.perf_counter()
        try:
            trial = Trial(self._eager, args)
            why_not = trial.why_not()
            difference = None if why_not else next(trial.differences(self._function), None)
        except Exception as error:  # without an answer, the call runs as without a check, and may raise the same error
            interruptions.pass_on(error)
            log.debug("the check of %s raised", name, exc_info=True)
            difference, why_not = None, f"{type(error).__name__}: {error}"
        self._calls.spent("check", time.perf_counter() - started)
        if difference is not None:
            self._refuse(difference)
            return self._left_eager
        log.info("graph %s: %s", name, f"not checked, because {why_not}" if why_not else "its code is right")
        return self._function

    def _left_eager(self, *args: object) -> object:
        self._calls.ran_eager()
        return self._eager(*args)

    def _refuse(self, difference: Difference) -> None:
        """Remove the artifact from the lookups of all processes of this host, and report the difference."""
        session, calls, artifact = self._session, self._calls, self._artifact
        code, short = "wrong-result", artifact.manifest.key[:12]
        message = f"{difference}. Reproduce it: `precompiled cache show --repro {short} > repro.py; python repro.py`"
        calls.report.source = None
        program = session.store.program_for_failure(artifact)
        leave_to_eager(session, calls, code, message, compile_s=artifact.manifest.compile_s, program=program)
        session.store.set_aside(artifact, message)
        session.withdraw(artifact)
        session.outcomes.warn_stays_eager(calls.report.name, code, message)
