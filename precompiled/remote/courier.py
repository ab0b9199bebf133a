"""Runs a job in a courier: offers it to the user's farm, through the helper of the store (remote/helper.py).

A courier is a separate process that does not compile. Couriers run while all worker slots are taken, because a
compiling worker reads no messages.
"""

from __future__ import annotations

from pathlib import Path

from precompiled import wire
from precompiled.compiler import graph_jobs
from precompiled.core.errors import StoreError
from precompiled.graph import rank_graphs
from precompiled.graph.job import split
from precompiled.remote import helper_link
from precompiled.store.artifacts import Store

KEEP_S = 30.0  # seconds before the next offer if there is no helper, or if the store cannot be read
OF_RANKS_S = 3600.0  # the same, for a compile for several ranks (store/rank_turns.py)


def warm_up() -> None:
    """Do nothing. torch is imported only if an artifact has guards."""


def run_job(job: wire.Job) -> wire.Finished:
    """Offer the job. The outcome is "exists" if another process has published the artifact, "parked" if the farm took
    the job, else "kept".
    """
    if rank_graphs.family(split(job.graph)[0]):
        return wire.Finished(job.id, job.key, "kept", 0.0, message="for several ranks at once", again_s=OF_RANKS_S)
    store = Store(Path(job.store), [Path(path) for path in job.base], graph_jobs.say)
    try:
        for _look in range(2):
            if graph_jobs.is_there(store, job):
                return wire.Finished(job.id, job.key, "exists", 0.0)
            answer = helper_link.offer(store.root, job.key, lambda: wire.encode(job))
            if "found" not in answer:
                break
    except StoreError as error:  # a worker reports this error to the client
        return wire.Finished(job.id, job.key, "kept", 0.0, message=str(error)[:1000], again_s=KEEP_S)
    if "again_s" in answer:
        return wire.Finished(job.id, job.key, "parked", 0.0, again_s=float(answer["again_s"]))
    return wire.Finished(job.id, job.key, "kept", 0.0, again_s=float(answer.get("keep_s", KEEP_S)))
