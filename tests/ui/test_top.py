"""Tests of `precompiled status --watch` on a real pseudo-terminal, with a real daemon whose worker is held in a job.

The expected screens are in goldens/, with `N` in place of numbers that differ between runs. After an intended change,
set GOLDENS=1 in the environment to regenerate these files, and review the difference.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support_daemon import DaemonUnderTest, graph, raw_client, running_daemon, wait_until
from support_terminal import Screen, Terminal, on_terminal

from precompiled import wire
from precompiled.cli import top_view as view
from precompiled.store import job_phases, run_records
from precompiled.store.artifact_format import Failure
from precompiled.store.artifacts import Store
from precompiled.store.lines import folder

GOLDENS = Path(__file__).parent / "goldens"
COMPILING, QUEUED, SERVED = "ab12" * 16, "cd34" * 16, "ef56" * 16


def process(root: Path, run: str, rank: int, ranks: int, program: str, *graphs: dict[str, object]) -> None:
    """Write the record of a run in which this process is rank ``rank`` of the program ``program``."""
    now = time.time()
    first = {
        "rank": rank,
        "ranks": ranks,
        "pid": os.getpid(),
        "started": run_records.start_of(os.getpid()),
        "program": program,
        "argv": ["python", program],
        "executable": sys.executable,
        "directory": "/",
        "began": now - 125,
    }
    lines = [first, *({"id": str(at), "at": now - 100 * at - 75, **item} for at, item in enumerate(graphs))]
    file = run_records.begin(root, run) / f"{rank}-{os.getpid()}.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    file.chmod(0o600)


@dataclass
class Busy:
    daemon: DaemonUnderTest
    go_on: Path

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRECOMPILED")}
        settings = self.daemon.settings
        return {
            **kept,
            "PRECOMPILED_CACHE_DIR": str(settings.cache_dir),
            "PRECOMPILED_AUTOSTART": "0",
            "PRECOMPILED_RUNTIME_DIR": str(settings.runtime_dir),
            "NO_COLOR": "",
        }

    @contextmanager
    def top(self, *arguments: str, columns: int = 80, rows: int = 24) -> Iterator[Terminal]:
        command = [sys.executable, "-m", "precompiled", "status", "--watch", "--interval", "0.2", *arguments]
        with on_terminal(command, self.environment(), self.daemon.directory, columns=columns, rows=rows) as terminal:
            yield terminal


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Busy]:
    """Yield a daemon with one running and one waiting job, beside records of two ranks and a server."""
    directory = tmp_path_factory.mktemp("d")
    go_on = directory / "go-on"
    with running_daemon(directory, workers=1) as daemon, raw_client(daemon.settings) as client:
        root = daemon.settings.cache_dir
        pending = {"name": "forward [0/0]", "key": COMPILING, "state": "pending"}
        queued = {"name": "step [2/0]", "key": QUEUED, "state": "pending"}
        served = {"name": "TransformerBlock [1/0]", "key": SERVED, "state": "compiled", "source": "hit"}
        process(root, "torchrun-7", 0, 2, "train.py", pending, {**served, "saved_s": 30.0})
        process(root, "torchrun-7", 1, 2, "train.py", pending, queued)
        process(
            root,
            "process-1",
            0,
            1,
            "a_server_with_a_long_name.py",
            {"name": "encode [0/0]", "state": "bypassed", "source": "inline", "reason": "graph-attribute"},
            {"name": "decode\x1b[2J", "state": "failed", "reason": "key-quarantined"},
        )
        for key in (COMPILING, QUEUED):
            client.submit(daemon.submit(key), graph("wait-for", path=str(go_on)))
        client.send(wire.PREAMBLE, wire.encode(wire.Tally(pid=1, hits=3, misses=1, saved_s=90.0)))
        wait_until(lambda: [worker.job for worker in daemon.status().workers] == [COMPILING], "the worker is busy")
        wait_until(lambda: daemon.stats().hits == 3, "the counts are there")
        try:
            yield Busy(daemon, go_on)
        finally:
            go_on.touch()


def golden(name: str, screen: str) -> None:
    """Compare the screen with a golden file, regardless of numbers and of their widths."""
    text = re.sub(r"\d+(\.\d+)?", "N", re.sub(r"\b(ab12|cd34|ef56)+\b", lambda key: key[0][:4] + "...", screen))
    text = re.sub(r"N (s|min|h|ms)\b", "N s", re.sub(r"N (KiB|MiB)", "N MiB", text))
    text = re.sub(r"(\w{4})\w*\.\.(?!\.)", r"\1..", text)  # a name is shortened if the numbers beside it need the room
    text = re.sub(r"( for N s) \(.*", r"\1", text)
    text = "\n".join(re.sub(r"^ +| {2,}", "  ", line) for line in text.splitlines()) + "\n"
    file = GOLDENS / f"{name}.txt"
    if os.environ.get("GOLDENS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


def whole(screen: str) -> bool:
    """Return whether the screen shows a complete frame. The last line of a frame lists the keys."""
    return "q quit" in screen.splitlines()[-1] if screen else False


@pytest.mark.parametrize("columns", [80, 120])
def test_screen_fits_the_terminal_and_equals_the_golden(busy: Busy, columns: int) -> None:
    with busy.top(columns=columns) as terminal:
        screen = terminal.wait_for(whole)
        assert max(map(len, screen.splitlines())) <= columns and len(screen.splitlines()) == 24
        golden(f"top-{columns}", screen)
        terminal.press("q")
        assert terminal.ended() == 0
    # At its end, `--watch` shows the cursor again and leaves the alternate screen.
    assert terminal.written.endswith("\x1b[?25h\x1b[?1049l")


def test_keys_filter_search_sort_and_quit(busy: Busy) -> None:
    with busy.top() as terminal:
        terminal.wait_for(whole)
        terminal.press("f")
        screen = terminal.wait_for("shown: waiting")
        assert "encode" not in screen and "queued" in screen
        terminal.press("ff")
        assert "TransformerBlock" in terminal.wait_for(lambda text: "shown: compiled" in text and "encode" not in text)
        terminal.press("f/serv")
        terminal.wait_for("program: serv_")
        terminal.press("\r")
        screen = terminal.wait_for("of serv")
        assert "train.py" not in screen and "graph-attribute" in screen
        terminal.press("/\x1b")  # Escape ends the search, so all programs are shown again
        terminal.press("ss")
        screen = terminal.wait_for(lambda text: "sort: program" in text and "train.py" in text)
        graphs = screen[screen.index("STATE") :]
        assert graphs.index("encode") < graphs.index("forward") < graphs.index("step")
        terminal.press("\x03")
        assert terminal.ended() == 0


def test_arrows_select_a_graph_that_keys_act_on(busy: Busy) -> None:
    with busy.top() as terminal:
        terminal.wait_for(whole)
        terminal.press("?")
        terminal.wait_for(lambda text: "explain the selected graph" in text and "any key: back" in text)
        terminal.press("q")  # ends the help only
        terminal.wait_for(whole)
        terminal.press("\x1b[B")
        assert "Enter explain" in terminal.wait_for("> compiling")
        terminal.press("\x1b[B\x1b[B")
        screen = terminal.wait_for("> queued")
        assert "> compiling" not in screen
        terminal.press("\r")
        terminal.wait_for("any key: back")
        terminal.press(" ")
        terminal.wait_for("> queued")
        terminal.press("c")
        terminal.wait_for(f"cancel key: {QUEUED[:12]}_")
        terminal.press("\x1b")
        terminal.wait_for("Enter explain")
        terminal.press("\x1b")
        terminal.wait_for(whole)
        terminal.press("q")
        assert terminal.ended() == 0


def test_job_is_shown_with_its_phase_and_earlier_durations(busy: Busy) -> None:
    """The test writes a worker's record in the form of store/job_phases.py, in which two jobs of the same graph have
    ended.
    """
    (worker,) = busy.daemon.status().workers
    root = busy.daemon.settings.cache_dir
    now = time.time()
    lines: list[dict[str, object]] = [
        {"pid": worker.pid, "started": run_records.start_of(worker.pid), "launched": now - 200, "ready": now - 199}
    ]
    for number, seconds in enumerate((30, 40, 0)):
        began = now - 150 + 50 * number
        lines.append(
            {
                "job": f"{number}",
                "key": COMPILING,
                "name": "forward [0/0]",
                "attempt": 1,
                "queued": began,
                "began": began,
            }
        )
        if seconds:
            lines.append(
                {"job": f"{number}", "ended": began + seconds, "outcome": "published", "reason": "", "spans": []}
            )
    lines.append({"job": "2", "phase": "AOTAutograd", "at": now - 40})
    lines.append({"job": "2", "phase": "Inductor: forward", "at": now - 20})
    file = folder(root, job_phases.JOBS) / "1-1.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    file.chmod(0o600)
    try:
        for command, said in (
            (["status", "--watch", "--once"], r"(?P<bar>█*░*) (?P<elapsed>\d+)/35 s  Inductor: forward +[\d.]+ MiB\n"),
            (["status"], r"for (\d+\.\d s|\d min) of about 35\.0 s, Induc"),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "precompiled", *command],
                env={**busy.environment(), "COLUMNS": "80"},
                capture_output=True,
                text=True,
                check=True,
            )
            found = re.search(said, done.stdout)
            assert found, done.stdout
            if bar := found.groupdict().get("bar"):  # empty in the first seconds of a job
                assert len(bar) == 10 and abs(bar.count("█") - min(10, 10 * int(found["elapsed"]) / 35)) <= 1
    finally:
        file.unlink()


def test_smaller_window_is_redrawn_to_fit(busy: Busy) -> None:
    with busy.top(columns=120, rows=30) as terminal:
        terminal.wait_for(whole)
        terminal.resize(60, 14)
        screen = terminal.wait_for(whole)
        assert max(map(len, screen.splitlines())) <= 60 and len(screen.splitlines()) == 14


def test_terminated_top_restores_the_terminal(busy: Busy) -> None:
    with busy.top() as terminal:
        terminal.wait_for(whole)
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.ended() == 0
    assert terminal.written.endswith("\x1b[?25h\x1b[?1049l")


def test_top_without_a_terminal_prints_plain_lines(busy: Busy) -> None:
    command = [sys.executable, "-m", "precompiled", "status", "--watch", "--interval", "0.2"]
    with subprocess.Popen(command, env=busy.environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d  1 worker, 1 busy, 1 queued; 3 clients; graphs: 2 compiling, 1 queued, 1 eager, 1 in process, "
        r"1 compiled; 3 hits, \d+ miss(?:es)? in all; 1.5 min saved\n",
        line,
    ), line


def test_once_and_json_print_one_snapshot(busy: Busy) -> None:
    command = [sys.executable, "-m", "precompiled", "status", "--watch"]
    done = subprocess.run([*command, "--once"], env=busy.environment(), capture_output=True, text=True, check=True)
    assert "forward [0/0]" in done.stdout and "\x1b" not in done.stdout and "q quit" not in done.stdout
    done = subprocess.run([*command, "--json"], env=busy.environment(), capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    assert {item["program"] for item in document["clients"]} == {"train.py", "a_server_with_a_long_name.py"}
    assert {item["state"] for item in document["graphs"]} == {*view.STATES} - {"error"}
    assert document["status"]["queue_depth"] == 1 and document["stats"]["hits"] == 3


@pytest.mark.integration
@pytest.mark.reason("no-such-job")
def test_cancel_and_retry_work_by_keys_and_commands(tmp_path: Path) -> None:
    """Key presses and commands cancel and retry jobs. A cancel kills the job's worker, and the client gets a reply."""
    go_on = tmp_path / "go-on"
    with running_daemon(tmp_path / "d", workers=1) as daemon, raw_client(daemon.settings) as client:
        host = Busy(daemon, go_on)

        def command(*arguments: str, status: int = 0) -> dict[str, Any]:
            done = subprocess.run(
                [sys.executable, "-m", "precompiled", *arguments, "--json"],
                env=host.environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == status, done
            found: dict[str, Any] = json.loads(done.stdout)
            return found

        def compiling(key: str) -> wire.Submit:
            message = daemon.submit(key)
            client.submit(message, graph("wait-for", path=str(go_on)))
            wait_until(lambda: [worker.job for worker in daemon.status().workers] == [key], "the worker is busy")
            return message

        first = compiling(COMPILING)
        with host.top() as terminal:
            terminal.wait_for(whole)
            terminal.press("c123\r")
            terminal.wait_for("is too short")
            terminal.press("cffffff\r")
            terminal.wait_for("no job is queued or running for a key that begins with 'ffffff'")
            terminal.press("c")
            terminal.wait_for("cancel key: _")
            terminal.press("ab12ab\r")
            terminal.wait_for("cancelled: ab12ab12ab12")
            terminal.press("r")
            terminal.wait_for("retry key: _")
            terminal.press("\x1b")
            terminal.wait_for("q quit")
            terminal.press("q")
            assert terminal.ended() == 0
        assert client.ended(first.id).code == "job-cancelled"
        second = compiling(QUEUED)
        assert command("daemon", "cancel", QUEUED[:12]) == {"cancelled": [QUEUED]}
        assert client.ended(second.id).code == "job-cancelled"
        assert command("daemon", "cancel", QUEUED[:12], status=1)["error"]["code"] == "no-such-job"
        assert command("daemon", "cancel", "short", status=2)["error"]["code"] == "usage"
        # A cancelled key is not blocked: a later submit of the key is compiled.
        go_on.touch()
        again = daemon.submit(QUEUED)
        client.submit(again, graph())
        assert client.ended(again.id).state == "published"
        # The deaths of two workers quarantine a key. A retry ends the quarantine.
        for expected in ("key-quarantined", "key-quarantined"):
            message = daemon.submit(SERVED)
            client.submit(message, graph("die"))
            assert client.ended(message.id).code == expected
        assert command("daemon", "retry", SERVED[:6]) == {"retried": [SERVED]}
        message = daemon.submit(SERVED)
        client.submit(message, graph())
        assert client.ended(message.id).state == "published"
        assert command("daemon", "retry", SERVED[:6], status=1)["error"]["code"] == "no-such-job"


def test_retry_forgets_a_failure_record_without_a_daemon(tmp_path: Path) -> None:
    store = Store(tmp_path)
    tmp_path.chmod(0o700)
    store.prepare()
    store.publish_failure(Failure(SERVED, "f", "compile-error", "no", time.time(), 3600.0))
    environment = {**os.environ, "PRECOMPILED_CACHE_DIR": str(tmp_path), "PRECOMPILED_RUNTIME_DIR": str(tmp_path / "r")}
    command = [sys.executable, "-m", "precompiled", "daemon", "retry", SERVED[:8]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert SERVED[:12] in done.stdout and store.failure(SERVED) is None


def test_top_without_a_daemon_shows_that(tmp_path: Path) -> None:
    environment = {**os.environ, "PRECOMPILED_CACHE_DIR": str(tmp_path), "PRECOMPILED_RUNTIME_DIR": str(tmp_path / "r")}
    with on_terminal([sys.executable, "-m", "precompiled", "status", "--watch"], environment, tmp_path) as terminal:
        screen = terminal.wait_for(whole)
        assert screen.startswith("no daemon: ") and "no clients" in screen and "no graphs" in screen
        terminal.press("q")
        assert terminal.ended() == 0


def test_job_of_a_client_that_has_ended_is_shown() -> None:
    status = {"workers": [{"job": COMPILING, "job_s": 12.0}, {"job": ""}]}
    job = job_phases.UnderWay(7, "1", COMPILING, "forward [0/0]", 88.0, "", 88.0, None)
    (found,) = view.look(100.0, [], status, None, "", iter([job])).graphs
    assert (found.state, found.since, found.name, found.key) == ("compiling", 88.0, "forward [0/0]", COMPILING)


def test_rates_cover_the_last_minute() -> None:
    rates = view.Rates()
    for second in range(0, 200, 10):
        rates.add(float(second), {"hits": second, "misses": second // 10})
    assert rates.said() == "60 hits, 6 misses in the last minute"
    rates.add(200.0, {"hits": 1, "misses": 0})  # a new daemon counts from 0 again
    assert rates.said() == "1 hit, 0 misses in all"
    rates.add(210.0, {"hits": 2, "misses": 1})
    assert rates.said() == "1 hit, 1 miss in the last 10 s"


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("rows", [10, 24, 60])
def test_screen_never_exceeds_the_terminal_size(columns: int, rows: int) -> None:
    """For any content, no line wraps, the last line lists the keys, and the number of omitted rows is shown."""
    many = [view.GraphRow("queued", 0.0, "p" * 50, "1/2", "n" * 50, "k" * 64, "w" * 50) for _ in range(100)]
    clients = [view.Client("p" * 50, "1/2", 99999, 0.0, dict.fromkeys(view.STATES, 9), 1.0) for _ in range(100)]
    lines = view.screen(
        view.Look(10.0, None, None, "gone", clients, many), view.Rates(), view.Choices(), columns, rows, colour=False
    )
    assert len(lines) == rows and max(map(len, lines)) <= columns
    assert lines[-1].startswith("q quit") and any(re.fullmatch(r"and \d+ more", line) for line in lines)


def test_emulated_screen_interprets_escape_sequences() -> None:
    screen = Screen(10, 3)
    screen.feed("one\r\ntwo\r\n\x1b[31mthree\x1b[0m\x1b[1;2HN\x1b[K\x1b[3;1Hx\r\n4")
    assert screen.text() == "two\nxhree\n4"
