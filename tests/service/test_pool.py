"""Tests of the pool: devices, variables and budgets without processes, and the exits of real worker processes."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from precompiled.service import budget, processes
from precompiled.service import pool as pool_module
from precompiled.service.channel import Channel
from precompiled.service.events import KillWorker, StartWorker, WorkerGone
from precompiled.service.gpus import DeviceError, Devices, Gpu, parse_inventory
from precompiled.service.metrics import Metrics
from precompiled.service.pool import Pool
from precompiled.service.processes import become_subreaper
from support_daemon import wait_until

from precompiled import wire
from precompiled.core import worker_variables
from precompiled.core.config import Settings
from precompiled.core.errors import WireError
from precompiled.made_up_cuda.kinds import UUID_PREFIX

INVENTORY = """\
0, GPU-11111111-aaaa-bbbb-cccc-000000000000, NVIDIA H200
1, GPU-22222222-aaaa-bbbb-cccc-000000000000, NVIDIA H200
2, GPU-33333333-aaaa-bbbb-cccc-000000000000, NVIDIA RTX 6000
"""


def known(gpus: list[Gpu]) -> Devices:
    devices = Devices(lambda: gpus)
    devices.begin()
    assert devices._thread is not None
    devices._thread.join()
    return devices


def test_the_output_of_nvidia_smi_is_parsed() -> None:
    gpus = parse_inventory("a warning\n" + INVENTORY + "\n")
    assert [(gpu.index, gpu.uuid[:7]) for gpu in gpus] == [(0, "GPU-111"), (1, "GPU-222"), (2, "GPU-333")]


def test_workers_are_pinned_by_uuid() -> None:
    devices = known(parse_inventory(INVENTORY))
    assert devices.visible("cpu") == ""
    for gpu in devices.gpus() or []:
        assert devices.visible(f"cuda:{gpu.uuid}") == gpu.uuid
        assert devices.visible(f"cuda:{gpu.uuid.removeprefix('GPU-')}") == gpu.uuid, "torch omits the prefix"


@pytest.mark.parametrize("device", ["", "cuda", "cuda:", "cuda:1,2", "gpu:1", "cuda:GPU-99999999", "cuda:a b"])
def test_an_invalid_or_unknown_device_is_refused(device: str) -> None:
    with pytest.raises(DeviceError):
        known(parse_inventory(INVENTORY)).visible(device)


def test_the_error_for_an_unknown_gpu_lists_the_known_ones() -> None:
    with pytest.raises(DeviceError, match="RTX 6000"):
        known(parse_inventory(INVENTORY)).visible("cuda:GPU-9")
    with pytest.raises(DeviceError, match="its GPUs: none"):
        known([]).visible("cuda:GPU-9")


def test_without_nvidia_smi_any_uuid_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some containers have the GPU driver without nvidia-smi, and nvidia-smi fails if one of several GPUs is broken."""
    for text in ("", "#!/bin/sh\necho No devices were found\nexit 6\n"):
        if text:
            (tmp_path / "nvidia-smi").write_text(text)
            (tmp_path / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        devices = Devices()
        devices.begin()
        assert devices._thread is not None
        devices._thread.join()
        assert devices.visible("cuda:GPU-9") == "GPU-9"


def test_a_made_up_gpu_is_accepted_whatever_the_inventory() -> None:
    made_up = f"{UUID_PREFIX}0000-0000-000000000001"
    for inventory in (INVENTORY, ""):
        assert known(parse_inventory(inventory)).visible(f"cuda:{made_up}") == made_up


def test_before_the_inventory_is_known_any_uuid_is_accepted() -> None:
    assert Devices(lambda: []).visible("cuda:MIG-1-2") == "MIG-1-2"
    devices = Devices(lambda: [])
    devices.begin = lambda: None  # type: ignore[method-assign]
    assert devices.visible("cuda:GPU-9") == "GPU-9"


def test_variables_that_exec_refuses_are_left_out() -> None:
    good = {"PATH": "/bin", "TORCH_LOGS": "", "X": "a=b"}
    bad = {"": "x", "A=B": "x", "N\0": "x", "V": "\0", "PRECOMPILED": "1", "CUDA_VISIBLE_DEVICES": "0"}
    assert worker_variables.usable({**good, **bad}) == good


@pytest.mark.parametrize(("cores", "gib", "slots"), [(1, 2, 1), (2, 23, 1), (8, 32, 2), (16, 8, 2), (128, 1024, 16)])
def test_the_budget_follows_the_host(cores: int, gib: int, slots: int) -> None:
    limits = budget.limits(Settings(), cores, gib << 30)
    assert (limits.slots, limits.cores, limits.compile_threads) == (slots, cores, 0)
    assert limits.slots < limits.processes
    assert budget.job_memory_bytes(Settings(), limits.slots, gib << 30) * slots <= gib << 30


def test_settings_override_the_budget() -> None:
    limits = budget.limits(Settings(workers=3, compile_threads=5, max_queue=7), 2, 1 << 30)
    assert (limits.slots, limits.compile_threads, limits.max_queue) == (3, 5, 7)


@pytest.mark.fault("frames")
def test_the_channel_reads_split_messages_and_refuses_too_large_ones() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    data = wire.frame(wire.Finished("i", "k", "exists", 0.0)) * 2
    got = []
    for byte in data:
        theirs.send(bytes([byte]))
        got += channel.receive()
    assert len(got) == 2
    theirs.send((wire.MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(WireError):
        channel.receive()
    theirs.close()
    channel.close()


@pytest.mark.fault("load")
def test_the_channel_buffers_what_the_worker_has_not_read() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    job = wire.Job("i", "k", "/s", "cpu", b"x" * (4 << 20), 1, 1.0)
    channel.send(job)
    assert channel.wants_write
    received = b""
    expected = wire.frame(job)
    while len(received) < len(expected):
        received += theirs.recv(1 << 20)
        channel.flush()
    assert received == expected and not channel.wants_write
    theirs.close()
    channel.send(job)
    assert channel.closed, "sending to a worker that has exited raises nothing"
    channel.close()


@pytest.mark.reason("other")
def test_counters_are_separate_per_user_and_limited() -> None:
    metrics = Metrics()
    metrics.tally(1, wire.Tally(1, hits=2, fallbacks={"a" * 200: 1}))
    metrics.tally(2, wire.Tally(1, hits=5, misses=-3, saved_s=float("nan")))
    assert (metrics.reply(1).hits, metrics.reply(2).hits, metrics.reply(None).hits, metrics.reply(3).hits) == (
        2,
        5,
        7,
        0,
    )
    assert (metrics.reply(2).misses, metrics.reply(2).saved_s) == (0, 0.0)
    for number in range(1000):
        metrics.add(1, "fallbacks", reason=f"r{number}")
    assert len(metrics.reply(1).fallbacks) <= 201 and metrics.reply(1).fallbacks["other"] > 700


def test_counters_continue_after_a_restart(tmp_path: Path) -> None:
    first = Metrics()
    first.load(tmp_path)
    first.save()
    assert not list(tmp_path.iterdir()), "nothing was counted"
    first.tally(7, wire.Tally(1, hits=2, saved_s=1.5, fallbacks={"freezing": 3}))
    first.save()
    second = Metrics()
    second.load(tmp_path)
    second.tally(7, wire.Tally(1, hits=1))
    assert second.reply(7) == wire.StatsReply(hits=3, saved_s=1.5, fallbacks={"freezing": 3})
    assert second.reply(8) == wire.StatsReply()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"7": 1}', '{"7": {"hits": "2"}}', '{"x": {}}', '{"7": {"gone": 1}}'])
def test_damaged_file_of_counters_counts_as_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "stats.json").write_text(text)
    metrics = Metrics()
    metrics.load(tmp_path)
    assert metrics.reply(7) == wire.StatsReply()
    metrics.tally(7, wire.Tally(1, hits=2))
    assert metrics.reply(7).hits == 2


# This worker's child exits and leaves a grandchild, which runs in a session of its own.
LEAVES_AN_ORPHAN = """\
#!/bin/sh
cd {directory}
(setsid sh -c 'echo $$ >pid; read line <go' &)
exec sleep 1000
"""


@pytest.fixture
def subreaper() -> Iterator[None]:
    assert become_subreaper()
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


def events_of(pool: Pool) -> list[object]:
    """Call ``check`` until the pool has events, and return the events."""
    found: list[object] = []

    def look() -> list[object]:
        pool.check()
        found.extend(pool.take_events())
        return found

    return wait_until(look, "an event of the pool")


def wait_for_end(pid: int) -> None:
    assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT) is not None


