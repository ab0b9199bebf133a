"""Tests of transfers: another host fetches an object complete and verified, or not at all. A fault of a remote does not
affect the store.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support_remote import FUNCTION, HEADER, host, memory
from support_store import KEY, OTHER, payload

from precompiled.core.errors import CorruptArtifact, StoreError
from precompiled.remote import envelope as form
from precompiled.remote import transfer
from precompiled.remote.bucket import MAX_FAILURES, Breaker, Bucket
from precompiled.remote.envelope import Object
from precompiled.remote.errors import RemoteError
from precompiled.remote.lease import Claim, Found
from precompiled.remote.transfer import Transfer
from precompiled.store import artifact_format as fmt
from precompiled.store import eviction, packed
from precompiled.store.requests import RemoteRequest, RequestRecord, requests
from precompiled.store.writing import full


def test_object_put_by_one_host_is_fetched_by_another(url: str, tmp_path: Path) -> None:
    a, b = host(tmp_path / "a", url), host(tmp_path / "b", url)
    for guards in ("", "s0 > 2"):
        assert a.put_artifact(a.store.publish(payload(guards=guards, size=100_000)))
    name = a.store.packages.publish(HEADER, b"{}", b"body")
    assert a.put_entry(FUNCTION, name)
    assert (b.fetch(KEY), b.fetch(OTHER), b.bring(b.objects(form.ENTRY, FUNCTION))) == (2, 0, 1)
    found = b.store.lookup(KEY)
    assert {artifact.manifest.guards for artifact in found} == {"", "s0 > 2"}
    assert all(b.store.read_files(artifact) == payload(size=100_000).files for artifact in found)
    assert b.store.packages.read(FUNCTION, name).body == b"body"
    assert (b.counts.fetched, dict(b.counts.refused)) == (3, {})
    # The remote has all objects already. No host fetches or puts an object twice.
    assert b.fetch(KEY) == 0 and b.push() == 0 and a.push() == 0
    assert len(a.everything()) == 3
    c = host(tmp_path / "c", url)
    assert c.pull() == 3 and len(list(c.store.all_artifacts())) == 2
    d = host(tmp_path / "d", url)
    assert d.pull([KEY[:6]]) == 2 and d.store.packages.names(FUNCTION) == []


def test_empty_remote_is_not_a_fault(url: str, tmp_path: Path) -> None:
    there = host(tmp_path / "a", url)
    assert (there.fetch(KEY), there.pull(), there.everything()) == (0, 0, [])
    assert there.document()["state"] == "ok" and not there.store.root.exists()


def test_program_is_put_only_for_artifacts_with_size_guards(tmp_path: Path) -> None:
    url, packed = memory(), fmt.pack_program(b"{}")
    a, b = host(tmp_path / "a", url), host(tmp_path / "b", url)
    for guards in ("", "s0 > 2"):
        plain = payload(guards=guards)
        a.put_artifact(a.store.publish(fmt.Payload(plain.manifest, {**plain.files, fmt.PROGRAM: packed})))
    assert b.fetch(KEY) == 2
    assert {item.manifest.guards: fmt.PROGRAM in item.manifest.files for item in b.store.lookup(KEY)} == {
        "": False,
        "s0 > 2": True,
    }


# ---------------------------------------------------------------- damaged objects


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def altered(data: bytes) -> bytes:
    return data[:-10] + bytes([data[-10] ^ 1]) + data[-9:]


def longer(data: bytes) -> bytes:
    return data + b"more"


def no_envelope(data: bytes) -> bytes:
    return b"x" * len(data)


def of_another_key(data: bytes) -> bytes:
    return data.replace(KEY.encode(), OTHER.encode(), 1)


@pytest.mark.fault("remote")
@pytest.mark.reason("remote-corrupt")
@pytest.mark.parametrize(
    "spoil", [truncated, altered, longer, no_envelope, of_another_key], ids=lambda one: one.__name__
)
@pytest.mark.parametrize("size", [100, 200_000], ids=["at once", "in parts"])
def test_damaged_object_is_refused_and_compiled_again(
    spoil: Callable[[bytes], bytes], size: int, tmp_path: Path
) -> None:
    folder = tmp_path / "bucket"
    a, b = host(tmp_path / "a", f"file://{folder}"), host(tmp_path / "b", f"file://{folder}")
    a.put_artifact(a.store.publish(payload(size=size)))
    [file] = [path for path in folder.rglob("*") if path.is_file()]
    file.write_bytes(spoil(file.read_bytes()))
    assert b.fetch(KEY) == 0 and b.store.lookup(KEY) == []
    assert dict(b.counts.refused) == {"remote-corrupt": 1} and len(b.counts.last.split()) > 2
    assert b.document()["state"] == "ok"  # a damaged object is not a failure of the remote
    # Host b compiles the graph, and puts its artifact beside the damaged object. The next host finds the valid object.
    again = payload(size=size)
    b.put_artifact(b.store.publish(fmt.Payload(replace(again.manifest, created=1.0), again.files)))
    assert host(tmp_path / "c", f"file://{folder}").fetch(KEY) == 1


@pytest.mark.fault("remote")
def test_an_entry_under_another_functions_name_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "bucket"
    a, b = host(tmp_path / "a", f"file://{folder}"), host(tmp_path / "b", f"file://{folder}")
    a.put_entry(FUNCTION, a.store.packages.publish(HEADER, b"{}", b"body"))
    (folder / "packages" / FUNCTION).rename(folder / "packages" / OTHER)
    assert b.bring(b.objects(form.ENTRY, OTHER)) == 0 and dict(b.counts.refused) == {"remote-corrupt": 1}


@pytest.mark.fault("remote")
def test_invalid_packed_artifact_is_corrupt() -> None:
    plain = payload()
    body = packed.pack(plain.manifest, plain.files)
    assert packed.unpack(body, KEY).files == plain.files
    for wrong in (b"", b"{}\n", body[:-1], body + b"x", body.replace(b"n", b"N", 1)):
        with pytest.raises(CorruptArtifact):
            packed.unpack(wrong, KEY)


# ---------------------------------------------------------------- objects that cannot be used here


@pytest.mark.fault("remote")
@pytest.mark.parametrize("guards", ["", "s0 > 2"])
def test_object_that_was_set_aside_is_not_fetched_again(guards: str, tmp_path: Path) -> None:
    """An object may be complete and signed although torch cannot load it on this host. If such an object were fetched
    again, every process would fetch it, and no worker would compile.
    """
    url = memory()
    a, b = host(tmp_path / "a", url), host(tmp_path / "b", url)
    plain = payload(guards=guards)
    a.put_artifact(a.store.publish(fmt.Payload(plain.manifest, {**plain.files, fmt.PROGRAM: fmt.pack_program(b"{}")})))
    assert b.fetch(KEY) == 1
    [artifact] = b.store.lookup(KEY)
    b.store.set_aside(artifact, "torch cannot load it")
    again = host(tmp_path / "b", url)  # as for a later process of host b
    assert (again.fetch(KEY), again.pull(), again.bring(again.everything())) == (0, 0, 0)
    assert Claim(again, KEY).look() is Found.MINE  # a worker of this host compiles the graph
    # Other hosts may be unable to load the first artifact, too. So host b uploads its own artifact for other hosts.
    mine = payload(guards=guards)
    assert again.put_artifact(again.store.publish(fmt.Payload(replace(mine.manifest, created=1.0), mine.files)))
    assert len(a.objects(form.ARTIFACT, KEY)) == 2 and not again.put_artifact(again.store.lookup(KEY)[0])
    # The note in the quarantine prevents the fetch. Once `clear` has removed the note, the object can be fetched again.
    eviction.clear(again.store)
    assert again.fetch(KEY) == 1


@pytest.mark.fault("remote")
def test_unloadable_objects_do_not_fill_the_remote(tmp_path: Path) -> None:
    url, mine = memory(), payload()
    starts = 2 * transfer.MAX_TRIED
    a = host(tmp_path / "a", url)
    for number in range(starts):
        if not a.fetch(KEY):  # a worker of this host compiles the graph
            a.put_artifact(a.store.publish(fmt.Payload(replace(mine.manifest, created=float(number)), mine.files)))
        a.store.set_aside(a.store.lookup(KEY)[0], "torch cannot load it")
    assert len(a.objects(form.ARTIFACT, KEY)) == transfer.MAX_TRIED
    b, fetched = host(tmp_path / "b", url), 0
    for _ in range(starts):
        fetched += b.fetch(KEY)
        for artifact in b.store.lookup(KEY):
            b.store.set_aside(artifact, "torch cannot load it")
    assert fetched == transfer.MAX_TRIED and b.fetch(KEY) == 0


@pytest.mark.fault("remote")
def test_artifact_damaged_on_this_disk_is_fetched_again(tmp_path: Path) -> None:
    url = memory()
    a, b = host(tmp_path / "a", url), host(tmp_path / "b", url)
    a.put_artifact(a.store.publish(payload()))
    assert b.fetch(KEY) == 1
    [artifact] = b.store.lookup(KEY)
    (artifact.path / fmt.BUNDLE).write_bytes(b"x" * 100)
    with pytest.raises(CorruptArtifact):
        b.store.read_files(artifact)
    assert b.store.lookup(KEY) == [] and b.fetch(KEY) == 1


# ---------------------------------------------------------------- places that do not answer


class Faulty(MemoryFileSystem):
    """The file system ``memory://``. Before each request, this file system calls a function of the test."""

    protocol = "faulty"
    cachable = False
    before: Callable[[], Any] = staticmethod(lambda: None)

    def ls(self, *arguments: Any, **named: Any) -> Any:
        type(self).before()
        return super().ls(*arguments, **named)

    def pipe_file(self, *arguments: Any, **named: Any) -> Any:
        type(self).before()
        return super().pipe_file(*arguments, **named)


