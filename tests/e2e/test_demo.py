"""Tests of examples/demo: its messages, its time limits, and its end after a signal."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from rich.console import Console

DEMO = Path(__file__).parents[2] / "examples" / "demo"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(DEMO))
    names = ("demo", "show", "run", "timeline")
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    import demo as module

    yield module
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(before)


def steps(eager: int, compiled: int) -> list[dict[str, Any]]:
    return [
        {"at": float(number), "seconds": 1.0, "loss": 1.0 / (number + 1), "code": code}
        for number, code in enumerate(["eager"] * eager + ["compiled"] * compiled)
    ]


def test_progress_names_the_process_and_its_step(demo: ModuleType, tmp_path: Path) -> None:
    shown = demo.Demo(Console(), tmp_path)
    now = time.monotonic()

    def said(run: Any, wanted: int, compiled: int, made: list[dict[str, Any]], most_s: float = math.inf) -> str:
        for other in shown.runs[: shown.runs.index(run)]:
            other.launched, other.finished = now, True
        run.launched = run.began = now
        run.wanted_steps, run.wanted_compiled, run.steps, run.most_s = wanted, compiled, made, most_s
        return str(shown._progress())

    assert "1/5  eager (not compiled)" in said(shown.eager, 20, 0, steps(3, 0))
    assert "step 3 of 20, 1000 ms (eager)" in said(shown.eager, 20, 0, steps(3, 0))
    assert "step 1 of 20, " in said(shown.plain_cold, 0, 20, steps(0, 1))
    # The number of steps of process A is unknown until its compile has ended.
    assert "step 70, " in said(shown.a, 0, 20, steps(70, 0))
    assert "step 75 of 90, " in said(shown.a, 0, 20, steps(70, 5))
    assert "step 30 of 90 at most, " in said(shown.b, 90, 20, steps(0, 30), most_s=50.0)
    assert "5/5  plain, warm" in said(shown.plain_warm, 40, 20, steps(0, 39))


@pytest.mark.parametrize(
    ("compiled", "made_by_b", "over"),
    [
        (20, 160, "the losses of A and B over 160 steps, and"),
        (20, 150, "over the first 150 of A's 160 steps, and"),
        (20, 130, "over the first 130 of A's 160 steps, all eager in A, and"),
        (320, 460, "over the first 200 of A's 460 steps, and"),
    ],
)
def test_result_names_the_steps_whose_losses_were_compared(
    demo: ModuleType, tmp_path: Path, compiled: int, made_by_b: int, over: str
) -> None:
    shown = demo.Demo(Console(), tmp_path)
    shown.a.steps, shown.b.steps, shown.plain_warm.steps = steps(140, compiled), steps(0, made_by_b), steps(0, 40)
    holds, sentence = shown.equal_losses()
    assert holds
    assert over in sentence
    shown.b.steps[-1]["loss"] *= 1.01
    assert shown.equal_losses()[0] == (made_by_b > 200), "later losses differ by rounding"
    shown.b.steps[129]["loss"] *= 1.01
    assert not shown.equal_losses()[0]


@pytest.mark.slow
def test_process_starts_no_step_after_its_time_limit() -> None:
    command = [sys.executable, str(DEMO / "observed.py"), "1000000", "0", "1.0"]
    done = subprocess.run(
        command,
        env={**os.environ, "TORCH_COMPILE_DISABLE": "1", "PRECOMPILED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    made = [event for event in events if event["event"] == "step"]
    assert 1 <= len(made) < 1000000
    assert all(step["code"] == "eager" for step in made)
    assert made[-1]["at"] - made[-1]["seconds"] - events[0]["at"] < 1.0, "the last step began in time"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_demo_ended_by_a_signal_leaves_no_files(tmp_path: Path, number: signal.Signals, status: int) -> None:
    """`timeout` signals its child and then the group. So the child gets two signals, as after two Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, str(DEMO / "demo.py")],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stdout:
        if line.startswith("1/5  eager"):
            break
    assert list(tmp_path.glob("pc-demo-*")), "where the demo has its files"
    process.send_signal(number)
    os.killpg(process.pid, number)
    said = ""
    for line in process.stdout:
        said += line
        if "cleaning up" in line:
            os.killpg(process.pid, number)
    errors = process.stderr.read()
    assert process.wait() == status, errors
    assert "Interrupted; cleaning up." in said
    assert "Traceback" not in errors + said
    assert list(tmp_path.iterdir()) == []
    assert [found.pid for found in psutil.process_iter() if _is_of(found, tmp_path)] == []


def _is_of(process: psutil.Process, directory: Path) -> bool:
    try:
        return process.environ().get("TMPDIR", "").startswith(str(directory))
    except psutil.Error:
        return False
