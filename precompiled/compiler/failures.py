"""Reports and records failed jobs, and finds the failures that the host, its GPU or its compilers cause."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
import traceback

from precompiled import parts, wire
from precompiled.core.errors import (
    DEVICE_LOST,
    GPU_UNAVAILABLE,
    NO_COMPILER,
    OF_THE_PLACE,
    CompileFailed,
    PrecompiledError,
    StoreError,
    code_of,
)
from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Store

MAX_MESSAGE_CHARS = 4000

# Seconds for which a failure record is kept if the host caused the failure (no memory, a full disk). If each compile of
# a graph fails in this way, the record prevents a new compile in each process.
TTL_S = 60.0
# Messages of errors that the host causes. "died with" is CalledProcessError's text for a signal.
_OF_THE_HOST = re.compile(
    r"died with |Killed signal terminated|signal terminated program|No space left on device|[Cc]annot allocate memory"
    r"|out of memory allocating|virtual memory exhausted|Resource temporarily unavailable"
)


def is_of_the_host(error: BaseException | None) -> bool:
    """Whether the host (memory, disk, a signal) caused the error, or one of the errors that led to it."""
    while error is not None:
        if isinstance(error, (OSError, MemoryError)):
            return True
        # torch/_inductor/exc.py keeps g++'s output, but not its exit status.
        if isinstance(error, (subprocess.CalledProcessError, RuntimeError)) and _OF_THE_HOST.search(
            f"{error} {getattr(error, 'output', '')}"
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def is_made_up(job: wire.Job) -> bool:
    made_up = parts.MADE_UP_CUDA.get()
    return job.device != "cpu" and made_up is not None and made_up.is_active()


def of_the_gpu(job: wire.Job, error: Exception) -> CompileFailed | None:
    """Return the error to report if the state of this process's GPU caused ``error``."""
    if job.device == "cpu" or code_of(error, "") in OF_THE_PLACE:
        return None
    from precompiled.torch_internals.worker import gpu_memory

    return gpu_memory.problem(str(error))


def of_the_toolchain(job: wire.Job, error: Exception) -> CompileFailed | None:
    """Return the error to report if the compilers of this host caused ``error``."""
    if isinstance(error, PrecompiledError):
        return None
    from precompiled.torch_internals.inductor import toolchain

    problem = toolchain.problem(error, job.device)
    if not problem:
        return None
    traceback.print_exc()  # goes to the worker's log; the client gets the cause alone
    return CompileFailed(problem, code="no-compiler")


def published(
    store: Store, job: wire.Job, started: float, code: str, message: str, ttl_s: float = math.inf
) -> wire.Finished:
    """Publish a failure record, which prevents another compile for at most ``ttl_s`` seconds."""
    # No record is published in these cases:
    # - the host, the device or an earlier compile in this process caused the failure, and the graph may be valid
    # - the GPU is simulated: with a real GPU, the compile might succeed
    # - the job tunes an artifact, and the untuned artifact stays in use
    if code in (DEVICE_LOST, GPU_UNAVAILABLE, NO_COMPILER) or is_made_up(job) or job.tune:
        return failed(job, started, code, message)
    seconds = time.monotonic() - started
    message = message[:MAX_MESSAGE_CHARS]
    try:
        program = fmt.program_for_failure(job.graph)
        store.publish_failure(
            fmt.Failure(
                job.key, job.name, code, message, time.time(), min(ttl_s, job.failure_ttl_s), seconds, program=program
            )
        )
    except StoreError as error:
        # The message may hold a traceback, which belongs in the log.
        sys.stderr.write(f"the failure of {job.key[:12]} ({code}) is not recorded: {message}\n")
        said = message.partition("\n")[0][:200]
        return failed(job, started, error.code, f"{error}; the failure to record is {code}: {said}")
    return wire.Finished(job.id, job.key, "failed", seconds, reason=code, message=message)


def failed(job: wire.Job, started: float, code: str, message: str) -> wire.Finished:
    return wire.Finished(
        job.id, job.key, "failed", time.monotonic() - started, reason=code, message=message[:MAX_MESSAGE_CHARS]
    )
