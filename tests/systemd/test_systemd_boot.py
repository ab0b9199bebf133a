"""Tests of the system daemon under a real systemd, with two unprivileged users.

The tests share one container and run in the order of this file. A compile takes ten seconds, so a graph that one test
compiles is a hit in another. Each test starts the daemon itself (``running``), and depends on earlier tests only
through the module's fixtures.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import nspawn
import programs
import pytest

pytestmark = pytest.mark.systemd

UNIT = "precompiled"
CACHE = "/var/cache/precompiled"
COMPILE_S = 240  # the limit for one tiny graph and the import of torch, on a busy machine
CAPABILITIES = {0: "CHOWN", 5: "KILL", 6: "SETGID", 7: "SETUID"}


# ---------------------------------------------------------------- what users do


@pytest.fixture(scope="module")
def script(machine: nspawn.Machine) -> nspawn.Machine:
    machine.run("mkdir", "-p", "/srv/programs")
    machine.write("/srv/programs/train.py", programs.SCRIPT)
    machine.write("/srv/programs/observe.py", programs.OBSERVER)
    machine.write("/srv/programs/submit.py", programs.SUBMITTER)
    return machine


OBSERVE = ("/srv/programs/observe.py", "/srv/programs/train.py", str(COMPILE_S))


def train(machine: nspawn.Machine, user: str, **env: str) -> dict[str, Any]:
    """Run the user's script in a new process with its own empty Inductor cache, and return the report of its graphs."""
    # With its own Inductor cache, a process can get a hit only from the store.
    private = machine.run("mktemp", "--directory", user=user).out.strip()
    # Switch the audit of packages off, because it makes one process in fifty trace despite a package.
    variables = {
        "TORCHINDUCTOR_CACHE_DIR": private,
        "PRECOMPILED_PACKAGE_AUDIT": "0",
        "PRECOMPILED_CHECK": "never",
        **env,
    }
    done = machine.run(machine.python, *OBSERVE, user=user, timeout=2 * COMPILE_S, env=variables)
    machine.run("rm", "-rf", private, user=user)
    found: dict[str, Any] = json.loads(done.out.splitlines()[-1])
    found["stderr"] = done.err
    return found


def served(run: dict[str, Any]) -> set[tuple[str, str]]:
    """Check that a run's results were right, and return the states and sources of its graphs at its end."""
    assert run["done"] is True, run
    assert run["wrong"] == [], run
    return {(graph["state"], graph["source"]) for graph in run["after"]}


@pytest.fixture(scope="module")
def first_run(script: nspawn.Machine) -> dict[str, Any]:
    """Return the report of the first process that compiles this model, run by alice."""
    script.run("systemctl", "start", UNIT)
    return train(script, "alice")


@pytest.fixture(scope="module")
def others_run(script: nspawn.Machine, first_run: dict[str, Any]) -> dict[str, Any]:
    """Return the report of bob's first process. Another user has run the same model before."""
    script.run("systemctl", "start", UNIT)
    return train(script, "bob")


# ---------------------------------------------------------------- what root sees


def main_pid(machine: nspawn.Machine) -> int:
    return int(machine.show(UNIT, "MainPID")["MainPID"])


def process_status(machine: nspawn.Machine, pid: int) -> dict[str, str]:
    out = machine.run("cat", f"/proc/{pid}/status").out
    return {name: value.strip() for name, _, value in (line.partition(":") for line in out.splitlines())}


def workers(machine: nspawn.Machine) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(machine.run(machine.command, "status", "--json").out)["workers"]
    return found


