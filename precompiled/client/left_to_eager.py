"""Leaves a graph to eager code, here and in later processes of this host, if its compiled code is slower or wrong."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from precompiled.client.ledger import GraphCalls
from precompiled.core import interruptions
from precompiled.core.errors import SLOWER_THAN_EAGER, StoreError, code_of
from precompiled.store.artifact_format import Failure

if TYPE_CHECKING:
    from precompiled.client.awaited import SessionView
    from precompiled.graph.capture import SerializedGraph

log = logging.getLogger("precompiled.backend")


def may_stay_eager(session: SessionView, program: SerializedGraph) -> bool:
    """Whether eager code may serve the graph for good if compiled code is slower.

    False if the program requires compiled or deterministic code, or if other ranks must run the same code.
    """
    must_not = program.no_stand_in or program.cudagraphs or program.groups or program.meshes or program.weights
    return session.settings.mode == "eager" and not must_not and not program.modes["deterministic"]


def measured_slower(session: SessionView, key: str) -> Failure | None:
    """The failure record that says that the compiled code of ``key`` is slower than eager code, or None. Ignores
    unusable records.
    """
    try:
        failure = session.store.failure(key)
    except StoreError as error:
        interruptions.pass_on(error)
        return None
    return failure if failure is not None and failure.reason == SLOWER_THAN_EAGER else None


def leave_to_eager(
    session: SessionView, calls: GraphCalls, code: str, message: str, *, compile_s: float = 0.0, program: str = ""
) -> None:
    """Report that a graph runs eager again, and publish a failure record. Later processes run the graph eager until the
    record expires.

    ``program``: the graph, for the failure record (artifact_format.program_for_failure).
    """
    session.outcomes.went_back(calls, code, message)
    report, ttl_s = calls.report, session.settings.failure_ttl_s
    record = Failure(report.key, report.name, code, message, time.time(), ttl_s, compile_s, program=program)
    try:
        session.store.publish_failure(record)
    except (StoreError, OSError) as error:  # a read-only store, for example
        interruptions.pass_on(error)
        session.ledger.count_reason("fallbacks", code_of(error, "store-unwritable"))
        log.warning(
            "graph %s: the store has no record of %s, so later processes use its code: %s", report.name, code, error
        )
