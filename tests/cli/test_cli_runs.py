"""Tests of `explain --run`, `status` and `cache stats --run`, for runs of real processes and for made-up records."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import click
import psutil
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from support_artifacts import publish_artifact
from support_cli import answer
from support_daemon import wait_until
from support_host import Host
from support_programs import ARGS, NODES, changed, everything, put

from precompiled.cli import checks_store, misses, pending_graphs
from precompiled.cli import runs as shown
from precompiled.cli.app import cli
from precompiled.cli.nearest import Kepts
from precompiled.cli.pending_graphs import PendingCauses
from precompiled.client import run_recorder as client_runs
from precompiled.client.ledger import GraphReport
from precompiled.core import config
from precompiled.core.spans import WAITED, Span
from precompiled.graph import key
from precompiled.graph.advice import Cause
from precompiled.packages import audit
from precompiled.packages.function_report import OTHER_PROGRAMS
from precompiled.store import artifact_format as fmt
from precompiled.store import eviction, job_phases, run_records
from precompiled.store.artifacts import Store

PROGRAM = """\
import json, os
import torch
import precompiled

precompiled.enable()
rank = int(os.environ.get("RANK", "0"))
if rank == 2:
    torch._inductor.config.freezing_discard_parameters = torch._inductor.config.freezing = True

def scaled(x):
    return (x * 2.0).relu() + 1

compiled = torch.compile(scaled)
x = torch.ones(8, 16)
with torch.no_grad():
    assert torch.equal(compiled(x), scaled(x))
    assert precompiled.wait(300)
    assert torch.equal(compiled(x), scaled(x))
print("@done", flush=True)
# goes on
print(json.dumps([graph.reason for graph in precompiled.report()]))
"""


@pytest.mark.integration
@pytest.mark.reason("no-such-run")
def test_ranks_are_grouped_by_number_and_reason(served: Host) -> None:
    file = served.root / "train.py"
    file.write_text(PROGRAM)
    clients = [
        served.program(str(file), env={"RANK": str(rank), "WORLD_SIZE": "5", "SLURM_JOB_ID": "7/a"})
        for rank in range(4)
    ]
    assert [client.result() for client in clients] == [[""], [""], ["freezing"], [""]]
    (run,) = run_records.runs(served.store.root)
    assert run.name == "slurm-7_a.0" and [process.rank for process in run.processes] == [0, 1, 2, 3]
    assert not run.is_alive and all(process.ended for process in run.processes)
    assert shown.describe_graphs(run, PendingCauses(config.load())) == [
        "3 of 5 ranks run all their graphs with code that the daemon compiled (up to 1 graph each)",
        "rank 2: 1 graph compiled in process (freezing)",
        "rank 4: no graph yet, or on another host",
    ]
    document = json.loads(served.command("explain", "--run", "last", "--json"))
    assert (
        document["said"] == shown.describe_graphs(run, PendingCauses(config.load()))
        and document["program"] == "train.py"
    )
    graph = document["processes"][0]["graphs"][0]
    assert graph["calls_compiled"] + graph["calls_eager"] == 2 and graph["source"] in ("swap", "hit")
    text = served.command("explain", "--run", "slurm-7_a.0")
    assert "rank 2: 1 graph compiled in process (freezing)" in text and "freezing:" in text
    numbers = json.loads(served.command("cache", "stats", "--run", "last", "--json"))["ranks"]
    assert [(rank["rank"], rank["graphs"], rank["not_served"]) for rank in numbers] == [
        (0, 1, 0),
        (1, 1, 0),
        (2, 1, 1),
        (3, 1, 0),
    ]
    assert all(rank["hit"] + rank["swap"] == 1 - rank["not_served"] for rank in numbers)
    assert "not served" in served.command("cache", "stats", "--run", "slurm-7_a.0")
    counted = json.loads(served.command("cache", "stats", "--json"))
    lookups = counted["hits"] + counted["misses"]
    text = served.command("cache", "stats")
    assert f"{counted['hits']} of {lookups} lookups ({counted['hits'] / lookups:.0%})" in text and " each)" in text
    error = json.loads(served.command("explain", "--run", "another", "--json", status=1))["error"]
    assert error["code"] == "no-such-run" and "slurm-7_a.0 (train.py)" in error["action"]


def test_a_process_is_shown_while_it_runs_and_after_it_is_killed(served: Host) -> None:
    folder = served.root / "alone"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM.replace("# goes on", "import time; time.sleep(600)"))
    client = served.program("train.py", cwd=folder)
    client.wait_for("done")
    (live,) = json.loads(served.command("status", "--json"))["runs"]
    assert live["program"] == "train.py" and live["said"] == ["its graph has code that the daemon compiled"]
    client.process.kill()
    client.process.wait()
    assert json.loads(served.command("status", "--json"))["runs"] == []
    (run,) = run_records.runs(served.store.root)
    assert shown.describe_graphs(run, PendingCauses(config.load())) == ["the process was killed"]


def test_a_graph_refused_by_require_is_not_shown_as_running() -> None:
    graph = {"state": "failed", "source": "error", "reason": "not-in-time", "at": 1.0}
    process = run_records.RunProcess(0, 1, 1, "", "train.py", [], "", "", 0.0, graphs={"1": graph}, ended=2.0)
    assert shown._of_a_process(process, PendingCauses(config.load())) == "1 graph not run, an error (not-in-time)"


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ({"calls_eager": 3, "calls_compiled": 0}, "1 graph compiled, but all calls ran eager"),
        ({"calls_eager": 0, "calls_compiled": 0}, "1 graph compiled, but never called"),  # Dynamo skipped its frame
        ({"calls_eager": 3, "calls_compiled": 1}, "its graph runs code that the daemon compiled"),
    ],
    ids=["late", "never", "called"],
)
def test_a_compiled_graph_without_a_compiled_call_is_not_shown_as_running(
    calls: dict[str, int], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = {"name": "f [0/0]", "key": "ab" * 32, "state": "compiled", "source": "swap", "at": 1.0, **calls}
    process = run_records.RunProcess(0, 1, 1, "", "train.py", [], "", "", 0.0, graphs={"1": graph}, ended=2.0)
    run = run_records.Run("a", [process])
    assert shown.describe_graphs(run, PendingCauses(config.load())) == [said]
    shown._show_calls([graph, graph])
    columns = capsys.readouterr().out.split()[-5:]
    assert columns == ["f", "[0/0]", "ab" * 6, *(str(2 * number) for number in calls.values())]


def test_a_graph_that_the_program_bypasses_is_shown(tmp_path: Path) -> None:
    """Each graph of the summary has a row. The message must follow the code `switched-off`, because the code alone
    suggests PRECOMPILED=0.
    """
    tmp_path.chmod(0o700)
    bypassed = GraphReport("b", "g [1/0]", "", "bypassed", "inline", "switched-off", "the program bypasses it")
    recorded(
        tmp_path, "a", GraphReport("h", "f [0/0]", "aa" * 32, "compiled", "hit", calls_compiled=3), bypassed, files={}
    )
    document, show = shown.explain(config.load({"cache_dir": tmp_path}), "a")
    assert document["summary"] == "of 2 graphs: 1 hit, 1 graph compiled in process (bypassed by the program)"
    text = CliRunner().invoke(_command(show)).output
    assert re.search(r"f \[0/0\] +a{12} +0 +3\n *g \[1/0\] +- +-\n", text)
    assert text.count("switched-off") == 1 and "switched-off: the program bypasses it" in text


def test_eager_calls_after_the_swap_have_a_reason(tmp_path: Path) -> None:
    """The terminal says "compiled after call 2", and the table counts 7 eager calls."""
    tmp_path.chmod(0o700)
    graph = GraphReport("a", "f [0/0]", "aa" * 32, "compiled", "swap", calls_eager=7, calls_compiled=25)
    graph.eager_after_swap = {"timed": 5}
    recorded(tmp_path, "a", graph, files={})
    document, show = shown.explain(config.load({"cache_dir": tmp_path}), "a")
    assert document["processes"][0]["graphs"][0]["eager_after_swap"] == {"timed": 5}
    text = CliRunner().invoke(_command(show)).output
    assert "\n  f [0/0]: 5 eager calls came after the swap, to compare their times with compiled calls\n" in text


def test_calls_of_a_process_that_runs_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    shown._show_calls([{"name": "f [0/0]", "key": "ab" * 32, "calls_eager": 3}])  # recorded at the swap
    assert not capsys.readouterr().out


WAITS = """\
import sys
import torch
import precompiled
precompiled.enable()
try:
    torch.compile(lambda x: (x * 3.0).relu())(torch.ones(8, 16))
