"""Tests of the helper, a separate process that serves workers and clients. If the helper fails, workers and clients
continue without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support_daemon import wait_until
from support_remote import FUNCTION, HEADER, fetched, host
from support_store import KEY, OTHER, payload

from precompiled import compiler, wire
from precompiled.core import config
from precompiled.core.config import Settings
from precompiled.remote import ahead, helper_link, helper_process, lease
from precompiled.remote.envelope import ARTIFACT, ENTRY
from precompiled.store.artifact_format import variant_label
from precompiled.store.artifacts import Store
from precompiled.store.requests import requests


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    # The path of this store is too long for a socket, so the helper must listen elsewhere.
    root = tmp_path / ("long" * 25) / "store"
    yield config.load(
        {"cache_dir": root, "remote": f"file://{tmp_path / 'bucket'}", "remote_unsigned": "1", "remote_timeout_s": 20.0}
    )
    running = state(root).get("pid") if helper_link.greeting(root) else None
    helper_link.ask(root, {"do": "stop"})
    if running:
        wait_until(lambda: not psutil.pid_exists(running) or psutil.Process(running).status() == "zombie")


def state(root: Path) -> dict[str, object]:
    return helper_link.state(root) or {}


def test_helper_puts_published_artifacts_and_fetches_existing_ones(settings: Settings, tmp_path: Path) -> None:
    there, root = host(tmp_path / "other", settings.remote), settings.cache_dir
    there.put_artifact(there.store.publish(payload()))
    helper_process.ensure(settings)
    assert fetched(root, KEY)  # this call waits for a helper that is being started
    store = Store(root)
    assert store.read_files(store.lookup(KEY)[0]) == payload().files
    assert not fetched(root, KEY) and not fetched(root, OTHER)

    other = payload(OTHER)
    helper_link.put_artifact(root, OTHER, store.publish(replace(other)).slot)
    helper_link.put_entry(root, FUNCTION, store.packages.publish(HEADER, b"{}", b"body"))
    assert helper_link.ask(root, {"do": "flush"}) == {}
    assert (there.fetch(OTHER), there.bring(there.objects(ENTRY, FUNCTION))) == (1, 1)
    report = state(root)
    assert (report["fetched"], report["put"], report["state"], report["waiting"]) == (1, 2, "ok", 0)
    asked = [request for request in requests(root, 0.0) if not request.problem]
    assert asked[0].what == "list" and asked[0].path == f"artifacts/{KEY}"
    put = [request for request in asked if request.what == "write"]
    assert len(put) == 2 and put[0].path.startswith(f"artifacts/{OTHER}/") and put[0].bytes > 0

    helper_link.withdraw(root, OTHER, variant_label(payload(OTHER, guards="s0 > 2").manifest))
    assert helper_link.ask(root, {"do": "flush"}) == {}
    assert there.objects(ARTIFACT, OTHER), "a different variant was removed"
    helper_link.withdraw(root, OTHER, variant_label(payload(OTHER).manifest))
    assert helper_link.ask(root, {"do": "flush"}) == {}
    assert not there.objects(ARTIFACT, OTHER) and there.objects(ARTIFACT, KEY)


def test_store_has_one_helper_until_its_settings_change(settings: Settings) -> None:
    root = settings.cache_dir
    helper_process.ensure(settings)
    wait_until(lambda: "pid" in state(root))
    first = state(root)["pid"]
    helper_process.ensure(settings)
    assert helper_link.ask(root, {"do": "flush"}) == {} and state(root)["pid"] == first
    helper_process.ensure(replace(settings, cache_max_bytes=1 << 30))  # the same helper with another budget
    assert helper_link.ask(root, {"do": "flush"}) == {} and state(root)["pid"] == first
    helper_process.ensure(replace(settings, remote_put=False))
    # The first helper may exit late. The test reads the state file, because a connection would keep the first helper
    # alive.
    wait_until(lambda: state(root).get("pid") not in (None, first), "the other one has come")
    assert helper_link.greeting(root)["arguments"][-1] == "--no-put"
    store = Store(root)
    helper_link.put_artifact(root, KEY, store.publish(payload()).slot)
    helper_link.ask(root, {"do": "flush"})
    assert not Path(settings.remote.removeprefix("file://")).exists()


def test_without_a_helper_clients_do_not_wait(tmp_path: Path) -> None:
    began = time.monotonic()
    assert not fetched(tmp_path, KEY) and helper_link.greeting(tmp_path) is None and helper_link.state(tmp_path) is None
    helper_link.folder(tmp_path).mkdir()
    (helper_link.folder(tmp_path) / helper_link.STARTING).touch()
    # An old time stamp makes it look as if the start of a helper had failed long ago.
    os.utime(helper_link.folder(tmp_path) / helper_link.STARTING, (1, 1))
    assert not fetched(tmp_path, KEY)
    assert time.monotonic() - began < helper_link.STARTING_S


@pytest.mark.fault("remote")
def test_killed_helper_is_replaced(settings: Settings) -> None:
    root = settings.cache_dir
    helper_process.ensure(settings)
    wait_until(lambda: "pid" in state(root))
    process = psutil.Process(int(str(state(root)["pid"])))
    process.kill()
    process.wait(10)
    assert not fetched(root, KEY)
    helper_process.ensure(settings)
    assert helper_link.ask(root, {"do": "flush"}) == {}


@pytest.mark.reason("remote-unusable")
@pytest.mark.parametrize("spoil", [{"remote_unsigned": False}, {"remote": "nosuch://bucket"}], ids=["unsigned", "url"])
def test_unusable_remote_is_reported(
    settings: Settings, spoil: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    changed = replace(settings, **spoil)  # type: ignore[arg-type]
    helper_process.ensure(changed)
    assert not fetched(settings.cache_dir, KEY)
    wait_until(lambda: state(settings.cache_dir))
    report = state(settings.cache_dir)
    assert (report["state"], report["code"]) == ("unusable", "remote-unusable") and report["reason"]


@pytest.mark.fault("remote")
def test_invalid_requests_get_an_empty_reply(settings: Settings) -> None:
    helper_process.ensure(settings)
    questions: list[dict[str, object]] = [
        {},
        {"do": "turn", "key": "../../etc"},
        {"do": "turn"},
        {"do": "ahead", "program": "x"},
        {"do": "put-entry", "function": "x", "name": "y"},
    ]
    for question in questions:
        assert not (helper_link.ask(settings.cache_dir, question) or {}).get("found")
    assert helper_link.ask(settings.cache_dir, {"do": "flush"}) == {}


@pytest.mark.fault("remote")
def test_clients_do_not_wait_for_a_helper_that_cannot_start(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper_process.sys, "executable", "/bin/false")
    helper_process.ensure(settings)
    began = time.monotonic()
    assert not fetched(settings.cache_dir, KEY)
    assert time.monotonic() - began < helper_link.STARTING_S


@pytest.mark.fault("remote")
def test_helper_exits_if_its_store_is_removed(settings: Settings) -> None:
    helper_process.ensure(settings)
    assert helper_link.ask(settings.cache_dir, {"do": "flush"}) == {}
    pid = int(str(state(settings.cache_dir)["pid"]))
    shutil.rmtree(settings.cache_dir)
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")


@contextmanager
def suspended(root: Path) -> Iterator[psutil.Process]:
    """Suspend the helper, as if its machine were overloaded."""
    assert helper_link.ask(root, {"do": "flush"}) == {}
    process = psutil.Process(int(str(state(root)["pid"])))
    process.suspend()
    try:
        yield process
    finally:
        process.resume()


@pytest.mark.fault("remote")
def test_client_does_not_wait_for_a_hanging_helper(settings: Settings) -> None:
    helper_process.ensure(settings)
    with suspended(settings.cache_dir):
        began = time.monotonic()
        assert ahead.Ahead(settings).under_way
        assert time.monotonic() - began < helper_link.GREETING_S / 2


def test_late_helper_processes_earlier_requests(settings: Settings, tmp_path: Path) -> None:
    there, root = host(tmp_path / "other", settings.remote), settings.cache_dir
    store = Store(root)
    helper_process.ensure(settings)
    with suspended(root):
        # A suspended helper sends no reply, so this call must give up.
        helper_link.put_entry(root, FUNCTION, store.packages.publish(HEADER, b"{}", b"body"))
    assert helper_link.ask(root, {"do": "flush"}) == {}
    wait_until(lambda: there.objects(ENTRY, FUNCTION))


def test_worker_waits_for_a_late_helper_and_gets_a_lease(settings: Settings, tmp_path: Path) -> None:
    there, root = host(tmp_path / "other", settings.remote), settings.cache_dir
    helper_process.ensure(settings)
    with suspended(root) as process:
        late = threading.Timer(1.25 * helper_link.GREETING_S, process.resume)
        late.start()
        turns = []
        while not turns or turns[-1].again_s:
            with helper_link.turn(root, KEY) as turn:
                turns.append(turn)
                leases = [] if turn.again_s else there.bucket.listed(f"artifacts/{KEY}")
        late.join()
    assert not turns[-1].found and len(leases) == 1


def test_worker_does_not_compile_what_the_remote_has(settings: Settings, tmp_path: Path) -> None:
    there, root = host(tmp_path / "other", settings.remote), settings.cache_dir
    there.put_artifact(there.store.publish(payload()))
    helper_process.ensure(settings)
    # The job has no graph, so a compile would fail. The outcome "exists" shows that the worker compiled nothing.
    job = wire.Job(
        id="1", key=KEY, store=str(root), device="cpu", graph=b"{}", compile_threads=1, failure_ttl_s=1.0, may_park=True
    )
    ends: list[wire.Finished] = []

    def ended() -> bool:
        ends.append(compiler.run_job(job))
        return ends[-1].outcome != "parked"

    wait_until(ended)
    assert ends[-1].outcome == "exists" and len(Store(root).lookup(KEY)) == 1
    assert all(end.again_s > 0 for end in ends[:-1])


@pytest.mark.fault("remote")
def test_failed_or_dead_worker_holds_no_lease(settings: Settings, tmp_path: Path) -> None:
    there, root = host(tmp_path / "other", settings.remote), settings.cache_dir
    helper_process.ensure(settings)
    # The helper replies that this worker must compile the key. The connection then closes, as if the worker had died.
    assert not fetched(root, KEY)
    wait_until(lambda: not there.bucket.listed(f"artifacts/{KEY}"))
    job = wire.Job(id="1", key=OTHER, store=str(root), device="cpu", graph=b"{}", compile_threads=1, failure_ttl_s=1.0)
    assert compiler.run_job(job).outcome == "failed"
    # The helper empties the lease, so that no other host waits for this host.
    wait_until(lambda: list(there.bucket.listed(f"artifacts/{OTHER}").values()) == [0])


FORKED = """\
import os, sys
from pathlib import Path
from precompiled.core import config
from precompiled.remote import helper_process, helper_link

