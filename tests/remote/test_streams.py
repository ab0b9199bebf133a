"""Streams ahead: what a program used is listed in the remote, and comes to an empty host before its first trace."""

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

from precompiled.client import ahead
from precompiled.client.process import PROCESS
from precompiled.core import config
from precompiled.core.config import Settings
from precompiled.remote import envelope as form
from precompiled.remote import link, lists
from precompiled.remote.transfer import Transfer

PROGRAM = "a" * 64


def filled(there: Transfer) -> str:
    """Two artifacts and an entry, here and there; the entry's name."""
    for key in (KEY, OTHER):
        there.put_artifact(there.store.publish(payload(key)))
    name = there.store.packages.publish(HEADER, b"{}", b"body")
    there.put_entry(FUNCTION, name)
    return name


def note(there: Transfer, *keys: str, fresh: tuple[str, ...] = (), entries: tuple[str, ...] = ()) -> bool:
    return lists.note(there, PROGRAM, keys, fresh, [(FUNCTION, name) for name in entries])


def test_what_a_program_used_is_listed_and_brought_in_one_go(tmp_path: Path) -> None:
    url = memory()
    a, b = host(tmp_path / "a", url), host(tmp_path / "b", url)
    name = filled(a)
    assert note(a, KEY, entries=(name,)) and not note(a, KEY, entries=(name,))
    _lists, objects = lists.listed(b, PROGRAM)
    assert {(item.kind, item.group) for item in objects} == {(form.ARTIFACT, KEY), (form.ENTRY, FUNCTION)}
    assert b.bring(objects) == 2 and b.bring(objects) == 0
    assert b.store.packages.read(FUNCTION, name).body == b"body" and b.store.lookup(OTHER) == []
    # Another host's list adds what it used, in place of its own older one.
    assert note(b, OTHER) and note(b, KEY, OTHER) is False
    found, objects = lists.listed(host(tmp_path / "c", url), PROGRAM)
    assert len(found) == 1 and {item.group for item in objects} == {KEY, OTHER, FUNCTION}
    # A variant that is new is found where its key is said to be fresh.
    a.put_artifact(a.store.publish(payload(KEY, guards="s0 > 2")))
    assert not note(a, KEY) and note(a, KEY, fresh=(KEY,))
    assert len([item for item in lists.listed(b, PROGRAM)[1] if item.group == KEY]) == 2
    # A list is no artifact to those who fetch all, and names nothing that is not there.
    d = host(tmp_path / "d", url)
    assert d.pull() == 4 and lists.listed(d, OTHER) == ([], [])


@pytest.mark.parametrize("body", [b"", b"[]", b'{"objects": 1}', b'{"objects": [["x"]]}', b'{"objects": [["x", "y"]]}'])
def test_a_list_that_cannot_be_read_is_refused_and_another_one_serves(body: bytes, tmp_path: Path) -> None:
    url = memory()
    a = host(tmp_path / "a", url)
    filled(a)
    a.write(form.LIST, PROGRAM, lists.LABEL, body)
    assert lists.listed(a, PROGRAM) == ([], []) and dict(a.counts.refused) == {"remote-corrupt": 1}
    assert note(a, KEY) and [item.group for item in lists.listed(a, PROGRAM)[1]] == [KEY]


def test_what_a_list_names_and_is_no_object_or_gone_is_passed_over(tmp_path: Path) -> None:
    url = memory()
    a, b = host(tmp_path / "a", url), host(tmp_path / "b", url)
    filled(a)
    [there] = a.objects(form.ARTIFACT, KEY)
    gone = replace(there, digest="0" * 64)
    named = [["../../etc/passwd", 5], [gone.path, gone.size], [f"programs/{PROGRAM}/x", 1], [there.path, there.size]]
    a.write(form.LIST, PROGRAM, lists.LABEL, json.dumps({"objects": named}).encode())
    _found, objects = lists.listed(b, PROGRAM)
    assert objects == [gone, there] and b.bring(objects) == 1 and b.store.lookup(KEY)


