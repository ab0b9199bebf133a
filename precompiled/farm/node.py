"""Compiles a job in a worker on a node of a farm, as the daemon would. Runs in a Ray process on that node.

The worker (service/worker.py) has the node's interpreter and the client's variables, and checks the environment like
every worker. The worker stays for the next job of the same interpreter. When this Ray process ends, its stream to the
worker's guardian ends, and the guardian kills the worker's process group. The store belongs to the node. If an artifact
is already in this store, the node returns it without a compile.
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import threading
import time
from contextlib import suppress
from typing import BinaryIO

import msgspec

from precompiled import wire
from precompiled.core import config, worker_variables
from precompiled.core.children import start_with_stream
from precompiled.core.errors import OF_THE_PLACE, PrecompiledError, WireError
from precompiled.farm.messages import Request, Result, decode
from precompiled.made_up_cuda.kinds import FIRST_UUID
from precompiled.store import packed
from precompiled.store.artifacts import Store
from precompiled.version import VERSION

START_S = 300.0  # seconds for a worker to import torch
SAID_BYTES = 1500  # bytes of a dead worker's output that are kept
# Variables that keep the node's values, whatever the client sent.
_OF_THE_NODE = frozenset({"HOME", "USER", "XDG_CACHE_HOME"})


class Lost(PrecompiledError):
    """The worker died or took too long."""

    code = "farm-lost"


class _Worker:
    """A worker process for one interpreter. Raises Lost."""

    def __init__(self, interpreter: wire.Interpreter) -> None:
        self.interpreter = interpreter
        self._said: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - closed in ``end``
        given = {name: value for name, value in interpreter.variables.items() if name not in _OF_THE_NODE}
        # Hide the node's real GPUs: the worker sees its made-up device, or no GPU.
        visible = FIRST_UUID if "CUDA_MADE_UP" in given else ""
        self._process, self._sock = start_with_stream(
            *("-m", "precompiled.service.worker"),
            env=worker_variables.variables(os.environ, given, visible),
            stdout=self._said,
            stderr=self._said,
            start_new_session=True,
            umask=0o077,
        )
        # A thread closes the stream when the worker dies, because the worker's guardian keeps its end of the stream
        # open.
        threading.Thread(target=self._watched, name="farm-worker", daemon=True).start()
        self._stream: BinaryIO = self._sock.makefile("rb")
        ready = self._receive(START_S)
        assert isinstance(ready, wire.Ready)
        self.ready = ready

    def _watched(self) -> None:
        self._process.wait()
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def run(self, job: wire.Job, time_limit_s: float) -> wire.Finished:
        self._sock.settimeout(time_limit_s)
        try:
            self._sock.sendall(wire.frame(job))
        except OSError as error:
            raise self._lost(str(error)) from error
        finished = self._receive(time_limit_s)
        if not isinstance(finished, wire.Finished) or (finished.id, finished.key) != (job.id, job.key):
            raise self._lost(f"it answers a job with {type(finished).__name__}")
        return finished

    def _receive(self, limit_s: float) -> wire.WorkerMessage:
        self._sock.settimeout(limit_s)
        try:
            head = self._stream.read(wire.LENGTH_BYTES)
            if len(head) < wire.LENGTH_BYTES:
                raise self._lost("it ended")
            message: wire.WorkerMessage = wire.decode(
                self._stream.read(int.from_bytes(head, "big")), wire.WorkerMessage
            )
            return message
        except TimeoutError:
            raise self._lost(f"no answer within {limit_s:g} s") from None
        except (OSError, WireError) as error:
            raise self._lost(str(error)) from error

    def _lost(self, why: str) -> Lost:
        with suppress(OSError):
            self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - SAID_BYTES))
            why = f"{why}; its last output: {self._said.read().decode(errors='replace').strip()}"
        self.end()
        return Lost(f"the node's worker is lost: {why}")

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for one in (self._stream, self._sock, self._said):
            one.close()


_worker: _Worker | None = None  # a Ray process runs one task at a time


def compile_job(request: bytes) -> bytes:
    """Compile an encoded Request. Returns an encoded Result. Raises nothing: errors are in the result."""
    began = time.monotonic()
    try:
        result = _compiled(decode(request, Request))
    except WireError as error:
        result = Result("refused", code="farm-environment", message=f"the node has precompiled {VERSION}: {error}")
    except Lost as error:
        result = Result("failed", code=error.code, message=error.message)
    except Exception as error:  # noqa: BLE001 - settings, a store, an interpreter: the helper reports it
        result = Result("refused", code="farm-environment", message=f"{type(error).__name__}: {error}")
    seconds = time.monotonic() - began
    return wire.encode(msgspec.structs.replace(result, node=socket.gethostname(), seconds=seconds))


def _compiled(request: Request) -> Result:
    global _worker  # noqa: PLW0603
    offer = request.job.offer
    assert offer is not None
    wanted = offer.interpreter
    if wanted.precompiled != VERSION:
        return _differs("precompiled", wanted.precompiled, VERSION)
    settings = config.load()
    if _worker is None or wire.interpreter_bytes(_worker.interpreter) != wire.interpreter_bytes(wanted):
        if _worker is not None:
            _worker.end()
        _worker = None
        _worker = _Worker(wanted)
    ready = _worker.ready
    for what, there, here in (("Python", wanted.python, ready.python), ("torch", wanted.torch, ready.torch)):
        if there != here:
            return _differs(what, there, here)
    job = msgspec.structs.replace(
        request.job,
        store=str(settings.cache_dir),
        base=[],
        compile_threads=1,
        may_park=False,
        may_overlap=False,
        offer=None,
        failure_ttl_s=settings.failure_ttl_s,
        cache_max_bytes=settings.cache_max_bytes,
        cache_max_inodes=settings.cache_max_inodes,
    )
    try:
        finished = _worker.run(job, offer.time_limit_s)
    except Lost:
        _worker = None
        raise
    if finished.outcome == "failed":
        place = finished.reason in OF_THE_PLACE
        return Result(
            "refused" if place else "failed",
            code="farm-environment" if place else "farm-failed",
            message=f"{finished.reason}: {finished.message}",
        )
    store = Store(settings.cache_dir)
    artifacts = [
        packed.pack(artifact.manifest, store.read_some(artifact, list(artifact.manifest.files)))
        for artifact in store.lookup(job.key)
    ]
    return Result("compiled", artifacts)


def _differs(what: str, there: str, here: str) -> Result:
    return Result("refused", code="farm-environment", message=f"{what}: client {there!r}, node {here!r}")
