"""Tests that the GPU check keeps results that were finished before a limit, and leaves no process behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil
from support_daemon import wait_until

from benchmarks.gpu_check.__main__ import report, run, write
from benchmarks.gpu_check.parts import PARTS, Part, read_tests

# Writes a result, starts a process in a new session, writes its pid, and hangs.
HANGS = """
import json, pathlib, subprocess, sys, time
pathlib.Path(sys.argv[1]).write_text(json.dumps({"rows": [["one", "done"]]}))
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path(sys.argv[2]).write_text(str(left.pid))
time.sleep(600)
"""


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def document(*parts: dict[str, object]) -> dict[str, object]:
    return {"made_up": True, "at": "now", "machine": {"commit": "c0ffee"}, "parts": list(parts)}


def test_part_beyond_its_limit_keeps_its_result_and_leaves_no_process(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    part = Part(PARTS[0].name, 5.0, lambda result, made_up: [sys.executable, "-c", HANGS, str(result), str(pid)], list)
    found = run(part, made_up=False)
    assert found["outcome"] == "cut off after 5 s"
    assert found["result"] == {"rows": [["one", "done"]]}
    left = int(pid.read_text())
    wait_until(lambda: has_ended(left))  # a killed process ends when it next gets a core


def test_report_has_each_part_also_without_a_result(tmp_path: Path) -> None:
    part = Part(PARTS[0].name, 60.0, lambda result, made_up: [sys.executable, "-c", "raise SystemExit('no GPU')"], list)
    failed = run(part, made_up=False)
    assert failed["outcome"] == "FAILED" and "no GPU" in failed["output"]
    done = {"part": PARTS[0].name, "outcome": "passed", "seconds": 1.0, "result": {"rows": [["GPU", "H100"]]}}
    both = document(failed, done)
    write(both, tmp_path)
    assert json.loads((tmp_path / "gpu-check.json").read_text()) == both
    text = (tmp_path / "gpu-check.md").read_text()
    assert "no result" in text and "| GPU | H100 |" in text and text == "\n\n".join(report(both)) + "\n"


def test_outcomes_of_pytest_are_counted_and_failures_named(tmp_path: Path) -> None:
    file, result = tmp_path / "test_three.py", tmp_path / "result"
    file.write_text(
        "import pytest\ndef test_right(): pass\ndef test_wrong(): assert 1 == 2\n"
        "@pytest.mark.skip\ndef test_left(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(file)]
    run(Part("tests", 60.0, lambda _, made_up: [*command, f"--junitxml={result}"], list), made_up=False)
    found = read_tests(result)
    assert (found["passed"], found["skipped"], list(found["failed"])) == (1, 1, ["test_wrong"])
    assert "1 == 2" in found["failed"]["test_wrong"]
