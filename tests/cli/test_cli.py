"""Tests of the command line.

The tests of exit statuses, exec and daemons start real processes. The tests of output use click's runner.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from support_cli import KEYS, answer, invoke, precompiled
from support_daemon import raw_client, wait_until

from precompiled import wire
from precompiled.cli import code, logs, tree
from precompiled.core import config, words
from precompiled.store import artifact_format as fmt
from precompiled.store import package_format, scratch
from precompiled.store.artifacts import Store
from precompiled.store.packages import PackageStore
from precompiled.version import VERSION

# ---------------------------------------------------------------- all commands


def test_version_and_help() -> None:
    assert invoke("--version").output.strip().endswith(VERSION)
    text = invoke("--help").output
    assert [line.split()[0] for line in text.splitlines() if line.startswith("  ")] == tree.children("")


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["cache", "ls", "--frob"],
        ["cache", "show"],
        ["run"],
        ["cache", "frobnicate"],
        ["config", "--set", "x"],
        ["config", "--set", "wat=1"],
        ["config", "--set", "mode=fast"],
        ["status", "--cache-dir", "relative"],
    ],
)
def test_wrong_use_is_status_2(settled: None, arguments: list[str]) -> None:
    plain = invoke(*arguments)
    assert plain.exit_code == 2 and plain.stdout == "" and plain.stderr.startswith("precompiled: ")
    assert "--help" in plain.stderr
    assert answer(*arguments, status=2)["error"]["code"] == "usage"


@pytest.mark.reason("bad-config")
def test_the_error_for_a_bad_setting_names_its_origin(environment: dict[str, str]) -> None:
    done = precompiled({**environment, "PRECOMPILED_MODE": "fast"}, "status", "--json")
    assert done.returncode == 1 and "PRECOMPILED_MODE" in done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "bad-config" and set(error) == {"code", "message", "action"}


def test_a_closed_pipe_causes_no_traceback(environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m precompiled config --json | true"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_run_imports_no_heavy_library() -> None:
    # `precompiled run` must start programs fast, so it imports no libraries for tables, sockets or tensors.
    code = (
        "import sys; from precompiled.cli.app import cli; cli.get_command(None, 'run'); "
        "print(*{'torch', 'msgspec', 'rich', 'psutil', 'watchdog'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""


def test_config_shows_every_setting_with_its_origin(environment: dict[str, str]) -> None:
    folder = Path(environment["XDG_CONFIG_HOME"]) / "precompiled"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("workers = 3\n")
    done = precompiled(environment, "config", "--json", "--set", "max_queue=5")
    found = json.loads(done.stdout)
    assert list(found) == list(config.NAMES)
    assert found["max_queue"] == {"value": 5, "origin": "flag", "meaning": "limit of queued jobs over all users"}
    assert (found["workers"]["value"], found["workers"]["origin"]) == (3, f"file {folder / 'config.toml'}")
    assert found["cache_dir"]["origin"] == "env PRECOMPILED_CACHE_DIR"
    text = precompiled(environment, "config").stdout
    assert all(name in text for name in config.NAMES) and len(text.splitlines()) == len(config.NAMES) + 1
    named = precompiled(environment, "config", "log_file", "max_queue")
    assert "max_queue: limit of queued jobs over all users.\n  To set it: PRECOMPILED_MAX_QUEUE=VALUE" in named.stdout
    assert "workers" not in named.stdout.partition("\n\n")[0]
    assert list(json.loads(precompiled(environment, "config", "--json", "log_file").stdout)) == ["log_file"]
    by_variable = precompiled(
        environment, "config", "--json", "PRECOMPILED_MODE", "--set", "PRECOMPILED_WORKERS=7", "workers"
    )
    found = json.loads(by_variable.stdout)
    assert list(found) == ["mode", "workers"] and found["workers"]["value"] == 7


def test_an_unknown_setting_is_refused(environment: dict[str, str]) -> None:
    for arguments in (["PRECOMPILED_MDOE"], ["--set", "mdoe=wait"]):
        said = precompiled(environment, "config", *arguments).stderr
        assert "Did you mean 'mode'?" in said and "cache_max_bytes" not in said
    assert "`precompiled config` lists all settings" in precompiled(environment, "config", "qqqq").stderr


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("command", ["status", "cache stats", "daemon start", "daemon stop", "daemon restart"])
@pytest.mark.parametrize("timeout", ["0", "-1"])
def test_a_timeout_in_which_no_daemon_can_answer_is_refused(command: str, timeout: str) -> None:
    error = answer(*command.split(), f"--timeout={timeout}", status=2)["error"]
    assert error["code"] == "usage" and "--timeout" in error["message"]


# ---------------------------------------------------------------- commands about the daemon


def test_commands_without_a_daemon(environment: dict[str, str]) -> None:
    status = precompiled(environment, "status", "--json")
    assert status.returncode == 1 and status.stderr == ""
    found = json.loads(status.stdout)
    assert found["running"] is False and found["pid"] is None and found["workers"] == []
    assert found["socket"] == environment["PRECOMPILED_RUNTIME_DIR"] + "/socket"
    assert found["cache_dir"] == environment["PRECOMPILED_CACHE_DIR"]
    assert "precompiled daemon start" in precompiled(environment, "status").stdout

    stats = precompiled(environment, "cache", "stats", "--json")
    assert stats.returncode == 0 and json.loads(stats.stdout)["hits"] == 0
    assert precompiled(environment, "cache", "stats").stdout.startswith("Nothing is counted yet.")
    assert not Path(environment["PRECOMPILED_RUNTIME_DIR"]).exists()

    cancel = precompiled(environment, "daemon", "cancel", "abcd", "--json")
    assert cancel.returncode == 1 and json.loads(cancel.stdout)["error"]["code"] == "no-daemon"
    assert "precompiled daemon start" in cancel.stderr

    stop = precompiled(environment, "daemon", "stop", "--json")
    assert stop.returncode == 0 and json.loads(stop.stdout) == {"stopped": False, "pid": None, "helper_pid": None}
    assert not Path(environment["PRECOMPILED_RUNTIME_DIR"]).exists()


def ended(pid: int) -> bool:
    """Returns whether a process has ended. A zombie counts as ended, because PID 1 may reap it late or never."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.mark.reason("other-settings")
