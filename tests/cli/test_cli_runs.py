"""What is said of a run: its ranks together, those that differ by number and reason; with real processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support_host import Host

from precompiled.cli import runs as shown
from precompiled.client import runs as client_runs
from precompiled.store import runs

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


@pytest.mark.reason("no-such-run")
def test_ranks_that_differ_are_told_by_number_and_reason(served: Host) -> None:
    file = served.root / "train.py"
    file.write_text(PROGRAM)
    clients = [
        served.program(str(file), env={"RANK": str(rank), "WORLD_SIZE": "5", "SLURM_JOB_ID": "7/a"})
        for rank in range(4)
    ]
    assert [client.result() for client in clients] == [[""], [""], ["freezing"], [""]]
    (run,) = runs.runs(served.store.root)
    assert run.name == "slurm-7_a.0" and [process.rank for process in run.processes] == [0, 1, 2, 3]
    assert not run.is_alive and all(process.ended for process in run.processes)
    assert shown.said(run) == [
        "3 of 5 ranks run all their graphs compiled by the daemon (up to 1 graph each)",
        "rank 2: 1 graph compiled in process (freezing)",
        "rank 4: no graph yet, or on another host",
    ]
    document = json.loads(served.command("explain", "--run", "last", "--json"))
    assert document["said"] == shown.said(run) and document["program"] == "train.py"
    graph = document["processes"][0]["graphs"][0]
    assert graph["calls_compiled"] + graph["calls_eager"] == 2 and graph["source"] in ("swap", "hit")
    text = served.command("explain", "--run", "slurm-7_a.0")
    assert "rank 2: 1 graph compiled in process (freezing)" in text and "freezing:" in text
    numbers = json.loads(served.command("stats", "--run", "last", "--json"))["ranks"]
    assert [(rank["rank"], rank["graphs"], rank["not_served"]) for rank in numbers] == [
        (0, 1, 0), (1, 1, 0), (2, 1, 1), (3, 1, 0)
    ]  # fmt: skip
    assert all(rank["hit"] + rank["swap"] == 1 - rank["not_served"] for rank in numbers)
    assert "not served" in served.command("stats", "--run", "slurm-7_a.0")
    assert "no-such-run" in served.command("explain", "--run", "another", "--json", status=1)


def test_a_process_is_told_while_it_runs_and_when_it_is_killed(served: Host) -> None:
    folder = served.root / "alone"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM.replace("# goes on", "import time; time.sleep(600)"))
    client = served.program("train.py", cwd=folder)
    client.wait_for("done")
    (live,) = json.loads(served.command("status", "--json"))["runs"]
    assert live["program"] == "train.py" and live["said"] == ["its graph runs compiled by the daemon"]
    client.process.kill()
    client.process.wait()
    assert json.loads(served.command("status", "--json"))["runs"] == []
    (run,) = runs.runs(served.store.root)
    assert shown.said(run) == ["it ended without a word"]


def test_what_require_has_refused_is_not_said_to_run() -> None:
    graph = {"state": "failed", "source": "error", "reason": "not-in-time", "at": 1.0}
    process = runs.Process(0, 1, 1, "", "train.py", [], "", "", 0.0, {"1": graph}, ended=2.0)
    assert shown._of_a_process(process) == "1 graph not run, an error (not-in-time)"


def test_a_place_is_what_starts_ranks_says(tmp_path: Path) -> None:
    parent = f"parent-{os.getppid()}-{runs.start_of(os.getppid())}"
    places = {
        ("TORCHELASTIC_RUN_ID=none", "RANK=3", "WORLD_SIZE=8"): (parent, 3, 8),
        ("TORCHELASTIC_RUN_ID=the/run", "RANK=1", "WORLD_SIZE=2"): ("torchrun-the_run", 1, 2),
        ("SLURM_JOB_ID=7", "SLURM_STEP_ID=2", "SLURM_PROCID=1", "SLURM_NTASKS=4"): ("slurm-7.2", 1, 4),
        ("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2"): (parent, 1, 2),
        ("RANK=none", "WORLD_SIZE=8"): (f"process-{os.getpid()}-{runs.start_of(os.getpid())}", 0, 1),
    }
    for variables, expected in places.items():
        place = client_runs.place(dict(one.split("=") for one in variables))
        assert (place.run, place.rank, place.ranks) == expected


def test_the_oldest_runs_are_removed_and_what_is_damaged_is_left_out(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for number in range(runs.KEPT + 2):
        folder = runs.begin(tmp_path, f"run-{number}")
        os.utime(folder, (number, number))
    assert len(list((tmp_path / runs.RUNS).iterdir())) == runs.KEPT
    assert not (tmp_path / runs.RUNS / "run-0").exists()
    record = client_runs.RunRecord(tmp_path)
    record.end([], [])  # without a graph there is nothing to tell
    assert runs.runs(tmp_path) == []
    (tmp_path / runs.RUNS / "run-9" / "0-1.jsonl").write_text("{}\n")
    assert runs.runs(tmp_path) == []


def test_a_store_that_a_run_makes_is_its_users_alone(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        folder = runs.begin(tmp_path / "store", "run")
    finally:
        os.umask(before)
    made = (folder, folder.parent, tmp_path / "store")
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700] * 3
