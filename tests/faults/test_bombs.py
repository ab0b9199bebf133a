"""Tests files and messages that claim huge sizes, counts or depths. Readers must refuse these files and messages
without much memory.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import multiprocessing
import os
import resource
import socket
import threading
import types
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from precompiled.service.watch import watcher
from precompiled.service.watch.registry import Registry
from support_altered import LIBRARY
from support_remote import FUNCTION, HEADER
from support_store import KEY, failure, payload

from precompiled.core import config
from precompiled.core.errors import ConfigError, CorruptArtifact, StoreError
from precompiled.packages import portable_format
from precompiled.remote import envelope, helper, helper_link, lists
from precompiled.remote.envelope import ObjectRejected
from precompiled.store import artifact_format as fmt
from precompiled.store import job_phases, lines, run_records
from precompiled.store.artifacts import Store

MIB = 1 << 20
SLACK = 64 * MIB  # added to the limit of each attempt, for what the interpreter itself allocates
DEEP = b"[" * 100_000
MANY_DIGITS = b"9" * (3 * MIB)


def _limited(bytes: int, attempt: Callable[[], object], sending: Any) -> None:
    """In a fork, let the address space grow by at most ``bytes``, run an attempt, and send its outcome."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (now + bytes, now + bytes))
    try:
        found = attempt()
        sending.send(f"returned {type(found).__name__}")
    except BaseException as error:
        sending.send(f"{type(error).__name__}: {str(error)[:200]}")


def within(bytes: int, attempt: Callable[[], object]) -> str:
    """Run an attempt that may take ``bytes`` of address space. Returns, for example, "returned bytes", or an error."""
    fork = multiprocessing.get_context("fork")
    reading, sending = fork.Pipe(duplex=False)
    child = fork.Process(target=_limited, args=(bytes + SLACK, attempt, sending))
    child.start()
    sending.close()
    try:
        return str(reading.recv())
    except EOFError:
        return "ended"
    finally:
        child.join(60)


def resealed(store: Store, **changes: Any) -> None:
    """Replace fields of the manifest of KEY, with a valid digest."""
    manifest = dataclasses.replace(store.lookup(KEY)[0].manifest, **changes)
    (store.artifacts / f"{KEY}.0" / fmt.MANIFEST).write_bytes(fmt.seal(manifest))


# ---------------------------------------------------------------- sizes


@pytest.mark.fault("bombs")
def test_a_small_artifact_needs_little_memory(store: Store) -> None:
    """Hosts with little memory or with `ulimit -v` can load artifacts."""
    store.publish(payload())
    store.packages.publish(HEADER, b"{}", b"body")
    assert within(0, lambda: store.read_files(store.lookup(KEY)[0])) == "returned dict"
    assert within(0, lambda: next(store.packages.entries()).body) == "returned bytes"


@pytest.mark.fault("bombs")
@pytest.mark.parametrize("file", [fmt.MANIFEST, fmt.BUNDLE, LIBRARY])
def test_a_sparse_file_is_refused_before_it_is_read(store: Store, file: str) -> None:
    path = store.publish(payload()).path / file
    os.truncate(path, 3 << 30)
    found = within(0, lambda: store.read_files(store.lookup(KEY)[0]))
    assert found.startswith(("CorruptArtifact", "UntrustedStore")), found


@pytest.mark.fault("bombs")
def test_a_sealed_size_is_the_bound_of_a_read(store: Store, tries: Callable[[int, int], int]) -> None:
    """A valid manifest says that a file is large. The file is refused if its size or its digest differs."""
    path = store.publish(payload()).path
    size = (64 if tries(1, 3) == 1 else 1024) * MIB
    files = dict(store.lookup(KEY)[0].manifest.files)
    resealed(store, files={**files, fmt.BUNDLE: fmt.FileRecord(size, files[fmt.BUNDLE].digest)})
    assert within(0, lambda: store.read_files(store.lookup(KEY)[0])).startswith("CorruptArtifact")
    store.publish(payload())
    resealed(store, files={**files, fmt.BUNDLE: fmt.FileRecord(size, files[fmt.BUNDLE].digest)})
    os.truncate(path / fmt.BUNDLE, size)
    assert within(size, lambda: store.read_files(store.lookup(KEY)[0])).startswith("CorruptArtifact")