fsspec.register_implementation("faulty", Faulty, clobber=True)


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any], float], Transfer]:
    def made(before: Callable[[], Any], timeout_s: float) -> Transfer:
        monkeypatch.setattr(Faulty, "before", staticmethod(before))
        return host(tmp_path / "a", f"faulty://{tmp_path.name}", timeout_s=timeout_s)

    return made


@pytest.mark.fault("remote")
@pytest.mark.reason("remote-unreachable")
def test_failing_remote_is_paused(faulty: Callable[..., Transfer]) -> None:
    calls = []

    def refuse() -> None:
        calls.append(1)
        raise ConnectionRefusedError("no server listens")

    there = faulty(refuse, 10.0)
    for _ in range(MAX_FAILURES + 3):
        with pytest.raises(RemoteError) as raised:
            there.fetch(KEY)
        assert raised.value.code == "remote-unreachable" and "no server listens" in raised.value.message
    assert len(calls) == MAX_FAILURES
    document = there.document()
    assert (document["state"], document["code"]) == ("rests", "remote-unreachable")


@pytest.mark.fault("remote")
@pytest.mark.reason("remote-timeout")
def test_hanging_remote_times_out(faulty: Callable[..., Transfer]) -> None:
    answer = threading.Event()
    there = faulty(answer.wait, 0.05)
    with pytest.raises(RemoteError) as raised:
        there.fetch(KEY)
    assert raised.value.code == "remote-timeout" and there.document()["state"] == "failing"
    answer.set()
    assert there.fetch(KEY) == 0 and there.document()["state"] == "ok"


