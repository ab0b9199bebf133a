"""Tests of what watch mode refuses and of its messages, with a real daemon, a real watcher, and click's runner."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from precompiled.service.watch.registry import MAX_WATCHES, Good, Record, Registry, identify
from precompiled.service.watcher_link import ASKED_BYTES, MAX_ASKED, UNREAD_BYTES, WatcherLink
from support_daemon import TIMEOUT_S, DaemonUnderTest, running_daemon

from precompiled import wire
from precompiled.cli import app
from precompiled.client import ask
from precompiled.client.ledger import GraphReport
from precompiled.client.process import PROCESS
from precompiled.client.run_recorder import RunRecord
from precompiled.client.session import Session
from precompiled.store import run_records
from precompiled.watch import commands, entry, part, recorder

pytestmark = pytest.mark.fault("watch")

# ---------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    """A daemon without watches."""
    with running_daemon(tmp_path_factory.mktemp("d")) as found:
        yield found


@pytest.fixture
def refused(daemon: DaemonUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """Return a function that runs `precompiled watch ...` in an empty directory with an empty store, and returns the
    error.
    """
    for name in [name for name in os.environ if name.startswith("PRECOMPILED")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PRECOMPILED_RUNTIME_DIR", str(daemon.runtime_dir))
    monkeypatch.setenv("PRECOMPILED_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> dict[str, str]:
        result = CliRunner().invoke(app.cli, ["watch", "--json", *arguments], prog_name="precompiled")
        assert result.exit_code == 1, result.output
        error: dict[str, str] = json.loads(result.stdout)["error"]
        assert error["message"] in result.stderr, "people read it, too"
        return error

    return call


@pytest.mark.reason("nothing-to-watch")
def test_watch_without_an_argument_or_registration_is_an_error(refused: Callable[..., dict[str, str]]) -> None:
    error = refused()
    assert error["code"] == "nothing-to-watch" and "nothing to watch" in error["message"]
    assert "pkg.module:factory" in error["action"]


def test_watch_without_an_argument_starts_no_daemon(
    refused: Callable[..., dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRECOMPILED_RUNTIME_DIR", str(tmp_path / "run"))
    assert refused()["code"] == "nothing-to-watch"
    assert not (tmp_path / "run").exists()


@pytest.mark.reason("command-not-found")
def test_command_that_is_not_on_the_path_is_an_error(refused: Callable[..., dict[str, str]]) -> None:
    error = refused("--", "no-such-command", "train.py")
    assert error["code"] == "command-not-found" and "there is no command 'no-such-command'" in error["message"]
    assert "PATH" in error["action"]


@pytest.mark.reason("no-such-module")
def test_a_module_that_is_not_there_is_not_registered(
    refused: Callable[..., dict[str, str]], daemon: DaemonUnderTest, tmp_path: Path
) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "model.py").write_text("raise SystemExit('it is not imported')")
    path = list(sys.path)
    missing = {"nosuch:f": "nosuch", "pkg.modle:f": "pkg.modle", "pkg.model.deeper": "pkg.model.deeper"}
    for target, module in missing.items():
        error = refused(target)
        assert error["code"] == "no-such-module" and f"no module {module!r}" in error["message"]
        assert "--wait" in error["action"]
    assert "`precompiled watch -- python train.py`" in refused("train.py")["action"]
    assert sys.path == path and ask.request(daemon.settings, wire.Watches()).watches == []
    for target in ("pkg.model:f", "pkg.model", "json:loads", "pytest"):
        commands._check_module(target.partition(":")[0], str(tmp_path))


@pytest.mark.reason("no-such-watch")
def test_removal_of_an_unknown_watch_is_an_error(refused: Callable[..., dict[str, str]]) -> None:
    error = refused("--remove", "0000", "a:b")
    assert error["code"] == "no-such-watch" and "'0000', 'a:b' is not watched" in error["message"]
    assert "precompiled watch --list" in error["action"]


@pytest.mark.reason("no-last-run")
def test_last_without_a_recorded_run_is_an_error(refused: Callable[..., dict[str, str]]) -> None:
    for _ in ("without a store", "in an empty one"):
        error = refused("--last")
        assert error["code"] == "no-last-run" and "no run is recorded yet" in error["message"]
        assert "precompiled run" in error["action"]
        Path("store").mkdir(mode=0o700, exist_ok=True)


@pytest.mark.parametrize(
    ("text", "mode"),
    [("{", 0o600), ("[]", 0o600), ("{}", 0o600), (None, 0o666)],
    ids=["damaged", "a list", "incomplete", "others may write it"],
)
def test_damaged_or_untrusted_last_run_is_refused(
    refused: Callable[..., dict[str, str]], text: str | None, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of a last run contains a command that would be executed, so the record must be trusted."""
    # A run in a worker of pytest-xdist is not recorded, and this process may be such a worker.
    monkeypatch.setattr("precompiled.client.run_recorder._WORKERS", ())
    Path("store").mkdir(mode=0o700)
    record = RunRecord(Path("store"))
    record.note(GraphReport("id", "graph"))
    (path,) = Path("store").glob("runs/*/*.jsonl")
    assert run_records.last_command(Path("store")).argv == sys.orig_argv
    if text is not None:
        path.write_text(f"{text}\n")
    path.chmod(mode)
    error = refused("--last")
    assert error["code"] == "no-last-run" and "no run is recorded yet" in error["message"]
    assert "precompiled run" in error["action"]


