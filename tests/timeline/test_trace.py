"""Tests of `tools trace` and `timeline` over real runs. Only the tests of single functions use made-up data.

Perfetto's trace processor is a program that its Python package downloads, so tests cannot use it. Instead, the tests
check a trace by the rules of the format (support_traces.py), and the sums of a trace against those of `stats`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support_host import Host, new_host
from support_traces import arrows, check, slices

from precompiled.core.spans import Span
from precompiled.store import job_phases, lines, run_records
from precompiled.store.requests import RemoteRequest
from precompiled.timeline import facts as known
from precompiled.timeline.events import nest_spans, trace
from precompiled.timeline.facts import gather
from precompiled.timeline.page import _final_code
from precompiled.timeline.picture import Bar, in_order, svg
from precompiled.timeline.start import by_name, start

PROGRAM = """\
import json
import torch
import precompiled

def scaled(x):
    return (x * 2.0).relu() + 1

compiled = torch.compile(scaled)
x = torch.ones(8, 16)
with torch.no_grad():
    assert torch.equal(compiled(x), scaled(x))
    assert precompiled.wait(300)
    assert torch.equal(compiled(x), scaled(x))
print(json.dumps([graph.source for graph in precompiled.report()]))
"""


@dataclass
class Seen:
    host: Host
    traces: list[dict[str, Any]]  # the traces of three runs: one misses, one hits, and one traces nothing
    pages: list[str]
    stats: list[dict[str, Any]]


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    """Run the same program three times under `precompiled timeline`, and yield what the runs wrote."""
    with new_host() as host:
        file = host.project(train=PROGRAM) / "train.py"
        found = Seen(host, [], [], [])
        for number, packages in enumerate(("off", "program", "program")):
            page = host.root / f"{number}.html"
            env = {"PRECOMPILED_PACKAGES": packages}
            command = ["-m", "precompiled", "timeline", "-o", str(page), "--", sys.executable, str(file)]
            (source,) = host.program(*command, env=env, forked=False).result()
            assert source == ("swap", "hit", "package")[number]
            found.traces.append(json.loads(page.with_suffix(".json").read_text()))
            found.pages.append(page.read_text())
            found.stats.append(json.loads(host.command("cache", "stats", "--run", "last", "--json"))["ranks"][0])
        yield found


@pytest.mark.slow
def test_trace_follows_the_format_of_perfetto(seen: Seen) -> None:
    for document in seen.traces:
        check(document)


@pytest.mark.slow
def test_arrow_connects_submit_queue_job_and_load_by_one_id(seen: Seen) -> None:
    cold, hit, package = seen.traces
    (way,) = arrows(cold)
    assert [event["name"].split()[0] for event in way] == ["submit", "queued", "job", "load"]
    assert len({event["args"]["id"] for event in way}) == 1
    assert len({event["pid"] for event in way}) == 3  # the client, the daemon and the worker
    # The traces of these runs do not contain compiles that ended before the runs began.
    assert arrows(hit) == arrows(package) == []


@pytest.mark.slow
def test_a_trace_has_phases_compilers_and_steps(seen: Seen) -> None:
    cold, hit, package = seen.traces
    (job,) = slices(cold, "job ")
    inside = [event for event in slices(cold) if event["pid"] == job["pid"] and event is not job]
    names = {event["name"] for event in inside}
    assert {"create_aot_dispatcher_function", "C++ compiler", "publish", "starts"} <= names
    assert job["args"]["outcome"] == "published"
    assert job["args"]["kernels"] == 1
    for document in seen.traces:
        assert len(slices(document, "import torch")) == 1
    (eager,), (compiled,) = slices(cold, "eager"), slices(cold, "compiled")
    assert eager["args"]["calls"] >= 1 and eager["args"]["calls"] + compiled["args"]["calls"] == 2
    assert eager["ts"] + eager["dur"] == pytest.approx(compiled["ts"])
    assert slices(hit, "trace ") and slices(package, "package ")
    assert not slices(package, "trace ") and not slices(hit, "eager") and not slices(hit, "job ")


@pytest.mark.slow
def test_sums_of_a_trace_equal_those_of_stats(seen: Seen) -> None:
    for document, stats in zip(seen.traces, seen.stats, strict=True):
        spent = [event for what in ("lookup", "load") for event in slices(document, what)]
        assert sum(event["args"]["seconds"] for event in spent) == pytest.approx(stats["load_s"], abs=1e-9)
        # A slice may be drawn shorter where two clocks disagree, hence the tolerance of 2 ms.
        assert sum(event["dur"] for event in spent) / 1e6 == pytest.approx(stats["load_s"], abs=2e-3)


class _Checked(HTMLParser):
    """Checks that each element is closed in order, and that the page loads nothing and runs no script."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert tag != "script" and not {"src", "href"} & {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.slow