def start_worker(machine: nspawn.Machine, user: str = "alice") -> dict[str, Any]:
    """Start a warm worker of this user with a job that fails at once, and return the worker as ``status`` shows it."""
    job = f"garbage-{uuid.uuid4().hex}"
    cursor = machine.cursor()
    machine.run(machine.python, "/srv/programs/submit.py", job, user=user)
    uid = uid_of(machine, user)
    machine.await_journal(UNIT, f"graph {job[:12]}: failed", cursor)
    # The states of one graph, by the id that its client uses: queued, running, ended.
    way = machine.run(
        "journalctl",
        "--no-pager",
        "--output=cat",
        "--output-fields=PRECOMPILED_STATE",
        f"--unit={UNIT}",
        f"PRECOMPILED_GRAPH={job}",
    ).out.split()
    assert way == ["queued", "running", "failed"]
    (worker,) = [worker for worker in workers(machine) if worker["uid"] == uid]
    return worker


def uid_of(machine: nspawn.Machine, user: str) -> int:
    return int(machine.run("id", "-u", user).out)


def artifacts(machine: nspawn.Machine, user: str) -> list[str]:
    return sorted(machine.run("ls", f"{CACHE}/{uid_of(machine, user)}/artifacts").out.split())


def gone(machine: nspawn.Machine, pids: list[int]) -> bool:
    return machine.run("ls", "-d", *(f"/proc/{pid}" for pid in pids), check=False).out == ""


@contextmanager
def drop_in(machine: nspawn.Machine, *settings: str) -> Iterator[None]:
    """Change settings of the unit during the block. The installed unit is always restored afterwards."""
    folder = f"/run/systemd/system/{UNIT}.service.d"
    machine.run("mkdir", "-p", folder)
    machine.write(f"{folder}/test.conf", "\n".join(["[Service]", *settings, ""]))
    try:
        machine.run("systemctl", "daemon-reload")
        yield
    finally:
        machine.run("rm", "-r", folder)
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "stop", UNIT)  # the running daemon still has the changed settings


# ---------------------------------------------------------------- the unit


def test_start_returns_when_clients_are_served(machine: nspawn.Machine) -> None:
    machine.run("systemctl", "stop", UNIT)
    machine.run("systemctl", "start", UNIT)
    # Because of Type=notify, the daemon serves clients as soon as `systemctl start` has returned.
    status = json.loads(machine.run(machine.command, "status", "--json", user="alice").out)
    assert status["running"] is True
    assert status["socket"] == "/run/precompiled/socket"
    shown = machine.show(UNIT, "Type", "ActiveState", "SubState", "StatusText", "NotifyAccess", "MainPID")
    assert (shown["Type"], shown["ActiveState"], shown["SubState"]) == ("notify", "active", "running")
    assert shown["NotifyAccess"] == "main"
    assert shown["StatusText"], "nothing but the daemon's own READY=1 message carries a text"
    assert int(shown["MainPID"]) == status["pid"]


def test_daemon_that_is_never_ready_is_not_active(running: nspawn.Machine) -> None:
    """If systemd did not really wait for READY=1, the test above would prove nothing."""
    with drop_in(running, "ExecStart=", "ExecStart=/bin/sleep 600", "TimeoutStartSec=1", "Restart=no"):
        assert running.run("systemctl", "restart", UNIT, check=False).status != 0
        assert running.show(UNIT, "Result", "ActiveState") == {"Result": "timeout", "ActiveState": "failed"}


def test_installed_unit_verifies(machine: nspawn.Machine) -> None:
    done = machine.run("systemd-analyze", "verify", "--man=no", "/etc/systemd/system/precompiled.service")
    assert done.err == ""


def test_directories_have_the_expected_modes_and_owners(running: nspawn.Machine) -> None:
    for path, wanted in {
        "/run/precompiled": "755 root root",
        "/run/precompiled/lock": "600 root root",
        "/run/precompiled/socket": "666 root root",
        CACHE: "755 root root",
    }.items():
        assert running.run("stat", "--format=%a %U %G", path).out.strip() == wanted, path


