"""Compiles a graph and publishes an artifact, or a failure record with the reason.

::

    the worker's thread   lower the graph ──pause──> lower the next graph
    another thread                            └────> wait for the C++ compilers, publish

A job is a generator. It may pause when only the C++ compilers still work for it. The worker may then begin the next
job, and run the rest of the paused job in another thread. After the pause, a job needs Inductor only if kernels must be
rebuilt.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from precompiled import parts, wire
from precompiled.compiler import failures
from precompiled.core.errors import OF_THE_PLACE, CompileFailed, PrecompiledError, StoreError, code_of
from precompiled.graph import rank_graphs
from precompiled.graph.key import components
from precompiled.store import artifact_format as fmt
from precompiled.store import eviction, rank_turns, scratch
from precompiled.store.artifacts import Store
from precompiled.store.job_phases import JobRecord
from precompiled.store.kernel_files import KernelFiles
from precompiled.store.writing import full
from precompiled.version import VERSION

if TYPE_CHECKING:
    from precompiled.core.program_data import ProgramData
    from precompiled.torch_internals.worker.compile_graph import CompileResult


Result = TypeVar("Result")

# Held while torch has the settings of a job.
_settings_lock = threading.Lock()


def run_job(job: wire.Job, record: JobRecord) -> Generator[None, None, wire.Finished]:
    """Run a job. Pauses at most once."""
    from precompiled.graph.job import split

    started = time.monotonic()
    store = Store(Path(job.store), [Path(path) for path in job.base], say)
    graph, data = split(job.graph)
    job = msgspec.structs.replace(job, graph=graph)
    try:
        store.prepare()
        if is_there(store, job):
            # The artifact was published after the client's lookup, for example by the worker of another daemon.
            return wire.Finished(job.id, job.key, "exists", 0.0)
        for _variant in range(fmt.MAX_VARIANTS):
            record.phase("remote")
            asked = time.monotonic()
            with _turn(store.root, job.key) as among_hosts:
                record.spent("remote", time.monotonic() - asked)
                if not among_hosts.found:
                    return (yield from _among_hosts(store, job, data, started, among_hosts, record))
            if is_there(store, job):
                return wire.Finished(job.id, job.key, "exists", 0.0)  # another host has compiled it
        raise full(job.key)
    except StoreError as error:
        return failures.failed(job, started, error.code, str(error))
    except Exception as error:  # noqa: BLE001 - torch and user code raise anything; the failure record has the error
        message = str(error)
        if not isinstance(error, PrecompiledError):
            traceback.print_exc()  # goes to the worker's log too, because the record may be deleted with its store
            message = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        ttl_s = failures.TTL_S if failures.is_of_the_host(error) else math.inf
        return failures.published(store, job, started, code_of(error, "compile-error"), message, ttl_s)


def run_to_end(steps: Generator[None, None, Result]) -> Result:
    """Run a job, or a part of it, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


class _OnlyHost:
    """Replaces the remote's turn on a host without a remote. Such a host compiles every job itself."""

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
) -> Generator[None, None, wire.Finished]:
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
                # Another worker has compiled the graph for another rank, and has published it for this rank, too.
                return wire.Finished(job.id, job.key, "exists", 0.0)
            on_rank_read = turn.end if turn is not None else lambda: None
            # A pause lets another job begin. The two jobs could not share the turn's lock or a single compile thread.
            # And with frozen weights, both would need too much memory.
            may_pause = job.may_overlap and job.compile_threads > 1 and turn is None and not data
            payload, others = yield from _compile(job, data, on_rank_read, record, may_pause)
            record.phase("publish")
            publishing = time.monotonic()
            artifact = store.publish(payload)
            # Publish for the other keys before the turn ends, because a worker that waits for the turn checks the store
            # only once before it compiles.
            further = {key: _publish_for(store, payload, key, program) for key, program in others.items()}
            record.spent("publish", time.monotonic() - publishing)
    except Exception as error:
        if (problem := failures.of_the_gpu(job, error) or failures.of_the_toolchain(job, error)) is not None:
            raise problem from error
        of_the_place = (
            isinstance(error, StoreError) or failures.is_of_the_host(error) or code_of(error, "") in OF_THE_PLACE
        )
        if not of_the_place and not failures.is_made_up(job) and not job.tune:
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
        raise full(job.key)  # do not compile, because the result could not be published
    return found


def say(reason: str) -> None:
    sys.stderr.write(f"precompiled worker: {reason}\n")  # goes to the worker's log


def _publish_for(store: Store, payload: fmt.Payload, key: str, program: bytes) -> int | None:
    """Publish the artifact also under the key of a rank at another position in the meshes. Returns its slot, or None on
    failure.
    """
    manifest = replace(payload.manifest, key=key, components=components(program))
    try:
        return store.publish(fmt.Payload(manifest, {**payload.files, fmt.PROGRAM: fmt.pack_program(program)})).slot
    except StoreError:  # the key's own job will compile it
        traceback.print_exc()  # to the worker's log
        return None