def test_timeline_page_compares_the_start_with_plain_torch(seen: Seen) -> None:
    for number, page in enumerate(seen.pages):
        parser = _Checked()
        parser.feed(page)
        assert not parser.open and parser.seen.count("svg") == 1
        if number == 0:
            assert "<h1>First recorded run of this program: the first step ended after " in page
            assert page.count('class="mark"') == 2 and "its cache full" not in page
            continue
        # The marks and the headline compare the ends of the first steps.
        tiles = re.findall(r"<strong>([\d.]+) s</strong><span>(first step ended|plain, [^<]*)</span>", page)
        (ours, _), (plain, _), (warm, _) = tiles
        assert float(warm) <= float(plain) and page.count('class="mark"') == 3
        assert re.search(rf"<h1>The first step ended after {ours} s, <b>[\d.]+ s (earlier|later)</b> .*{plain} s", page)
    cold = seen.pages[0]
    assert "eager steps" in cold and "worker: starts" in cold and "plain torch.compile" in cold
    # The third run traces nothing, so its page shows the tracing time of the second run for plain torch.compile.
    assert "Dynamo need not trace" not in seen.pages[2] and "a package instead of a trace" in seen.pages[2]


@pytest.mark.slow
def test_sections_of_a_start_cover_it_without_gaps(seen: Seen) -> None:
    found = gather(seen.host.store.root, 0.0, 2**40)
    assert len(found.processes) == 3
    for process in found.processes:
        item = start(process, found)
        end = 0.0
        for _, at, seconds in item.sections:
            assert at == pytest.approx(end, abs=1e-6)
            end = at + seconds
        assert item.plain_seconds > 0 and not item.untraced and not item.uncounted
        assert item.first_step is not None and item.first_step <= item.seconds + 1e-6
        assert process.torch[1] - item.began < item.first_step, "no step ended before torch was imported"
    names = [{name for name, _, _ in start(process, found).sections} for process in found.processes]
    assert "eager steps" in names[0] and "eager steps" not in names[1] | names[2]
    assert "Dynamo: tracing and guards" in names[1] and "Dynamo: tracing and guards" not in names[2]


BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here (Debian: chromium-headless-shell)")
def test_a_browser_shows_the_page_without_an_error(seen: Seen) -> None:
    assert BROWSER is not None
    headless = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu"]
    command = [*headless, "--window-size=1200,900", "--enable-logging=stderr"]
    file = seen.host.root / "0.html"
    picture = seen.host.root / "0.png"
    profile = f"--user-data-dir={seen.host.root / 'profile'}"
    dom = subprocess.run([*command, profile, "--dump-dom", file.as_uri()], capture_output=True, text=True, check=True)
    assert dom.stdout.count("<rect") == seen.pages[0].count("<rect") and "CONSOLE" not in dom.stderr
    subprocess.run([*command, profile, f"--screenshot={picture}", file.as_uri()], capture_output=True, check=True)
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000
    # A phone in dark mode: the page is dark, and its text is not cut off.
    dark = ["--blink-settings=preferredColorScheme=0", "--window-size=420,900", f"--screenshot={picture}"]
    subprocess.run([*headless, profile, *dark, file.as_uri()], check=True)
    data = picture.read_bytes()
    assert struct.unpack(">II", data[16:24]) == (420, 900)
    at = data.index(b"IDAT")
    pixels = zlib.decompressobj().decompress(data[at + 4 :], 64)
    assert max(pixels[1:4]) < 60, "the first pixel (after its line's filter) is dark"


