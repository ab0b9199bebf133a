"""Starts a real S3 server on this machine (moto's), and proxies that delay each request to it."""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

NAME = "bucket"
STARTS_S = 60.0


def variables(port: int) -> dict[str, str]:
    """Return the environment variables with which a program reaches the server."""
    return {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }


@contextmanager
def served() -> Iterator[int]:
    """Yield the port of a server with an empty bucket ``NAME``. Needs the extra test-s3."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PRECOMPILED": "0"},
    )
    try:
        deadline = time.monotonic() + STARTS_S
        while not _made(port):
            if time.monotonic() > deadline or server.poll() is not None:
                raise RuntimeError("moto's S3 server does not start: pip install '.[test-s3]'")
            time.sleep(0.05)
        yield port
    finally:
        server.kill()
        server.wait()


def _made(port: int) -> bool:
    with suppress(OSError), closing(http.client.HTTPConnection("127.0.0.1", port, timeout=STARTS_S)) as connection:
        connection.request("PUT", f"/{NAME}")
        return connection.getresponse().status == 200
    return False


@contextmanager
def delayed(port: int, seconds: float) -> Iterator[int]:
    """Yield the port of a proxy for ``port`` that delays each request by ``seconds``."""
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    listening: list[asyncio.Server] = []

    async def begin() -> None:
        listening.append(await asyncio.start_server(lambda r, w: _line(port, seconds, r, w), "127.0.0.1", 0))
        ready.set()

    def run() -> None:
        loop.run_until_complete(begin())
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield listening[0].sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


async def _line(port: int, seconds: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_carry(reader, far_writer, seconds), _carry(far_reader, writer, 0.0))


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter, seconds: float) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 16):
            await asyncio.sleep(seconds)
            target.write(data)
            await target.drain()
    target.close()
