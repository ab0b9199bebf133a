"""Tests that the store reads no file that another user could have written."""

from __future__ import annotations

import os
import shlex
import socket
from pathlib import Path

import pytest
from support_store import KEY, LIBRARY, OTHER, failure, payload

from precompiled.core.errors import UntrustedStore
from precompiled.store import artifact_format as fmt
from precompiled.store import trust
from precompiled.store.artifacts import Store

pytestmark = pytest.mark.fault("untrusted-files")
STRANGER = 54321
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")


def _use(store: Store) -> None:
    """Look up and read artifacts as a client does on a hit."""
    for entry in store.lookup(KEY):
        store.read_files(entry)


def _refused(store: Store) -> UntrustedStore:
    with pytest.raises(UntrustedStore) as caught:
        _use(store)
    action = caught.value.action
    assert action, "an error says what to do next"
    if "chmod" in action:  # the command must work in every directory, whatever the path
        assert shlex.split(action.split("`")[1])[-1].startswith(str(store.root.resolve()))
    return caught.value


PLACES = [".", "artifacts", f"artifacts/{KEY}.0", f"artifacts/{KEY}.0/native"]
FILES = [f"artifacts/{KEY}.0/{name}" for name in (fmt.MANIFEST, fmt.BUNDLE, LIBRARY)]


@pytest.mark.parametrize("mode", [0o020, 0o002])
@pytest.mark.parametrize("place", PLACES + FILES)
def test_file_that_others_can_write_is_refused(store: Store, place: str, mode: int) -> None:
    store.publish(payload())
    path = store.root / place
    path.chmod(path.stat().st_mode | mode)
    assert "can be written by others" in _refused(store).message
    path.chmod(path.stat().st_mode & ~mode)
    _use(store)


@root_only
@pytest.mark.parametrize("place", PLACES + FILES)
def test_file_of_another_owner_is_refused(store: Store, place: str) -> None:
    store.publish(payload())
    os.chown(store.root / place, STRANGER, -1)
    assert str(STRANGER) in _refused(store).message


@pytest.mark.parametrize("place", PLACES + FILES)
def test_symbolic_links_are_not_followed(store: Store, tmp_path: Path, place: str) -> None:
    store.publish(payload())
    path = store.root / place
    path.resolve().rename(tmp_path / "moved")
    path.resolve().symlink_to(tmp_path / "moved")
    _refused(store)


@pytest.mark.parametrize("kind", ["fifo", "socket", "directory"])
@pytest.mark.parametrize("place", FILES)
def test_special_file_is_refused_without_blocking(store: Store, place: str, kind: str) -> None:
    store.publish(payload())
    path = store.root / place
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "directory":
        path.mkdir(0o700)
    else:
        back = os.open(".", os.O_RDONLY)
        try:
            os.chdir(path.parent)  # the path of a socket must be short, so bind a relative path
            with socket.socket(socket.AF_UNIX) as planted:
                planted.bind("s")
            os.rename("s", path.name)
            path.chmod(0o600)
        finally:
            os.fchdir(back)
            os.close(back)
    _refused(store)


@pytest.mark.parametrize("kind", ["fifo", "file"])
@pytest.mark.parametrize("place", PLACES[1:])
def test_special_file_in_place_of_a_directory_is_refused(store: Store, place: str, kind: str) -> None:
    store.publish(payload())
    path = store.root / place
    path.rename(store.root / "moved")
    os.mkfifo(path, 0o600) if kind == "fifo" else path.touch(0o600)
    _refused(store)


@pytest.mark.parametrize("how", ["mode", "link", "fifo"])
def test_failure_records_are_checked_too(store: Store, tmp_path: Path, how: str) -> None:
    store.publish_failure(failure())
    path = store.artifacts / f"{KEY}.failed"
    if how == "mode":
        path.chmod(0o666)
    else:
        path.rename(tmp_path / "moved")
        os.mkfifo(path, 0o600) if how == "fifo" else path.symlink_to(tmp_path / "moved")
    with pytest.raises(UntrustedStore):
        store.failure(KEY)
    store.publish_failure(failure(OTHER))
    assert [item.key for item in store.failures()] == [OTHER]


def test_file_above_the_size_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch(0o600)
    os.truncate(path, 1 << 40)
    with trust.open_directory(tmp_path) as fd, pytest.raises(UntrustedStore):
        trust.read_file("sparse", fd, 1 << 20)


@pytest.mark.parametrize("place", ["", "artifacts", "tmp", "quarantine"])
def test_no_publication_into_a_directory_that_others_can_write(store: Store, place: str) -> None:
    store.prepare()
    (store.root / place).chmod(0o777)
    for publish in (lambda: store.publish(payload()), lambda: store.publish_failure(failure())):
        with pytest.raises(UntrustedStore):
            publish()
    assert os.listdir(store.artifacts) == []


def test_no_descriptor_is_left_open(store: Store) -> None:
    store.publish(payload())
    _use(store)
    (store.root / FILES[1]).chmod(0o666)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        _refused(store)
    assert len(os.listdir("/proc/self/fd")) == before