# ---------------------------------------------------------------- the watcher


def registration(target: str) -> wire.Registration:
    return wire.Registration(
        kind="entry", command=[target], executable=sys.executable, directory="/", store="/store", variables={}
    )


def communicate(link: WatcherLink) -> None:
    """Write and read what the watcher's stream allows, as the daemon's loop does."""
    poll = select.poll()
    for fd, events in link.fds().items():
        poll.register(fd, events)
    assert poll.poll(TIMEOUT_S * 1000), "the watcher says nothing"
    link.check()


def answer(link: WatcherLink, request: wire.Watch | wire.Unwatch) -> Any:
    """Send a request to the watcher, a separate process. Return the reply."""
    link.ask(b"peer", request)
    while not link.replies:
        communicate(link)
    ((peer, reply),) = link.replies
    link.replies = []
    assert peer == b"peer"
    return reply


@pytest.fixture
def link(tmp_path: Path) -> Iterator[WatcherLink]:
    for name in ("run", "cache"):
        (tmp_path / name).mkdir(mode=0o700)
    found = WatcherLink(part, tmp_path / "run", tmp_path / "cache")
    yield found
    found.close()
    assert os.listdir(tmp_path / "run") == []


@pytest.mark.reason("bad-registration")
def test_invalid_registration_is_refused_and_the_watcher_continues(link: WatcherLink, tmp_path: Path) -> None:
    good = registration("a:b")
    for change in (
        {"command": []},
        {"command": [""]},
        {"command": ["a:b\0"]},
        {"command": ["a:b", "c:d"]},
        {"executable": "python"},
        {"directory": "/\0"},
        {"directory": "/" + "x" * 5000},
        {"store": ""},
        {"files": ["/x\0"]},
        {"variables": {"A=B": ""}},
        {"variables": {"A": "\0"}},
        {"time_limit_s": float("nan")},
        {"time_limit_s": -1.0},
        {"memory_limit_bytes": -1},
        {"steps": -1},
    ):
        reply = answer(link, wire.Watch(msgspec.structs.replace(good, **change)))
        assert isinstance(reply, wire.Rejected) and reply.code == "bad-registration", change
    assert list(Registry(tmp_path / "cache").load()) == []
    assert answer(link, wire.Watch(good)) == wire.Watching([identify(good)]) and link.degraded == []


