"""Runs a job in a worker: compiles its graph and publishes an artifact, or a failure record with the reason.

A worker runs many jobs, one at a time. After each job, the worker restores the state that the job changed.
"""

from __future__ import annotations

import gc
import math
import os
import re
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from precompiled import parts, wire
from precompiled.client import kernel_jobs
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
from precompiled.graph import rank_graphs
from precompiled.store import artifact_format as fmt
from precompiled.store import eviction, rank_turns, scratch
from precompiled.store.artifacts import Store
from precompiled.store.job_phases import JobRecord
from precompiled.store.kernel_files import KernelFiles
from precompiled.store.writing import full
from precompiled.version import VERSION

if TYPE_CHECKING:
    from precompiled.torch_internals.worker.compile_graph import CompileResult

MAX_MESSAGE_CHARS = 4000

_ready = 0.0  # when this worker's imports ended, in seconds since the epoch
_records: dict[Path, JobRecord] = {}  # one record for each store


def warm_up() -> None:
    """Import what every compile needs, so that the first job does not wait for the imports."""
    global _ready  # noqa: PLW0603
    if (made_up := parts.MADE_UP_CUDA.get()) is not None:
        made_up.in_a_worker()  # before torch
    import precompiled.torch_internals.worker.compile_graph  # noqa: F401 - it imports Inductor
    from precompiled.torch_internals.client import garbage_collection

    # Imported modules are never freed. Objects of a compile live until it ends, so a collection during a compile frees
    # almost nothing (docs/decisions/0014).
    gc.freeze()
    gc.set_threshold(*garbage_collection.SELDOM)
    _ready = time.time()


def run_job(job: wire.Job) -> wire.Finished:
    """Compile and publish one job. A failure of the graph is published and returned, never raised.

    Records the job's phases and their times, for people to read (store/job_phases.py).
    """
    root = Path(job.store)
    if root not in _records:
        _records[root] = JobRecord(root, _ready)
    record = _records[root]
    record.begin(job.id, job.key, job.name, job.attempt, job.queued_s)
    finished = kernel_jobs.run_job(job, record) if kernel_jobs.is_kernel(job) else _run_job(job, record)
    record.end(finished.outcome, finished.reason)
    return finished


def _run_job(job: wire.Job, record: JobRecord) -> wire.Finished:
    from precompiled.graph.job import split

    started = time.monotonic()
    store = Store(Path(job.store), [Path(path) for path in job.base], say)
    graph, data = split(job.graph)
    job = msgspec.structs.replace(job, graph=graph)
    try:
        store.prepare()
        if is_there(store, job):
            # The artifact was published after the client's lookup, or by another daemon that uses the same store.
            return wire.Finished(job.id, job.key, "exists", 0.0)
        for _variant in range(fmt.MAX_VARIANTS):
            record.phase("remote")
            asked = time.monotonic()
            with _turn(store.root, job.key) as among_hosts:
                record.spent("remote", time.monotonic() - asked)
                if not among_hosts.found:
                    return _among_hosts(store, job, data, started, among_hosts, record)
            if is_there(store, job):
                return wire.Finished(job.id, job.key, "exists", 0.0)  # another host has compiled it
        raise full(job.key)
    except StoreError as error:
        return _failed(job, started, error.code, str(error))
    except Exception as error:  # noqa: BLE001 - torch and user code raise anything; the failure record has the error
        message = str(error)
        if not isinstance(error, PrecompiledError):
            traceback.print_exc()  # goes to the worker's log too, because the record may be deleted with its store
            message = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        ttl_s = HOST_TTL_S if _is_of_the_host(error) else math.inf
        return _publish_failure(store, job, started, code_of(error, "compile-error"), message, ttl_s)
    finally:
        if "torch" in sys.modules:
            sys.modules["torch"].compiler.reset()  # also removes what a failed compile left behind


class _OnlyHost:
    """The turn of a host without a remote. The host compiles every job itself."""

    found, again_s = False, 0.0

    def published(self, slot: int) -> None:
        pass

    def failed(self) -> None:
        pass


