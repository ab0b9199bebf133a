"""Tests of stores on small, full and layered file systems, at unusual paths, locales and umasks.

In such a place, a store either works or raises an error. The store never contains part of an artifact.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support_store import KEY, payload

from precompiled.core.errors import StoreError
from precompiled.store.artifacts import Store

pytestmark = pytest.mark.fault("file-systems")

BEGIN = """
import os, sys
from pathlib import Path
from precompiled.core.errors import StoreError
from precompiled.store import eviction
from precompiled.store.artifacts import Store
from support_store import KEY, OTHER, failure, payload

def refused(action):
    try:
        action()
    except StoreError as error:
        return error.code
    return ""

def check():
    "Whether the store has complete artifacts only, and no file of a failed publish."
    for artifact in store.every():
        store.read_files(artifact)
    assert not store.tmp.exists() or not os.listdir(store.tmp), os.listdir(store.tmp)

store = Store(Path(sys.argv[1]) / "store")
"""


def in_own_mounts(folder: Path, mounts: list[str], text: str) -> None:
    """Run Python text in a process that alone sees these mounts. ``{}`` in a mount is the folder."""
    commands = " && ".join(["mount --make-rprivate /", *(mount.format(folder) for mount in mounts), 'exec "$@"'])
    ready = subprocess.run(["unshare", "-m", "sh", "-c", "mount -t tmpfs none /mnt"], check=False, capture_output=True)
    if os.geteuid() != 0 or ready.returncode:
        pytest.skip("NOT RUN: needs root and unshare, for mounts of its own")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", commands, "sh", sys.executable, "-c", BEGIN + text, str(folder)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent / "store")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_full_file_system_of_64_kb_holds_complete_artifacts_only(tmp_path: Path) -> None:
    in_own_mounts(
        tmp_path,
        ["mount -t tmpfs -o size=64k none {}"],
        """
assert refused(lambda: store.publish(payload(size=100_000)))
assert store.lookup(KEY) == []
check()
store.publish(payload(size=100))
assert refused(lambda: store.publish(payload(OTHER, size=100_000)))
assert len(store.lookup(KEY)) == 1 and store.lookup(OTHER) == []
check()
eviction.evict(store, 0, 0)
assert store.lookup(KEY) == []
store.publish(payload(OTHER, size=100))
""",
    )


def test_file_system_without_free_inodes_holds_complete_artifacts_only(tmp_path: Path) -> None:
    in_own_mounts(
        tmp_path,
        ["mount -t tmpfs -o nr_inodes=24 none {}"],
        """
keys, code = [], ""
while not code:
    assert len(keys) < 24, "inodes are never used up"
    key = f"{len(keys):064x}"
    code = refused(lambda: store.publish(payload(key)))
    keys.append(key)
assert [len(store.lookup(key)) for key in keys] == [1] * (len(keys) - 1) + [0]
check()
eviction.evict(store, 0, 0)
store.publish(payload(keys[-1]))
assert store.lookup(keys[-1])
""",
    )


def test_read_only_file_system_is_read_and_refuses_writes(tmp_path: Path) -> None:
    Store(tmp_path / "store").publish(payload())
    in_own_mounts(
        tmp_path,
        ["mount --bind {0} {0}", "mount -o remount,bind,ro {}"],
        """
artifact, = store.lookup(KEY)
store.read_files(artifact)
store.touch(artifact)
assert refused(lambda: store.publish(payload(OTHER)))
store.quarantine(artifact.path, "a test")
eviction.evict(store, 0, 0)
assert store.lookup(KEY)
""",
    )


@pytest.mark.parametrize("how", ["evict", "quarantine", "clear"])
def test_artifact_in_a_lower_layer_of_an_overlay_can_be_removed(tmp_path: Path, how: str) -> None:
    """The image of a container has the store, and the container changes the store. The kernel cannot rename a folder
    of a lower layer.
    """
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    Store(tmp_path / "lower" / "store").publish(payload())
    action = {
        "evict": "eviction.evict(store, 0, 0)",
        "quarantine": "store.quarantine(store.lookup(KEY)[0].path, 'a test')",
        "clear": "eviction.clear(store)",
    }[how]
    in_own_mounts(
        tmp_path,
        [
            "mount -t tmpfs none {}/upper",
            "mkdir {0}/upper/upper {0}/upper/work",
            "mount -t overlay overlay -o "
            "lowerdir={0}/lower,upperdir={0}/upper/upper,workdir={0}/upper/work,redirect_dir=off {0}/merged",
        ],
        f"""
store = Store(Path(sys.argv[1]) / "merged" / "store")
artifact, = store.lookup(KEY)
store.read_files(artifact)
{action}
assert store.lookup(KEY) == []
check()
store.publish(payload())
assert store.lookup(KEY)
""",
    )
    assert Store(tmp_path / "lower" / "store").lookup(KEY), "the lower layer is unchanged"


@pytest.mark.parametrize("locale", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {}])
def test_store_at_a_path_that_is_not_utf8_works(tmp_path: Path, locale: dict[str, str]) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9 \n"
    os.mkdir(folder)
    text = """
store.publish(payload())
artifact, = store.lookup(KEY)
store.read_files(artifact)
store.publish_failure(failure(OTHER))
store.quarantine(artifact.path, "a test")
assert store.failure(OTHER) and not store.lookup(KEY)
"""
    subprocess.run(
        [sys.executable, "-c", BEGIN + text, folder],
        env={**os.environ, **locale, "PYTHONPATH": str(Path(__file__).parent.parent / "store")},
        check=True,
    )


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_store_of_a_user_with_any_umask_works_or_refuses(tmp_path: Path, umask: int) -> None:
    """Under the umask 0777, no program of this user can enter a folder that it creates."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.is_relative_to("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    text = f"""
os.umask({umask:#o})
if not (code := refused(lambda: store.publish(payload()))):
    assert store.read_files(store.lookup(KEY)[0])
else:
    assert {umask:#o} == 0o777, code
"""
    become = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
    become += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    subprocess.run(
        [*become, sys.executable, "-c", BEGIN + text, folder],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent / "store")},
        check=True,
        cwd=tmp_path,
    )


def test_case_of_a_name_does_not_matter(store: Store) -> None:
    """Keys and suffixes are lower-case, so no two names in a store differ by case alone."""
    store.publish(payload())
    names = [path.relative_to(store.root).as_posix() for path in store.root.rglob("*")]
    assert len({name.lower() for name in names}) == len(names)
    with pytest.raises((StoreError, ValueError, AssertionError)):
        store.lookup(KEY.upper())