def test_watch_that_raises_is_set_aside_and_others_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registration that passes all checks but raises must not end the watcher, now or after a restart."""
    from precompiled.service.watch import watch as module
    from precompiled.service.watch.watcher import Watcher

    bad, good = registration("bad:one"), registration("good:one")
    registry = Registry(tmp_path)
    for one in (bad, good):
        registry.save(identify(one), Record(one, Good({}, [], True, complete=True)))
    look = module.RunningWatch.look

    def raising(self: module.RunningWatch, now: float) -> bool:
        if self.registration == bad:
            raise RuntimeError("an unforeseen error")
        return look(self, now)

    monkeypatch.setattr(module.RunningWatch, "look", raising)
    ours, theirs = socket.socketpair()
    (tmp_path / "run").mkdir(mode=0o700)
    watcher = Watcher(theirs, tmp_path / "run", tmp_path)
    with closing(ours):
        for id, record in registry.load():
            watcher._watches[id] = module.RunningWatch(id, record.registration, watcher._tools)
        watcher._round()
        assert list(watcher._watches) == [identify(good)]
        assert "an unforeseen error" in watcher._problems[identify(bad)]
        watcher.close()
    assert [id for id, _ in registry.load()] == [identify(good)]


@pytest.mark.reason("too-many-watches")
def test_number_of_watches_is_limited(link: WatcherLink, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "cache")
    for number in range(MAX_WATCHES):  # these watches are ready, so the watcher captures nothing
        known = registration(f"known:f{number}")
        registry.save(identify(known), Record(known, Good({}, [], True, complete=True)))
    reply = answer(link, wire.Watch(registration("one:more")))
    assert isinstance(reply, wire.Rejected) and reply.code == "too-many-watches"
    assert f"there are {MAX_WATCHES} watches" in reply.message and "--remove" in reply.action
    assert len(list(registry.load())) == MAX_WATCHES, "none of them is lost"
    known = identify(registration("known:f0"))
    assert answer(link, wire.Unwatch([known])) == wire.Watching([known])


def test_watch_registered_again_does_not_report_its_old_state(link: WatcherLink, tmp_path: Path) -> None:
    """`watch --once` requests the state right after its registration. The state "ready" of the earlier watch must not
    be reported.
    """
    known = registration("known:f")
    Registry(tmp_path / "cache").save(identify(known), Record(known, Good({}, [], True, complete=True)))
    answer(link, wire.Unwatch([]))
    assert [watch.state for watch in link.watches] == ["ready"]
    answer(link, wire.Watch(known))
    assert [watch.state for watch in link.watches] != ["ready"]


@pytest.mark.reason("watch-not-saved")
def test_watch_that_cannot_be_saved_is_refused(link: WatcherLink, tmp_path: Path) -> None:
    """A watch that cannot be saved would silently disappear with the daemon, so the watcher does not start it."""
    directory = tmp_path / "cache" / "watch"
    directory.mkdir()
    directory.chmod(0o777)
    untrusted = answer(link, wire.Watch(registration("a:b")))
    directory.rmdir()
    directory.touch()
    impossible = answer(link, wire.Watch(registration("a:b")))
    for reply, why in ((untrusted, "others"), (impossible, "File exists")):
        assert isinstance(reply, wire.Rejected) and reply.code == "watch-not-saved"
        assert "the watch cannot be saved" in reply.message and why in reply.message
        assert "precompiled doctor" in reply.action
    known = identify(registration("a:b"))
    assert answer(link, wire.Unwatch([known])) == wire.Watching([])


def test_largest_messages_do_not_end_the_watcher(link: WatcherLink, tmp_path: Path) -> None:
    """The reports of all watches must fit into the daemon's replies to clients. Each request that the daemon accepts
    must fit into a message to the watcher.
    """
    graphs = [wire.WatchedGraph("g" * 500, "k" * 64, "failed", "r" * 2000)] * 200
    good = Good({}, graphs, True, note="n" * 8000, complete=True)
    registry = Registry(tmp_path / "cache")
    for number in range(MAX_WATCHES - 1):
        known = msgspec.structs.replace(registration(f"known:f{number}"), directory="/" + "d" * 4000)
        registry.save(identify(known), Record(known, good))
    large = wire.Watch(msgspec.structs.replace(registration("a:b"), variables={"A": ""}))
    large.registration.variables["A"] = "x" * (wire.MAX_MESSAGE_BYTES - len(wire.encode(large)) - 4)
    assert len(wire.encode(large)) == wire.MAX_MESSAGE_BYTES
    assert isinstance(answer(link, large), wire.Watching)
    link.job_ended(["x" * 256] * 8000, "failed", "")
    assert isinstance(answer(link, wire.Unwatch(["x"])), wire.Watching) and link.degraded == []
    assert len(link.watches) == MAX_WATCHES
    assert len(wire.encode(wire.WatchesReply(link.watches, []))) < wire.MAX_MESSAGE_BYTES
    assert answer(link, wire.Unwatch([watch.id for watch in link.watches[2:]]))
    assert [len(watch.graphs) for watch in link.watches] == [100, 100], "a smaller report is complete"


@pytest.mark.reason("no-watcher")
@pytest.mark.parametrize(
    ("executable", "said"),
    [("/no/such/python", "the watcher cannot be started"), (shutil.which("false"), "the watcher ended unexpectedly")],
)
def test_watcher_that_does_not_start_is_reported_and_retried(
    link: WatcherLink, monkeypatch: pytest.MonkeyPatch, executable: str, said: str
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    reply = answer(link, wire.Watch(registration("a:b")))
    assert isinstance(reply, wire.Rejected) and reply.code == "no-watcher"
    assert said in reply.message and reply.action
    assert said in link.degraded[0], "`status` says it, too"
    assert link.next_wake(0.0) is not None, "it is tried again"


@pytest.fixture
def stopped(link: WatcherLink, tmp_path: Path) -> WatcherLink:
    """The link to a watcher process. The watcher has one watch, and a signal has stopped the process."""
    known = registration("known:f")
    Registry(tmp_path / "cache").save(identify(known), Record(known, Good({}, [], True, complete=True)))
    answer(link, wire.Unwatch([]))
    assert link._popen is not None and link.watches
    os.kill(link._popen.pid, signal.SIGSTOP)
    return link


@pytest.mark.reason("watcher-busy")
@pytest.mark.parametrize(("size", "number"), [(1, MAX_ASKED), (1_000_000, ASKED_BYTES // 1_000_000 + 1)])
def test_requests_beyond_a_limit_are_rejected_until_the_watcher_reads(
    stopped: WatcherLink, size: int, number: int
) -> None:
    request = wire.Unwatch(["x" * size])
    for _ in range(number):
        stopped.ask(b"peer", request)
    assert stopped.replies == []
    stopped.ask(b"peer", request)
    ((peer, reply),) = stopped.replies
    assert peer == b"peer" and isinstance(reply, wire.Rejected) and reply.code == "watcher-busy"
    assert stopped._popen is not None
    os.kill(stopped._popen.pid, signal.SIGCONT)
    while len(stopped.replies) <= number:
        communicate(stopped)
    stopped.replies = []
    assert answer(stopped, wire.Unwatch(["x"])) == wire.Watching([])


@pytest.mark.reason("no-watcher")
def test_watcher_that_reads_no_ends_of_jobs_is_replaced(stopped: WatcherLink) -> None:
    """If the message about a job's end were lost, the graph would stay in the state "compiling". A new watcher captures
    the graph again.
    """
    first = stopped._popen
    assert first is not None
    stopped.ask(b"peer", wire.Unwatch([]))
    ids = ["x" * 256] * 4000
    for _ in range(UNREAD_BYTES // 1_000_000 + 10):
        stopped.job_ended(ids, "failed", "")
    assert first.returncode is not None, "the stopped watcher was killed"
    ((_, reply),) = stopped.replies
    assert isinstance(reply, wire.Rejected) and reply.code == "no-watcher"
    assert "does not read" in reply.message and "does not read" in stopped.degraded[0]
    stopped.replies = []
    assert answer(stopped, wire.Unwatch([])) == wire.Watching([]) and stopped.degraded == []


# ---------------------------------------------------------------- a capture


@pytest.mark.reason("entry-point")
@pytest.mark.parametrize(
    ("wrong", "said", "advice"),
    [
        (lambda: entry._factories(json, "not_there", "json:not_there"), "json:not_there is not a function", "Name a"),
        (lambda: entry._factories(json, "", "json"), "nothing in json is marked", "@precompiled.entry_point"),
        (lambda: list(entry._pairs(3)), "the factory returned a int", "Return (callable, example inputs)"),
        (lambda: list(entry._pairs([3])), "something that is not a pair", "Return (callable, example inputs)"),
    ],
)
def test_invalid_entry_point_is_an_error(wrong: Callable[[], Any], said: str, advice: str) -> None:
    """test_entry.py tests how a capture reports this error."""
    with pytest.raises(entry.EntryPointError) as caught:
        wrong()
    assert caught.value.code == "entry-point" and said in caught.value.message and advice in caught.value.action


@pytest.mark.reason("not-accepted")
def test_graph_is_reported_failed_if_the_queue_stays_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture cannot retry after its end. If the capture did not report the failure, the watch would be shown as
    compiling forever.
    """
    monkeypatch.setattr(recorder, "ACCEPT_S", 0.2)
    with (
        running_daemon(tmp_path / "d", max_queue=0) as daemon,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver,
    ):
        receiver.bind(str(tmp_path / "reports"))
        receiver.settimeout(TIMEOUT_S)
        for name, value in (("RUNTIME_DIR", daemon.runtime_dir), ("CACHE_DIR", daemon.store), ("AUTOSTART", 0)):
            monkeypatch.setenv(f"PRECOMPILED_{name}", str(value))
        session = Session()
        monkeypatch.setattr(PROCESS, "session", session)
        with closing(session.connection):
            capture = recorder.Recorder("token", 0, str(tmp_path / "reports"))
            submit = daemon.submit()
            capture.graph(GraphReport(submit.id, "f [0/0]", submit.key), "compiling")
            session.connection.submit(submit, b"{}", capture.on_reply)
            capture.flush()
            capture.tell("done")
        messages = [json.loads(receiver.recv(1 << 18))]
        while messages[-1]["event"] != "done":
            messages.append(json.loads(receiver.recv(1 << 18)))
    (rejected,) = [message for message in messages if message["event"] == "rejected"]
    assert (rejected["id"], rejected["code"]) == (submit.id, "not-accepted")
    assert "the daemon did not accept the graph within 0.2 s" in rejected["message"]