def test_daemon_has_only_the_capabilities_that_it_needs(running: nspawn.Machine) -> None:
    status = process_status(running, main_pid(running))
    wanted = sum(1 << number for number in CAPABILITIES)
    assert int(status["CapEff"], 16) == wanted
    assert int(status["CapBnd"], 16) == wanted
    assert int(status["CapAmb"], 16) == 0
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


# ---------------------------------------------------------------- workers, crashes, the end


def test_worker_has_only_the_rights_of_its_user(running: nspawn.Machine, script: nspawn.Machine) -> None:
    worker = start_worker(running, "bob")
    uid = str(uid_of(running, "bob"))
    status = process_status(running, worker["pid"])
    assert status["Uid"].split() == [uid] * 4
    assert status["Gid"].split() == [running.run("id", "-g", "bob").out.strip()] * 4
    assert set(status["Groups"].split()) == set(running.run("id", "-G", "bob").out.split())
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    environment = running.run("cat", f"/proc/{worker['pid']}/environ").out.split("\0")
    assert not [line for line in environment if line.startswith(("NOTIFY_SOCKET=", "WATCHDOG_", "LISTEN_"))]
    assert "HOME=/home/bob" in environment


def test_users_see_their_own_workers_only(running: nspawn.Machine, script: nspawn.Machine) -> None:
    start_worker(running, "alice")
    uid = uid_of(running, "bob")
    seen = json.loads(running.run(running.command, "status", "--json", user="bob").out)["workers"]
    assert {worker["uid"] for worker in seen} <= {uid}


def test_a_user_cannot_stop_the_daemon(running: nspawn.Machine) -> None:
    pid = main_pid(running)
    running.run(running.command, "daemon", "stop", user="alice", check=False)
    assert main_pid(running) == pid
    assert json.loads(running.run(running.command, "status", "--json", user="alice").out)["pid"] == pid


def test_killed_daemon_is_restarted_and_its_workers_end(running: nspawn.Machine, script: nspawn.Machine) -> None:
    worker = start_worker(running)["pid"]
    before = main_pid(running)
    left = running.processes_of(UNIT)
    assert {before, worker} <= set(left)
    cursor = running.cursor()
    running.run("kill", "-KILL", str(before))
    running.await_journal(UNIT, "Started precompiled.service", cursor)
    assert main_pid(running) not in (0, before)
    assert gone(running, left)
    assert workers(running) == []


def test_hanging_daemon_is_replaced(running: nspawn.Machine, script: nspawn.Machine) -> None:
    """With a short WatchdogSec, the watchdog leaves a working daemon alone and replaces a hanging one."""
    with drop_in(running, "WatchdogSec=3", "TimeoutAbortSec=3"):
        running.run("systemctl", "restart", UNIT)
        before = main_pid(running)
        started = running.show(UNIT, "WatchdogTimestampMonotonic")
        worker = start_worker(running)["pid"]  # takes seconds, in which a working daemon feeds the watchdog
        assert running.show(UNIT, "WatchdogTimestampMonotonic") != started, "the daemon has not fed the watchdog"
        assert (main_pid(running), running.show(UNIT, "NRestarts")["NRestarts"]) == (before, "0")

        cursor = running.cursor()
        running.run("kill", "-STOP", str(before))
        running.await_journal(UNIT, "Watchdog timeout", cursor)
        running.await_journal(UNIT, "Started precompiled.service", cursor)
        assert main_pid(running) not in (0, before)
        assert gone(running, [before, worker])


def test_stop_leaves_no_process_and_no_socket(running: nspawn.Machine, script: nspawn.Machine) -> None:
    worker = start_worker(running)["pid"]
    processes = running.processes_of(UNIT)
    assert {main_pid(running), worker} < set(processes), "the guardian is in the unit, too"
    running.run("systemctl", "stop", UNIT)
    assert gone(running, processes)
    assert running.run("pgrep", "--full", "precompiled.service", check=False).out == ""
    assert running.processes_of(UNIT) == []
    assert running.run("ls", "-A", "/run/precompiled", check=False).out == ""
    shown = running.show(UNIT, "ActiveState", "Result")
    assert shown == {"ActiveState": "inactive", "Result": "success"}, "an orderly end, and within the time"