def test_start_status_stats_restart_stop(stopped: dict[str, str]) -> None:
    started = json.loads(precompiled(stopped, "daemon", "start", "--json", "--set", "workers=1").stdout)
    pid = started["pid"]
    assert started["outcome"] == "ready" and psutil.pid_exists(pid)
    again = json.loads(precompiled(stopped, "daemon", "start", "--json", "--set", "workers=1").stdout)
    assert again == {**started, "outcome": "already-running"}
    other = precompiled(stopped, "daemon", "start", "--json", "--set", "workers=2", "--set", "max_queue=1000")
    error = json.loads(other.stdout)["error"]
    assert other.returncode == 1 and error["code"] == "other-settings" and error["message"].endswith("with workers = 1")
    assert error["action"] == "Run `precompiled daemon restart --set workers=2`"

    status = json.loads(precompiled(stopped, "status", "--json").stdout)
    assert {"running", "pid", "version", "socket", "cache_dir", "uptime_s", "queue_depth", "workers"} <= set(status)
    assert (status["running"], status["pid"], status["version"]) == (True, pid, VERSION)
    assert "type" not in status and str(pid) in precompiled(stopped, "status").stdout

    stats = json.loads(precompiled(stopped, "cache", "stats", "--json").stdout)
    assert {
        "hits",
        "misses",
        "submitted",
        "deduplicated",
        "compiled",
        "failed",
        "swapped",
        "fallbacks",
        "bypassed",
        "compile_s",
        "saved_s",
    } <= set(stats)
    assert precompiled(stopped, "cache", "stats").stdout.startswith("Nothing is counted yet.")
    lines = precompiled(stopped, "cache", "stats", "--all").stdout.splitlines()
    assert len(lines) == len(stats) - 2 + 4, "each counter in one of four sections; no remote, no farm"
    assert max(map(len, lines)) <= 80

    settings = config.load({"runtime_dir": stopped["PRECOMPILED_RUNTIME_DIR"]})
    with raw_client(settings) as client:
        client.send(wire.PREAMBLE, wire.encode(wire.Tally(pid=1, hits=3, misses=1, saved_s=90.0)))
        client.send(wire.PREAMBLE, wire.encode(wire.Stats()))
        client.receive()  # the daemon has counted
    restarted = json.loads(precompiled(stopped, "daemon", "restart", "--json").stdout)
    text = precompiled(stopped, "cache", "stats").stdout
    assert text.splitlines() == [
        "lookups",
        "  hits            3 of 4 lookups (75%)",
        "  misses          1",
        "compiles",
        "  compiles saved  1.5 min (compared with empty caches)",
    ]
    assert restarted["outcome"] == "ready" and restarted["pid"] != pid and ended(pid)

    stop = json.loads(precompiled(stopped, "daemon", "stop", "--json").stdout)
    assert precompiled(stopped, "cache", "stats").stdout == text, "the last counts"
    assert stop == {"stopped": True, "pid": restarted["pid"], "helper_pid": None} and ended(restarted["pid"])
    assert not Path(started["socket"]).exists()