def test_a_worker_has_low_priority_until_yields_until(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\nexec sleep 1000\n")
    interpreter.chmod(0o755)
    now = 100.0
    pool = Pool(system=False, job_memory_bytes=1 << 40, devices=known([]), clock=lambda: now)
    try:
        environment = wire.Interpreter(str(interpreter), "/", "", "", "", {})
        pool.start(StartWorker(1, os.getuid(), os.getgid(), environment, "cpu", yields_until=104.0))
        autogroup = Path(f"/proc/{pool.statuses(None)[0].pid}/autogroup")
        if not autogroup.exists():
            pytest.skip("this kernel has no autogroups (CONFIG_SCHED_AUTOGROUP)")
        assert autogroup.read_text().split()[-1] == "19"
        pool.check()
        assert autogroup.read_text().split()[-1] == "19"
        now = 104.0
        # At first, the kernel may refuse to raise the priority of an unprivileged process.
        while autogroup.read_text().split()[-1] != "0":
            assert pool.next_wake(now) is not None
            pool.check()
        pool.set_priority(1, 200.0)
        while autogroup.read_text().split()[-1] != "19":
            pool.set_priority(1, 200.0)
        pool.set_priority(1, 0.0)
        while autogroup.read_text().split()[-1] != "0":
            pool.check()
    finally:
        pool.close()


def test_only_orphans_that_ended_are_reaped(tmp_path: Path, subreaper: None) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(LEAVES_AN_ORPHAN.format(directory=tmp_path))
    interpreter.chmod(0o755)
    for name in ("pid", "go"):
        os.mkfifo(tmp_path / name)
    pool = Pool(system=False, job_memory_bytes=1 << 40, devices=known([]))
    try:
        environment = wire.Interpreter(str(interpreter), "/", "", "", "", {})
        pool.start(StartWorker(1, os.getuid(), os.getgid(), environment, "cpu"))
        orphan = int((tmp_path / "pid").read_text())
        worker = pool.statuses(None)[0].pid
        (tmp_path / "go").write_text("\n")
        fd = os.pidfd_open(orphan)
        select.select([fd], [], [])
        os.close(fd)
        wait_for_end(orphan)
        pool.check()
        assert not psutil.pid_exists(orphan)

        # Like nvidia-smi, this child is awaited by other code, so the pool must not reap it.
        mine = os.spawnv(os.P_NOWAIT, "/bin/true", ["true"])
        wait_for_end(mine)
        pool.check()
        assert os.waitpid(mine, 0) == (mine, 0)

        os.kill(worker, signal.SIGKILL)
        wait_for_end(worker)
        pool._reap_orphans()
        [gone] = events_of(pool)
        assert isinstance(gone, WorkerGone) and "SIGKILL" in gone.detail, "the worker was not reaped as an orphan"
    finally:
        pool.kill(KillWorker(1, "test"))
        pool.close()


# This worker closes its control stream and keeps running.
CLOSES_ITS_STREAM = """\
#!{python}
import os, sys, time
os.close(int(sys.argv[sys.argv.index("--control-fd") + 1]))
time.sleep(1000)
"""


@pytest.mark.fault("hangs")
@pytest.mark.reason("no-exit")
def test_a_worker_that_closes_its_stream_and_stays_is_killed(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(CLOSES_ITS_STREAM.format(python=sys.executable))
    interpreter.chmod(0o755)
    now = 100.0
    pool = Pool(system=False, job_memory_bytes=1 << 40, devices=known([]), clock=lambda: now)
    try:
        environment = wire.Interpreter(str(interpreter), "/", "", "", "", {})
        pool.start(StartWorker(1, os.getuid(), os.getgid(), environment, "cpu"))
        (pid,) = (status.pid for status in pool.statuses(None))
        while pool.statuses(None)[0].state != "stopping":
            poll = select.poll()
            for fd, events in pool.fds().items():
                poll.register(fd, events)
            for fd, _ in poll.poll(30_000):
                pool.on_fd(fd, select.POLLIN)
        pool.check()
        assert pool.take_events() == [] and psutil.pid_exists(pid), "the worker has time to exit"
        now += 1000.0
        [gone] = events_of(pool)
        assert isinstance(gone, WorkerGone) and gone.reason == "no-exit" and not psutil.pid_exists(pid)
    finally:
        pool.close()


@pytest.mark.fault("hangs")
def test_a_worker_that_cannot_be_killed_does_not_stop_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that hangs in the kernel ignores SIGKILL, so in this test the pool sends no signal. The pool must report
    the worker as gone after a timeout, and reap the process when it ends.
    """
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\nexec sleep 1000\n")
    interpreter.chmod(0o755)
    pool = Pool(system=False, job_memory_bytes=1 << 40, devices=known([]))
    try:
        environment = wire.Interpreter(str(interpreter), "/", "", "", "", {})
        pool.start(StartWorker(1, os.getuid(), os.getgid(), environment, "cpu"))
        (pid,) = (status.pid for status in pool.statuses(None))
        with monkeypatch.context() as patch:
            patch.setattr(processes, "kill_tree", lambda *_: [])
            patch.setattr(pool_module, "GONE_S", 0.1)
            pool.kill(KillWorker(1, "time-limit"))
            assert pool.take_events() == [], "kill does not wait for the worker"
        [gone] = events_of(pool)
        assert isinstance(gone, WorkerGone) and (gone.reason, gone.detail) == ("time-limit", "killed, but still alive")
        assert psutil.pid_exists(pid) and pool.statuses(None) == []
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
        pool.check()
        assert not psutil.pid_exists(pid)
    finally:
        pool.close()


@pytest.mark.fault("worker-dies")
def test_the_end_of_a_dead_workers_stream_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy host, the guardian lives on for seconds and holds the stream open. Only the stream's end tells whether
    the worker had read its job.
    """
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\nexec sleep 1000\n")
    interpreter.chmod(0o755)
    now = 100.0
    pool = Pool(system=False, job_memory_bytes=1 << 40, devices=known([]), clock=lambda: now)
    unread: bool | None = None
    monkeypatch.setattr(Channel, "left_unread", lambda channel: unread)
    try:
        environment = wire.Interpreter(str(interpreter), "/", "", "", "", {})
        pool.start(StartWorker(1, os.getuid(), os.getgid(), environment, "cpu"))
        pool._processes[1].jobs.append("key")
        pid = pool.statuses(None)[0].pid
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
        for _ in range(2):
            pool.check()
            now += pool_module.GONE_S + 1.0
        assert pool.take_events() == []
        unread = True
        pool.check()
        [gone] = pool.take_events()
        assert isinstance(gone, WorkerGone) and gone.reason == "died" and gone.unread
    finally:
        pool.close()


@pytest.mark.reason("host-full")
def test_a_worker_without_free_descriptors_is_reported_as_host_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """If clients have used up all descriptors, the daemon cannot start a worker. The daemon must report the cause and
    keep running.
    """
    pool = Pool(system=False, job_memory_bytes=0, devices=known([]))

    def none_left(*_: object) -> None:
        raise OSError(24, "Too many open files")

    environment = wire.Interpreter(sys.executable, sys.prefix, "3", "2", "", {})
    order = StartWorker(1, os.getuid(), os.getgid(), environment, "cpu")
    for name in ("socket.socketpair", "os.pipe"):
        with monkeypatch.context() as patch:
            patch.setattr(name, none_left)
            pool.start(order)
        (gone,) = pool.take_events()
        assert isinstance(gone, WorkerGone) and gone.reason == "host-full" and "Too many open files" in gone.detail