def test_each_request_is_recorded_with_its_problem(tmp_path: Path, faulty: Callable[..., Transfer]) -> None:
    def refuse() -> None:
        raise ConnectionRefusedError("no server listens")

    began = time.time()
    faulty(refuse, 10.0)
    record = RequestRecord(tmp_path / "store")
    bucket = Bucket(f"faulty://{tmp_path.name}", 10.0, record.note)
    with pytest.raises(RemoteError):
        bucket.listed("artifacts/a")
    faulty(lambda: None, 10.0)
    bucket.write("artifacts/a/b", b"12345")
    assert bucket.read("artifacts/a/b", 1, 4) == b"234"
    with pytest.raises(FileNotFoundError):
        bucket.read("artifacts/a/c", 0, 1)
    found = requests(tmp_path / "store", began)
    assert [(one.what, one.path, one.bytes, one.problem) for one in found] == [
        ("list", "artifacts/a", 0, "remote-unreachable"),
        ("write", "artifacts/a/b", 5, ""),
        ("read", "artifacts/a/b", 3, ""),
        ("read", "artifacts/a/c", 0, ""),
    ]
    assert requests(tmp_path / "store", time.time() + 1) == []


def test_full_request_file_is_followed_by_another(tmp_path: Path) -> None:
    record = RequestRecord(tmp_path)
    for number in range(12):
        record.note(RemoteRequest("read", "a", float(number), 1.0, 0, ""))
        assert record._lines is not None
        record._lines.left = 100  # make the file nearly full, as after a few thousand requests
    assert [one.began for one in requests(tmp_path, 0.0)] == [4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]