settings = config.load()
helper_process.ensure(settings)
assert helper_link.ask(settings.cache_dir, {"do": "flush"}) == {}
if os.fork() == 0:
    os._exit(3)
found = []
while True:
    try:
        found.append(os.waitstatus_to_exitcode(os.wait()[1]))
    except ChildProcessError:
        break
print(sorted(found))
"""


def test_helper_is_not_a_child_of_the_program(settings: Settings) -> None:
    """A program that waits for all of its children must not be blocked by the helper."""
    env = {
        **os.environ,
        "PRECOMPILED_CACHE_DIR": str(settings.cache_dir),
        "PRECOMPILED_REMOTE": settings.remote,
        "PRECOMPILED_REMOTE_UNSIGNED": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", FORKED], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("[3]", "[0, 3]"), "the starter may be seen, for a moment; the helper never"


@pytest.mark.integration
def test_exiting_process_waits_a_limited_time_for_a_starting_helper(settings: Settings) -> None:
    folder = helper_link.folder(settings.cache_dir)
    folder.mkdir(parents=True)
    (folder / helper_link.STARTING).write_text("another-process")
    began = time.monotonic()
    assert helper_link.ask(settings.cache_dir, {"do": "used"}, wait_s=0.2) is None
    assert time.monotonic() - began < helper_link.STARTING_S / 2


def test_successful_compile_removes_an_earlier_empty_lease(settings: Settings, tmp_path: Path) -> None:
    """An empty lease makes every host compile, until `remote gc` removes the lease."""
    there, root = host(tmp_path / "other", settings.remote), settings.cache_dir
    folder, store = f"artifacts/{KEY}", Store(root)
    there.bucket.write(f"{folder}/lease-{'0' * 16}-00000001", b"")  # a lease of a different signer
    there.bucket.write(f"{folder}/lease-unsigned-00000002", b"of one who is at work")
    helper_process.ensure(settings)
    for number in (1, 3):
        there.bucket.write(f"{folder}/lease-unsigned-{number:08}", b"")
    helper_link.put_artifact(root, KEY, store.publish(payload()).slot)
    assert helper_link.ask(root, {"do": "flush"}) == {}
    names = [name for name in there.bucket.listed(folder) if lease.is_lease(name)]
    assert sorted(names) == [f"lease-{'0' * 16}-00000001", "lease-unsigned-00000002"]
    assert len(there.objects(ARTIFACT, KEY)) == 1