def _compile(
    job: wire.Job, data: bytes, on_rank_read: Callable[[], None], record: JobRecord, may_pause: bool
) -> Generator[None, None, tuple[fmt.Payload, dict[str, bytes]]]:
    """Compile a job. Returns the artifact, and a dict of the further keys that it serves, with their programs.

    ``data``: the frozen weights. ``on_rank_read``: passed on to ``compile_graph``. ``may_pause``: whether to pause
    while only the C++ compilers run.
    """
    record.phase("decode")
    from precompiled.torch_internals.worker import cpp_builds, first_build, vector_units

    # A worker does not use the user's Inductor cache, because it must neither fill nor trust that cache.
    folder = scratch.directory(Path(job.store))
    first_build.wait_unless_in(folder)
    cpp_builds.use(folder)
    vector_units.settled_unless(failures.is_of_the_host)
    # Start the clock after the waits for the remote and for the turn, because clients show the time as saved seconds.
    started = time.monotonic()
    try:
        with vector_units.beside(job.device == "cpu" and job.compile_threads > 1):
            program, found, result = _lower(job, data, on_rank_read, record)
    finally:
        sys.modules["torch"].compiler.reset()  # also removes what a failed compile left behind
    if may_pause and result.kernels.is_building:
        yield
    return _payload(job, program, result, record, found, started)


def _lower(
    job: wire.Job, data: bytes, on_rank_read: Callable[[], None], record: JobRecord
) -> tuple[ProgramData, dict[str, str], CompileResult]:
    """Run the part of a job's compile that is in Inductor's Python. The C++ compilers may still run when this returns.

    Returns the program, the components of its key, and the result.
    """
    from precompiled.graph import capture, environment, weights
    from precompiled.torch_internals.graph import graph_codec
    from precompiled.torch_internals.user_code import custom_ops
    from precompiled.torch_internals.worker import gpu_memory
    from precompiled.torch_internals.worker.compile_graph import compile_graph

    if job.device != "cpu":
        gpu_memory.refuse_exclusive()  # before anything can create a CUDA context
    program = capture.parse(job.graph)
    uses_cpu = "cpu" in program["environment"]
    here = environment.facts("cuda:0" if job.device != "cpu" else "cpu", uses_cpu=uses_cpu, of_a_worker=True)
    _check_environment(program["environment"], here)
    graph, inputs = program["graph"], program["inputs"]
    try:
        with environment.unchanged():
            custom_ops.load(capture.modules(program))
            module = graph_codec.decode(graph)
    except (Exception, SystemExit) as error:  # a custom op's module may raise anything when it is imported
        missing = graph_codec.missing_operators(graph) if isinstance(error, (ValueError, AttributeError)) else ""
        raise CompileFailed(
            f"the graph does not decode: {missing or f'{type(error).__name__}: {error}'}", code="undecodable-graph"
        ) from error
    frozen = weights.tensors([item for item in inputs["args"] if "content" in item], data)
    found = components(job.graph)
    find_kernels = KernelFiles(Store(Path(job.store)), found).with_kernels
    with _settings(job, program, record):
        result = compile_graph(
            module, inputs, program["hints"], program["floats"], frozen, on_rank_read, record, find_kernels
        )
    return program, found, result


@contextmanager
def _settings(job: wire.Job, program: ProgramData, record: JobRecord) -> Iterator[None]:
    from precompiled.torch_internals.graph import ambient_modes, compiler_config, process_groups
    from precompiled.torch_internals.worker import compile_phases

    with (
        _settings_lock,
        compile_phases.noted(record),
        ambient_modes.process_wide(program["modes"]),
        ambient_modes.thread_local(program["modes"]),
        compiler_config.applied(program["configs"], job.compile_threads),
        process_groups.stand_ins(program["modes"]["groups"], program["modes"].get("ranks")),
    ):
        yield


def _payload(
    job: wire.Job,
    program: ProgramData,
    result: CompileResult,
    record: JobRecord,
    found: dict[str, str],
    started: float,
) -> tuple[fmt.Payload, dict[str, bytes]]:
    """Wait for the C++ compilers. Returns the same as ``_compile``.

    ``found``: the key's components. ``started``: when the compile began (monotonic).
    """
    import torch

    from precompiled.graph import environment

    native = result.kernels.native(lambda: _settings(job, program, record))
    if native.files and "cpu" not in program["environment"]:
        # The CPU kernels are valid only for this CPU and C++ compiler, but the key of a graph on a GPU contains
        # neither. So a host with a different CPU or compiler would load these kernels.
        raise CompileFailed(
            "the compile made CPU kernels, although all values of the graph are on a GPU", code="hidden-cpu-kernels"
        )
    manifest = fmt.Manifest(
        key=job.key,
        name=job.name,
        components=found,
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
            **({"device": "made up"} if failures.is_made_up(job) else {}),
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


def _check_environment(wanted: Mapping[str, object], here: Mapping[str, object]) -> None:
    """Raise CompileFailed if the worker's environment differs from the program's. The program's is part of the key."""
    differing = [name for name in sorted({*wanted, *here}) if wanted.get(name) != here.get(name)]
    if differing:
        shown = "; ".join(f"{name}: client {wanted.get(name)!r}, worker {here.get(name)!r}" for name in differing)
        raise CompileFailed(f"worker and client have different environments ({shown})", code="environment-differs")


# The least number of seconds between evictions. An eviction takes one second to add up the sizes of 10,000 artifacts.
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
