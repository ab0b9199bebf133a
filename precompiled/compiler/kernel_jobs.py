"""Compiles a Triton kernel in a worker, ahead of the program (client/kernels_ahead.py)."""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from precompiled import wire
from precompiled.client.kernels_ahead import MARK
from precompiled.client.triton_kernels import KernelLookup
from precompiled.compiler import failures
from precompiled.core.config import Settings
from precompiled.core.errors import KERNEL_AHEAD, StoreError
from precompiled.core.json_text import parse_json
from precompiled.store import scratch

if TYPE_CHECKING:
    from precompiled.store.job_phases import JobRecord

# This text replaces the remote's address, because KernelLookup only checks whether an address is set. The store's
# helper has the address.
_REMOTE = "the helper's"


class _WorkerLookup(KernelLookup):
    """The lookup of a worker. An error ends its job."""

    is_worker = True
    has_compiled = False

    def publish(self, key: str, name: str, files: dict[str, bytes]) -> None:
        super().publish(key, name, files)
        self.has_compiled = True

    def failed(self, error: Exception) -> None:
        raise error

    def _on_base_problem(self, reason: str) -> None:
        sys.stderr.write(f"precompiled worker: {reason}\n")  # goes to the worker's log


def is_kernel(job: wire.Job) -> bool:
    return job.graph.startswith(MARK)


def run_job(job: wire.Job, record: JobRecord) -> wire.Finished:
    """Compile and publish a kernel, unless the store, a base store or the remote has it."""
    started = time.monotonic()
    record.phase("compile")
    try:
        found = parse_json(job.graph[len(MARK) :])
        base = tuple(Path(path) for path in job.base)
        triton = "texts" if found["texts"] else "on"
        lookup = _WorkerLookup(Settings(cache_dir=Path(job.store), base=base, triton=triton, remote=_REMOTE))
        _compile(job, found["recipe"], lookup)
    except StoreError as error:
        return failures.failed(job, started, error.code, str(error))
    except Exception as error:  # noqa: BLE001 - the user's code and Triton raise anything
        traceback.print_exc()  # to the worker's log
        return failures.failed(job, started, KERNEL_AHEAD, f"{type(error).__name__}: {error}")
    outcome = "published" if lookup.has_compiled else "exists"
    return wire.Finished(job.id, job.key, outcome, time.monotonic() - started)  # type: ignore[arg-type]


def _compile(job: wire.Job, recipe: dict[str, object], lookup: KernelLookup) -> None:
    from precompiled.graph import environment
    from precompiled.torch_internals.client import triton_cache
    from precompiled.torch_internals.user_code import kernel_recipes
    from precompiled.torch_internals.worker import gpu_memory

    gpu_memory.refuse_exclusive()  # before anything can create a CUDA context
    folder = scratch.directory(Path(job.store))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as own, environment.unchanged(), triton_cache.used(lookup, own):
        kernel_recipes.compile_kernel(recipe)
