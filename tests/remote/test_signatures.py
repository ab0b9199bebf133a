"""Tests of signatures: a remote holds code, so a host reads only objects signed by a key that it trusts."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support_remote import host
from support_store import KEY, OTHER, payload

from precompiled.core.errors import UntrustedStore
from precompiled.remote import envelope as form
from precompiled.remote import keys, transfer, trusting
from precompiled.remote.errors import RemoteError
from precompiled.remote.transfer import Transfer
from precompiled.store import artifact_format as fmt
from precompiled.store import eviction


@pytest.fixture
def of_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Transfer]:
    """Return a function that opens the transfer of a host, with the keys that the host has when the function is
    called.
    """

    def made(name: str) -> Transfer:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / name / "config"))
        return host(tmp_path / name / "store", f"file://{tmp_path / 'bucket'}", trusting.trust(False))

    return made


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], object]:
    @contextmanager
    def there(name: str) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setenv("XDG_CONFIG_HOME", str(tmp_path / name / "config"))
            yield

    return there


def objects(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "bucket").rglob("*") if path.is_file())


def test_object_signed_by_a_trusted_key_is_used(
    of_host: Callable[[str], Transfer], on: Callable[[str], Iterator[None]]
) -> None:
    with on("a"):  # type: ignore[attr-defined]
        public = keys.new()
    with on("b"):  # type: ignore[attr-defined]
        keys.believe(keys.PublicKey.parse(f"{public} the hosts of a"))
        assert [key.name for key in keys.trusted_keys().values()] == ["the hosts of a"]
    a = of_host("a")
    artifact = a.store.publish(payload())
    assert a.put_artifact(artifact) and [item.by for item in a.everything()] == [public.id]
    b = of_host("b")
    assert b.fetch(KEY) == 1 and b.store.read_files(b.store.lookup(KEY)[0]) == payload().files
    # b has no key of its own, so it reads but puts nothing.
    assert b.put_artifact(b.store.publish(payload(OTHER))) is False
    # A host trusts its own key.
    eviction.clear(a.store)
    assert a.fetch(KEY) == 1


@pytest.mark.reason("remote-untrusted", "remote-unsigned")
def test_unsigned_or_untrusted_object_is_not_read(
    of_host: Callable[[str], Transfer],
    on: Callable[[str], Iterator[None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("a", "b"):
        with on(name):  # type: ignore[attr-defined]
            keys.new()
    a = of_host("a")
    a.put_artifact(a.store.publish(payload()))
    anybody = host(tmp_path / "c", f"file://{tmp_path / 'bucket'}")
    anybody.put_artifact(anybody.store.publish(payload(OTHER)))
    b = of_host("b")
    read: list[str] = []
    monkeypatch.setattr(b.bucket, "read", lambda path, *_: read.append(path))
    assert (b.fetch(KEY), b.fetch(OTHER)) == (0, 0)
    assert dict(b.counts.refused) == {"remote-untrusted": 1, "remote-unsigned": 1} and read == []
    # An object of a different signer does not prevent b from putting its own object.
    assert b.put_artifact(b.store.publish(payload())) and len(objects(tmp_path)) == 3


def test_teams_without_mutual_trust_share_a_bucket(
    of_host: Callable[[str], Transfer], on: Callable[[str], Iterator[None]]
) -> None:
    """Each team must find its own objects, however many objects of other teams are listed before them. A team must
    report no error about the objects of other teams.
    """
    teams = [f"team{number}" for number in range(2 * transfer.MAX_TRIED)]
    for name in teams:
        with on(name):  # type: ignore[attr-defined]
            keys.new()
        there = of_host(name)
        assert there.fetch(KEY) == 0
        assert there.put_artifact(there.store.publish(payload()))
    for name in teams:
        there = of_host(name)
        eviction.clear(there.store)
        assert (there.fetch(KEY), dict(there.counts.refused)) == (1, {})


def _as_another_name(path: Path, head: dict[str, object], body: bytes) -> tuple[dict[str, object], bytes]:
    return {**head, "name": OTHER}, body


def _another_body(path: Path, head: dict[str, object], body: bytes) -> tuple[dict[str, object], bytes]:
    other = body[:-1] + b"!"
    return {**head, "digest": fmt.digest(other)}, other


def _no_signature(path: Path, head: dict[str, object], body: bytes) -> tuple[dict[str, object], bytes]:
    return {**head, "signature": ""}, body


def _another_signature(path: Path, head: dict[str, object], body: bytes) -> tuple[dict[str, object], bytes]:
    return {**head, "signature": base64.b64encode(bytes(64)).decode()}, body


def _no_base64(path: Path, head: dict[str, object], body: bytes) -> tuple[dict[str, object], bytes]:
    return {**head, "signature": "!"}, body


@pytest.mark.parametrize(
    ("forge", "code"),
    [
        (_as_another_name, "remote-untrusted"),
        (_another_body, "remote-untrusted"),
        (_no_signature, "remote-unsigned"),
        (_another_signature, "remote-untrusted"),
        (_no_base64, "remote-untrusted"),
    ],
)
def test_writer_of_the_bucket_cannot_forge_a_signed_object(
    of_host: Callable[[str], Transfer],
    on: Callable[[str], Iterator[None]],
    tmp_path: Path,
    forge: Callable[..., tuple[dict[str, object], bytes]],
    code: str,
) -> None:
    with on("a"):  # type: ignore[attr-defined]
        keys.new()
    a = of_host("a")
    a.put_artifact(a.store.publish(payload()))
    [path] = objects(tmp_path)
    line, _, body = path.read_bytes().partition(b"\n")
    head, body = forge(path, json.loads(line), body)
    path.unlink()
    found = form.Object(form.ARTIFACT, str(head["name"]), path.name[:16], str(head["by"]), str(head["digest"]), 0)
    target = tmp_path / "bucket" / found.path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(fmt.canonical(form.Envelope(**head)) + b"\n" + body)  # type: ignore[arg-type]
    eviction.clear(a.store)
    again = of_host("a")
    assert again.fetch(str(head["name"])) == 0 and dict(again.counts.refused) == {code: 1}
    assert again.store.lookup(KEY) == [] == again.store.lookup(OTHER)


@pytest.mark.reason("remote-unusable")
def test_host_without_trusted_keys_uses_no_remote(of_host: Callable[[str], Transfer]) -> None:
    with pytest.raises(RemoteError) as raised:
        of_host("a")
    assert raised.value.code == "remote-unusable" and "keys new" in raised.value.action
    assert isinstance(trusting.trust(True), trusting.Anybody)


def test_key_files_that_others_could_have_written_are_not_trusted(on: Callable[[str], Iterator[None]]) -> None:
    with on("a"):  # type: ignore[attr-defined]
        public = keys.new()
        keys.believe(public)
        assert os.stat(keys.folder() / keys.OWN).st_mode & 0o777 == 0o600
        (keys.folder() / f"{public.id}.pub").chmod(0o666)
        with pytest.raises(UntrustedStore):
            trusting.trust(False)
        (keys.folder() / f"{public.id}.pub").chmod(0o600)
        keys.folder().chmod(0o777)
        with pytest.raises(UntrustedStore):
            trusting.trust(False)
        keys.folder().chmod(0o700)
        # A key file that is named after a different key is ignored.
        (keys.folder() / f"{public.id}.pub").rename(keys.folder() / f"{'0' * 16}.pub")
        assert keys.trusted_keys() == {}