except KeyboardInterrupt:
    print("@interrupted", flush=True)
    sys.exit()
"""


@pytest.mark.integration
def test_a_run_of_misses_claims_no_saved_compile(served: Host) -> None:
    (file := served.root / "waited.py").write_text(WAITS.replace("x * 3.0", "x * 4.0"))
    for source in ("swap", "hit"):
        served.program(str(file), env={"PRECOMPILED_MODE": "wait"}).ended()
        (run, *_) = run_records.runs(served.store.root)
        (graph,) = run.processes[0].graphs.values()
        assert graph["source"] == source and graph["compile_s"] > 0.0
        waited = sum(span.seconds for span in run_records.spans_of(graph) if span.what == "wait")
        assert (waited > 0.0) == (source == "swap")
        assert graph.get("saved_s", 0.0) == (0.0 if source == "swap" else graph["compile_s"])
        assert ("compiles saved" in served.command("explain")) == (source == "hit")


@pytest.mark.fault("program")
@pytest.mark.integration
def test_an_interrupted_wait_is_recorded_in_the_run(served: Host) -> None:
    """The daemon is suspended, so the client waits for its graph until the test interrupts it."""
    (file := served.root / "waits.py").write_text(WAITS)
    daemon = psutil.Process(served.status().pid)
    daemon.suspend()
    try:
        client = served.program(str(file), env={"PRECOMPILED_MODE": "wait"})
        wait_until(lambda: any(process.graphs for process in run_records.processes(served.store.root)))
        (run,) = run_records.runs(served.store.root)
        assert shown.describe_graphs(run, PendingCauses(config.load()))[0].startswith("1 graph pending for ")
        wait_until(lambda: bool(run_records.programs(served.store.root)))
        assert "\n  the store had no similar graph\n" in served.command("explain"), "at once, not after the compile"
        os.kill(client.process.pid, signal.SIGINT)
        client.wait_for("interrupted")
    finally:
        daemon.resume()
    client.ended()
    text = served.command("explain", "--run", "last")
    assert "of 1 graph: no hits, 1 new graph" in text and "interrupted during the wait for the artifact" in text
    assert "1 graph pending at the end" in text and "no longer has it" not in text


SUITE = """
import multiprocessing, subprocess, sys
GRAPH = "import torch, precompiled; precompiled.enable(); torch.compile(lambda x: x.cosh() - %d)(torch.ones(3))"
def work(number):
    exec(GRAPH % number)
if __name__ == "__main__":
    exec(GRAPH % 0)
    for start, number in (("spawn", 1), ("fork", 3)):
        worker = multiprocessing.get_context(start).Process(target=work, args=(number,))
        worker.start()
        worker.join()
    # execnet starts the workers of pytest-xdist with this command.
    command = [sys.executable, "-u", "-c", "import sys;exec(eval(sys.stdin.readline()))"]
    subprocess.run(command, input=repr(GRAPH % 2) + "\\n", text=True, check=True)