# ---------------------------------------------------------------- what users get


def test_first_process_runs_eager_and_swaps(first_run: dict[str, Any]) -> None:
    assert {graph["source"] for graph in first_run["before"]} == {None}, first_run
    assert all(graph["calls_eager"] == 2 for graph in first_run["before"]), first_run
    assert served(first_run) == {("compiled", "swap")}, first_run
    assert all(graph["calls_compiled"] == 1 for graph in first_run["after"]), first_run


def test_second_process_uses_the_packages_of_the_first(
    running: nspawn.Machine, script: nspawn.Machine, first_run: dict[str, Any]
) -> None:
    run = train(running, "alice")
    assert served(run) == {("compiled", "package")}, run  # this process traces nothing
    assert all(graph["calls_eager"] == 0 for graph in run["after"]), run
    assert {graph["key"] for graph in run["after"]} == {graph["key"] for graph in first_run["after"]}


def test_other_user_gets_separate_artifacts(machine: nspawn.Machine, others_run: dict[str, Any]) -> None:
    assert served(others_run) == {("compiled", "swap")}, others_run
    assert len(artifacts(machine, "bob")) == len(others_run["after"])


def test_users_cannot_see_each_others_artifacts(machine: nspawn.Machine, others_run: dict[str, Any]) -> None:
    for owner, other in (("alice", "bob"), ("bob", "alice")):
        store = f"{CACHE}/{uid_of(machine, owner)}"
        assert machine.run("stat", "--format=%a %U", store).out.strip() == f"700 {owner}"
        assert machine.run("find", store, "!", "-user", owner).out == ""
        (name, *_) = artifacts(machine, owner)
        assert machine.run("cat", f"{store}/artifacts/{name}/manifest.json", user=owner).out != ""
        for command in (
            ["ls", store],
            ["ls", f"{store}/artifacts"],
            ["cat", f"{store}/artifacts/{name}/manifest.json"],
            ["touch", f"{store}/artifacts/planted"],
        ):
            done = machine.run(*command, user=other, check=False)
            assert done.status != 0 and "Permission denied" in done.err, command
        listed = machine.run(
            machine.command, "cache", "ls", "--json", user=other, check=False, env={"PRECOMPILED_CACHE_DIR": store}
        )
        assert listed.status == 1 and name not in listed.out


def test_store_of_another_user_is_not_used(
    running: nspawn.Machine, script: nspawn.Machine, first_run: dict[str, Any]
) -> None:
    """With alice's store as its cache directory, bob's program runs correctly and uses none of her artifacts."""
    before = artifacts(running, "alice")
    run = train(running, "bob", PRECOMPILED_CACHE_DIR=f"{CACHE}/{uid_of(running, 'alice')}")
    assert not served(run) & {("compiled", "hit"), ("compiled", "package")}, run
    assert artifacts(running, "alice") == before


def test_restart_loses_nothing(running: nspawn.Machine, script: nspawn.Machine, first_run: dict[str, Any]) -> None:
    before = artifacts(running, "alice")
    pid = main_pid(running)
    running.run("systemctl", "restart", UNIT)
    assert main_pid(running) not in (0, pid)
    assert artifacts(running, "alice") == before
    run = train(running, "alice")
    assert served(run) == {("compiled", "package")}, run  # this process traces nothing
    assert artifacts(running, "alice") == before


def test_store_in_a_home_directory_is_written(running: nspawn.Machine, script: nspawn.Machine) -> None:
    """PRECOMPILED_CACHE_DIR may name any directory that the user can write to. The unit's sandbox must allow writes to
    this directory.
    """
    store = "/home/alice/store"
    run = train(running, "alice", PRECOMPILED_CACHE_DIR=store)
    assert served(run) == {("compiled", "swap")}, run
    assert running.run("find", f"{store}/artifacts", "-name", "manifest.json", user="alice").out != ""