@pytest.mark.fault("remote")
def test_read_only_remote_is_still_read(tmp_path: Path, faulty: Callable[..., Transfer]) -> None:
    there = faulty(lambda: None, 10.0)
    there.put_artifact(there.store.publish(payload()))
    artifact = there.store.publish(payload(guards="s0 > 2"))
    Faulty.pipe_file, kept = _forbidden, Faulty.pipe_file  # type: ignore[method-assign]
    try:
        for _ in range(MAX_FAILURES + 1):
            with pytest.raises(RemoteError):
                there.put_artifact(artifact)
    finally:
        Faulty.pipe_file = kept  # type: ignore[method-assign]
    b = Transfer(host(tmp_path / "b", memory()).store, there.bucket, there.trust)
    assert b.fetch(KEY) == 1


def _forbidden(*_: Any, **__: Any) -> None:
    raise PermissionError("read only")


@pytest.mark.fault("remote")
def test_after_its_pause_one_request_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    breaker = Breaker(lambda: now)
    for _ in range(MAX_FAILURES):
        breaker.check()
        breaker.failed(RemoteError("no", code="remote-unreachable"))
    with pytest.raises(RemoteError):
        breaker.check()
    now = 31.0
    breaker.check()
    breaker.failed(RemoteError("no", code="remote-unreachable"))
    with pytest.raises(RemoteError):
        breaker.check()
    now = 62.0
    breaker.check()
    breaker.worked()
    assert breaker.reason is None and not breaker.rests


@pytest.mark.reason("remote-unusable")
def test_url_of_an_unknown_scheme_is_unusable() -> None:
    with pytest.raises(RemoteError) as raised:
        Bucket("nosuch://bucket", 1.0)
    assert raised.value.code == "remote-unusable" and raised.value.action


@pytest.mark.fault("remote")
def test_unpublishable_object_does_not_block_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"{number:x}" * 64 for number in range(16)]
    url = memory()
    a = host(tmp_path / "a", url)
    for key in keys:
        assert a.put_artifact(a.store.publish(payload(key)))
    b = host(tmp_path / "b", url)
    publish = b._publish_artifact

    def all_but_one(item: Object, body: bytes) -> None:
        if item.group == keys[3]:
            raise full(item.group)
        publish(item, body)

    monkeypatch.setattr(b, "_publish_artifact", all_but_one)
    with pytest.raises(StoreError, match="variants"):
        b.pull()
    assert [key for key in keys if not b.store.lookup(key)] == [keys[3]] and b.counts.fetched == 15


def test_missing_file_system_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)  # as if gcsfs were not installed
    with pytest.raises(RemoteError) as caught:
        Bucket("gs://bucket/prefix", 10.0)
    assert caught.value.code == "remote-unusable" and "pip install '.[gcs]'" in caught.value.action
