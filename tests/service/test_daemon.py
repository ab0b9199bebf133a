"""Tests of a real daemon: when a worker, a client or the daemon itself dies, no accepted job is lost and no process is
left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from precompiled.service.server import Lock
from support_daemon import (
    TIMEOUT_S,
    DaemonUnderTest,
    alive,
    graph,
    processes_with,
    raw_client,
    running_daemon,
    wait_until,
)

from precompiled import wire
from precompiled.client.daemon_link import daemon_reachable


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonUnderTest]:
    with running_daemon(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    """A daemon for tests that neither end the daemon, nor read its counts or its list of workers."""
    with running_daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


def seen(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def busy_worker(daemon: DaemonUnderTest) -> wire.WorkerStatus:
    workers = wait_until(lambda: [w for w in daemon.status().workers if w.state == "busy"], "a busy worker")
    return workers[0]


def test_four_clients_of_one_key_share_one_compile(daemon: DaemonUnderTest, tmp_path: Path) -> None:
    go = tmp_path / "go"
    clients = [raw_client(daemon.settings) for _ in range(4)]
    opened = [client.__enter__() for client in clients]
    try:
        messages = [daemon.submit(key="same") for _ in opened]
        for client, message in zip(opened, messages, strict=True):
            client.submit(message, graph("wait-for", path=str(go)))
            client.receive()
        go.touch()
        for client, message in zip(opened, messages, strict=True):
            assert client.ended(message.id).state == "published"
    finally:
        for client in clients:
            client.__exit__(None, None, None)
    stats = daemon.stats()
    assert (stats.submitted, stats.compiled, stats.deduplicated) == (4, 1, 3)


def test_a_worker_has_its_clients_variables_and_one_device(shared_daemon: DaemonUnderTest, tmp_path: Path) -> None:
    log = tmp_path / "log"
    environment = shared_daemon.environment(TORCH_X="1", PRECOMPILED="1", CUDA_VISIBLE_DEVICES="7", **{"A=B": "no"})
    message = shared_daemon.submit(environment=environment)
    with raw_client(shared_daemon.settings) as client:
        client.submit(message, graph(log=str(log)))
        client.ended(message.id)
    (entry,) = seen(log)
    variables = entry["env"]
    assert isinstance(variables, dict)
    assert variables["TORCH_X"] == "1"
    assert variables["PRECOMPILED"] == "0", "the hook is off in workers"
    assert variables["CUDA_VISIBLE_DEVICES"] == "", "a CPU worker sees no GPU"
    assert "MARK" not in variables, "no variable of the daemon"
    assert entry["cwd"] == "/"


def test_workers_use_the_batch_scheduling_class(daemon: DaemonUnderTest, tmp_path: Path) -> None:
    with raw_client(daemon.settings) as client:
        client.submit(daemon.submit(), graph("wait-for", path=str(tmp_path / "go")))
        assert os.sched_getscheduler(busy_worker(daemon).pid) == os.SCHED_BATCH
        (tmp_path / "go").touch()


def test_the_graph_of_a_client_that_disconnects_is_compiled(shared_daemon: DaemonUnderTest) -> None:
    message = shared_daemon.submit()
    with raw_client(shared_daemon.settings) as client:
        client.submit(message, graph())
        client.receive()
    wait_until((shared_daemon.store / message.key).exists)


def test_a_graph_of_40_mib_is_compiled(shared_daemon: DaemonUnderTest) -> None:
    with raw_client(shared_daemon.settings) as client:
        message = shared_daemon.submit()
        client.submit(message, graph() + b" " * (40 << 20))
        assert client.ended(message.id).state == "published"


@pytest.mark.fault("worker-dies")
def test_a_worker_that_dies_before_ready_is_started_again(shared_daemon: DaemonUnderTest, tmp_path: Path) -> None:
    message = shared_daemon.submit(environment=shared_daemon.environment(FAKE_START=f"die-once:{tmp_path / 'mark'}"))
    with raw_client(shared_daemon.settings) as client:
        client.submit(message, graph())
        assert client.ended(message.id).state == "published"


@pytest.mark.fault("worker-dies")
@pytest.mark.reason("worker-cannot-start")
def test_an_interpreter_whose_workers_die_before_ready_is_rejected(shared_daemon: DaemonUnderTest) -> None:
    message = shared_daemon.submit(environment=shared_daemon.environment(FAKE_START="die"))
    with raw_client(shared_daemon.settings) as client:
        client.submit(message, graph())
        reply = client.ended(message.id)
    assert reply.code == "worker-cannot-start" and "cannot import torch" in reply.message


@pytest.mark.reason("cannot-start")
@pytest.mark.parametrize("executable", ["/nonexistent/python", "/etc/passwd", "/"])
def test_an_interpreter_that_cannot_be_executed_is_rejected(shared_daemon: DaemonUnderTest, executable: str) -> None:
    environment = wire.Interpreter(executable, "/", "3.11", "2.13", "", {})
    message = shared_daemon.submit(environment=environment)
    with raw_client(shared_daemon.settings) as client:
        client.submit(message, graph())
        reply = client.ended(message.id)
    assert reply.code == "worker-cannot-start" and executable in reply.message and "cannot-start:" in reply.message


@pytest.mark.fault("worker-dies")
def test_an_idle_worker_that_is_killed_is_replaced(daemon: DaemonUnderTest) -> None:
    with raw_client(daemon.settings) as client:
        first = daemon.submit()
        client.submit(first, graph())
        client.ended(first.id)
        (worker,) = daemon.status().workers
        os.kill(worker.pid, signal.SIGKILL)
        wait_until(lambda: not daemon.status().workers)
        second = daemon.submit()
        client.submit(second, graph())
        assert client.ended(second.id).state == "published"


@pytest.mark.fault("worker-dies")
def test_a_worker_killed_in_mid_job_has_its_job_retried(daemon: DaemonUnderTest, tmp_path: Path) -> None:
    log, go = tmp_path / "log", tmp_path / "go"
    message = daemon.submit()
    with raw_client(daemon.settings) as client:
        client.submit(message, graph("wait-for", path=str(go), log=str(log)))
        wait_until(lambda: seen(log))
        os.kill(busy_worker(daemon).pid, signal.SIGKILL)
        go.touch()
        assert client.ended(message.id).state == "published"
    assert [entry["attempt"] for entry in seen(log)] == [1, 2]
    assert daemon.stats().retried == 1


@pytest.mark.fault("worker-dies")
def test_a_worker_killed_before_it_reads_its_graph_does_not_count_as_a_death(
    daemon: DaemonUnderTest, tmp_path: Path, tries: Callable[[int, int], int]
) -> None:
    with raw_client(daemon.settings) as client:
        for number in range(tries(1, 20)):
            first, second = daemon.submit(), daemon.submit()
            client.submit(first, graph())
            client.ended(first.id)
            (worker,) = daemon.status().workers
            os.kill(worker.pid, signal.SIGSTOP)
            size = number % 2 * (1 << 20)  # the kernel takes only a part of a graph of 1 MiB
            client.submit(second, graph("die-once", mark=str(tmp_path / second.id)) + b" " * size)
            assert busy_worker(daemon).pid == worker.pid
            os.kill(worker.pid, signal.SIGKILL)
            assert client.ended(second.id).state == "published", daemon.log()


@pytest.mark.fault("deadly-graph")
def test_a_key_that_kills_two_workers_is_quarantined(daemon: DaemonUnderTest) -> None:
    with raw_client(daemon.settings) as client:
        message = daemon.submit(key="deadly")
        client.submit(message, graph("die"))
        reply = client.ended(message.id)
        assert reply.code == "key-quarantined" and "I am dying" in reply.message
        again = daemon.submit(key="deadly")
        client.submit(again, graph("publish"))
        assert client.ended(again.id).code == "key-quarantined"
    assert daemon.stats().failed == 1


@pytest.mark.reason("worker-error")
@pytest.mark.parametrize(
    ("do", "reason"),
    [("fail", "it does not compile"), ("raise", "user code went wrong"), ("leave", "user code leaves")],
)
def test_a_failed_compile_keeps_the_worker(daemon: DaemonUnderTest, do: str, reason: str) -> None:
    with raw_client(daemon.settings) as client:
        message = daemon.submit()
        client.submit(message, graph(do))
        reply = client.ended(message.id)
        assert reply.code == "compile-failed" and reason in reply.message
        (worker,) = daemon.status().workers
        assert (worker.state, worker.jobs_done) == ("idle", 1)
        assert ("failed, boom" if do == "fail" else "failed, worker-error") in daemon.log()


def test_output_of_user_code_does_not_disturb_the_protocol(shared_daemon: DaemonUnderTest) -> None:
    with raw_client(shared_daemon.settings) as client:
        message = shared_daemon.submit()
        client.submit(message, graph("print"))
        assert client.ended(message.id).state == "published"


@pytest.mark.fault("worker-dies")
def test_a_worker_that_breaks_the_protocol_is_ended(daemon: DaemonUnderTest) -> None:
    with raw_client(daemon.settings) as client:
        message = daemon.submit()
        client.submit(message, graph("garbage"))
        assert client.ended(message.id).code == "key-quarantined"
    assert not daemon.status().workers


@pytest.mark.fault("hangs")
def test_a_worker_that_hangs_is_ended_with_all_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with running_daemon(tmp_path / "d", job_timeout_s=1.0) as daemon, raw_client(daemon.settings) as client:
        message = daemon.submit()
        client.submit(message, graph("spawn", path=str(pids)))
        reply = client.ended(message.id)
        assert reply.code == "key-quarantined" and "longer than" in reply.message
        for pid in map(int, pids.read_text().split()):
            wait_until(lambda pid=pid: not alive(pid), "children end")
        wait_until(lambda: not psutil.Process(daemon.pid).children(), "no zombie is left")


@pytest.mark.fault("memory")
@pytest.mark.reason("key-quarantined", "memory")
def test_a_worker_over_its_memory_limit_is_ended(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path, job_memory_bytes=200 << 20) as daemon,
        raw_client(daemon.settings) as client,
    ):
        message = daemon.submit()
        client.submit(message, graph("hog", bytes=400 << 20))
        reply = client.ended(message.id)
        assert reply.code == "key-quarantined" and "memory: " in reply.message and "MiB resident" in reply.message


@pytest.mark.fault("daemon-dies")
def test_a_killed_daemon_leaves_no_worker_and_can_be_started_again(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with running_daemon(tmp_path / "d") as daemon:
        with raw_client(daemon.settings) as client:
            client.submit(daemon.submit(), graph("spawn", path=str(pids)))
            worker = busy_worker(daemon)
            wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
            # The worker's descendants are the guardian, two commands, and the child of a command's shell.
            wait_until(lambda: len(psutil.Process(worker.pid).children(recursive=True)) >= 4)
            daemon.stop(signal.SIGKILL)
            wait_until(lambda: not alive(worker.pid), "the worker ends")
            of_own_session, plain = map(int, pids.read_text().split())
            wait_until(lambda: not alive(plain), "its compilers end")
            # The worker and its guardian are gone, so the test must kill this process group.
            os.killpg(of_own_session, signal.SIGKILL)
        assert not daemon_reachable(daemon.settings), "a socket without a daemon is not reachable"
        lock = Lock(daemon.runtime_dir / "lock")
        assert lock.acquire()
        lock.release()
        daemon.start()
        with raw_client(daemon.settings) as client:
            message = daemon.submit()
            client.submit(message, graph())
            assert client.ended(message.id).state == "published"


@pytest.mark.fault("start-races")
@pytest.mark.reason("stopping")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_ends_all_jobs_and_processes(tmp_path: Path, number: int) -> None:
    pids = tmp_path / "pids"
    with running_daemon(tmp_path / "d") as daemon, raw_client(daemon.settings) as client:
        running, queued = daemon.submit(), daemon.submit()
        client.submit(running, graph("spawn", path=str(pids)))
        client.submit(queued, graph())
        wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        assert daemon.stop(number) == 0
        assert {client.ended(running.id).code, client.ended(queued.id).code} == {"stopping"}
        assert not [pid for pid in map(int, pids.read_text().split()) if alive(pid)]
        assert processes_with(str(tmp_path)) == []
        assert not (daemon.runtime_dir / "socket").exists()


def test_sighup_is_ignored(shared_daemon: DaemonUnderTest) -> None:
    os.kill(shared_daemon.pid, signal.SIGHUP)
    assert shared_daemon.status().pid == shared_daemon.pid


def test_a_stop_request_ends_the_daemon(daemon: DaemonUnderTest) -> None:
    from precompiled.client.ask import request

    assert request(daemon.settings, wire.Stop()).pid == daemon.pid
    assert daemon.process is not None and daemon.process.wait(TIMEOUT_S) == 0


@pytest.mark.fault("start-races")
@pytest.mark.reason("already-running")
def test_a_second_daemon_exits_and_leaves_the_first_one_running(daemon: DaemonUnderTest) -> None:
    other = DaemonUnderTest(daemon.directory)
    other.start(expect="already-running")
    assert other.process is not None and other.process.wait(TIMEOUT_S) == 0
    assert daemon.status().pid == daemon.pid


@pytest.mark.fault("daemon-dies")
def test_a_daemon_exits_when_its_socket_is_removed(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        (daemon.runtime_dir / "socket").unlink()
        assert daemon.process is not None
        assert daemon.process.wait(TIMEOUT_S) == 1, "with this status, systemd restarts the daemon"


def test_an_idle_daemon_exits_after_daemon_idle_s(tmp_path: Path) -> None:
    with running_daemon(tmp_path, daemon_idle_s=0.5) as daemon:
        assert daemon.process is not None
        assert daemon.process.wait(TIMEOUT_S) == 0


@pytest.mark.reason("idle")
def test_idle_workers_are_released(tmp_path: Path) -> None:
    with running_daemon(tmp_path, worker_idle_s=0.3) as daemon, raw_client(daemon.settings) as client:
        message = daemon.submit()
        client.submit(message, graph())
        client.ended(message.id)
        wait_until(lambda: not daemon.status().workers)
        assert "ended: idle" in daemon.log()


@pytest.mark.reason("no-such-device")
def test_an_unknown_gpu_is_rejected(shared_daemon: DaemonUnderTest) -> None:
    with raw_client(shared_daemon.settings) as client:
        for device in ("tpu", "cuda:", "cuda:GPU-1;rm"):
            message = shared_daemon.submit(device=device)
            client.submit(message, graph())
            assert client.ended(message.id).code == "no-such-device"


def test_systemd_gets_ready_watchdog_and_stopping(tmp_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(TIMEOUT_S)
        sock.bind(str(tmp_path / "notify"))
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}
        (tmp_path / "folder").mkdir(mode=0o700)
        (tmp_path / "link").symlink_to(tmp_path / "folder")
        command = [
            sys.executable,
            "-m",
            "precompiled.service",
            "--runtime-dir",
            str(tmp_path / "link" / "r"),
            "--cache-dir",
            str(tmp_path / "s"),
        ]
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
            try:
                assert b"READY=1" in sock.recv(4096)
                assert sock.recv(4096) == b"WATCHDOG=1"
                assert sock.recv(4096) == b"WATCHDOG=1"
                _break_for_a_while(tmp_path / "link")
                assert sock.recv(4096) == b"WATCHDOG=1", "a file system error does not end the daemon"
                process.terminate()
                while b"STOPPING=1" not in sock.recv(4096):
                    pass
                assert process.wait(TIMEOUT_S) == 0
            finally:
                process.kill()


def _break_for_a_while(parent: Path) -> None:
    """Make the link ``parent`` point to itself for some of the daemon's self-checks, then restore it. A rename replaces
    the link atomically, so the path always exists.
    """
    folder = parent.readlink()
    for target in (parent, folder):
        changed = parent.with_name("changed")
        changed.symlink_to(target)
        changed.rename(parent)
        time.sleep(0.4)


def test_wrong_options_exit_with_status_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "precompiled.service", "--runtime-dir", str(tmp_path)]
    for wrong in (["--workers", "many"], ["--nonsense"], ["--ready-fd", "77"], ["--runtime-dir", "relative"]):
        done = subprocess.run([*command, *wrong], capture_output=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 2, done.stderr


def test_the_daemon_raises_its_descriptor_limit(shared_daemon: DaemonUnderTest) -> None:
    line = next(
        line for line in Path(f"/proc/{shared_daemon.pid}/limits").read_text().splitlines() if "open files" in line
    )
    soft, hard = line.split()[3:5]
    assert hard == "unlimited" or int(soft) == min(int(hard), 65536)


def test_stderr_goes_to_the_current_log_after_a_rotation(tmp_path: Path) -> None:
    script = (
        "import os, sys, logging\n"
        "from precompiled.core import config\n"
        "from precompiled.service import __main__ as main\n"
        "main.LOG_FILE_BYTES = 500\n"
        "settings = config.load({'runtime_dir': sys.argv[1]})\n"
        "main._log_to_file(settings)\n"
        "for number in range(20): logging.info('line %d of many, to fill the log', number)\n"
        "os.write(2, b'Fatal Python error\\n')\n"
    )
    environment = {**os.environ, "PRECOMPILED_LOG": "info"}
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, env=environment)
    assert "Fatal Python error" in (tmp_path / "daemon.log").read_text()
    assert "Fatal Python error" not in (tmp_path / "daemon.log.1").read_text()


def test_the_daemon_imports_no_heavy_library_and_is_small(daemon: DaemonUnderTest) -> None:
    script = (
        "import sys, precompiled.service.daemon\n"
        "heavy = {'torch', 'asyncio', 'rich', 'click', 'watchdog', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=TIMEOUT_S)
    assert daemon.status().rss_bytes < 60 << 20


# Other users cannot enter the directories of the tests' Python, so this worker needs only the system's Python.
PLAIN_WORKER = """\
#!/usr/bin/python3
import os, sys
fd = int(sys.argv[sys.argv.index("--control-fd") + 1])
os.write(fd, bytes.fromhex("{ready}"))
os.read(fd, 1 << 16)
store = "{store}/" + str(os.getuid())
with open(store + "/said", "w") as file:
    file.write(repr((os.getuid(), os.getgid(), os.getgroups(), os.environ["HOME"], os.environ["X"])))