@pytest.mark.slow
def test_trace_covers_the_requested_time(seen: Seen, tmp_path: Path) -> None:
    def trace(since: str) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(
            seen.host.command("tools", "trace", "--since", since, "-o", str(tmp_path / "t.json"), "--json")
        )
        check(json.loads((tmp_path / "t.json").read_text()))
        return said

    whole, last = trace("2h"), trace("last")
    assert (whole["processes"], whole["graphs"], whole["jobs"], whole["workers"]) == (3, 3, 1, 1)
    assert (last["processes"], last["graphs"], last["jobs"]) == (1, 1, 0)
    # The second and third runs use the artifact of the first run's job, so an arrow leads from this job to each load.
    ways = arrows(json.loads(json.dumps(_document(seen, tmp_path))))
    assert sorted(len(way) for way in ways) == [2, 2, 4]


def _document(seen: Seen, folder: Path) -> Any:
    seen.host.command("tools", "trace", "-o", str(folder / "whole.json"))
    return json.loads((folder / "whole.json").read_text())


# ---------------------------------------------------------------- without a run


def test_invalid_since_is_an_error(tmp_path: Path) -> None:
    output = str(tmp_path / "t")
    command = [sys.executable, "-m", "precompiled", "tools", "trace", "--cache-dir", str(tmp_path), "-o", output]
    for since in ("yesterday", "10", "-1h"):
        found = subprocess.run([*command, f"--since={since}"], capture_output=True, text=True, check=False)
        assert found.returncode == 2 and "--since takes a time such as 30s" in found.stderr
    found = subprocess.run([*command, "--since=last"], capture_output=True, text=True, check=False)
    assert found.returncode == 1 and "no run is recorded yet" in found.stderr


def test_trace_of_an_idle_host_is_empty(tmp_path: Path) -> None:
    output = tmp_path / "t.json"
    command = [sys.executable, "-m", "precompiled", "tools", "trace", "--cache-dir", str(tmp_path), "-o", str(output)]
    assert "0 graphs of 0 processes" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    document = json.loads(output.read_text())
    check(document)
    assert document["traceEvents"] == []


@pytest.mark.reason("output-unwritable")
def test_a_trace_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "precompiled",
        "tools",
        "trace",
        "--cache-dir",
        str(tmp_path),
        "--json",
        "-o",
        str(tmp_path / "absent" / "t.json"),
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 1 and json.loads(found.stdout)["error"]["code"] == "output-unwritable"


