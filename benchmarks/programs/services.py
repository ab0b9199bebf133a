"""Defines the programs that answer requests: servers, a task queue, actors."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.programs.registry import STEPS, Values, elsewhere, program


def _post(address: str, points: torch.Tensor, **more: Any) -> Any:
    body = json.dumps({"points": points.tolist(), **more}).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


@contextmanager
def _thread(serve: Callable[[], Any], stop: Callable[[], Any]) -> Iterator[None]:
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join()


@program("flask")
def flask_server() -> Iterator[Values]:
    """A thread per request; compiled code reads flask.request."""
    from werkzeug.serving import make_server

    from benchmarks.programs.applications import flask_app

    server = make_server("127.0.0.1", 0, flask_app.app, threaded=True)
    address = f"http://127.0.0.1:{server.port}"
    with _thread(server.serve_forever, server.shutdown):
        for _ in range(STEPS):
            points = torch.randn(4, 8)
            classes, vectors = _post(f"{address}/classify", points), _post(f"{address}/embed", points)
            yield {"classes": torch.tensor(classes), "vectors": torch.tensor(vectors)}


@program("fastapi", "uvicorn")
def fastapi_server() -> Iterator[Values]:
    """Handlers in the event loop and in the thread pool, on uvicorn."""
    import socket

    import uvicorn

    from benchmarks.programs.applications import fastapi_app

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(fastapi_app.app, log_level="warning"))
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with _thread(partial(server.run, [listening]), partial(setattr, server, "should_exit", True)):
            for _ in range(STEPS):
                points = torch.randn(4, 8)
                scores = _post(f"{address}/score", points, scale=0.5)
                ranks = _post(f"{address}/rank", points, scale=2.0)
                yield {"scores": torch.tensor(scores), "ranks": torch.tensor(ranks)}


@program("django")
def django_server() -> Iterator[Values]:
    """A view; compiled code reads django.conf.settings."""
    from wsgiref.simple_server import make_server

    from benchmarks.programs.applications import django_app

    server = make_server("127.0.0.1", 0, django_app.application)
    with server, _thread(server.serve_forever, server.shutdown):
        for _ in range(STEPS):
            answer = _post(f"http://127.0.0.1:{server.server_port}/predict", torch.randn(4, 8))
            yield {"answers": torch.tensor(answer["answers"])}


@program("celery")
def celery_worker() -> Iterator[Values]:
    """Tasks in a worker's forked process."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("messages", "results", "control"):
            Path(folder, name).mkdir()
        os.environ["CELERY_FOLDER"] = folder
        from benchmarks.programs.applications import celery_app

        options = ["--pool=prefork", "--concurrency=1", "--loglevel=WARNING", "--without-mingle", "--without-gossip"]
        argv = [sys.executable, "-m", "celery", "-A", celery_app.__name__, "worker", *options]
        worker = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        try:
            elsewhere(lambda module, name: [celery_app.call.delay(module, name).get(timeout=600)])
            for _ in range(STEPS):
                classes = celery_app.classify.delay(torch.randn(4, 8).tolist()).get(timeout=600)
                yield {"classes": torch.tensor(classes)}
        finally:
            worker.terminate()
            worker.wait()


@program("asyncio")
def asyncio_actors() -> Iterator[Values]:
    """Replicas behind a router, with queues and batches."""
    from benchmarks.programs.applications.actors import Router

    async def step(points: torch.Tensor) -> torch.Tensor:
        async with Router(replicas=2, batch=4) as router:
            return torch.stack(await asyncio.gather(*(router.remote(row) for row in points)))

    for _ in range(STEPS):
        yield {"answers": asyncio.run(step(torch.randn(16, 8)))}