def _turn(root: Path, key: str) -> AbstractContextManager[parts.TurnProtocol]:
    remote = parts.REMOTE.get()
    return nullcontext(_OnlyHost()) if remote is None else remote.turn(root, key)


def _among_hosts(
    store: Store, job: wire.Job, data: bytes, started: float, among_hosts: parts.TurnProtocol, record: JobRecord
) -> wire.Finished:
    """Compile and publish a graph that no other host has compiled. If another host compiles the graph now, park the
    job.
    """
    if among_hosts.again_s and job.may_park:
        return wire.Finished(job.id, job.key, "parked", 0.0, again_s=among_hosts.again_s)
    folder = scratch.directory(store.root) / "turns"
    record.phase("turn")
    try:
        with rank_turns.turn(folder, rank_graphs.family(job.graph)) as turn:
            if turn is not None and turn.waited and is_there(store, job):
                # Another worker compiled the graph, for a rank at another position in the meshes.
                return wire.Finished(job.id, job.key, "exists", 0.0)
            payload, others = _compile(job, data, turn.end if turn is not None else lambda: None, record)
            record.phase("publish")
            publishing = time.monotonic()
            artifact = store.publish(payload)
            # Publish for the other keys before the turn ends, because a worker that waits for the turn checks the store
            # only once before it compiles.
            further = {key: _publish_for(store, payload, key, program) for key, program in others.items()}
            record.spent("publish", time.monotonic() - publishing)
    except Exception as error:
        if (problem := _of_the_gpu(job, error) or _of_the_toolchain(job, error)) is not None:
            raise problem from error
        of_the_place = isinstance(error, StoreError) or _is_of_the_host(error) or code_of(error, "") in OF_THE_PLACE
        if not of_the_place and not _is_made_up(job) and not job.tune:
            among_hosts.failed()  # the graph itself fails, so the next host would fail too
        raise
    among_hosts.published(artifact.slot)
    if (remote := parts.REMOTE.get()) is not None:
        for key, slot in further.items():
            if slot is not None:
                remote.put_artifact(store.root, key, slot)
    seconds = time.monotonic() - started
    _evict(store, job)
    return wire.Finished(job.id, job.key, "published", seconds, artifact_bytes=artifact.manifest.bytes)


def is_there(store: Store, job: wire.Job) -> bool:
    """Whether the store has an artifact for the sizes of this job. For a job with ``tune``, only tuned artifacts count.

    Raises StoreError if all slots are taken.
    """
    every = store.lookup(job.key)
    artifacts = [item for item in every if not (job.tune and item.manifest.tier == fmt.UNTIMED)]
    if not artifacts:
        return False
    if any(not artifact.manifest.guards for artifact in artifacts):
        return True
    from precompiled.graph import capture

    found = capture.is_served(capture.parse(job.graph), (artifact.manifest.guards for artifact in artifacts))
    if not found and sum(map(store.is_own, every)) >= fmt.MAX_VARIANTS:
        raise full(job.key)  # before the compile, because its result could not be published
    return found


def say(reason: str) -> None:
    sys.stderr.write(f"precompiled worker: {reason}\n")  # goes to the worker's log


def _publish_for(store: Store, payload: fmt.Payload, key: str, program: bytes) -> int | None:
    """Publish the artifact under the key of another position in the meshes. Returns its slot, or None on failure."""
    from precompiled.graph.key import components

    manifest = replace(payload.manifest, key=key, components=components(program))
    try:
        return store.publish(fmt.Payload(manifest, {**payload.files, fmt.PROGRAM: fmt.pack_program(program)})).slot
    except StoreError:  # the key's own job will compile it
        traceback.print_exc()  # to the worker's log
        return None