def test_timeline_refuses_a_page_that_cannot_be_written_before_it_runs_the_command(tmp_path: Path) -> None:
    page, ran = tmp_path / "absent" / "t.html", tmp_path / "ran"
    command = [sys.executable, "-m", "precompiled", "timeline", "-o", str(page), "--", "touch", str(ran)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 1 and f"{page} cannot be written" in found.stderr
    assert not ran.exists()


COMPILES_NOTHING = "import torch; precompiled = __import__('precompiled'); precompiled.report(); torch.ones(2)"
HOOK_OFF = "No process of the command had the hook on, so there is no page."
NOTHING = "The hook was on, but the program compiled nothing, so there is no page."


@pytest.mark.parametrize(
    ("command", "variables", "status", "said"),
    [
        (["true"], {}, 0, HOOK_OFF),
        ([sys.executable, "-I", "-S", "-c", "raise SystemExit(3)"], {}, 3, HOOK_OFF),
        ([sys.executable, "-c", ""], {"PRECOMPILED": "0"}, 0, HOOK_OFF),
        ([sys.executable, "-c", ""], {"PRECOMPILED_MODE": "off"}, 0, HOOK_OFF),
        ([sys.executable, "-c", ""], {}, 0, NOTHING),
        ([sys.executable, "-c", COMPILES_NOTHING], {}, 0, NOTHING),
        ([sys.executable, "-c", "raise SystemExit(7)"], {}, 7, "status 7 before its first graph"),
        ([sys.executable, "-c", "import os; os.kill(os.getpid(), 15)"], {}, 143, "status 143 before its first graph"),
        ([sys.executable, "-c", "import torch; torch.compile(print); 1 / 0"], {}, 1, "status 1 before its first graph"),
    ],
)
def test_timeline_says_why_its_command_had_no_graph(
    tmp_path: Path, command: list[str], variables: dict[str, str], status: int, said: str
) -> None:
    timeline = [sys.executable, "-m", "precompiled", "timeline", "--json", "--cache-dir", str(tmp_path / "store"), "--"]
    found = subprocess.run(
        [*timeline, *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, **variables},
    )
    assert found.returncode == status
    lines = [line for line in found.stderr.splitlines() if line.startswith("precompiled: ")]
    assert len(lines) == 1 and said in lines[0] and lines[0].endswith(", so there is no page.")
    assert ("precompiled doctor" in found.stderr) == (said == HOOK_OFF)
    document = json.loads(found.stdout)
    assert document["page"] is document["trace"] is None and (document["graphs"], document["status"]) == (0, status)
    assert not list(tmp_path.glob("precompiled-timeline.*"))


def test_timeline_of_a_missing_command_fails(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "precompiled", "timeline", "--cache-dir", str(tmp_path), "--", "no-such-command"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert found.returncode == 127 and "there is no command 'no-such-command'" in found.stderr


@pytest.mark.slow
def test_timeline_of_a_program_without_a_graph_points_to_explain(host: Host) -> None:
    """Dynamo traces the function, but finds no operation of torch in it."""
    file = host.project(train="import torch\ntorch.compile(lambda x: x + 1)(1)\n") / "train.py"
    command = [sys.executable, "-m", "precompiled", "timeline", "--", sys.executable, str(file)]
    environment = host.environment()
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=host.root, env=environment)
    assert "found no graph to compile (`precompiled explain` says why), so there is no page." in found.stderr
    assert "no graph" in host.command("explain")


def test_nested_spans_end_with_the_enclosing_span() -> None:
    outer, inner, other = Span("a", 1.0, 2.0, 1), Span("b", 2.0, 1.1, 1), Span("c", 2.0, 5.0, 2)
    assert nest_spans([inner, other, outer]) == [(2.0, 3.0), (2.0, 7.0), (1.0, 3.0)]


def test_special_characters_in_names_are_escaped_in_svg() -> None:
    drawn = svg("<&>", [Bar("a <b>", in_order([("x & y", 1.0), ("nothing", 0.0)]), 0.5)], "'\"")
    parser = _Checked()
    parser.feed(drawn)
    assert not parser.open and parser.seen.count("rect") == 3 and "a <b>" in parser.text


def test_a_job_whose_worker_died_has_no_end(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    of_worker = job_phases.WorkerRecord(tmp_path, 5.0)
    record = of_worker.begin("1", "ab" * 32, "f", 1, 2.5)
    record.phase("AOTAutograd")
    record.phase("AOTAutograd")
    (worker,) = job_phases.workers(tmp_path)
    (job,) = worker.jobs
    assert worker.is_alive and worker.ready == 5.0 and not job.ended
    assert job.began - job.queued == pytest.approx(2.5) and [name for name, _ in job.phases] == ["AOTAutograd"]
    record.spans += [Span("long", 1.0, 2.0, 3), Span("short", 1.0, 1e-5, 3)]
    record.end("published", "")
    of_worker.begin("2", "cd" * 32, "g", 1, 0.0)
    first, second = job_phases.workers(tmp_path)[0].jobs
    assert first.outcome == "published" and first.spans == [Span("long", 1.0, 2.0, 3)] and not second.ended


def test_a_worker_has_two_jobs_at_most_which_end_in_any_order(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    of_worker = job_phases.WorkerRecord(tmp_path, 5.0)

    def under_way() -> list[str]:
        return [job.id for job in job_phases.under_way(tmp_path)]

    first, second = (of_worker.begin(id, "ab" * 32, "f", 1, 0.0) for id in "12")
    first.phase("C++ compilers")
    second.phase("AOTAutograd")
    first.kernels(1, 2)
    found = {job.id: job for job in job_phases.under_way(tmp_path)}
    assert [found[id].phase for id in "12"] == ["C++ compilers", "AOTAutograd"]
    assert found["1"].kernels == (1, 2) and found["2"].kernels == (0, 0)
    second.end("parked", "")
    assert under_way() == ["1"]
    again = of_worker.begin("2", "ab" * 32, "f", 1, 0.0)
    assert under_way() == ["1", "2"], "a parked job begins again with its id"
    again.end("published", "")
    of_worker.begin("3", "ab" * 32, "f", 1, 0.0)
    of_worker.begin("4", "ab" * 32, "f", 1, 0.0)
    assert under_way() == ["3", "4"], "the end of the first job was not recorded"
    jobs = job_phases.workers(tmp_path)[0].jobs
    assert [job.outcome for job in jobs] == [job_phases.LOST, "parked", "published", "", ""]


def test_second_read_parses_only_changed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    read: list[str] = []
    reading = lines.read
    monkeypatch.setattr(lines, "read", lambda name, fd, shown: (read.append(name), reading(name, fd, shown=shown))[1])
    of_worker = job_phases.WorkerRecord(tmp_path, 0.0)
    record = of_worker.begin("1", "ab" * 32, "f", 1, 0.0)
    assert [job.id for job in job_phases.workers(tmp_path)[0].jobs] == [
        job.id for job in job_phases.workers(tmp_path)[0].jobs
    ]
    assert len(read) == 1
    record.phase("AOTAutograd")
    (job,) = job_phases.under_way(tmp_path)
    assert len(read) == 2 and job.phase == "AOTAutograd" and job.estimate_s is None and job.said(0.0) == ", AOTAutograd"
    record.phase("C++ compilers")
    for built in range(401):
        record.kernels(built, 400)
    (job,) = job_phases.under_way(tmp_path)
    assert job.said(0.0) == ", C++ compilers, 400 of 400 kernels"
    (file,) = (tmp_path / job_phases.JOBS).iterdir()
    assert file.read_text().count('"kernels"') == 101, "each hundredth"
    record.end("published", "")
    of_worker.begin("2", "cd" * 32, "f", 1, 0.0)
    (job,) = job_phases.under_way(tmp_path)
    assert job.id == "2" and job.estimate_s is not None and job.said(0.0).startswith(" of about ")
    assert "about" not in job.said(job.estimate_s + 1.0), "the estimate was wrong"


def test_worker_starts_a_new_file_after_the_store_was_cleared(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    record = job_phases.WorkerRecord(tmp_path, 0.0)
    for id in ("1", "2"):
        record.begin(id, "ab" * 32, "f", 1, 0.0)
        assert [job.id for job in job_phases.workers(tmp_path)[0].jobs] == [id]
        shutil.rmtree(tmp_path / job_phases.JOBS)
    assert job_phases.workers(tmp_path) == []


DIES = """\
import sys
from pathlib import Path
from precompiled.store import job_phases
record = job_phases.WorkerRecord(Path(sys.argv[1]), 0.0).begin("1", "ab" * 32, "f", 1, 0.0)
record.phase("AOTAutograd")
print("works", flush=True)
sys.stdin.read()
"""


def test_job_of_a_dead_worker_is_lost_and_not_in_later_traces(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with subprocess.Popen(
        [sys.executable, "-c", DIES, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None and worker.stdout.readline() == "works\n"
        (job,) = job_phases.workers(tmp_path)[0].jobs
        assert not job.ended and [found.id for found in job_phases.under_way(tmp_path)] == ["1"]
        worker.kill()
    (job,) = job_phases.workers(tmp_path)[0].jobs
    assert (
        job.outcome == job_phases.LOST
        and job.began <= job.ended <= time.time()
        and job_phases.under_way(tmp_path) == []
    )
    facts = gather(tmp_path, job.began, job.ended + 1000.0)
    (shown,) = slices(trace(facts), "job")
    assert shown["dur"] <= (job.ended - job.began) * 1e6 + 1 and shown["args"]["outcome"] == job_phases.LOST
    assert gather(tmp_path, job.ended + 1.0, job.ended + 1000.0).workers == []


def test_files_of_old_workers_are_removed_and_file_size_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(lines, "MAX_BYTES", 2000)
    folder = lines.folder(tmp_path, job_phases.JOBS)
    for number in range(job_phases.KEPT + 3):
        (folder / f"{number}-0.jsonl").touch()
    record = job_phases.WorkerRecord(tmp_path, 0.0)
    for number in range(100):
        record.begin(str(number), "ab" * 32, "f", 1, 0.0)
    assert len(list(folder.iterdir())) == job_phases.KEPT
    (worker,) = job_phases.workers(tmp_path)
    assert 0 < len(worker.jobs) < 20


@pytest.mark.parametrize(
    ("second_calls", "first_step"),
    [
        ([], None),
        ([12.0], 2.0),
        ([10.5, 12.0], 2.0),  # the first graph is called twice before the second graph is traced
        ([12.0, 13.0], 2.0),
        ([11.0], 1.9),  # work follows each second call: the first step ended after this work at the latest
    ],
)
def test_first_step_ends_before_the_second_call_of_its_first_graph(
    second_calls: list[float], first_step: float | None
) -> None:
    frames = [
        ("f", Span("trace", 10.0, 0.4, 7)),
        ("g", Span("trace", 11.2, 0.7, 7)),
        ("late", Span("trace", 50.0, 2.0, 7)),
    ]
    if 11.0 in second_calls:
        frames.pop()
    graph = {"id": "1", "source": "hit", "state": "compiled", "compile_s": 5.0, "load_s": 0.5, "at": 1.0}
    graph["spans"] = [["load", 11.8, 0.1, 7]]
    later = {**graph, "id": "2", "compile_s": 100.0, "spans": [["load", 51.9, 0.1, 7]]}
    process = run_records.RunProcess(
        0,
        1,
        7,
        "",
        "a.py",
        [],
        "",
        "",
        10.0,
        {"1": graph, "2": later},
        ended=60.0,
        frames=frames,
        second_calls=second_calls,
    )
    item = start(process, known.Facts(0.0, 60.0, [process], [], {}))
    assert "All graphs had their final code" in _final_code(item)
    later["state"] = "pending"
    assert _final_code(item).startswith("1 graph was not compiled yet when the program ended after ")
    later["state"] = "compiled"
    assert item.first_step == (None if first_step is None else pytest.approx(first_step))
    if second_calls == [12.0]:
        # Work after the first step does not count: the trace of "late", and the second graph.
        assert by_name(item.plain) == pytest.approx(
            {"Dynamo: tracing and guards": 1.0, "AOTAutograd and Inductor, or their cache": 5.0, "the step": 0.9}
        )
        assert item.warm_seconds == pytest.approx(1.0 + 0.5 + 0.9)


def test_spans_that_ended_before_the_requested_time_are_omitted() -> None:
    """For a process that has run for a long time, the trace shows how its graphs run now and omits how they were
    compiled.
    """
    graph = {
        "id": "1",
        "name": "f",
        "state": "compiled",
        "source": "swap",
        "at": 130.0,
        "spans": [["lookup", 100.0, 1.0, 7], ["submit", 101.0, 1.0, 7], ["load", 120.0, 1.0, 8]],
    }
    process = run_records.RunProcess(
        0,
        1,
        7,
        "",
        "serve.py",
        [],
        "",
        "",
        100.0,
        {"1": graph},
        ended=2000.0,
        launched=90.0,
        torch=(91.0, 95.0),
        frames=[("f", Span("trace", 99.0, 4.0, 7))],
    )
    late = trace(known.Facts(1000.0, 2000.0, [process], [], {}))
    check(late)
    (only,) = slices(late)
    assert only["name"] == "compiled" and (only["ts"], only["dur"]) == (0.0, 1000e6)
    whole = trace(known.Facts(0.0, 2000.0, [process], [], {}))
    check(whole)
    names = [event["name"] for event in slices(whole)]
    assert sorted(names) == ["compiled", "eager", "import torch", "load", "lookup", "submit", "trace f"]
    assert min(event["ts"] for event in slices(whole)) == 0.0


@pytest.mark.timeout(60)  # the test takes seconds; code that compared all pairs of spans would take minutes
def test_thousands_of_spans_and_jobs_are_handled_in_seconds() -> None:
    """Of nested spans, only the innermost counts. Each row of a queue shows one job at a time."""
    count = 4000
    graphs = {
        f"{number}": {
            "id": f"{number}",
            "key": f"k{number}",
            "name": "f",
            "state": "compiled",
            "source": "swap",
            "at": 9e4,
            "compile_s": 1.0,
            "load_s": 0.5,
            "spans": [
                ["lookup", number + 0.1, 0.2, 7],
                ["submit", number + 0.4, 0.1, 7],
                ["load", number + 10.0, 0.5, 8],
            ],
        }
        for number in range(count)
    }
    frames = [("f", Span("trace", float(number), 0.9, 7)) for number in range(count)]
    process = run_records.RunProcess(0, 1, 7, "", "many.py", [], "", "", 0.0, graphs, ended=9e4, frames=frames)
    mine = [
        job_phases.RecordedJob(f"{number}", f"k{number}", "f", 1, number + 0.5, number + 5.0, number + 5.9, "published")
        for number in range(count)
    ]
    facts = known.Facts(0.0, 9e4, [process], [job_phases.RecordedWorker(9, "1", 0.0, 0.0, mine)], {})
    item = start(process, facts)
    document = trace(facts)
    queue = slices(document, "queued")
    assert len(queue) == count and len({event["tid"] for event in queue}) == 5
    assert len([event for event in document["traceEvents"] if event["ph"] == "s"]) == count
    sums = by_name(item.sections)
    assert sums["capture, key, lookup"] == pytest.approx(0.2 * count, rel=1e-6)
    assert sums["Dynamo: tracing and guards"] == pytest.approx(0.6 * count, rel=1e-6)
    assert item.seconds == pytest.approx(count + 9.5)


def test_a_trace_has_each_request_to_the_remote() -> None:
    """Two concurrent requests are drawn in two rows. A request that began before the trace is drawn from the trace's
    beginning.
    """
    asked = [
        RemoteRequest("list", "artifacts/a", 90.0, 20.0, 0, ""),
        RemoteRequest("read", "artifacts/a/b", 105.0, 2.0, 7, "x"),
    ]
    document = trace(known.Facts(100.0, 200.0, [], [], {}, asked))
    check(document)
    first, second = slices(document)
    assert (first["name"], first["ts"], first["dur"]) == ("list", 0.0, 10e6)
    assert second["args"] == {"path": "artifacts/a/b", "bytes": 7, "problem": "x"} and second["tid"] != first["tid"]


def test_graph_without_its_own_job_gets_the_last_job_of_its_key(tmp_path: Path) -> None:
    def job(id: str, key: str, began: float, outcome: str = "published") -> job_phases.RecordedJob:
        return job_phases.RecordedJob(id, key, "f", 1, began, began, began + 1, outcome)

    mine = [job("1", "k", 1), job("2", "k", 5), job("3", "k", 8, "failed"), job("4", "k", 20)]
    worker = job_phases.RecordedWorker(1, "1", 0.0, 0.0, mine)
    found = known.Facts(0.0, 99.0, [], [worker], {})
    graph = {"id": "x", "key": "k", "spans": [["load", 10.0, 1.0, 1]]}
    assert found.job_of(graph) is mine[1]
    assert found.job_of({**graph, "id": "4"}) is mine[3]
    assert found.job_of({"id": "y", "key": "other"}) is None
    assert run_records.spans_of(graph) == [Span("load", 10.0, 1.0, 1)]
