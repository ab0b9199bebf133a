"""Runs jobs in a worker: compiles a graph or a Triton kernel, and publishes the result in the store.

A worker runs many jobs. After each job, the worker restores the state that the job changed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Generator
from pathlib import Path

from precompiled import parts, wire
from precompiled.compiler import failures, graph_jobs, kernel_jobs
from precompiled.core.errors import StoreError
from precompiled.store import scratch
from precompiled.store.artifacts import Store
from precompiled.store.job_phases import WorkerRecord

_ready = 0.0  # when this worker's imports ended, in seconds since the epoch
_records: dict[Path, WorkerRecord] = {}  # one record for each store


def warm_up(store: Path | None = None) -> None:
    """Import what every compile needs, so that the first job does not wait for the imports.

    ``store``: the store of the first job. During the imports, a thread prepares this store for the first C++ build.
    """
    global _ready  # noqa: PLW0603
    if (made_up := parts.MADE_UP_CUDA.get()) is not None:
        made_up.in_a_worker()  # before torch
    if store is not None:
        _prepare(store)
    import precompiled.torch_internals.worker.compile_graph  # noqa: F401 - it imports Inductor
    from precompiled.torch_internals.client import garbage_collection

    # Imported modules are never freed. Objects of a compile live until the compile ends, so a garbage collection during
    # a compile frees almost nothing (docs/decisions/0014).
    gc.freeze()
    gc.set_threshold(*garbage_collection.SELDOM)
    _ready = time.time()


def _prepare(store: Path) -> None:
    from precompiled.torch_internals.worker import first_build

    try:
        Store(store, [], graph_jobs.say).prepare()
    except StoreError as error:
        graph_jobs.say(f"nothing is prepared: {error}")  # the first job fails with the same error, and is recorded
        return
    first_build.begin(scratch.directory(store), failures.is_of_the_host)


def run_job(job: wire.Job) -> wire.Finished:
    """Compile and publish one job. If the compile fails, the failure is published and returned, but not raised."""
    return graph_jobs.run_to_end(steps(job))


def steps(job: wire.Job) -> Generator[None, None, wire.Finished]:
    """Run a job as ``run_job`` does, with a pause before the wait for C++ compilers (graph_jobs.py).

    Records the job's phases and their times, for people to read (store/job_phases.py).
    """
    root = Path(job.store)
    if root not in _records:
        _records[root] = WorkerRecord(root, _ready)
    record = _records[root].begin(job.id, job.key, job.name, job.attempt, job.queued_s)
    if kernel_jobs.is_kernel(job):
        finished = kernel_jobs.run_job(job, record)
    else:
        finished = yield from graph_jobs.run_job(job, record)
    record.end(finished.outcome, finished.reason)
    return finished