"""


@pytest.mark.integration
def test_the_last_run_includes_the_programs_workers(served: Host) -> None:
    (file := served.root / "suite.py").write_text(SUITE)
    served.program(str(file), forked=False, env={"PRECOMPILED_PACKAGES": "program"}).ended()
    found = served.answer({}, "explain", "--run", "last")
    assert (found["program"], found["ranks"], len(found["processes"])) == ("suite.py", 1, 4)
    assert found["summary"].startswith("of 4 graphs: ")
    (run,) = run_records.runs(served.store.root)
    assert [len(process.functions) for process in run.processes] == [1] * 4, "each process has traced one function"
    assert run_records.last_command(served.store.root).argv[-1] == str(file)


def test_run_and_rank_come_from_the_launchers_variables(tmp_path: Path) -> None:
    parent = f"parent-{os.getppid()}-{run_records.start_of(os.getppid())}"
    places = {
        ("TORCHELASTIC_RUN_ID=none", "RANK=3", "WORLD_SIZE=8"): (parent, 3, 8),
        ("TORCHELASTIC_RUN_ID=the/run", "RANK=1", "WORLD_SIZE=2"): ("torchrun-the_run", 1, 2),
        ("SLURM_JOB_ID=7", "SLURM_STEP_ID=2", "SLURM_PROCID=1", "SLURM_NTASKS=4"): ("slurm-7.2", 1, 4),
        ("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2"): (parent, 1, 2),
    }
    if "PYTEST_XDIST_WORKER" not in os.environ:  # a process of xdist belongs to the run of its controller
        places["RANK=none", "WORLD_SIZE=8"] = (f"process-{os.getpid()}-{run_records.start_of(os.getpid())}", 0, 1)
    for variables, expected in places.items():
        place = client_runs.place(dict(one.split("=") for one in variables))
        assert (place.run, place.rank, place.ranks) == expected


def test_the_oldest_runs_are_removed_and_damaged_records_are_skipped(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for number in range(run_records.KEPT + 2):
        folder = run_records.begin(tmp_path, f"run-{number}")
        os.utime(folder, (number, number))
    assert len(list((tmp_path / run_records.RUNS).iterdir())) == run_records.KEPT
    assert not (tmp_path / run_records.RUNS / "run-0").exists()
    (tmp_path / run_records.RUNS / "run-9" / "0-1.jsonl").write_text("{}\n")
    assert run_records.runs(tmp_path) == []


def test_a_process_without_a_graph_is_recorded_but_not_its_forked_child(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    record = client_runs.RunRecord(tmp_path)
    record.after_fork()
    record.end([], [], {}, {})
    assert run_records.runs(tmp_path) == []
    client_runs.RunRecord(tmp_path).end([], [], {"/a/train.py": "digest"}, {})
    (run,) = run_records.runs(tmp_path)
    assert not run.is_alive and shown.describe_graphs(run, PendingCauses(config.load())) == ["no graph yet"]
    (process,) = run.processes
    assert process.graphs == {} and process.files == {"/a/train.py": "digest"}


def test_a_run_began_when_its_process_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of a process begins with its first graph. A run's start and duration must include the time before its
    first graph.
    """
    tmp_path.chmod(0o700)
    recorded(tmp_path, "a", GraphReport("h", "f [0/0]", "aa", "compiled", "hit"), files={})
    (run,) = run_records.runs(tmp_path)
    process = run.processes[0]
    process.launched, process.began, process.ended = 1000.0, 1100.0, 1120.0
    monkeypatch.setattr(shown, "runs", lambda root: [run])
    monkeypatch.setattr("time.time", lambda: 1150.0)
    document, show = shown.explain(config.load({"cache_dir": tmp_path}), "a")
    assert document["began"] == 1000.0
    assert re.search(r", began .* ago, 2 min long", CliRunner().invoke(_command(show)).output)


@pytest.mark.parametrize(
    ("now", "name", "is_said"), [(1150.0, "last", False), (1190.0, "last", True), (1190.0, "a", False)]
)
def test_an_old_run_is_said_to_be_the_newest_recorded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: float, name: str, is_said: bool
) -> None:
    """After the last recorded run, the user may have run the program without a record: with precompiled off, or with an
    error before the first graph.
    """
    tmp_path.chmod(0o700)
    recorded(tmp_path, "a", GraphReport("h", "f [0/0]", "aa", "compiled", "hit"), files={})
    (run,) = run_records.runs(tmp_path)
    run.processes[0].launched, run.processes[0].ended = 1000.0, 1120.0
    monkeypatch.setattr(shown, "runs", lambda root: [run])
    monkeypatch.setattr("time.time", lambda: now)
    _document, show = shown.explain(config.load({"cache_dir": tmp_path}), name)
    assert ("newest recorded run" in CliRunner().invoke(_command(show)).output) is is_said


@pytest.mark.reason("store-unwritable")
def test_an_unwritable_store_is_reported_as_the_reason_for_missing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store's path is below a regular file, so that not even root can create the store."""
    (file := tmp_path / "file").touch(0o600)
    monkeypatch.setenv("PRECOMPILED_CACHE_DIR", str(file / "store"))
    recorded(file / "store", "a", GraphReport("h", "f [0/0]", "aa", "compiled", "hit"), files={})
    error = answer("explain", "--run", "last", status=1)["error"]
    assert error["code"] == "store-unwritable" and error["action"]
    assert error["message"].startswith("runs cannot be recorded: ") and str(file) in error["message"]
    monkeypatch.setenv("PRECOMPILED_CACHE_DIR", str(tmp_path / "store"))
    assert answer("explain", "--run", "last", status=1)["error"]["code"] == "no-such-run"


@pytest.mark.reason("store-untrusted")
@pytest.mark.parametrize("folder", ["", run_records.RUNS])
def test_an_untrusted_store_is_reported_as_the_reason_for_unreadable_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("PRECOMPILED_CACHE_DIR", str(tmp_path))
    recorded(tmp_path, "a", GraphReport("h", "f [0/0]", "aa", "compiled", "hit"), files={})
    (tmp_path / folder).chmod(0o777)
    error = answer("explain", "--run", "last", status=1)["error"]
    assert error["code"] == "store-untrusted" and "chmod -R go-w" in error["action"]
    assert error["message"].startswith(f"runs cannot be read: {tmp_path / folder}")


@pytest.mark.reason("store-unwritable")
def test_a_full_disk_is_named_as_the_reason_for_missing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECOMPILED_CACHE_DIR", str(tmp_path / "store"))
    error = answer("explain", "--run", "last", status=1)["error"]
    assert error["code"] == "no-such-run", error
    monkeypatch.setattr(checks_store, "NO_SPACE", 1 << 62)
    error = answer("explain", "--run", "last", status=1)["error"]
    assert error["code"] == "store-unwritable" and "free" in error["message"] and "Free some space" in error["action"]


def _command(show: Callable[[], None]) -> click.Command:
    return click.Command("show", callback=show)


def recorded(
    root: Path,
    run: str,
    *graphs: GraphReport,
    files: dict[str, str],
    modules: Mapping[str, str] = MappingProxyType({}),
    functions: Sequence[Any] = (),
    trace: Span | None = None,
    wait: Span | None = None,
) -> None:
    """Write the record of a run of the test process, with the given graphs."""
    record = client_runs.RunRecord(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_runs, "place", lambda variables: client_runs.RunMembership(run, 0, 1))
        for graph in graphs:
            record.note(graph)
        if trace is not None:
            record.frame("m.g", trace)
        if wait is not None:
            record.waited(wait)
        record.end(graphs, functions, files, modules)


