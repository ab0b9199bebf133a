"""Tests of the records of watches, which survive a restart, and of the checks that a record must pass."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from precompiled.service.watch.registry import Good, Record, Registry, any_registered, identify

from precompiled import wire
from precompiled.core.errors import UntrustedStore


def registration(*command: str, **how: object) -> wire.Registration:
    return wire.Registration(
        kind="entry",
        command=list(command),
        executable="/bin/python",
        directory="/work",
        store="/store",
        variables={"TOKEN": "secret"},
        **how,  # type: ignore[arg-type]
    )


def test_saved_record_is_loaded(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    assert list(registry.load()) == [] and not any_registered(tmp_path)
    record = Record(
        registration("a:b"), Good({"/project/a.py": "00"}, [wire.WatchedGraph("n", "k", "ready")], True, complete=True)
    )
    id = identify(record.registration)
    registry.save(id, record)
    assert any_registered(tmp_path)
    assert list(Registry(tmp_path).load()) == [(id, record)]
    path = tmp_path / "watch" / f"{id}.json"
    assert path.stat().st_mode & 0o777 == 0o600, "it holds the environment"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    registry.remove(id)
    registry.remove(id)
    assert list(registry.load()) == []


def test_id_depends_on_the_target_not_on_options() -> None:
    assert identify(registration("a:b")) == identify(registration("a:b", time_limit_s=5.0))
    assert identify(registration("a:b")) != identify(registration("a:c"))


@pytest.mark.fault("watch")
def test_record_that_others_could_write_is_not_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry(tmp_path)
    id = identify(registration("a:b"))
    registry.save(id, Record(registration("a:b")))
    path = tmp_path / "watch" / f"{id}.json"
    path.chmod(0o666)
    assert list(registry.load()) == []
    assert "is ignored" in caplog.text
    path.chmod(0o600)
    path.parent.chmod(0o777)
    assert list(registry.load()) == []
    with pytest.raises(UntrustedStore):
        registry.save(id, Record(registration("a:b")))


@pytest.mark.fault("watch")
def test_damaged_record_is_logged_and_others_are_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry(tmp_path)
    id = identify(registration("a:b"))
    registry.save(id, Record(registration("a:b")))
    (tmp_path / "watch" / "0000.json").write_text("{")
    os.chmod(tmp_path / "watch" / "0000.json", 0o600)
    assert [found for found, _ in registry.load()] == [id]
    assert "0000.json" in caplog.text


@pytest.mark.fault("watch")
def test_invalid_registration_is_set_aside_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An invalid record may come from an earlier version. If the registry kept the record, the record would end the
    watcher at each start.
    """
    registry = Registry(tmp_path)
    registry.save("bad", Record(registration()))
    registry.save(identify(registration("a:b")), Record(registration("a:b")))
    for _ in range(2):
        assert [record.registration.command for _, record in registry.load()] == [["a:b"]]
    assert caplog.text.count("set aside") == 1 and "the command is empty" in caplog.text
    assert (tmp_path / "watch" / "bad.json.set-aside").exists(), "it can still be looked at"
    registry.remove(identify(registration("a:b")))
    assert not any_registered(tmp_path)
