"""Tests that a source file is attributed to its owner (this project, the standard library, or the user), and that a
file is compared with the time at which this process may have loaded it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

import precompiled
from precompiled import backend
from precompiled.client import start
from precompiled.core import files


def test_files_of_precompiled_are_recognised() -> None:
    for module in (precompiled, backend, start, files):
        assert files.is_ours(str(module.__file__)) and not files.is_users(str(module.__file__))
    assert os.path.dirname(str(precompiled.__file__)) == files.PACKAGE


def test_standard_library_is_not_a_users_file() -> None:
    assert files.is_standard(json.__file__) and not files.is_users(json.__file__)
    assert files.is_users("/home/me/model.py") and not files.is_standard("/home/me/model.py")


COARSE = 5  # CLOCK_REALTIME_COARSE


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook has just run in this process, and found the modules that are loaded now."""
    monkeypatch.setattr(files, "_hook", None)
    note()


def note(modules: dict[str, ModuleType] | None = None) -> None:
    clocks = time.clock_gettime(COARSE), time.clock_gettime(time.CLOCK_BOOTTIME)
    files.note_hook(*clocks, sys.modules if modules is None else modules)


@pytest.mark.usefixtures("noted")
def test_file_saved_after_the_hook_is_later_than_every_load(tmp_path: Path) -> None:
    for number in range(50):
        note()
        path = tmp_path / f"{number}.py"
        path.touch()
        assert files.save_time(str(path)) > files.earliest_load("late", str(path)) > files.process_start()


@pytest.mark.usefixtures("noted")
def test_module_loaded_before_the_hook_may_be_as_old_as_the_process(tmp_path: Path) -> None:
    early, file = ModuleType("early"), tmp_path / "early.py"
    file.touch()
    (tmp_path / "link.py").symlink_to(file)
    early.__file__ = str(tmp_path / "link.py")
    note({"early": early, "__main__": ModuleType("__main__"), "without a file": ModuleType("x")})
    start, hook = files.process_start(), files.hook_time()
    assert start < hook
    assert files.earliest_load("early", "/moved.py") == start
    assert files.earliest_load("another_name", str(file)) == files.earliest_load("x", str(early.__file__)) == start
    assert files.earliest_load("late", "/late.py") == files.earliest_load("__main__", "/main.py") == hook


def test_hook_that_a_program_calls_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_hook", None)
    assert files.earliest_load("late", "/late.py") == files.process_start() == files.launch_time()


@pytest.mark.fault("clocks")
@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_clock_that_is_set_after_the_hook_makes_no_load_later(monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    monkeypatch.setattr(files, "_hook", None)
    before = time.clock_gettime(COARSE), time.clock_gettime(time.CLOCK_BOOTTIME)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + jump_s)
    files.note_hook(*before, {})
    hook = files.hook_time()
    # A file was saved after the hook, before or after the jump.
    assert hook is not None and hook < before[0] and hook < before[0] + jump_s + 0.1


def test_process_is_launched_when_python_starts_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    start = files.process_start()
    for hook, expected in ((start + 0.02, start), (start + 30.0, start + 30.0)):
        monkeypatch.setattr(files, "_hook", files._Hook(hook, frozenset(), frozenset()))
        assert files.launch_time() == expected