def test_a_run_is_summarized(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    settings = config.load({"cache_dir": tmp_path})
    hits = [
        GraphReport(f"h{number}", "f [0/0]", "aa", "compiled", source)
        for number, source in enumerate(["hit", "hit", "package"])
    ]
    recorded(tmp_path, "before", *hits, files={"/a/train.py": "1", "/a/model.py": "1"})
    submit, trace = Span("submit", 100.0, 0.5, 1), Span("trace", 99.0, 2.0, 1)
    swap = GraphReport("s", "g [1/0]", "bb", "compiled", "swap", swapped_after_s=12.5, compile_s=9.0, spans=[submit])
    compile_here = Span("compile in process", 200.0, 3.0, 1)
    here = GraphReport("b", "h [2/0]", "", "bypassed", "inline", "freezing", "it freezes", spans=[compile_here])
    left = GraphReport("p", "i [3/0]", "cc", "pending")
    traced = SimpleNamespace(name="m.g", state="recorded", reason="", message="", reasons=("L['n']: 2 here",))
    drawn = SimpleNamespace(name="m.h", state="audited", reason="", message=audit.SAID, reasons=("of another entry",))
    files = {"/a/train.py": "2", "/a/model.py": "1"}
    helper = SimpleNamespace(
        name="contextlib.nullcontext.__enter__", state="traced", reason="x", message="", reasons=()
    )
    functions = [traced, drawn, helper]
    recorded(tmp_path, "after", *hits, swap, here, left, files=files, functions=functions, trace=trace)
    document, show = shown.explain(settings, "after")
    assert document["summary"] == (
        "of 6 graphs: 3 hits (1 not traced), 1 graph no longer in the store, 1 graph compiled in process (freezing), "
        "1 graph pending"
    )
    assert document["edited"] == ["/a/train.py"] and document["trace_s"] == 1.5
    before, _show = shown.explain(settings, "before")
    assert before["is_first_run"] and not document["is_first_run"]
    costs = {miss["name"]: (miss["eager_s"], miss["waited_s"], miss["compile_s"]) for miss in document["misses"]}
    assert costs == {"g [1/0]": (12.0, 0.5, 9.0), "h [2/0]": (0, 3.0, 0), "i [3/0]": (0, 0, 0)}
    text = CliRunner().invoke(_command(show)).output
    assert "it cost 12.0 s of eager code until the last swap, 3.5 s of waiting and 1.5 s of tracing" in text
    assert "h [2/0] compiled in process (freezing): the program waited 3.0 s\n  freezing: it freezes\n" in text
    assert "This run also traced 1 function to check stored packages, and all are right." in text and "m.h" not in text
    assert "and 1 helper of Python and torch" in text and "nullcontext" not in text
    assert "m.g  1.5 s  recorded  n: 2 here" in text and "edited since the previous run: /a/train.py" in text


def test_a_run_is_explained_with_one_read_of_each_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    for run in ("before", "after"):
        recorded(tmp_path, run, _swap("a", "aa", 90.0), files={"/a/train.py": run})
    reads: list[None] = []
    parse = run_records._process
    monkeypatch.setattr(run_records, "_process", lambda found: reads.append(None) or parse(found))
    assert shown.explain(config.load({"cache_dir": tmp_path}), "after")[0]["edited"] == ["/a/train.py"]
    assert len(reads) == 2


@pytest.mark.parametrize(
    ("files", "modules", "change"),
    [
        ({}, {}, ""),
        (
            {"/a/train.py": "2"},
            {"torchvision": "n2 f2"},
            "the code of the program has changed since the trace: train.py",
        ),
        ({"/a/new.py": "1"}, {"numpy": "n f"}, "new.py and numpy are imported now, and were not at the trace"),
        ({}, {"numpy": "n f", "pandas": None}, "numpy is imported now, and was not at the trace; pandas was imported"),
        ({}, {"pandas": None}, "pandas was imported at the trace, and is not now"),
        ({}, {"pandas": "n f2"}, "the installed files have changed since the trace, of pandas"),
        ({}, {"pandas": "n2 f2"}, "other modules are imported than at the trace, of pandas"),
        ({}, dict.fromkeys("abcde", "n f"), "a, b, c and 2 more are imported now, and were not at the trace"),
    ],
)
def test_a_changed_program_is_explained_by_what_differs(
    tmp_path: Path, files: dict[str, str], modules: dict[str, str | None], change: str
) -> None:
    tmp_path.chmod(0o700)
    files_before, before = {"/a/train.py": "1"}, {"torchvision": "n f", "pandas": "n f"}
    now = {name: digests for name, digests in {**before, **modules}.items() if digests is not None}
    retraced = SimpleNamespace(name="m.g", state="recorded", reason="", message="", reasons=(OTHER_PROGRAMS,))
    recorded(tmp_path, "before", files=files_before, modules=before)
    recorded(tmp_path, "after", files={**files_before, **files}, modules=now, functions=[retraced])
    _document, show = shown.explain(config.load({"cache_dir": tmp_path}), "after")
    text = CliRunner().invoke(_command(show)).output
    assert f"m.g  recorded  {change or OTHER_PROGRAMS}" in re.sub(r"  [\d.]+ m?s  ", "  ", text)


def test_time_in_wait_is_not_counted_as_eager(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    settings = config.load({"cache_dir": tmp_path})
    submits = [Span("submit", 100.0, 0.5, 1), Span("submit", 101.0, 0.5, 1)]
    blocked = [submits[1], Span("wait", 101.5, 3.0, 1)]
    graphs = [
        GraphReport("a", "f [0/0]", "aa", "compiled", "swap", swapped_after_s=12.5, spans=[submits[0]]),
        # This graph's first call blocked the program for 3 s, so the other graph did not run eager during this time.
        GraphReport(
            "b",
            "g [1/0]",
            "bb",
            "compiled",
            "swap",
            swapped_after_s=3.5,
            spans=blocked,
        ),
    ]
    recorded(tmp_path, "run", *graphs, files={}, wait=Span(WAITED, 105.0, 20.0, 1))
    document, show = shown.explain(settings, "run")
    costs = {miss["name"]: (miss["eager_s"], miss["waited_s"]) for miss in document["misses"]}
    assert costs == {"f [0/0]": (1.0, 0.5), "g [1/0]": (0.0, 3.5)} and document["waited_s"] == 20.0
    text = CliRunner().invoke(_command(show)).output
    assert "it cost 1.0 s of eager code until the last swap, 4.0 s of waiting and 20.0 s in precompiled.wait()" in text


@pytest.mark.parametrize("id", ["s", "of another process"])
def test_the_time_before_a_compile_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    """A graph may join a job that another process has submitted under the same key."""
    tmp_path.chmod(0o700)
    spans = [Span("submit", 100.0, 0.5, 1), Span("load", 108.0, 0.1, 2)]
    graph = GraphReport("s", "g [1/0]", "bb", "compiled", "swap", swapped_after_s=8.1, compile_s=3.5, spans=spans)
    recorded(tmp_path, "run", graph, files={})
    job = job_phases.RecordedJob(id, "bb", "g [1/0]", 1, 100.2, 104.4, 107.9, "published")
    worker = job_phases.RecordedWorker(7, "", 100.3, 104.1, [job])
    monkeypatch.setattr(misses, "workers", lambda root: [worker])
    document, show = shown.explain(config.load({"cache_dir": tmp_path}), "run")
    (miss,) = document["misses"]
    assert (miss["worker_start_s"], miss["queue_s"]) == (pytest.approx(3.8), pytest.approx(0.4))
    said = "eager for 7.6 s, the program waited 0.5 s, start of a worker 3.8 s, queue 0.4 s, compile 3.5 s"
    assert f"g [1/0] bb: {said}\n" in CliRunner().invoke(_command(show)).output
    assert job_phases.waits(job, worker, 104.0) == (pytest.approx(0.1), pytest.approx(0.3))
    assert job_phases.waits(job, worker, 105.0) == (0.0, 0.0), "the compile began before the graph was needed"
    worker.launched, worker.ready = 10.0, 12.0
    assert job_phases.waits(job, worker, 100.0) == (0.0, pytest.approx(4.2)), "the worker ran another job first"


def test_a_graph_that_is_pending_at_the_end_has_a_cause(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    settings = config.load({"cache_dir": tmp_path, "runtime_dir": tmp_path / "run"})
    began = time.time()
    left = GraphReport("p", "i [3/0]", "cc" * 32, "pending", spans=[Span("submit", began - 2.0, 0.1, 1)])
    recorded(tmp_path, "run", left, files={})
    document, show = shown.explain(settings, "run")
    (miss,) = document["misses"]
    assert re.fullmatch(
        r"the program ended \d.\d s after it needed the graph. No daemon runs, so the next run submits it again",
        miss["since"],
    )
    assert miss["since"] in CliRunner().invoke(_command(show)).output
    record = job_phases.WorkerRecord(tmp_path, 0.0).begin("p", "cc" * 32, "i [3/0]", 1, 0.0)
    record.phase("C++ compilers")
    (miss,) = shown.explain(settings, "run")[0]["misses"]
    said = r" needed the graph. A worker is compiling it \([\d.]+ \w+ so far, C\+\+ compilers\)\. A run after "
    assert re.search(said, miss["since"])
    assert miss["since"].endswith("After the compile, `precompiled explain` names the cause of the miss")


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ([], "until a worker has started"),
        (["starting"], "until a worker has started"),
        (["starting", "busy"], "for 1 worker"),
        (["busy", "busy"], "for 2 workers"),
    ],
)
def test_a_queued_graph_names_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: list[str], said: str
) -> None:
    tmp_path.chmod(0o700)
    reply = SimpleNamespace(queue_depth=2, workers=[SimpleNamespace(state=state) for state in states])
    monkeypatch.setattr(pending_graphs, "ask_daemon", lambda *_: reply)
    recorded(tmp_path, "run", GraphReport("p", "i [3/0]", "cc" * 32, "pending"), files={})
    (miss,) = shown.explain(config.load({"cache_dir": tmp_path}), "run")[0]["misses"]
    assert f"2 graphs wait in the daemon's queue {said}; `precompiled status --watch` shows" in miss["since"]