os.write(fd, bytes.fromhex("{finished}"))
os.read(fd, 1 << 16)
"""
ASK_AS = """\
import os, sys, zmq
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
s = zmq.Context().socket(zmq.DEALER); s.connect("ipc://" + sys.argv[2])
s.send_multipart([bytes.fromhex(a) for a in sys.argv[4:]])
for _ in range(int(sys.argv[3])):
    assert s.poll(20000), "no reply"
    print(s.recv_multipart()[1].hex())
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/usr/bin/python3", os.X_OK), reason="needs root and /usr/bin/python3"
)
def test_a_system_daemons_workers_run_as_their_clients_users() -> None:
    import tempfile

    uid, other = 54321, 54322
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        directory = Path(name)
        directory.chmod(0o755)
        daemon = DaemonUnderTest(directory)
        plain = directory / "plain"
        environment = wire.Interpreter(str(plain), "/", "3", "2", "", {"X": "the user's", "HOME": "/elsewhere"})
        message = wire.Submit("id", "key", str(daemon.store / str(uid)), environment, "cpu")
        plain.write_text(
            PLAIN_WORKER.format(
                ready=wire.frame(wire.Ready(1, "3", "2", "0")).hex(),
                finished=wire.frame(wire.Finished("id", "key", "published", 1.0)).hex(),
                store=daemon.store,
            )
        )
        plain.chmod(0o755)

        def ask(who: int, replies: int, *frames: bytes) -> list[object]:
            command = [sys.executable, "-c", ASK_AS, str(who), str(daemon.runtime_dir / "socket"), str(replies)]
            done = subprocess.run(
                [*command, *(frame.hex() for frame in (wire.PREAMBLE, *frames))],
                check=True,
                capture_output=True,
                timeout=TIMEOUT_S,
            )
            return [wire.decode(bytes.fromhex(line), wire.DaemonMessage) for line in done.stdout.decode().split()]

        try:
            daemon.start("--system")
            assert (daemon.runtime_dir / "socket").stat().st_mode & 0o777 == 0o666
            replies = ask(uid, 2, wire.encode(message), b"graph")
            assert getattr(replies[-1], "state", "") == "published", replies
            tree = daemon.store / str(uid)
            assert (tree.stat().st_uid, tree.stat().st_mode & 0o777) == (uid, 0o700)
            assert (tree / "said").read_text() == repr((uid, uid, [uid], "/elsewhere", "the user's"))
            (mine,) = ask(uid, 1, wire.encode(wire.Status()))
            (theirs,) = ask(other, 1, wire.encode(wire.Status()))
            assert isinstance(mine, wire.StatusReply) and [worker.uid for worker in mine.workers] == [uid]
            assert mine.cache_dir == str(tree)
            assert isinstance(theirs, wire.StatusReply) and theirs.workers == []
            (counted,) = ask(other, 1, wire.encode(wire.Stats()))
            assert isinstance(counted, wire.StatsReply) and counted.submitted == 0
            (refused,) = ask(other, 1, wire.encode(wire.Stop()))
            assert isinstance(refused, wire.Rejected) and refused.code == "not-permitted"
            assert daemon.stats().compiled == 1, "root sees the sum"
            assert daemon.stop() == 0
            assert processes_with(name) == []
        finally:
            daemon.cleanup()