@pytest.mark.reason("no-log")
def test_logs_prints_the_end_and_follows(stopped: dict[str, str]) -> None:
    none = precompiled(stopped, "daemon", "logs", "--json")
    log = Path(stopped["PRECOMPILED_RUNTIME_DIR"]) / "daemon.log"
    error = json.loads(none.stdout)["error"]
    assert none.returncode == 1 and error["code"] == "no-log" and str(log) in error["message"]

    precompiled(stopped, "daemon", "start")
    wait_until(lambda: log.read_text().endswith("\n"), "the daemon has logged its start")
    found = json.loads(precompiled(stopped, "daemon", "logs", "--json").stdout)
    assert (found["path"], found["command"]) == (str(log), None)
    assert found["lines"] and found["lines"] == log.read_text().splitlines()[: len(found["lines"])]
    shown = precompiled(stopped, "daemon", "logs", "-n", "1")
    assert shown.stdout.strip() in log.read_text().splitlines() and shown.stderr == f"precompiled: {log}\n"
    with subprocess.Popen(
        [sys.executable, "-m", "precompiled", "daemon", "logs", "-f", "-n", "1"],
        env=stopped,
        stdout=subprocess.PIPE,
        text=True,
    ) as following:
        assert following.stdout is not None
        read = [following.stdout.readline()]
        precompiled(stopped, "daemon", "stop")
        written = log.read_text().splitlines(keepends=True)
        while read[-1] != written[-1]:
            read.append(following.stdout.readline())
        following.send_signal(signal.SIGINT)
        assert following.wait(60) == 0 and len(read) > 1 and read == written[-len(read) :]


def test_logs_follows_a_rotated_log(stopped: dict[str, str]) -> None:
    log = Path(stopped["PRECOMPILED_RUNTIME_DIR"]) / "daemon.log"
    log.parent.mkdir(mode=0o700, exist_ok=True)
    log.write_text("one\n")
    with subprocess.Popen(
        [sys.executable, "-m", "precompiled", "daemon", "logs", "-f"], env=stopped, stdout=subprocess.PIPE, text=True
    ) as following:
        assert following.stdout is not None and following.stdout.readline() == "one\n"
        with log.open("a") as old:
            old.write("two\n")
        newer = log.with_suffix(".new")
        newer.write_text("three\n")
        newer.replace(log)
        assert [following.stdout.readline(), following.stdout.readline()] == ["two\n", "three\n"]
        following.send_signal(signal.SIGINT)
        assert following.wait(60) == 0


