"""Tests of source digests and of the hints that say when to check them, with real files and real inotify."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from precompiled.service.watch.files import ABSENT, Files
from precompiled.service.watch.hints import Hints
from watchdog.observers.api import EventDispatcher

pytestmark = pytest.mark.fault("watch")

TIMEOUT_S = 30.0


def test_only_contents_of_files_count(tmp_path: Path) -> None:
    files, path = Files(), tmp_path / "a.py"
    path.write_text("one")
    first = {str(path): files.digest(str(path))}
    assert not files.changed(first)
    os.utime(path, (1, 1))
    assert not files.changed(first), "touched"
    (tmp_path / "b").write_text("one")
    os.replace(tmp_path / "b", path)
    assert not files.changed(first), "saved by rename, without a change"
    (tmp_path / "b").write_text("two")
    os.replace(tmp_path / "b", path)
    assert files.changed(first) == [str(path)]
    path.unlink()
    assert files.digest(str(path)) == ABSENT
    path.write_text("one")
    assert not files.changed(first), "deleted and restored"


def test_every_save_is_detected_at_any_interval(tmp_path: Path) -> None:
    """The saves keep the file's size and inode and may share a clock tick of Linux, so stat does not show them."""
    files, path = Files(), tmp_path / "a.py"
    for number in range(200):
        with open(path, "r+" if path.exists() else "w") as file:
            file.write(f"{number:04}")
        digest = files.digest(str(path))
        assert digest == Files().digest(str(path)), number


def test_unchanged_old_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from precompiled.service.watch import files as module

    files, path = Files(), tmp_path / "a.py"
    path.write_text("one")
    reads: list[str] = []
    real = module._read
    monkeypatch.setattr(module, "_read", lambda name: (reads.append(name), real(name))[1])
    monkeypatch.setattr(module.time, "time", lambda: path.stat().st_ctime + 60)
    files.digest(str(path))
    files.digest(str(path))
    assert len(reads) == 1


def test_fifo_and_device_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    assert Files().digest(str(path)) == ABSENT  # a read would block
    assert Files().digest("/dev/zero") == ABSENT  # a read would not end


class Listener:
    def __init__(self) -> None:
        self.hinted = threading.Event()
        self.hints = Hints(self.hinted.set)

    def expect(self) -> None:
        assert self.hinted.wait(TIMEOUT_S), "no hint"
        self.hinted.clear()


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener()
    yield found
    found.hints.close()


def test_hints_come_for_saves_of_any_kind(listener: Listener, tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("one")
    listener.hints.observe({str(path)}, time.monotonic())
    assert listener.hints.problem == ""
    path.write_text("two")
    listener.expect()
    swap = tmp_path / ".swap"
    swap.write_text("three")
    os.replace(swap, path)
    listener.expect()
    path.unlink()
    listener.expect()
    path.write_text("four")
    listener.expect()


def test_replaced_directory_is_watched_again(listener: Listener, tmp_path: Path) -> None:
    directory = tmp_path / "package"
    path = directory / "a.py"
    directory.mkdir()
    path.write_text("one")
    listener.hints.observe({str(path)}, time.monotonic())
    shutil.rmtree(directory)
    listener.expect()
    directory.mkdir()
    path.write_text("two")
    deadline = time.monotonic() + TIMEOUT_S
    number = 0
    while True:
        # The watcher calls ``observe`` at every check, even before it knows of the deletion.
        listener.hints.observe({str(path)}, time.monotonic())
        listener.hinted.clear()
        path.write_text(str(number := number + 1))
        if listener.hinted.wait(0.2):
            break
        assert time.monotonic() < deadline, "no hint from the new directory"


LIMITED = """
import sys, time
from pathlib import Path
from precompiled.service.watch.hints import Hints, POLL_S, SWEEP_S
limit = Path("/proc/sys/user/max_inotify_watches")
limit.write_text("2")
hints = Hints(lambda: None)
paths = {f"{sys.argv[1]}/{n}/a.py" for n in range(5)}
for path in paths:
    Path(path).parent.mkdir()
    Path(path).touch()
hints.observe(paths, 0.0)
assert "no inotify watch" in hints.problem and hints.interval_s == POLL_S, hints.problem
hints.observe(paths, 1.0)
assert hints.problem, "it is not forgotten between two tries"
limit.write_text("100")
hints.observe(paths, 100.0)
assert hints.problem == "" and hints.interval_s == SWEEP_S, hints.problem
hints.close()
print("done")
"""


def in_own_user_namespace(command: list[str]) -> list[str]:
    """Return the command, prefixed so that it runs in its own user namespace. The namespace has its own inotify limits,
    which can be lowered without privileges.
    """
    return ["unshare", "--user", "--map-root-user", *command]


def namespaces_work() -> bool:
    try:
        return subprocess.run(in_own_user_namespace(["true"]), capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


needs_namespaces = pytest.mark.skipif(
    not namespaces_work(), reason="LOUD: no user namespaces here, so inotify's limits cannot be lowered for a test"
)


@needs_namespaces
def test_without_inotify_files_are_polled_and_status_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        in_own_user_namespace([sys.executable, "-c", LIMITED, str(tmp_path)]),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr


def test_without_a_thread_files_are_polled_and_nothing_stays_open(
    listener: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if isinstance(thread, EventDispatcher):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    before = set(threading.enumerate())
    listener.hints.observe({str(tmp_path / "a.py")}, time.monotonic())
    assert "can't start new thread" in listener.hints.problem
    assert set(threading.enumerate()) == before, "at each try one more"