def test_stop_during_a_compile_leaves_no_process_and_the_program_continues(
    running: nspawn.Machine, script: nspawn.Machine
) -> None:
    """No compiler may outlive the daemon. The program must continue, and be served once the daemon runs again."""
    cursor = running.cursor()
    with running.background(running.python, *OBSERVE, user="alice", env={"WIDTH": "33"}) as program:
        running.await_journal(UNIT, ": running, worker", cursor)
        processes = running.processes_of(UNIT)
        running.run("systemctl", "stop", UNIT)
        assert gone(running, processes)
        assert running.run("pgrep", "--full", "precompiled.service", check=False).out == ""
        assert program.poll() is None
        running.run("systemctl", "start", UNIT)
        out, _ = program.communicate(timeout=2 * COMPILE_S)
    assert program.returncode == 0
    run = json.loads(out.splitlines()[-1])
    assert served(run) == {("compiled", "swap")}, run


# ---------------------------------------------------------------- the user unit


@pytest.fixture
def session(machine: nspawn.Machine) -> dict[str, str]:
    """Start alice's user manager, as a login does, and return the environment in which she can reach it."""
    uid = uid_of(machine, "alice")
    machine.run("systemctl", "start", f"user@{uid}.service")
    return {"XDG_RUNTIME_DIR": f"/run/user/{uid}"}


def test_user_unit_serves_its_user_and_yields_to_a_system_daemon(
    machine: nspawn.Machine, session: dict[str, str]
) -> None:
    def alice(*command: str) -> str:
        return machine.run(*command, user="alice", env=session).out

    machine.run("systemctl", "stop", UNIT)
    alice(machine.python, "-m", "precompiled.systemd.install", "--user")
    alice("systemctl", "--user", "start", UNIT)
    shown = alice("systemctl", "--user", "show", UNIT, "--property=ActiveState,StatusText,MainPID")
    assert "ActiveState=active" in shown
    assert "StatusText=serving" in shown
    status = json.loads(alice(machine.command, "status", "--json"))
    runtime = f"{session['XDG_RUNTIME_DIR']}/precompiled"
    assert status["socket"] == f"{runtime}/socket"
    assert alice("stat", "--format=%a %U", runtime).strip() == "700 alice"
    assert alice("stat", "--format=%a %U", f"{runtime}/socket").strip() == "600 alice"
    alice("systemctl", "--user", "stop", UNIT)
    assert gone(machine, [status["pid"]])
    assert alice("find", runtime, "-type", "s") == ""

    # The user unit does not start beside a system daemon, because clients would never use the user's daemon.
    machine.run("systemctl", "start", UNIT)
    alice("systemctl", "--user", "start", UNIT)
    shown = alice("systemctl", "--user", "show", UNIT, "--property=ActiveState,ConditionResult")
    assert shown.splitlines() == ["ActiveState=inactive", "ConditionResult=no"]
    alice(machine.python, "-m", "precompiled.systemd.install", "--user", "--uninstall")
    assert alice("find", "/home/alice/.config/systemd/user", "-name", "precompiled*") == ""


def test_uninstall_removes_the_unit_and_keeps_the_artifacts(machine: nspawn.Machine) -> None:
    """This test must be the last one, because it stops the daemon and removes the unit."""
    machine.run("systemctl", "enable", "--now", UNIT)
    machine.run(machine.python, "-m", "precompiled.systemd.install", "--uninstall")
    assert machine.show(UNIT, "LoadState", "ActiveState") == {"LoadState": "not-found", "ActiveState": "inactive"}
    assert machine.run("find", "/etc/systemd", "-name", "precompiled.service").out == ""
    machine.run("test", "-d", CACHE)