def test_a_function_that_torch_cannot_trace_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    failed = SimpleNamespace(name="m.g", state="raised", reason="", message="KeyError: 'a'", reasons=())
    recorded(tmp_path, "run", files={}, functions=[failed])
    document, show = shown.explain(config.load({"cache_dir": tmp_path}), "run")
    assert document["summary"] == "no graph: torch failed to trace m.g (KeyError: 'a')"
    assert "m.g  raised  torch failed to trace it: KeyError: 'a'" in re.sub(
        r"  [\d.]+ m?s  ", "  ", CliRunner().invoke(_command(show)).output
    )


def test_only_a_compile_that_began_before_its_run_is_said_to(tmp_path: Path) -> None:
    """A program that calls ``precompiled.wait()`` runs eager for less time than the compile takes."""
    joined = misses.Miss("f", "", [], [0], eager_s=7.2, compile_s=102.0, began_before=True)
    assert joined.cost == "eager for 7.2 s, compile 1.7 min, begun before this run needed it"
    assert misses.Miss("f", "", [], [0], eager_s=0.1, compile_s=5.0).cost == "eager for 0.1 s, compile 5.0 s"


def test_equal_graphs_of_a_run_share_a_job_and_its_saved_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal functions or layers have one key. The run's first graph with this key submits the job, so the job is the
    run's own.
    """
    tmp_path.chmod(0o700)
    settings = config.load({"cache_dir": tmp_path})

    def swap(name: str, submitted: float) -> GraphReport:
        spans = [Span("submit", submitted, 0.1, 1), Span("load", 108.0, 0.1, 2)]
        return GraphReport(name, "f [0/0]", "bb", "compiled", "swap", swapped_after_s=3.0, compile_s=4.0, spans=spans)

    recorded(tmp_path, "first", swap("a", 100.0), swap("b", 105.0), files={})
    hits = [GraphReport(name, "f [0/0]", "bb", "compiled", "hit", compile_s=4.0, saved_s=4.0) for name in "cd"]
    recorded(tmp_path, "second", *hits, files={})
    job = job_phases.RecordedJob("a", "bb", "f [0/0]", 1, 100.2, 101.0, 107.0, "published")
    worker = job_phases.RecordedWorker(7, "", 10.0, 20.0, [job])
    monkeypatch.setattr(misses, "workers", lambda root: [worker])
    document, _show = shown.explain(settings, "first")
    assert [miss["began_before"] for miss in document["misses"]] == [False]
    job.began = 99.0  # now another process has submitted the job
    document, _show = shown.explain(settings, "first")
    assert [miss["began_before"] for miss in document["misses"]] == [True]
    _document, show = shown.explain(settings, "second")
    assert re.search(r"compiles saved +4\.0 s", CliRunner().invoke(_command(show)).output)
    document, _show = shown.stats(settings, "second")
    assert [rank["saved_s"] for rank in document["ranks"]] == [4.0]


def test_causes_are_counted() -> None:
    def miss(*causes: tuple[str, str], became: str = "") -> misses.Miss:
        return misses.Miss("f", "", [Cause(kind, short, "") for kind, short in causes], [0], became=became)

    edit, size = ("edit", "edit at size.py:3"), ("size", "new size")
    several = (
        [size],
        [edit, ("mode", "grad mode")],
        [("setting", "setting x.size")],
        [("way", "other branch at s.py:3")],
    )
    said = ["2 new sizes", "2 edits at size.py:3 and grad mode", "2 by setting x.size", "2 other branches at s.py:3"]
    assert [miss(*item).counted(2) for item in several] == said
    assert miss(("new", "new graph")).counted(1) == "1 new graph"
    assert miss(became="pending").counted(2) == "2 graphs pending"
    graphs = [miss(size), miss(size), miss(became="eager (key-quarantined)")]
    summary = misses.Summary(graphs=4, hits=1, misses=graphs)
    assert summary.sentence() == "of 4 graphs: 1 hit, 2 new sizes, 1 graph eager (key-quarantined)"


@pytest.mark.reason("no-such-run")
def test_a_program_selects_its_newest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("PRECOMPILED_CACHE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    error = answer("explain", "train.py", status=1)["error"]
    assert error["message"] == "no run is recorded yet"
    made = [("old", "/a", "train.py"), ("of a", "/a", "train.py"), ("of b", "/b", "train.py"), ("test", "/a", "")]
    for number, (run, directory, file) in enumerate(made):
        recorded(tmp_path, run, GraphReport("h", "f [0/0]", "aa", "compiled", "hit"), files={})
        (path,) = (tmp_path / "runs" / run).glob("*.jsonl")
        first, *rest = path.read_text().splitlines()
        argv = ["python", "-m", "pytest"] if not file else ["python", file]
        changes = {"directory": directory, "program": file or "pytest", "argv": argv, "began": float(number)}
        path.write_text("\n".join([json.dumps({**json.loads(first), **changes}), *rest, ""]))
    for named, run in (
        ("train.py", "of b"),
        ("/a/train.py", "of a"),
        ("/a/../a/train.py", "of a"),
        ("pytest", "test"),
        ("old", "old"),
    ):
        assert answer("explain", named)["name"] == run == answer("explain", "--run", named)["name"]
        assert answer("cache", "stats", "--run", named)["name"] == run
    for named in ("other.py", "./train.py", "notebook.ipynb"):
        error = answer("explain", named, status=1)["error"]
        assert (error["code"], error["message"]) == ("no-such-run", f"there is no run of {named!r}")
        assert error["action"] == "The recorded runs are of pytest, train.py"
    items = ShellComplete(cli, {}, "precompiled", "_C").get_completions(["explain"], "tr")
    assert [item.value for item in items] == ["traced", "train.py"]


@pytest.mark.reason("no-such-key")
def test_a_graph_missing_in_the_store_is_explained_by_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("PRECOMPILED_CACHE_DIR", str(tmp_path))
    recorded(tmp_path, "a", GraphReport("p", "i [3/0]", "cc12", "pending"), files={})
    error = answer("explain", "cc12", status=1)["error"]
    assert "i [3/0] of " in error["message"] and error["message"].endswith("(a): pending")
    assert error["code"] == "no-such-key"


def test_the_outcome_of_a_pending_graph_after_its_run_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("PRECOMPILED_CACHE_DIR", str(tmp_path))
    store = Store(tmp_path)
    publish_artifact(store, "a" * 64, created=100.0)
    store.publish_failure(fmt.Failure("b" * 64, "g [1/0]", "compile-error", "It failed.", time.time(), 3600.0))
    for name in "abc":
        recorded(tmp_path, name, GraphReport(name, "f [0/0]", name * 64, "pending"), files={})
    said = [answer("explain", "--run", name)["misses"][0]["since"] for name in "abc"]
    assert said[:2] == ["the graph has been compiled since", "the compile has failed since (compile-error)"]
    assert said[2].startswith("the program ended ")


def test_a_line_for_several_graphs_of_one_key_says_how_many(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    graphs = [GraphReport(name, "i [3/0]", "cc" * 32, "pending") for name in "pq"]
    recorded(tmp_path, "run", *graphs, files={})
    _document, show = shown.explain(config.load({"cache_dir": tmp_path}), "run")
    assert "i [3/0] cccccccccccc pending (2 graphs)" in CliRunner().invoke(_command(show)).output


def test_only_the_user_can_access_a_store_created_by_a_run(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        folder = run_records.begin(tmp_path / "store", "run")
    finally:
        os.umask(before)
    made = (folder, folder.parent, tmp_path / "store")
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700] * 3


def test_a_known_key_can_be_a_miss_for_its_sizes(tmp_path: Path) -> None:
    """If the store has a key only for other sizes, a lookup is a miss, and its cause is "new size".

    Only artifacts older than the lookup count. In mode "wait", the start of the record is not the time of the lookup,
    because the record starts after the compile.
    """
    tmp_path.chmod(0o700)
    settings = config.load({"cache_dir": tmp_path})
    store = Store(tmp_path)
    program = changed(everything(put(*ARGS, 0, {"size": {"s": 0}}), put("hints", [8])))
    whole = "a" * 64
    for created, guards, hint in ((100.0, "L['t0'] < 9", 8), (300.0, "L['t0'] >= 9", 40)):
        publish_artifact(store, whole, {**program, "hints": [hint]}, guards=guards, created=created)
    for run, looked_up, short in (("first", 50.0, "new graph"), ("second", 200.0, "new size")):
        graph = GraphReport("g", "forward [0/0]", whole, "compiled", "swap", spans=[Span("lookup", looked_up, 0.1, 1)])
        recorded(tmp_path, run, graph, files={})
        document, _show = shown.explain(settings, run)
        (miss,) = document["misses"]
        assert [cause["short"] for cause in miss["causes"]] == [short]
    assert "s0 = 40; what was there holds where s0 < 9" in miss["causes"][0]["what"]


LOOKUP, SUBMIT, LOAD = (Span(what, 200.0, 0.1, 1) for what in ("lookup", "submit", "load"))


@pytest.mark.parametrize(
    ("state", "source", "reason", "spans", "said"),
    [
        (
            "failed",
            None,
            "slower-than-eager",
            [LOOKUP],
            "1 graph eager because an earlier run found compiled code slower than eager code (slower-than-eager)",
        ),
        ("failed", None, "slower-than-eager", [LOOKUP, SUBMIT, LOAD], "1 new graph"),
        ("failed", "hit", "slower-than-eager", [LOOKUP, LOAD], "1 graph eager (slower-than-eager)"),
        (
            "failed",
            None,
            "wrong-result",
            [LOOKUP],
            "1 graph eager because an earlier run found a wrong result of compiled code (wrong-result)",
        ),
        ("failed", None, "wrong-result", [LOOKUP, LOAD], "1 graph eager (wrong-result)"),
        (
            "failed",
            None,
            "key-quarantined",
            [LOOKUP],
            "1 graph eager because an earlier compile failed (key-quarantined)",
        ),
        (
            "bypassed",
            "inline",
            "crashes-processes",
            [LOOKUP],
            "1 graph compiled in process because earlier processes crashed in compiled code (crashes-processes)",
        ),
        (
            "bypassed",
            "inline",
            "worker-only-error",
            [LOOKUP],
            "1 graph compiled in process because an earlier compile failed (worker-only-error)",
        ),
        ("bypassed", "inline", "compile-error", [LOOKUP, SUBMIT], "1 new graph"),
        ("bypassed", "inline", "store-untrusted", [], "1 graph compiled in process (store-untrusted)"),
        ("bypassed", "inline", "store-unreadable", [], "1 graph compiled in process (store-unreadable)"),
        ("bypassed", "inline", "direct-call", [LOOKUP], "1 graph compiled in process (direct-call)"),
        ("bypassed", "inline", "lookup-only", [LOOKUP], "1 new graph"),
        ("bypassed", "inline", "no-daemon", [LOOKUP], "1 new graph"),
    ],
)
def test_only_a_cache_miss_is_counted_as_new(
    tmp_path: Path, state: str, source: str | None, reason: str, spans: list[Span], said: str
) -> None:
    tmp_path.chmod(0o700)
    whole = "a" * 64
    publish_artifact(Store(tmp_path), whole, changed(put("hints", [])), created=100.0)
    graph = GraphReport("g", "f [0/0]", whole, state, source, reason, "so it is", spans=spans)
    recorded(tmp_path, "a", graph, files={})
    document, show = shown.explain(config.load({"cache_dir": tmp_path}), "a")
    assert document["summary"] == f"of 1 graph: no hits, {said}"
    text = CliRunner().invoke(_command(show)).output
    assert f"{reason}: so it is" in text
    assert ("the store had no similar graph" in text) == (said == "1 new graph")
    is_slower = reason == "slower-than-eager" and "earlier" in said
    assert ("Run `precompiled cache clear aaaaaaaaaaaa`" in text) == is_slower


def test_a_graph_of_another_file_is_not_compared(tmp_path: Path) -> None:
    """`explain` must not compare a graph with a graph of another file, even if all graphs of the same file are less
    similar.

    Without an earlier graph of the same file, the cause is "new graph".
    """
    tmp_path.chmod(0o700)
    store = Store(tmp_path)

    def publish(file: str, factor: int, grad: bool, created: float) -> str:
        code = f"return x * {factor} + y"
        program = changed(
            everything(
                put("about", "places", [[file, 12, "forward", code]]),
                put(*NODES, 2, 2, 1, factor),
                put("modes", "grad", grad),
                put("hints", []),
            )
        )
        components = key.components(json.dumps(program, separators=(",", ":")).encode())
        whole = hashlib.sha256(repr(sorted(components.items())).encode()).hexdigest()
        publish_artifact(store, whole, program, created=created)
        return whole

    publish("/me/test_net.py", 5, True, 100.0)
    first = publish("/me/vs.py", 2, True, 200.0)
    (cause,) = Kepts(store).explain(first).causes
    assert cause.kind == "new" and cause.what.endswith("no graph of its file; the nearest graph is of test_net.py")
    publish("/me/vs.py", 3, False, 300.0)
    publish("/me/test_net.py", 6, True, 400.0)
    last = publish("/me/vs.py", 7, False, 500.0)
    (cause,) = Kepts(store).explain(last).causes
    assert cause.short == "edit at vs.py:12" and cause.what == "'return x * 3 + y' -> 'return x * 7 + y'"
    only = publish("/me/vs.py", 8, True, 600.0)
    assert "test_net" not in str(Kepts(store).explain(only).causes)


def _publish_line(root: Path, line: int, factor: int, created: float, file: str = "/me/s.py") -> str:
    """Publish a graph whose code is at this line. Returns its key."""
    code = f"return x * {factor} + y"
    places = put("about", "places", [[file, line, "forward", code]])
    program = changed(everything(places, put(*NODES, 2, 2, 1, factor), put("hints", [])))
    components = key.components(json.dumps(program, separators=(",", ":")).encode())
    whole = hashlib.sha256(repr(sorted(components.items())).encode()).hexdigest()
    publish_artifact(Store(root), whole, program, created=created)
    return whole


def _causes_of_run(root: Path, run: str) -> list[tuple[str, str]]:
    document, _show = shown.explain(config.load({"cache_dir": root}), run)
    return [(cause["short"], cause["what"]) for miss in document["misses"] for cause in miss["causes"]]


def _swap(name: str, key: str, looked_up: float) -> GraphReport:
    return GraphReport(name, "forward [0/0]", key, "compiled", "swap", spans=[Span("lookup", looked_up, 0.1, 1)])


def test_an_edit_that_moves_its_line_is_an_edit_in_a_run_with_edited_files(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    before = _publish_line(tmp_path, 5, 2, 100.0)
    after = _publish_line(tmp_path, 6, 3, 300.0)
    codes = "'return x * 2 + y' -> 'return x * 3 + y'"
    settings, explained = config.load({"cache_dir": tmp_path}), Kepts(Store(tmp_path)).explain(after)
    assert [cause.kind for cause in misses.causes_with_edits(settings, explained)] == ["way"], "no run is recorded"
    recorded(tmp_path, "before", _swap("a", before, 90.0), files={"/me/s.py": "1"})
    recorded(tmp_path, "after", _swap("b", after, 200.0), files={"/me/s.py": "2"})
    assert _causes_of_run(tmp_path, "after") == [("edit at s.py:6", codes)]
    assert [cause.short for cause in misses.causes_with_edits(settings, explained)] == ["edit at s.py:6"]
    # One run has both graphs, so both lines are in the edited file.
    recorded(tmp_path, "both", _swap("a", before, 90.0), _swap("b", after, 200.0), files={"/me/s.py": "3"})
    branch = "'return x * 3 + y' ran, where s.py:5 ran before: 'return x * 2 + y'"
    assert ("other branch at s.py:6", branch) in _causes_of_run(tmp_path, "both")


def test_the_cause_of_a_finished_run_names_no_graph_of_a_later_run(tmp_path: Path) -> None:
    """After `cache clear` and a run of another program, the first program's graph was compiled again."""
    tmp_path.chmod(0o700)
    mine = _publish_line(tmp_path, 5, 2, 500.0)
    recorded(tmp_path, "first", _swap("a", mine, 90.0), files={})
    other = _publish_line(tmp_path, 9, 3, 400.0)
    recorded(tmp_path, "other", _swap("b", other, 390.0), files={})
    assert _causes_of_run(tmp_path, "first") == [("new graph", "the store had no similar graph")]
    # A run compares with earlier runs' graphs, even if they were compiled after its lookup.
    third = _publish_line(tmp_path, 7, 4, 600.0)
    recorded(tmp_path, "third", _swap("a", third, 395.0), files={})
    assert [short for short, _what in _causes_of_run(tmp_path, "third")] == ["other branch at s.py:7"]