# ---------------------------------------------------------------- by the helper, for a process


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setattr(PROCESS, "ahead", None)
    found = config.load(
        {"cache_dir": tmp_path / "store", "remote": f"file://{tmp_path / 'bucket'}", "remote_unsigned": "1",
         "remote_ahead_s": 60.0}
    )  # fmt: skip
    yield found
    link.ask(found.cache_dir, {"do": "stop"})


def test_a_process_gets_what_one_of_its_program_used_elsewhere(settings: Settings, tmp_path: Path) -> None:
    there = host(tmp_path / "other", settings.remote)
    name = filled(there)
    lists.note(there, ahead.identity(), [KEY], [], [(FUNCTION, name)])
    found = ahead.begin(settings)
    assert found is not None and ahead.begin(settings) is found
    assert found.wait() and not found.under_way
    mine = host(settings.cache_dir, settings.remote)
    assert mine.store.lookup(KEY) and mine.store.packages.names(FUNCTION) == [name]
    # What it uses beside that is listed for the next one.
    found.used([KEY, OTHER], [], [(FUNCTION, name)])
    assert link.ask(settings.cache_dir, {"do": "flush"}) == {}
    assert {item.group for item in lists.listed(there, ahead.identity())[1]} == {KEY, OTHER, FUNCTION}


def test_nothing_comes_and_nothing_is_waited_for_where_nothing_is_listed(settings: Settings) -> None:
    found = ahead.begin(settings)
    assert found is not None and not found.wait() and not found.under_way


def test_a_process_waits_for_a_helper_that_hangs_once_and_shortly(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()

    def hangs(*_: object, **__: object) -> Iterator[dict[str, object]]:
        answer.wait(60.0)
        yield from ()

    monkeypatch.setattr(ahead.link, "answers", hangs)
    waited: list[float | None] = []
    found = ahead.begin(replace(settings, remote_ahead_s=0.2))
    assert found is not None
    real = found._answered.wait
    monkeypatch.setattr(found._answered, "wait", lambda limit: (waited.append(limit), real(limit))[1])
    assert not found.wait() and not found.wait()
    assert waited == [pytest.approx(0.2 * ahead.QUIET), 0.0] and found.under_way
    answer.set()
    monkeypatch.undo()  # the helper is told to stop


def test_a_helper_that_cannot_be_started_is_told(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead.remote_helper.subprocess, "Popen", _refuses)
    found = ahead.begin(settings)
    told: list[Exception] = []
    assert found is not None
    found.on_problem(told.append)
    wait_until(lambda: told)
    assert isinstance(told[0], OSError) and not found.wait()


def _refuses(*_: object, **__: object) -> None:
    raise OSError("no more processes")


def test_no_remote_no_thread(settings: Settings) -> None:
    assert ahead.begin(replace(settings, remote="")) is None and PROCESS.ahead is None
    assert ahead.begin(replace(settings, mode="off")) is None


# ---------------------------------------------------------------- which program it is

SHOW = "from precompiled.client import ahead; print(ahead.identity())"


def shown(*command: str, cwd: Path) -> str:
    source = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, *command], cwd=cwd, env={**os.environ, "PYTHONPATH": source},
                          capture_output=True, text=True, check=True, timeout=60)  # fmt: skip
    return done.stdout.strip()


def test_a_program_is_its_text_wherever_it_lies_and_whatever_it_is_given(tmp_path: Path) -> None:
    for folder, text in (("a", SHOW), ("b", f"#!/usr/bin/env python\n{SHOW}"), ("c", f"{SHOW}\npass")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(f"{text}\n")
    first = shown("train.py", cwd=tmp_path / "a")
    assert first == shown(str(tmp_path / "b" / "train.py"), "--seed", "1", cwd=tmp_path)
    assert first == shown("-m", "train", cwd=tmp_path / "a")
    others = [shown("train.py", cwd=tmp_path / "c"), *(shown("-c", code, cwd=tmp_path) for code in (SHOW, f"{SHOW};"))]
    assert len({first, *others}) == 4