def _compile(
    job: wire.Job, data: bytes, on_rank_read: Callable[[], None], record: JobRecord
) -> tuple[fmt.Payload, dict[str, bytes]]:
    """Compile a job. Returns the artifact, and the other keys that it serves, each with its program.

    ``data``: the frozen weights. ``on_rank_read``: passed on to ``compile_graph``.
    """
    record.phase("decode")
    from precompiled.torch_internals.worker import cpp_builds, vector_units

    # A worker does not use the user's Inductor cache, because it must neither fill nor trust that cache.
    cpp_builds.use(scratch.directory(Path(job.store)))
    vector_units.settled_unless(_is_of_the_host)
    with vector_units.beside(job.device == "cpu" and job.compile_threads > 1):
        return _compile_program(job, data, on_rank_read, record)


def _compile_program(
    job: wire.Job, data: bytes, on_rank_read: Callable[[], None], record: JobRecord
) -> tuple[fmt.Payload, dict[str, bytes]]:
    """Compile a job, with torch set up for the job's store."""
    # Without the waits for the remote and for the turn, because clients show this time as saved.
    started = time.monotonic()
    import torch

    from precompiled.graph import capture, environment, key, weights
    from precompiled.torch_internals.graph import ambient_modes, compiler_config, graph_codec, process_groups
    from precompiled.torch_internals.user_code import custom_ops
    from precompiled.torch_internals.worker import compile_phases, gpu_memory
    from precompiled.torch_internals.worker.compile_graph import compile_graph

    if job.device != "cpu":
        gpu_memory.refuse_exclusive()  # before anything can create a CUDA context
    program = capture.parse(job.graph)
    uses_cpu = "cpu" in program["environment"]
    here = environment.facts("cuda:0" if job.device != "cpu" else "cpu", uses_cpu=uses_cpu, of_a_worker=True)
    _check_environment(program["environment"], here)
    graph, inputs, settings = program["graph"], program["inputs"], program["configs"]
    try:
        with environment.unchanged():
            custom_ops.load(capture.modules(program))
            module = graph_codec.decode(graph)
    except (Exception, SystemExit) as error:  # a custom op's module may raise anything when it is imported
        raise CompileFailed(
            f"the graph does not decode: {type(error).__name__}: {error}", code="undecodable-graph"
        ) from error
    frozen = weights.tensors([item for item in inputs["args"] if "content" in item], data)
    components = key.components(job.graph)
    find_kernels = KernelFiles(Store(Path(job.store)), components).with_kernels
    with (
        compile_phases.noted(record),
        ambient_modes.process_wide(program["modes"]),
        ambient_modes.thread_local(program["modes"]),
        compiler_config.applied(settings, job.compile_threads),
        process_groups.stand_ins(program["modes"]["groups"], program["modes"].get("ranks")),
    ):
        result: CompileResult = compile_graph(
            module, inputs, program["hints"], program["floats"], frozen, on_rank_read, record, find_kernels
        )
    native = result.native
    if native.files and not uses_cpu:
        # The code is for this CPU and this compiler, but the key contains neither. So hosts with a different CPU or
        # compiler would load the code.
        raise CompileFailed(
            "the compile made CPU kernels, although all values of the graph are on a GPU", code="hidden-cpu-kernels"
        )
    manifest = fmt.Manifest(
        key=job.key,
        name=job.name,
        components=components,
        environment={
            "python": sys.version.split()[0],
            "torch": str(torch.__version__),
            "triton": environment.triton_version(),
        },
        device=job.device.partition(":")[0],
        guards=result.guards,
        files={},
        compile_s=time.monotonic() - started,
        created=time.time(),
        compiled_by={
            "version": VERSION,
            "uid": str(os.getuid()),
            "pid": str(os.getpid()),
            "host": socket.gethostname(),
            **({"device": "made up"} if _is_made_up(job) else {}),
            **({"kernels built": str(native.built), "kernels reused": str(native.reused)} if native.files else {}),
        },
        tier=fmt.UNTIMED if result.undecided else fmt.DEFAULT,
        has_backward=result.has_backward,
        kernels=native.kernels,
    )
    files = {fmt.BUNDLE: result.bundle, fmt.PROGRAM: fmt.pack_program(job.graph)}
    files.update({fmt.native(digest): data for digest, data in native.files.items()})
    others = rank_graphs.of_others(job.graph, job.key) if result.any_place else {}
    return fmt.Payload(manifest, files), others


