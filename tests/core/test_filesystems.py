"""Tests of the file system of a path, and of whether other hosts share it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from precompiled.core import filesystems, paths

pytestmark = pytest.mark.fault("file-systems")

MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:35 / /home rw shared:2 master:3 - nfs4 server:/home rw,vers=4.2
41 40 0:36 / /home/ann/my\040data rw - tmpfs tmpfs rw
42 22 0:37 / /homes rw - xfs /dev/sdb rw
"""


@pytest.fixture(autouse=True)
def asked_anew() -> None:
    filesystems.is_shared.cache_clear()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ann/none/yet", "nfs4"),
        ("/home", "nfs4"),
        ("/home/ann/my data/x", "tmpfs"),
        ("/homes/ann", "xfs"),
        ("/etc", "ext4"),
    ],
)
def test_innermost_mount_determines_the_file_system(
    path: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS.lstrip())
    monkeypatch.setattr(filesystems, "_MOUNTS", tmp_path / "mountinfo")
    monkeypatch.setattr(os.path, "exists", lambda _path: True)
    assert filesystems.kind_of(path) == kind
    assert filesystems.is_shared(path) == (kind == "nfs4")


def test_file_system_of_proc_is_read_from_the_kernel() -> None:
    assert filesystems.kind_of("/proc/self") == "proc"


def test_without_proc_no_path_counts_as_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystems, "_MOUNTS", tmp_path / "none")
    assert filesystems.kind_of("/") == "" and not filesystems.is_shared("/")


def test_hosts_with_a_shared_home_have_separate_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(paths, "system_daemon_runs", lambda: False)
    assert paths.default_runtime_dir() == tmp_path / "precompiled" / "run"
    filesystems.is_shared.cache_clear()
    monkeypatch.setattr(filesystems, "NETWORK", {filesystems.kind_of(tmp_path)})
    assert paths.default_runtime_dir() == tmp_path / "precompiled" / "run" / os.uname().nodename