@pytest.mark.fault("bombs")
def test_a_huge_sparse_entry_is_refused(store: Store) -> None:
    name = store.packages.publish(HEADER, b"{}", b"body")
    path = store.packages.packages / FUNCTION / name
    path.write_bytes(b"")
    os.truncate(path, 3 << 30)
    assert within(0, lambda: store.packages.read(FUNCTION, name)).startswith("UntrustedStore")
    assert within(0, lambda: store.packages.header(FUNCTION, name)) == "returned NoneType"


@pytest.mark.fault("bombs")
def test_a_packed_program_unpacks_to_at_most_what_it_says(
    tries: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The full form uses the real limit, 1 GiB."""
    limit = 16 * MIB if tries(1, 7) == 1 else fmt.MAX_PROGRAM_BYTES
    monkeypatch.setattr(fmt, "MAX_PROGRAM_BYTES", limit)
    packed = gzip.compress(bytes(limit), compresslevel=1, mtime=0)
    beyond = packed[:-4] + (limit + 1).to_bytes(4, "little")
    assert within(0, lambda: fmt.unpack_program(beyond)).startswith("CorruptArtifact")
    for says in (0, 1, 1000, MIB):
        lying = packed[:-4] + says.to_bytes(4, "little")
        assert within(2 * says, lambda lying=lying: fmt.unpack_program(lying)).startswith("CorruptArtifact")
    assert within(2 * limit, lambda: fmt.unpack_program(packed)) == "returned bytes"
    record = dataclasses.replace(failure(), program="A" * (4 * MIB))
    assert within(0, lambda: fmt.program_of_failure(record)).startswith("CorruptArtifact")


# ---------------------------------------------------------------- counts, numbers and names


@pytest.mark.fault("bombs")
@pytest.mark.parametrize("field", ["components", "environment", "compiled_by", "files", "kernels"])
def test_a_manifest_with_many_items_needs_little_memory(
    store: Store, field: str, tries: Callable[[int, int], int]
) -> None:
    count = 5_000 if tries(1, 2) == 1 else 100_000
    store.publish(payload())
    manifest = json.loads((store.artifacts / f"{KEY}.0" / fmt.MANIFEST).read_bytes())
    manifest[field] = {f"{number:05}": "x" for number in range(count)}
    (store.artifacts / f"{KEY}.0" / fmt.MANIFEST).write_bytes(json.dumps(manifest).encode())
    assert within(0, lambda: store.lookup(KEY)) == "returned list"


@pytest.mark.fault("bombs")
@pytest.mark.parametrize("field", ["format", "created", "compile_s", "key", "files"])
@pytest.mark.parametrize("number", [MANY_DIGITS, b"1e999999999", b"-" + MANY_DIGITS, b"Infinity", b"NaN"])
def test_a_manifest_with_a_huge_number_is_not_served(store: Store, field: str, number: bytes) -> None:
    store.publish(payload())
    path = store.artifacts / f"{KEY}.0" / fmt.MANIFEST
    manifest = {**json.loads(path.read_bytes()), field: "NUMBER"}
    path.write_bytes(json.dumps(manifest).encode().replace(b'"NUMBER"', number))
    assert within(0, lambda: store.lookup(KEY)) == "returned list"
    assert store.lookup(KEY) == []


@pytest.mark.fault("bombs")
@pytest.mark.parametrize("name", ["x" * MIB, "native/" + "a" * MIB + ".so", "../" * 1000, "a/" * 1000])
def test_a_manifest_with_an_odd_name_is_corrupt(store: Store, name: str) -> None:
    store.publish(payload())
    resealed(store, files={**store.lookup(KEY)[0].manifest.files, name: fmt.FileRecord(1, "0" * 64)})
    assert store.lookup(KEY) == []


# ---------------------------------------------------------------- nesting


def _watcher_takes(data: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        theirs.setblocking(False)
        ours.send(data)
        watcher.Watcher._take_reports(types.SimpleNamespace(_reports=theirs, _watches={}))  # type: ignore[arg-type]


def _helper_answers(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data + b"\n")
        place = types.SimpleNamespace(_wait_s=1.0, _arguments=[])
        helper.Helper._answered(place, theirs)  # type: ignore[arg-type]


def _helper_says(root: Path, data: bytes) -> None:
    """Ask a helper whose greeting and answer are ``data``."""
    folder = lines.folder(root, "remote")
    place = helper_link.folder(root)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    assert place.is_relative_to(folder)
    with socket.socket(socket.AF_UNIX) as listening:
        back = os.getcwd()
        os.chdir(place)  # the path of a socket must be short
        try:
            listening.bind(helper_link.SOCKET)
            listening.listen()

            def answer() -> None:
                for _ in range(2):
                    sock, _address = listening.accept()
                    with sock, suppress(OSError):  # the peer may close first
                        sock.sendall(data + b"\n" + data + b"\n")
                        sock.recv(1 << 16)

            answering = threading.Thread(target=answer, daemon=True)
            answering.start()
            assert helper_link.greeting(root) is None
            assert helper_link.ask(root, {"do": "x"}, wait_s=10.0) is None
            answering.join(10)
        finally:
            os.chdir(back)


def _file(path: Path, data: bytes) -> Path:
    for folder in reversed(path.parents):
        if not folder.exists():
            folder.mkdir(0o700)
    path.write_bytes(data)
    path.chmod(0o600)
    return path


DIGEST = hashlib.sha256(b"").hexdigest()
NESTED: dict[str, Callable[[Path, bytes], object]] = {
    "runs": lambda root, data: _file(root / "runs" / "r" / "0-1.jsonl", data + b"\n") and run_records.runs(root),
    "jobs": lambda root, data: _file(root / "jobs" / "1-2.jsonl", data + b"\n") and job_phases.workers(root),
    "watches": lambda root, data: _file(root / "watch" / "id.json", data) and list(Registry(root).load()),
    "watcher": lambda root, data: _watcher_takes(data),
    "helper": lambda root, data: _helper_answers(data),
    "helper's answers": _helper_says,
    "helper's state": lambda root, data: (
        _file(helper_link.folder(root) / helper_link.STATE, data) and helper_link.state(root)
    ),
    "refusal": lambda root, data: (
        _file(root / "packages" / FUNCTION / "refused", data[:60_000]) and Store(root).packages.refused(FUNCTION)
    ),
    "manifest": lambda root, data: (
        _file(root / "artifacts" / f"{KEY}.0" / fmt.MANIFEST, data) and Store(root).lookup(KEY)
    ),
    "failure": lambda root, data: _file(root / "artifacts" / f"{KEY}.failed", data) and Store(root).failure(KEY),
}


@pytest.mark.fault("bombs")
@pytest.mark.parametrize("data", [DEEP, b'{"a":' + DEEP, b'{"format":' + MANY_DIGITS[:30_000] + b"}", b"[1]", b"7"])
@pytest.mark.parametrize("reader", NESTED)
def test_nested_data_is_left_out(tmp_path: Path, reader: str, data: bytes) -> None:
    """A reader skips nested and malformed data, and continues."""
    tmp_path.chmod(0o700)
    NESTED[reader](tmp_path / "store", data)


@pytest.mark.fault("bombs")
def test_nested_data_of_others_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ObjectRejected):
        envelope.open_envelope(DEEP[:4000] + b"\n")
    with pytest.raises(CorruptArtifact):
        lists._parsed(DEEP)
    with pytest.raises(portable_format.PackageError):
        portable_format._open_index(DEEP, Path("net.package"))
    with pytest.raises(StoreError):
        fmt.open_failure(DEEP, KEY)
    with pytest.raises(ConfigError):
        config._read_toml(_file(tmp_path / "config.toml", b"a = " + DEEP))