# Seconds for which a failure record is kept if the host caused the failure (no memory, a full disk). Without a record,
# each process would recompile a graph that causes such a failure at each compile.
HOST_TTL_S = 60.0
# Messages of errors that the host causes. "died with" is CalledProcessError's text for a signal.
_OF_THE_HOST = re.compile(
    r"died with |Killed signal terminated|signal terminated program|No space left on device|[Cc]annot allocate memory"
    r"|out of memory allocating|virtual memory exhausted|Resource temporarily unavailable"
)


def _is_of_the_host(error: BaseException | None) -> bool:
    """Whether the host (memory, disk, a signal) caused the error or one of the errors behind it."""
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


def _check_environment(wanted: Mapping[str, object], here: Mapping[str, object]) -> None:
    """Raise CompileFailed unless the worker's environment equals the program's, which is part of the key."""
    differing = [name for name in sorted({*wanted, *here}) if wanted.get(name) != here.get(name)]
    if differing:
        shown = "; ".join(f"{name}: client {wanted.get(name)!r}, worker {here.get(name)!r}" for name in differing)
        raise CompileFailed(f"worker and client have different environments ({shown})", code="environment-differs")


# Seconds between evictions: adding up the sizes of 10,000 artifacts takes one second.
EVICT_INTERVAL_S = 60.0
_last_eviction: dict[Path, float] = {}


def _evict(store: Store, job: wire.Job) -> None:
    now = time.monotonic()
    if now - _last_eviction.get(store.root, -EVICT_INTERVAL_S) >= EVICT_INTERVAL_S:
        _last_eviction[store.root] = now
        try:
            eviction.evict(store, job.cache_max_bytes, job.cache_max_inodes)
        except Exception:  # noqa: BLE001 - the artifact is published all the same; `precompiled cache gc` shows the error
            traceback.print_exc()  # to the worker's log


def _publish_failure(
    store: Store, job: wire.Job, started: float, code: str, message: str, ttl_s: float = math.inf
) -> wire.Finished:
    """Publish a failure record. ``ttl_s``: seconds for which the record prevents another compile, at most."""
    # No record is published in these cases:
    # - the host, the device or an earlier compile in this process caused the failure, and the graph may be valid
    # - the GPU is made up: a real one might compile the graph
    # - the job tunes an artifact, and the untuned artifact stays in use
    if code in (DEVICE_LOST, GPU_UNAVAILABLE, NO_COMPILER) or _is_made_up(job) or job.tune:
        return _failed(job, started, code, message)
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
        return _failed(job, started, error.code, f"{error}; the failure to record is {code}: {said}")
    return wire.Finished(job.id, job.key, "failed", seconds, reason=code, message=message)


def _is_made_up(job: wire.Job) -> bool:
    made_up = parts.MADE_UP_CUDA.get()
    return job.device != "cpu" and made_up is not None and made_up.is_active()


def _of_the_gpu(job: wire.Job, error: Exception) -> CompileFailed | None:
    """Return the error to report if the state of this process's GPU caused ``error``."""
    if job.device == "cpu" or code_of(error, "") in OF_THE_PLACE:
        return None
    from precompiled.torch_internals.worker import gpu_memory

    return gpu_memory.problem(str(error))


def _of_the_toolchain(job: wire.Job, error: Exception) -> CompileFailed | None:
    """Return the error to report if the compilers of this host caused ``error``."""
    if isinstance(error, PrecompiledError):
        return None
    from precompiled.torch_internals.inductor import toolchain

    problem = toolchain.problem(error, job.device)
    if not problem:
        return None
    traceback.print_exc()  # goes to the worker's log; the client gets the cause alone
    return CompileFailed(problem, code="no-compiler")


def _failed(job: wire.Job, started: float, code: str, message: str) -> wire.Finished:
    return wire.Finished(
        job.id, job.key, "failed", time.monotonic() - started, reason=code, message=message[:MAX_MESSAGE_CHARS]
    )