def test_logs_of_a_systemd_daemon_names_journalctl(settled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    by_user = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/precompiled.service\n"
    for group, expected in (
        ("0::/system.slice/precompiled.service\n", "journalctl -u precompiled.service -n 5"),
        (by_user, "journalctl --user -u precompiled.service -n 5"),
        ("0::/init.scope\n", None),
    ):
        monkeypatch.setattr(logs, "_group_of_listener", lambda settings, group=group: group)
        status = 0 if expected else 1
        found = answer("daemon", "logs", "-n", "5", status=status)
        assert found.get("command") == expected
        assert not expected or expected in invoke("daemon", "logs", "-n", "5").output


@pytest.mark.reason("start-failed")
def test_start_reports_why_the_daemon_cannot_start(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = precompiled(environment, "daemon", "start", "--json", "--runtime-dir", str(tmp_path / "file" / "run"))
    error = json.loads(done.stdout)["error"]
    assert done.returncode == 1 and error["code"] == "start-failed" and error["action"]
    assert str(tmp_path / "file") in error["message"]


def test_serve_runs_the_daemon_in_the_foreground(stopped: dict[str, str], tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "precompiled", "daemon", "serve", "--set", "max_queue=7"],
        env=stopped,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "setting" in line:
                break
        status = json.loads(precompiled(stopped, "status", "--json").stdout)
        assert status["pid"] == process.pid and "setting max_queue = 7 (flag)" in line
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


# ---------------------------------------------------------------- `precompiled run`


def test_run_enables_the_hook_in_all_children(environment: dict[str, str]) -> None:
    question = "import sys, precompiled.bootstrap as b; print(b.state(), 'torch' in sys.modules)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {question!r}])"
    done = precompiled({**environment, "PYTHONPATH": ""}, "run", "--", sys.executable, "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "waiting False\n", "")


def test_run_passes_its_flags_to_the_command(environment: dict[str, str], tmp_path: Path) -> None:
    keep = {"PYTHONPATH": f"/some/folder{os.pathsep}/another"}
    done = precompiled({**environment, **keep}, "run", "--mode", "wait", "--cache-dir", str(tmp_path / "c"), "env")
    found = dict(line.partition("=")[::2] for line in done.stdout.splitlines() if "=" in line)
    assert found["PRECOMPILED_MODE"] == "wait" and found["PRECOMPILED_CACHE_DIR"] == str(tmp_path / "c")
    ours, *others = found["PYTHONPATH"].split(os.pathsep)
    assert others == ["/some/folder", "/another"] and os.listdir(ours)
    twice = precompiled(environment, "run", "--", sys.executable, "-m", "precompiled", "run", "--", "env").stdout
    assert twice.count(ours) == 1


def test_run_is_replaced_by_the_command(environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "precompiled", "run", "--", "sh", "-c", "echo $$; exec sleep 60"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("command", "status"), [(["sh", "-c", "exit 42"], 42), (["no-such-command"], 127), (["/"], 126)]
)
def test_run_exits_with_the_status_of_its_command(environment: dict[str, str], command: list[str], status: int) -> None:
    done = precompiled(environment, "run", "--", *command)
    assert done.returncode == status and "Traceback" not in done.stderr
    assert bool(done.stderr) == (status != 42)


@pytest.mark.reason("command-not-found", "command-not-executable")
@pytest.mark.parametrize("command", ["run", "timeline", "bake -o DIR", "watch"])
@pytest.mark.parametrize(("name", "status"), [("a train.py", 127), ("./a train.py", 126)])
def test_the_error_for_a_python_file_suggests_python(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, name: str, status: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a train.py").write_text("")
    (tmp_path / "train.sh").write_text("")
    done = precompiled(environment, *command.split(), "--", name)
    assert done.returncode == (status if command in ("run", "timeline") else 1)
    assert done.stderr.splitlines() == [
        f"precompiled: {name} is a Python program, not a command.",
        f"  Run `precompiled {command} -- python '{name}'`.",
    ]
    document = json.loads(precompiled(environment, *command.split(), "--json", "--", name).stdout)
    is_missing = status == 127 or command == "watch"  # watch searches for any executable file
    assert document["error"]["code"] == ("command-not-found" if is_missing else "command-not-executable")
    assert "-- ./train.sh`" in precompiled(environment, *command.split(), "--", "train.sh").stderr
    absent = precompiled(environment, *command.split(), "--", "absent.py").stderr
    assert "no command 'absent.py'" in absent and "spelling and PATH" in absent


def test_run_passes_options_after_the_command_without_a_double_dash(environment: dict[str, str]) -> None:
    assert precompiled(environment, "run", "echo", "--json", "--mode").stdout == "--json --mode\n"
    assert precompiled(environment, "run", "--", "echo", "--json", "--", "x").stdout == "--json -- x\n"


def test_run_restores_the_signals_that_python_ignores(environment: dict[str, str]) -> None:
    done = precompiled(environment, "run", "--", "cat", "/proc/self/status")
    ignored = next(int(line.split()[1], 16) for line in done.stdout.splitlines() if line.startswith("SigIgn"))
    assert not ignored & (1 << (signal.SIGPIPE - 1))


@pytest.mark.parametrize("bad", ["PRECOMPILED_MODE", "PRECOMPILED_WORKERS"])
def test_run_runs_its_command_with_invalid_settings(environment: dict[str, str], bad: str) -> None:
    """A typo in the administrator's configuration file must not stop the jobs of all users."""
    python = [sys.executable, "-c", "import torch; print('done')"]
    done = precompiled({**environment, bad: "wat"}, "run", "--", *python)
    name = bad.removeprefix("PRECOMPILED_").lower()
    said = f"{name} = 'wat' (from env {bad}) cannot be used: "
    assert (done.returncode, done.stdout, done.stderr.count(said)) == (0, "done\n", 1)
    if bad == "PRECOMPILED_MODE":
        done = precompiled({**environment, bad: "wat"}, "run", "--mode", "wait", "--", *python)
        assert (done.stdout, done.stderr) == ("done\n", ""), "the option replaces the variable"


def test_run_names_variables_without_effect(environment: dict[str, str]) -> None:
    wrong = {
        "PRECOMPILED": "maybe",
        "PRECOMPILED_MDOE": "wait",
        "PRECOMPILED_TESTS_PART": "1/2",
        "PRECOMPILED_MINE": "1",
    }
    done = precompiled({**environment, **wrong}, "run", "--", "echo", "done")
    assert done.stdout == "done\n"
    assert done.stderr.splitlines() == [
        "precompiled: PRECOMPILED=maybe is invalid and has no effect. PRECOMPILED=0 switches precompiled off.",
        "precompiled: no setting is named PRECOMPILED_MDOE. Did you mean PRECOMPILED_MODE?",
    ]


def test_run_warns_if_precompiled_is_off(environment: dict[str, str]) -> None:
    done = precompiled({**environment, "PRECOMPILED": "0"}, "run", "--", "echo", "done")
    assert done.returncode == 0 and done.stdout == "done\n" and "PRECOMPILED=0" in done.stderr


# ---------------------------------------------------------------- commands about the store


def test_ls_lists_artifacts_and_failures(store: Store) -> None:
    found = answer("cache", "ls")
    assert found["cache_dir"] == str(store.root)
    assert sorted((row["key"], row["slot"], row["state"]) for row in found["entries"]) == sorted(
        [(KEYS[0], 0, "artifact"), (KEYS[0], 1, "artifact"), (KEYS[1], 0, "artifact"), (KEYS[2], 0, "failed")]
    )
    fields = {"key", "slot", "name", "device", "bytes", "created", "used", "compile_s", "state", "reason", "store"}
    assert fields == set(found["entries"][0])
    text = invoke("cache", "ls").output
    assert text.splitlines()[0].split() == ["KEY", "NAME", "DEVICE", "SIZE", "AGE", "COMPILE", "STATE"]
    assert KEYS[0][:12] + ".1" in text and "2.0 KiB" in text and "12.5 s" in text and "failed: compile-failed" in text
    assert "3 artifacts, 1 failure," in text


def test_ls_shows_the_size_of_scratch_files(store: Store) -> None:
    before = answer("cache", "ls")
    assert before["disk_bytes"] >= sum(row["bytes"] for row in before["entries"]) and before["scratch_bytes"] == 0
    directory = scratch.directory(store.root) / "triton"
    directory.mkdir(parents=True)
    (directory / "kernel").write_bytes(bytes(3 << 20))
    found = answer("cache", "ls")
    assert found["scratch_bytes"] == 3 << 20 and found["disk_bytes"] == before["disk_bytes"] + (3 << 20)
    assert invoke("cache", "ls").output.splitlines()[-1].endswith("including 3.0 MiB of scratch files")


def test_ls_of_an_empty_store(environment: dict[str, str]) -> None:
    for command in ("ls", "size", "gc", "clear --yes"):  # the path may be mistyped
        done = precompiled(environment, "cache", *command.split())
        absent = f"precompiled: the store {environment['PRECOMPILED_CACHE_DIR']} does not exist yet.\n"
        assert (done.returncode, done.stderr) == (0, absent) and "is empty" not in done.stdout
    Path(environment["PRECOMPILED_CACHE_DIR"]).mkdir(mode=0o700)
    done = precompiled(environment, "cache", "ls")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.endswith("cache is empty.\n")
    assert json.loads(precompiled(environment, "cache", "ls", "--json").stdout)["entries"] == []


def test_ls_reports_unreadable_artifacts(store: Store) -> None:
    (store.artifacts / f"{KEYS[1]}.0" / fmt.MANIFEST).write_text("{}")
    result = invoke("cache", "ls")
    assert "1 artifact cannot be read" in result.stderr and KEYS[1][:12] not in result.stdout


def test_a_store_that_others_may_write_is_refused(store: Store) -> None:
    store.artifacts.chmod(0o777)
    for arguments in (["ls"], ["show", KEYS[0]], ["gc"], ["clear", "--yes"], ["size"]):
        assert answer("cache", *arguments, status=1)["error"]["code"] == "store-untrusted"


def test_show_prints_artifacts_and_failures(store: Store) -> None:
    found = answer("cache", "show", KEYS[0][:8])
    assert found["key"] == KEYS[0] and [item["guards"] for item in found["variants"]] == ["s0 < 5", "s0 > 4"]
    assert found["variants"][1]["slot"] == 1 and found["variants"][1]["components"] == {"graph": "g1"}
    assert found["variants"][0]["files"][fmt.BUNDLE]["bytes"] == 2048 and found["failure"] is None
    text = invoke("cache", "show", KEYS[0]).output
    assert "s0 > 4" in text and "artifact 1" in text and "2.13.0" in text
    assert answer("cache", "show", KEYS[2])["failure"]["reason"] == "compile-failed"
    assert "[red]it broke[/red]" in invoke("cache", "show", KEYS[2]).output


class Deadly:
    def __reduce__(self) -> tuple[Any, ...]:
        return exit, (3,)


def test_inductors_code_is_read_without_loading_the_pickle(store: Store) -> None:
    texts = ["# AOT ID: ['0_forward']\nimport torch\n", "# AOT ID: ['0_backward']\nimport torch\n"]
    assert code.extract_generated_code(pickle.dumps([Deadly(), texts, "other", texts])) == texts
    assert "code" not in answer("cache", "show", KEYS[0])["variants"][0]
    assert [item["code"] for item in answer("cache", "show", KEYS[0], "--code")["variants"]] == [[], []]
    assert "artifact 1 has no readable code" in invoke("cache", "show", KEYS[0], "--code").output


@pytest.mark.reason("no-such-key", "ambiguous-key")
def test_show_of_an_unknown_or_ambiguous_key_fails(store: Store) -> None:
    assert answer("cache", "show", "0000", status=1)["error"]["code"] == "no-such-key"
    store.publish_failure(fmt.Failure(KEYS[0][:8] + KEYS[1][8:], "f", "compile-failed", "no", time.time(), 60))
    assert answer("cache", "show", KEYS[0][:4], status=1)["error"]["code"] == "ambiguous-key"
    assert answer("cache", "show", KEYS[0][:12])["key"] == KEYS[0]


@pytest.mark.parametrize(
    "command",
    [
        ("cache", "show"),
        ("cache", "clear"),
        ("daemon", "cancel"),
        ("daemon", "retry"),
        ("remote", "push"),
        ("remote", "pull"),
        ("remote", "sync"),
        ("tools", "tune"),
    ],
)
def test_every_command_needs_four_digits_of_a_key(environment: dict[str, str], command: tuple[str, ...]) -> None:
    assert "'ab1' is too short" in answer(*command, "ab1", status=2)["error"]["message"]
    assert "'../x' is not a key" in answer(*command, "../x", status=2)["error"]["message"]


def test_clear_asks_for_confirmation(store: Store) -> None:
    result = invoke("cache", "clear")
    assert result.exit_code == 2 and "--yes" in result.stderr
    assert len(os.listdir(store.artifacts)) == 4


def test_clear_removes_single_keys_or_everything(store: Store) -> None:
    found = answer("cache", "clear", KEYS[0][:10])
    assert found["removed"] == 2 and found["bytes"] > 4096
    assert sorted(os.listdir(store.artifacts)) == sorted([f"{KEYS[1]}.0", f"{KEYS[2]}.failed"])
    result = invoke("cache", "clear", "--yes")
    assert result.exit_code == 0 and "Removed 1 artifact," in result.output and os.listdir(store.artifacts) == []


def test_clear_and_gc_also_remove_packages(store: Store) -> None:
    packages = PackageStore(store.root)
    function = "a" * 64
    header = package_format.Header(function, "program", "f", "0" * 64, False, "compiled")
    for number in range(3):
        packages.publish(header, b"{}", bytes([number]) * 2000)
    answer("cache", "gc", "--set", "cache_max_bytes=50000")  # packages may use a tenth of this budget
    assert 0 < len(packages.names(function)) < 3
    left = len(packages.names(function))
    assert answer("cache", "clear", KEYS[0])["packages"] == 0 and len(packages.names(function)) == left
    found = invoke("cache", "clear", "--yes")
    assert f"and {left} entries of packages" in found.output
    assert os.listdir(packages.packages) == []


def test_gc_evicts_to_the_budgets(store: Store) -> None:
    os.utime(store.artifacts / f"{KEYS[1]}.0", (1, 1))
    assert answer("cache", "gc")["removed"] == 0
    found = answer("cache", "gc", "--set", "cache_max_inodes=6")
    assert found["removed"] == 1 and found["max_inodes"] == 6
    assert not (store.artifacts / f"{KEYS[1]}.0").exists()


# ---------------------------------------------------------------- formats of numbers


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 << 10, "1.5 MiB"), (1 << 50, "1024.0 TiB")],
)
def test_human_bytes(count: int, text: str) -> None:
    assert words.human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (59.94, "59.9 s"),
        (61, "1 min"),
        (80, "1.3 min"),
        (1234, "21 min"),
        (3600, "1 h"),
        (86400, "24 h"),
        (864000, "10 d"),
    ],
)
def test_human_seconds(seconds: float, text: str) -> None:
    assert words.human_seconds(seconds) == text


# ---------------------------------------------------------------- entries that cannot be read or removed


@pytest.mark.reason("unreadable")
def test_show_of_an_unreadable_artifact_fails(store: Store) -> None:
    (store.artifacts / f"{KEYS[1]}.0" / fmt.MANIFEST).write_bytes(b"{}")
    error = answer("cache", "show", KEYS[1], status=1)["error"]
    assert error["code"] == "unreadable" and "compiled again" in error["action"]
    assert any(store.quarantined.iterdir())


@pytest.mark.reason("not-removed")
def test_clear_fails_if_files_cannot_be_removed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("precompiled.store.trees.os.rename", refuse)
    monkeypatch.setattr("precompiled.store.trees.os.unlink", refuse)
    error = answer("cache", "clear", KEYS[1], "--yes", status=1)["error"]
    assert error["code"] == "not-removed" and "owner and mode" in error["action"]
    assert store.lookup(KEYS[1])
