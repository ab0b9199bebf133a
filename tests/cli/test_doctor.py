"""Tests of `precompiled doctor`: each check must recognise a sound host, and a host with a problem."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support_cli import answer, invoke

from precompiled import wire
from precompiled.cli import checks_daemon, checks_hook, checks_host, checks_store, doctor, probe, pth
from precompiled.core import config, paths, python_path
from precompiled.core.check import Check
from precompiled.core.errors import DaemonError
from precompiled.store.artifacts import Store
from precompiled.version import VERSION


def sound(check: Check) -> bool:
    """Returns whether the check is ok. A check that is not ok must say what to do."""
    if check.state != "ok":
        assert check.action, check
    return check.state == "ok"


# ---------------------------------------------------------------- checks of the hook


def test_switch() -> None:
    assert sound(checks_hook.switch({}, "eager", False))
    assert checks_hook.switch({"PRECOMPILED": "0"}, "eager", False).state == "warn"
    assert checks_hook.switch({}, "off", False).state == "warn"
    assert "required" in checks_hook.switch({}, "eager", True).message
    assert "`require` with it" in checks_hook.switch({"PRECOMPILED": "0"}, "eager", True).message


@pytest.mark.parametrize("value", ["off", "False", "no", "00", " 0"])
def test_every_off_value_switches_precompiled_off(value: str) -> None:
    check = checks_hook.switch({"PRECOMPILED": value}, "eager", False)
    assert check.state == "warn" and "precompiled is off" in check.message and f"PRECOMPILED={value} " in check.message


def test_an_invalid_value_switches_nothing_off() -> None:
    check = checks_hook.switch({"PRECOMPILED": "of"}, "eager", False)
    assert check.state == "warn" and "PRECOMPILED=0" in check.action
    assert "PRECOMPILED=of is invalid" in check.message
    for value in ("", "1", "on", "TRUE", "yes"):
        assert sound(checks_hook.switch({"PRECOMPILED": value}, "eager", False))


def test_unrelated_project_with_files_in_the_same_folder_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sound(checks_hook.installation())
    unrelated = tmp_path / "precompiled-0.1.11.dist-info"
    unrelated.mkdir()
    (unrelated / "METADATA").write_text("Metadata-Version: 2.1\nName: precompiled\nVersion: 0.1.11\n")
    (unrelated / "RECORD").write_text("precompiled/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    check = checks_hook.installation()
    assert check.state == "fail" and "0.1.11" in check.message and "uninstall precompiled" in check.action


def test_a_misspelt_variable_is_reported() -> None:
    known = {"PRECOMPILED": "1", "PRECOMPILED_MODE": "wait", "PRECOMPILED_TARGET": "h100", "PATH": "/bin"}
    assert sound(checks_hook.check_variable_names(known))
    check = checks_hook.check_variable_names({**known, "PRECOMPILED_MDOE": "wait", "PRECOMPILED_QQQQ": "1"})
    assert check.state == "warn" and "PRECOMPILED_MDOE (did you mean PRECOMPILED_MODE?)" in check.message
    assert check.message.endswith("PRECOMPILED_QQQQ")


def test_pth_file(tmp_path: Path) -> None:
    assert sound(checks_hook.pth_file([]))
    good, bad = tmp_path / "good.pth", tmp_path / "bad.pth"
    good.write_text(pth.LINE)
    bad.write_text("import something_else\n")
    assert sound(checks_hook.pth_file([good]))
    assert "enable" in checks_hook.pth_file([bad]).action
    assert checks_hook.pth_file([tmp_path]).state == "fail"


def test_hook_in_a_fresh_process() -> None:
    assert sound(checks_hook.here({}, probe.Probe("waiting")))
    absent = checks_hook.here({}, probe.Probe("absent"))
    assert absent.state == "info" and "precompiled run" in absent.action and "enable" in absent.action
    assert checks_hook.here({}, probe.Probe("failed", "it broke")).state == "fail"
    theirs = probe.Probe("absent", sitecustomize="/theirs/sitecustomize.py")
    shadowed = checks_hook.here({"PYTHONPATH": f"/theirs:{python_path.hook_folder()}"}, theirs)
    assert shadowed.state == "fail" and "/theirs/sitecustomize.py" in shadowed.message


def test_a_shadowed_sitecustomize_is_found(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PRECOMPILED")}
    environment["PYTHONPATH"] = f"{tmp_path}:{python_path.hook_folder()}"
    check = checks_hook.here(environment, probe.ask(environment))
    assert check.state == "fail" and str(tmp_path / "sitecustomize.py") in check.message
    # `precompiled run` puts precompiled's sitecustomize first, which then runs the user's.
    check = checks_hook.below_run(probe.ask(python_path.with_hook(environment)))
    assert check.state == "ok" and str(tmp_path / "sitecustomize.py") in check.message


def test_a_failed_probe_reports_why(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('no Python today')\n")
    found = probe.ask({"PYTHONPATH": str(tmp_path)})
    assert found.state == "error" and "no Python today" in found.problem


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("2.11.0", "ok"),
        ("2.13.0+cpu", "ok"),
        ("2.15.1+cu130", "ok"),
        ("2.14.0a0+git123", "ok"),
        ("2.10.9", "fail"),
        ("2.16.0", "fail"),
        ("3.0", "fail"),
        ("1.13.1", "fail"),
        ("nonsense", "fail"),
        (None, "fail"),
    ],
)
def test_torch_version(version: str | None, state: str) -> None:
    check = checks_hook.torch_version(version)
    assert check.state == state and sound(check) == (state == "ok")


def test_route() -> None:
    assert sound(checks_hook.route(probe.Probe("on")))
    assert "it broke" in checks_hook.route(probe.Probe("failed", "it broke")).message


@pytest.mark.integration
@pytest.mark.parametrize("setting", ["program", "off"])
def test_packages_are_checked_in_a_process_with_torch(setting: str) -> None:
    environment = {**os.environ, "PRECOMPILED": "1", "PRECOMPILED_MODE": "eager", "PRECOMPILED_PACKAGES": setting}
    found = probe.ask_with_torch(python_path.with_hook(environment), packages=True)
    assert found.packages == {"program": "on", "off": "off"}[setting], found
    assert sound(checks_hook.packages(found))


def test_a_torch_that_cannot_have_packages_is_reported() -> None:
    check = checks_hook.packages(probe.Probe("on", packages="NotPortable: this torch has no DynamoOutput"))
    assert check.state == "warn" and "no DynamoOutput" in check.message


# ---------------------------------------------------------------- checks of the daemon


@pytest.mark.parametrize(
    ("code", "autostart", "state"),
    [
        ("no-daemon", True, "ok"),
        ("no-daemon", False, "warn"),
        ("no-reply", True, "fail"),
        ("protocol-version", True, "fail"),
        ("not-permitted", True, "fail"),
    ],
)
def test_no_daemon_answers(code: str, autostart: bool, state: str, tmp_path: Path) -> None:
    check = checks_daemon.no_answer(DaemonError("it is so", code=code), tmp_path / "socket", autostart, True)
    assert check.state == state and sound(check) == (state == "ok")


def test_a_silent_system_daemon_is_a_failure() -> None:
    check = checks_daemon.no_answer(DaemonError("x"), paths.SYSTEM_RUNTIME_DIR / "socket", True, True)
    assert check.state == "fail" and "systemctl" in check.action


@pytest.mark.fault("version-skew")
def test_version_skew() -> None:
    def reply(version: str) -> wire.StatusReply:
        return wire.StatusReply(True, 1, version, "/s", "/c", 1.0, 0, [])

    assert sound(checks_daemon.version(reply(VERSION)))
    skewed = checks_daemon.version(reply("9.9"))
    assert skewed.state == "warn" and "9.9" in skewed.message and "restart" in skewed.action


def test_daemon_of_another_store_is_reported(tmp_path: Path) -> None:
    reply = wire.StatusReply(True, 1, VERSION, "/s", str(tmp_path), 1.0, 0, [])
    assert sound(checks_daemon.daemon_store(reply, tmp_path))
    other = checks_daemon.daemon_store(reply, tmp_path / "other")
    assert other.state == "warn" and f"this shell use {tmp_path / 'other'}" in other.message and other.action


def test_runtime_directory(tmp_path: Path) -> None:
    def check(path: Path) -> Check:
        return checks_daemon.runtime_dir(config.Settings(runtime_dir=path))

    directory = tmp_path / "run"
    assert sound(check(directory)) and not directory.exists()
    directory.mkdir(0o700)
    assert sound(check(directory))
    directory.chmod(0o755)
    assert check(directory).state == "warn" and "chmod 700" in check(directory).action
    directory.chmod(0o777)
    assert check(directory).state == "fail"
    (tmp_path / "link").symlink_to(directory)
    (tmp_path / "file").touch()
    # /proc is a special case: its modes let root write to it, but root cannot create a directory in it.
    for path in (tmp_path / "link", tmp_path / "file", tmp_path / "file" / "run", Path("/proc/nope/run")):
        assert check(path).state == "fail" and check(path).action
    assert sorted(item.name for item in tmp_path.iterdir()) == ["file", "link", "run"], "the check leaves no directory"
    if os.geteuid() == 0:
        os.chown(directory, 54321, -1)
        directory.chmod(0o700)
        assert "54321" in check(directory).message


def test_no_daemon_starts_without_a_runtime_directory() -> None:
    checks = {check.check: check for check in checks_daemon.run(config.Settings(runtime_dir=Path("/proc/nope")))}
    assert checks["runtime directory"].state == checks["daemon"].state == "fail"
    assert "/proc cannot get a new directory" in checks["runtime directory"].message
    store = checks_store.directories(Store(Path("/proc/nope")))
    assert store.state == "fail" and "cannot be created" in store.message


@pytest.mark.parametrize(
    ("installed", "state", "expected"),
    [(False, "inactive", "ok"), (True, "active", "ok"), (True, "inactive", "warn"), (True, "failed", "fail")],
)
def test_systemd_unit(installed: bool, state: str, expected: str) -> None:
    check = checks_daemon.judge_unit(installed, state)
    assert check.state == expected and sound(check) == (expected == "ok")


# ---------------------------------------------------------------- checks of the store


def test_store_directories(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert sound(checks_store.directories(store)) and not store.root.exists()
    store.prepare()
    assert sound(checks_store.directories(store))
    store.tmp.chmod(0o777)
    assert "chmod" in checks_store.directories(store).action
    (tmp_path / "file").touch()
    assert checks_store.directories(Store(tmp_path / "file")).state == "fail"


@pytest.mark.usefixtures("own_directories")
@pytest.mark.parametrize("kind", ["file", "link", "broken link", "below a file"])
@pytest.mark.parametrize("command", ["doctor", "cache ls", "cache gc", "explain"])
def test_cache_dir_that_is_no_directory_is_one_problem_of_the_setting(tmp_path: Path, kind: str, command: str) -> None:
    """The path may be mistyped, so the first remedy must not remove what it names."""
    path = tmp_path / "path"
    if "link" in kind:
        path.symlink_to(tmp_path if kind == "link" else tmp_path / "absent")
    else:
        path.touch(0o600)
    store = path / "store" if kind.startswith("below") else path
    if command == "doctor":
        checks = checks_store.run(config.load({"cache_dir": str(store)}))
        [found] = [check for check in checks if check.state == "fail"]
        state, message, action = found.state, found.message, found.action
    else:
        error = answer(*command.split(), "--cache-dir", str(store), status=1)["error"]
        state, message, action = "fail", error["message"], error["action"]
    assert state == "fail" and str(path) in message
    assert re.match("Set (another cache_dir|PRECOMPILED_CACHE_DIR)", action)


@pytest.mark.usefixtures("own_directories")
@pytest.mark.parametrize("kind", ["file", "broken link"])
def test_base_that_is_no_directory_is_a_problem_of_the_setting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "base"
    path.touch(0o600) if kind == "file" else path.symlink_to(tmp_path / "absent")
    found = list(checks_store.run(config.load({"cache_dir": str(tmp_path / "store"), "base": str(path)})))
    [check] = [check for check in found if check.check == f"base {path}"]
    assert check.state == "warn" and check.action.startswith("Set another base")


def test_store_ancestors(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    parent.mkdir(mode=0o700)
    assert sound(checks_store.ancestors(parent / "store"))
    parent.chmod(0o777)
    assert checks_store.ancestors(parent / "deep" / "store").state == "warn"
    parent.chmod(0o1777)  # the sticky bit, as /tmp has it
    assert sound(checks_store.ancestors(parent / "store"))


def test_entries_and_quarantine(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert sound(checks_store.entries(store)) and sound(checks_store.quarantine(store))
    store.prepare()
    (store.artifacts / f"{'a' * 64}.0").mkdir(mode=0o700)
    assert sound(checks_store.entries(store))
    (store.artifacts / f"{'a' * 64}.0").chmod(0o770)
    assert checks_store.entries(store).state == "fail" and checks_store.entries(store).action
    store.quarantine(store.artifacts / f"{'a' * 64}.0", "for a test")
    check = checks_store.quarantine(store)
    assert check.state == "warn" and check.message.startswith("1 ") and check.action


@pytest.mark.fault("file-systems")
@pytest.mark.parametrize(
    ("free", "inodes", "state"),
    [
        (100 << 30, 10**6, "ok"),
        (100 << 30, None, "ok"),
        (1 << 30, 10**6, "warn"),
        (1 << 20, 10**6, "fail"),
        (100 << 30, 5, "warn"),
    ],
)
def test_space(free: int, inodes: int | None, state: str) -> None:
    check = checks_store.space(Path("/x"), free, inodes)
    assert check.state == state and sound(check) == (state == "ok")


@pytest.mark.fault("file-systems")
def test_noexec() -> None:
    assert sound(checks_store.mappable(Path("/x"), False)) and checks_store.mappable(Path("/x"), True).state == "fail"
    assert sound(checks_store.buildable(Path("/x"), False)) and checks_store.buildable(Path("/x"), True).state == "warn"


# ---------------------------------------------------------------- checks of the host


@pytest.mark.parametrize(
    ("watches", "instances", "used", "state"),
    [(8192, 128, 5, "ok"), (8192, 128, 125, "warn"), (100, 128, 5, "warn"), (None, None, 0, "warn")],
)
def test_inotify(watches: int | None, instances: int | None, used: int, state: str) -> None:
    check = checks_host.inotify(watches, instances, used)
    assert check.state == state and sound(check) == (state == "ok")


def test_compiler(tmp_path: Path) -> None:
    def program(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    program("g++", "echo 'g++ 12.2'; echo more")
    broken = program("broken", "echo 'no such library' >&2; exit 1")
    path = {"PATH": str(tmp_path)}
    check = checks_host.compiler(path)
    assert sound(check) and check.message.endswith("g++: g++ 12.2")
    assert "no such library" in checks_host.compiler({**path, "CXX": broken}).message
    missing = checks_host.compiler({**path, "CXX": "clang++-99"})
    assert missing.state == "fail" and "clang++-99" in missing.message and "CXX" in missing.message
    assert checks_host.compiler({"PATH": str(tmp_path / "none")}).state == "fail"


def test_headers(tmp_path: Path) -> None:
    (tmp_path / "Python.h").touch()
    assert sound(checks_host.headers(tmp_path / "Python.h"))
    assert "python3-dev" in checks_host.headers(tmp_path / "none" / "Python.h").action


def test_gpus() -> None:
    listing = "GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA H200 (UUID: GPU-2)"
    check = checks_host.judge_gpus(0, listing, "; CUDA_VISIBLE_DEVICES=1", True)
    assert sound(check) and check.message == "GPU 0: NVIDIA H200; GPU 1: NVIDIA H200; CUDA_VISIBLE_DEVICES=1"
    assert sound(checks_host.judge_gpus(127, "", "", False))
    assert checks_host.judge_gpus(127, "", "", True).state == "warn"
    assert "driver" in checks_host.judge_gpus(9, "driver mismatch", "", True).message


def test_memory_and_limits_of_this_host() -> None:
    assert checks_host.memory().check == "memory"
    assert checks_host._instances_used() >= 0


# ---------------------------------------------------------------- the command `doctor`


@pytest.fixture
def own_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("PRECOMPILED"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PRECOMPILED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PRECOMPILED_RUNTIME_DIR", str(tmp_path / "run"))


@pytest.mark.usefixtures("own_directories")
@pytest.mark.parametrize(("state", "status"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_exit_status(monkeypatch: pytest.MonkeyPatch, state: str, status: int) -> None:
    found = [Check("first", "ok", "[bold]fine[/bold]"), Check("second", state, "so", "do this")]  # type: ignore[arg-type]
    monkeypatch.setattr(doctor, "groups", lambda complete: {"found": lambda settings: iter(found)})
    result = invoke("doctor")
    assert result.exit_code == status and ("do this" in result.output) == (state != "ok")
    assert "[bold]fine[/bold]" not in result.output and "[bold]fine[/bold]" in invoke("doctor", "--all").output
    warnings = "1 warning." if state == "warn" else "no warnings."
    failed = "1 failed" if state == "fail" else "none failed"
    assert result.output.endswith(f"2 checks, {failed}, {warnings} --all shows all checks.\n")
    second = answer("doctor", status=status)[1]
    assert second == {"check": "second", "state": state, "message": "so", "action": "do this"}


@pytest.mark.usefixtures("own_directories")
def test_problems_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Check(state, state, f"message of {state}", "act") for state in ("ok", "info", "warn", "fail")]  # type: ignore[arg-type]
    monkeypatch.setattr(doctor, "groups", lambda complete: {"found": lambda settings: iter(found)})
    lines = invoke("doctor", "--all").output.splitlines()
    assert [line.split()[0] for line in lines if "message" in line] == ["FAIL", "WARN", "info", "ok"]
    assert lines[-1] == "4 checks, 1 failed, 1 warning."


@pytest.mark.usefixtures("own_directories")
def test_store_that_cannot_be_made_is_one_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config.load({"cache_dir": "/proc/none"})
    assert [(check.check, check.state) for check in checks_store.run(settings)] == [("store", "fail")]


@pytest.mark.usefixtures("own_directories")
def test_a_check_that_raises_counts_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(settings: config.Settings):  # type: ignore[no-untyped-def]
        yield Check("before", "ok", "fine")
        raise RuntimeError("the check is wrong")

    after = [Check("after", "ok", "fine")]
    monkeypatch.setattr(doctor, "groups", lambda complete: {"broken": broken, "after": lambda settings: iter(after)})
    checks = doctor.run_checks(config.load())
    assert [check.state for check in checks] == ["ok", "fail", "ok"] and "the check is wrong" in checks[1].message


@pytest.mark.usefixtures("own_directories")
@pytest.mark.integration
def test_all_checks_on_this_host() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "precompiled", "doctor", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    checks = {item["check"]: item for item in json.loads(done.stdout)}
    expected = {
        "settings",
        "switch",
        "installation",
        "variables",
        "pth",
        "hook",
        "run",
        "torch",
        "route",
        "runtime directory",
        "daemon",
        "systemd",
        "store",
        "store path",
        "entries",
        "quarantine",
        "space",
        "store noexec",
        "build noexec",
        "inotify",
        "compiler",
        "headers",
        "gpus",
        "targets",
        "memory",
        "packages",
    }
    assert set(checks) == expected
    assert not [item for item in checks.values() if "this check failed" in item["message"]]
    assert all(checks[name]["state"] == "ok" for name in ("run", "torch", "route", "daemon", "store")), checks
    assert done.returncode == int(any(item["state"] == "fail" for item in checks.values())) and done.stderr == ""