def test_a_graph_that_was_removed_is_not_called_new(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    mine, settings = _publish_line(tmp_path, 5, 2, 100.0), config.load({"cache_dir": tmp_path})
    loaded = _swap("a", mine, 90.0)
    loaded.spans.append(Span("load", 110.0, 0.1, 1))
    recorded(tmp_path, "first", loaded, files={})
    eviction.remove(Store(tmp_path), mine)
    _publish_line(tmp_path, 9, 3, 120.0)
    (miss,) = shown.explain(settings, "first")[0]["misses"]
    assert miss["since"] == "the store no longer has it"
    eviction.clear(Store(tmp_path))
    (miss,) = shown.explain(settings, "first")[0]["misses"]
    assert miss["since"] == "the store has been cleared since"
    recorded(tmp_path, "second", _swap("a", mine, 200.0), files={})
    recorded(tmp_path, "at the same time", _swap("a", mine, 105.0), files={})
    _publish_line(tmp_path, 5, 2, 210.0)
    assert [short for short, _what in _causes_of_run(tmp_path, "second")] == ["removed graph"]
    assert [short for short, _what in _causes_of_run(tmp_path, "at the same time")] == ["new graph"]


@pytest.mark.parametrize(("guards", "said"), [("", ["an edit"]), ("s0 < 5", ["new size"])])
def test_a_new_size_is_the_cause_only_if_an_earlier_artifact_has_guards(guards: str, said: list[str]) -> None:
    """A lookup may miss an artifact whose manifest is older than the lookup, because a manifest is written before its
    artifact is published.

    If no earlier artifact of the key has guards, a new size is not the cause of the miss.
    """
    found = SimpleNamespace(
        mine=[SimpleNamespace(created=1.0)],
        nearest=None,
        causes=[Cause("edit", "an edit", "")],
        program={},
        variants=[{"guards": guards, "sizes": {}}, {"guards": "s0 > 4" if guards else "", "sizes": {}}],
    )
    kepts = SimpleNamespace(of=lambda key: True, explain=lambda key, files, may_compare: found)
    context = misses._Context(set(), {}, [])
    process = SimpleNamespace(began=2.0, main_file="", files={})
    assert [cause.short for cause in misses._causes(kepts, process, {"key": "ab"}, context)] == said  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "source", "reason", "in_store", "said", "left_out"),
    [
        ("compiled", "swap", "", "artifact", ["the next run finds the new artifact", "precompiled watch"], ["later"]),
        ("pending", None, "", "", ["the next run submits it again"], ["the next run finds"]),
        (
            "failed",
            "swap",
            "slower-than-eager",
            "both",
            ["For the next 50 min, later runs stay eager", "Run `precompiled cache clear "],
            [],
        ),
        ("failed", None, "wrong-result", "failure", ["later runs stay eager", "report its output"], []),
        ("bypassed", "inline", "compile-error", "failure", ["later runs compile the graph in process"], []),
        ("bypassed", "inline", "crashes-processes", "failure", ["later runs compile the graph in process"], []),
        ("bypassed", "inline", "fixed-float", "failure", ["later runs compile the graph in process"], []),
        ("bypassed", "inline", "lookup-only", "", ["run once in another mode"], ["later runs"]),
        ("bypassed", "inline", "no-daemon", "", ["Run `precompiled doctor`"], ["later runs"]),
        # Another run has compiled the graph since.
        ("bypassed", "inline", "lookup-only", "artifact", ["the next run finds the new artifact"], ["another mode"]),
    ],
)
def test_the_next_run_is_said_to_find_an_artifact_only_if_it_does(
    tmp_path: Path,
    state: str,
    source: str | None,
    reason: str,
    in_store: str,
    said: list[str],
    left_out: list[str],
) -> None:
    tmp_path.chmod(0o700)
    settings, store = config.load({"cache_dir": tmp_path, "runtime_dir": tmp_path / "run"}), Store(tmp_path)
    _publish_line(tmp_path, 5, 2, 100.0)
    places = put("about", "places", [["/me/s.py", 5, "forward", "return x * 3 + y"]])
    program, whole = changed(everything(places, put(*NODES, 2, 2, 1, 3), put("hints", []))), "a" * 64
    data, now = json.dumps(program, separators=(",", ":")).encode(), time.time()
    if in_store in ("artifact", "both"):
        publish_artifact(store, whole, program, created=now - 900)
    if in_store in ("failure", "both"):
        kept = fmt.program_for_failure(data)
        store.publish_failure(fmt.Failure(whole, "f [0/0]", reason, "so it is", now - 600, 3601.0, program=kept))
    spans = [Span("lookup", now - 1000, 0.1, 1), *([] if reason in ("lookup-only", "no-daemon") else [SUBMIT])]
    graph = GraphReport("g", "forward [0/0]", whole, state, source, reason, "so it is" if reason else "", spans=spans)
    recorded(tmp_path, "a", graph, files={})
    if not in_store:
        run_records.keep_program(tmp_path / "runs" / "a", whole, data)
    document, show = shown.explain(settings, "a")
    (miss,) = document["misses"]
    assert [cause["kind"] for cause in miss["causes"]] == ["edit"]
    is_served = said[0] == "the next run finds the new artifact"
    assert miss["is_served"] is is_served and bool(miss["causes"][0]["advice"]) is is_served
    text = CliRunner().invoke(_command(show)).output
    assert all(part in text for part in said) and not any(part in text for part in left_out), text
    assert is_served or "the next run finds" not in text
    of_key = CliRunner().invoke(cli, ["explain", whole, "--cache-dir", str(tmp_path)], catch_exceptions=False).output
    assert ("the next run finds" in of_key) is is_served, of_key
    assert ("For the next 50 min, later runs" in of_key) is bool(miss["later"])
