"""The store's inotify watch where there is none to be had: the looks go on without it, and nothing is left behind."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

from precompiled.client.store_observer import StoreObserver


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """EMFILE for each inotify instance, as where all of fs.inotify.max_user_instances are taken."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def open_things() -> tuple[list[str], set[threading.Thread]]:
    """The descriptors of this process, and its threads."""
    return sorted(os.listdir("/proc/self/fd")), set(threading.enumerate())


def test_a_name_that_appears_is_news(tmp_path: Path) -> None:
    seen = threading.Event()
    observer = StoreObserver(seen.set)
    observer.observe(tmp_path)
    try:
        assert observer.active
        (tmp_path / "name").touch()
        assert seen.wait(30)
    finally:
        observer.close()


def test_without_a_free_instance_the_store_is_looked_at_without_events(tmp_path: Path) -> None:
    first = StoreObserver(lambda: None)
    first.observe(tmp_path)  # what is imported for it is imported by now
    first.close()
    with no_descriptor_left():
        observer = StoreObserver(lambda: None)
        observer.observe(tmp_path)
    assert not observer.active
    observer.close()


@pytest.mark.skipif(version("watchdog").startswith("6."), reason="watchdog 6 leaves its own instance open there")
def test_a_watch_that_cannot_be_had_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where all of fs.inotify.max_user_watches are taken; here since the directory goes after it was looked for."""
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    before = open_things()
    observer = StoreObserver(lambda: None)
    observer.observe(tmp_path / "gone")
    assert not observer.active and open_things() == before
