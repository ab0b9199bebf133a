"""Tests of fetches ahead of a trace: a list in the remote names the objects that a program used, and an empty host gets
these objects before its first trace.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support_daemon import wait_until
from support_remote import FUNCTION, HEADER, host, memory
from support_store import KEY, OTHER, payload

from precompiled.client.process import PROCESS
from precompiled.core import config
from precompiled.core.config import Settings
from precompiled.remote import ahead, helper_link, lists
from precompiled.remote import envelope as form
from precompiled.remote.transfer import Transfer

PROGRAM = "a" * 64


def filled(there: Transfer) -> str:
    """Put two artifacts and an entry into this store and the remote, and return the name of the entry."""
    for key in (KEY, OTHER):
        there.put_artifact(there.store.publish(payload(key)))
    name = there.store.packages.publish(HEADER, b"{}", b"body")
    there.put_entry(FUNCTION, name)
    return name


def note(there: Transfer, *keys: str, fresh: tuple[str, ...] = (), entries: tuple[str, ...] = ()) -> bool:
    return lists.note(there, PROGRAM, keys, fresh, [(FUNCTION, name) for name in entries])


def test_objects_that_a_program_used_are_listed_and_fetched_at_once(tmp_path: Path) -> None:
    url = memory()
    a, b = host(tmp_path / "a", url), host(tmp_path / "b", url)
    name = filled(a)
    assert note(a, KEY, entries=(name,)) and not note(a, KEY, entries=(name,))
    _lists, objects = lists.read_lists(b, PROGRAM)
    assert {(item.kind, item.group) for item in objects} == {(form.ARTIFACT, KEY), (form.ENTRY, FUNCTION)}
    assert b.bring(objects) == 2 and b.bring(objects) == 0
    assert b.store.packages.read(FUNCTION, name).body == b"body" and b.store.lookup(OTHER) == []
    # Host b has used one more object and writes a longer list, which replaces the shorter list.
    assert note(b, OTHER) and note(b, KEY, OTHER) is False
    found, objects = lists.read_lists(host(tmp_path / "c", url), PROGRAM)
    assert len(found) == 1 and {item.group for item in objects} == {KEY, OTHER, FUNCTION}
    # A new variant is listed if its key is marked as fresh.
    a.put_artifact(a.store.publish(payload(KEY, guards="s0 > 2")))
    assert not note(a, KEY) and note(a, KEY, fresh=(KEY,))
    assert len([item for item in lists.read_lists(b, PROGRAM)[1] if item.group == KEY]) == 2
    # `pull` fetches the artifacts and the entry, but not the program's list of used objects. OTHER is a key and not a
    # program, so it has no list.
    d = host(tmp_path / "d", url)
    assert d.pull() == 4 and lists.read_lists(d, OTHER) == ([], [])


@pytest.mark.parametrize("body", [b"", b"[]", b'{"objects": 1}', b'{"objects": [["x"]]}', b'{"objects": [["x", "y"]]}'])
def test_invalid_list_is_refused_and_another_list_is_used(body: bytes, tmp_path: Path) -> None:
    url = memory()
    a = host(tmp_path / "a", url)
    filled(a)
    a.write(form.LIST, PROGRAM, lists.LABEL, body)
    assert lists.read_lists(a, PROGRAM) == ([], []) and dict(a.counts.refused) == {"remote-corrupt": 1}
    assert note(a, KEY) and [item.group for item in lists.read_lists(a, PROGRAM)[1]] == [KEY]


def test_invalid_or_missing_objects_of_a_list_are_skipped(tmp_path: Path) -> None:
    url = memory()
    a, b = host(tmp_path / "a", url), host(tmp_path / "b", url)
    filled(a)
    [there] = a.objects(form.ARTIFACT, KEY)
    gone = replace(there, digest="0" * 64)
    named = [["../../etc/passwd", 5], [gone.path, gone.size], [f"programs/{PROGRAM}/x", 1], [there.path, there.size]]
    a.write(form.LIST, PROGRAM, lists.LABEL, json.dumps({"objects": named}).encode())
    _found, objects = lists.read_lists(b, PROGRAM)
    assert objects == [gone, there] and b.bring(objects) == 1 and b.store.lookup(KEY)


# ---------------------------------------------------------------- by the helper, for a process


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setattr(PROCESS, "ahead", None)
    found = config.load(
        {
            "cache_dir": tmp_path / "store",
            "remote": f"file://{tmp_path / 'bucket'}",
            "remote_unsigned": "1",
            "remote_ahead_s": 60.0,
        }
    )
    yield found
    helper_link.ask(found.cache_dir, {"do": "stop"})


def test_process_gets_objects_that_its_program_used_on_another_host(settings: Settings, tmp_path: Path) -> None:
    there = host(tmp_path / "other", settings.remote)
    name = filled(there)
    lists.note(there, ahead.identity(), [KEY], [], [(FUNCTION, name)])
    found = ahead.begin(settings)
    assert found is not None and ahead.begin(settings) is found
    assert found.wait() and not found.under_way
    mine = host(settings.cache_dir, settings.remote)
    assert mine.store.lookup(KEY) and mine.store.packages.names(FUNCTION) == [name]
    # If this process uses objects that the list lacks, the helper adds them to the list for the next process.
    found.used([KEY, OTHER], [], [(FUNCTION, name)], [])
    assert helper_link.ask(settings.cache_dir, {"do": "flush"}) == {}
    assert {item.group for item in lists.read_lists(there, ahead.identity())[1]} == {KEY, OTHER, FUNCTION}


def test_process_without_a_list_does_not_wait(settings: Settings) -> None:
    found = ahead.begin(settings)
    assert found is not None and not found.wait() and not found.under_way


def test_process_waits_only_once_and_briefly_for_a_hanging_helper(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()

    def hangs(*_: object, **__: object) -> Iterator[dict[str, object]]:
        answer.wait(60.0)
        yield from ()

    monkeypatch.setattr(ahead.helper_link, "answers", hangs)
    waited: list[float | None] = []
    found = ahead.begin(replace(settings, remote_ahead_s=0.2))
    assert found is not None
    real = found._answered.wait
    monkeypatch.setattr(found._answered, "wait", lambda limit: (waited.append(limit), real(limit))[1])
    assert not found.wait() and not found.wait()
    assert waited == [pytest.approx(0.2 * ahead.QUIET), 0.0] and found.under_way
    answer.set()
    monkeypatch.undo()  # the fixture's stop request can then reach the helper


@pytest.mark.integration
def test_failed_start_of_the_helper_is_reported(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead.helper_process.subprocess, "Popen", _refuses)
    found = ahead.begin(settings)
    problems: list[Exception] = []
    assert found is not None
    found.on_problem(problems.append)
    wait_until(lambda: problems)
    assert isinstance(problems[0], OSError) and not found.wait()


def _refuses(*_: object, **__: object) -> None:
    raise OSError("no more processes")


def test_no_remote_means_no_thread(settings: Settings) -> None:
    assert ahead.begin(replace(settings, remote="")) is None and PROCESS.ahead is None
    assert ahead.begin(replace(settings, mode="off")) is None


# ---------------------------------------------------------------- which program it is

SHOW = "from precompiled.remote import ahead; print(ahead.identity())"


def shown(*command: str, cwd: Path) -> str:
    source = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


def test_program_is_identified_by_its_text_not_by_path_or_arguments(tmp_path: Path) -> None:
    for folder, text in (("a", SHOW), ("b", f"#!/usr/bin/env python\n{SHOW}"), ("c", f"{SHOW}\npass")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(f"{text}\n")
    first = shown("train.py", cwd=tmp_path / "a")
    assert first == shown(str(tmp_path / "b" / "train.py"), "--seed", "1", cwd=tmp_path)
    assert first == shown("-m", "train", cwd=tmp_path / "a")
    others = [shown("train.py", cwd=tmp_path / "c"), *(shown("-c", code, cwd=tmp_path) for code in (SHOW, f"{SHOW};"))]
    assert len({first, *others}) == 4
