"""Tests of the benchmarks' harness. Each start of a program yields all figures, and a crash appears in the report."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.edits.edits import EDITS, NANOGPT
from benchmarks.edits.table import Row, examine
from benchmarks.harness import result
from benchmarks.harness.answers import run_rows
from benchmarks.harness.effort import QUICK
from benchmarks.harness.hosts import ROOT, BenchmarkError, Command
from benchmarks.harness.table_command import MeasuredRow, Report, report_rows, run_table
from benchmarks.measures.load import load
from benchmarks.programs import table as programs
from benchmarks.scale.store import copies
from benchmarks.starts import contenders, picture
from benchmarks.starts.contenders import CONTENDERS
from benchmarks.starts.figures import unexpected
from benchmarks.starts.report import tables
from benchmarks.starts.run import Plan, run
from benchmarks.starts.sample import Group, Sample
from precompiled.store.artifact_format import Manifest, Payload
from precompiled.store.artifacts import Store

pytestmark = pytest.mark.integration

GROUP = Group("resnet", "inference", "static")


@pytest.fixture(scope="module")
def samples() -> Iterator[dict[str, Sample]]:
    """One sample with the smallest model for each contender: eager, and precompiled with an empty or filled store."""
    said: list[str] = []
    found = run([Plan(GROUP, ("eager", "ours-cold", "ours-warm"), 1)], "small", said.append)
    assert len(said) == len(found) == 3
    yield {sample.contender: sample for sample in found}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_start_of_each_contender_succeeds(samples: dict[str, Sample]) -> None:
    assert {name: (sample.outcome, sample.error) for name, sample in samples.items()} == dict.fromkeys(
        ("eager", "ours-cold", "ours-warm"), ("ok", "")
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_start_has_all_its_figures(samples: dict[str, Sample]) -> None:
    cold, warm, eager = samples["ours-cold"], samples["ours-warm"], samples["eager"]
    assert eager.compiled_s is None and not eager.compiles
    for sample in (cold, warm):
        assert sample.first_s and sample.process_s and sample.compiled_s and sample.step_s and sample.cpu_s
        assert sample.tracing_s and sample.first_s > sample.tracing_s
        assert sample.artifact_bytes
        assert sample.memory["client"][0] > sample.memory["daemon"][0] > 0
    assert cold.compiled_s > cold.first_s and warm.compiled_s == warm.first_s
    # The program has one graph. With an empty store, one worker compiles this graph. A cache hit needs no worker.
    assert len(cold.compiles) == 1 and len(cold.memory["worker"]) >= 1 and cold.worker_started
    assert not warm.compiles and "worker" not in warm.memory
    assert cold.swap and cold.swap["longest_s"] >= cold.swap["compiled_s"]
    assert not warm.swap


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sections_of_a_picture_add_up_to_the_start(
    samples: dict[str, Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("eager", "ours-warm"):
        sections = picture.sections(samples[name])
        assert sum(seconds for _, _, seconds in sections) == pytest.approx(samples[name].process_s)
    assert [name for name, _, _ in picture.worker_sections(samples["ours-cold"])] == [
        "worker: starts",
        "worker: compiles",
    ]
    monkeypatch.setattr(picture, "RESULTS", tmp_path)
    (path,) = picture.draw(list(samples.values()), docs=False)
    assert path.read_text().startswith("<svg") and "beside it, the worker" in path.read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_contender_that_crashes_or_is_wrong_is_reported_with_its_error(
    samples: dict[str, Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    crashing = dataclasses.replace(CONTENDERS["cache-artifacts"], needs="", spec={"path": "absent.bin"})
    monkeypatch.setitem(contenders.CONTENDERS, crashing.name, crashing)
    (crashed,) = run([Plan(GROUP, (crashing.name,), 1)], "small", lambda _: None)
    assert crashed.outcome == "crashed" and "FileNotFoundError" in crashed.error
    assert "FileNotFoundError" in tables([*samples.values(), crashed])
    # The sample of "eager" has no graphs, but a sample of "ours-warm" must have some.
    assert unexpected(CONTENDERS["ours-warm"], samples["eager"].program) == "no graph came to precompiled"


def test_waiting_program_without_equal_layers_is_a_valid_sample_in_pieces() -> None:
    graph = {"state": "compiled", "source": "swap", "calls_compiled": 3}
    assert unexpected(CONTENDERS["ours-pieces-wait"], {"first": [graph], "reports": [graph]}) == ""
    assert unexpected(CONTENDERS["ours-cold"], {"first": [graph], "reports": [graph]})


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_loading_an_artifact_starts_no_process() -> None:
    """Inductor's own load probes the CPU with subprocesses and precompiles a header. The probes and the header take 0.9
    s of each start.
    """
    results = {result.title: result for result in load(QUICK, lambda _: None)}
    assert results["child processes that a load starts"].samples == [0.0]
    assert results["load of GPT-2's artifact in a fresh process"].median > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("program", "what"),
    [
        (NANOGPT, "another log line, in an `if` on the step number"),
        ("adversarial", "one of two models"),
    ],
    ids=["of-a-script", "of-one-of-two-models"],
)
def test_edit_retraces_exactly_the_expected_functions(program: str, what: str) -> None:
    (edit,) = (edit for edit in EDITS if (edit.program, edit.what) == (program, what))
    (row,) = examine([edit], 1, True, lambda _: None)
    assert row.right, (row.cells(), row.remarks())
    assert row.ours_s and row.plain_s
    assert row.traced == row.expected and (row.frames > [0]) == bool(row.expected)


def test_unnecessary_retrace_after_an_edit_is_reported() -> None:
    row = Row(EDITS[0], expected=frozenset(), traced={"model.GPT.forward"}, frames=[2], ours_s=[2.0], plain_s=[3.0])
    assert not row.right and not row.met
    assert row.cells()[-2:] == ["0.667", "no"] and "traced model.GPT.forward (2 frames)" in row.remarks()[0]


def test_text_of_each_edit_occurs_in_its_file() -> None:
    for edit in EDITS:
        path = (ROOT / "examples" / "nanogpt" if edit.program == NANOGPT else ROOT) / edit.file
        before = path.read_text()
        assert ast.parse(edit.apply(before, 1)) and edit.apply(before, 1) != before


def test_copies_of_an_artifact_can_be_read(tmp_path: Path) -> None:
    manifest = Manifest("0" * 64, "a graph", {}, {}, "cpu", "", {}, 1.0, 1.0, {})
    store = Store(tmp_path / "store")
    entry = store.publish(Payload(manifest, {"entry.bin": b"entry", f"native/{'1' * 64}.so": b"code"}))
    keys = copies(store, entry, 5)
    assert len(set(keys)) == 5 == len(list(store.all_artifacts()))
    for key in keys:
        (found,) = store.lookup(key)
        assert store.read_files(found) == {"entry.bin": b"entry", f"native/{'1' * 64}.so": b"code"}


@dataclasses.dataclass
class Number(MeasuredRow):
    """A row of a table that counts as right if its number is even."""

    name: str
    number: int

    @property
    def right(self) -> bool:
        return self.number % 2 == 0

    def cells(self) -> list[str]:
        return [self.name, str(self.number)]


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Creates a page of docs/ with a part that `make numbers` writes.

    Afterwards restores the handler of SIGTERM, because the command of a table replaces it.
    """
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(result, "ROOT", tmp_path)
    page = tmp_path / "docs" / "numbers.md"
    page.parent.mkdir(parents=True)
    page.write_text("before\n<!-- made by make numbers -->\nold\n<!-- end -->\nafter\n")
    yield page
    signal.signal(signal.SIGTERM, handler)


def test_table_command_writes_its_files_and_its_status_depends_on_its_rows(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*numbers: int, **options: object) -> int:
        def measure(say: object) -> Report:
            rows = [Number(f"n{number}", number, different=["" if number else "zero"]) for number in numbers]
            return report_rows(["name", "number"], rows, "All.", passed=all(row.right for row in rows))

        return run_table(argparse.Namespace(**options), measure, mark="make numbers", page="numbers.md")

    assert run(0, 2, json=tmp_path / "rows.json", docs=True) == 0
    assert [row["name"] for row in json.loads((tmp_path / "rows.json").read_text())] == ["n0", "n2"]
    table = "| name | number |\n|---|---|\n| n0 | 0 |\n| n2 | 2 |"
    assert page.read_text() == f"before\n<!-- made by make numbers -->\n\n{table}\n\n<!-- end -->\nafter\n"
    assert "n0: zero" in capsys.readouterr().out
    assert run(2, 3, json=True) == 1
    assert [row["number"] for row in json.loads(capsys.readouterr().out)] == [2, 3]


def test_table_command_exits_with_1_if_nothing_can_be_measured(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(say: object) -> Report:
        raise BenchmarkError("no daemon")

    assert run_table(argparse.Namespace(json=tmp_path / "rows.json"), measure) == 1
    assert "no daemon" in capsys.readouterr().out
    assert not (tmp_path / "rows.json").exists()


def test_other_rows_run_after_a_row_whose_process_dies(tmp_path: Path) -> None:
    program = """if True:
        import json, os, sys
        for row in sys.argv[1:]:
            print(json.dumps({"begun": row}), flush=True)
            if row == "dies":
                sys.exit("died here")
            print(json.dumps({"row": row, "pid": os.getpid()}), flush=True)
    """

    def command(rows: Sequence[str]) -> Command:
        return {"argv": [sys.executable, "-c", program, *rows], "env": dict(os.environ), "cwd": str(tmp_path)}

    found = dict(run_rows(["a", "dies", "b", "c"], command, tmp_path / "log", 60.0))
    assert {row: answer and answer["row"] for row, answer in found.items()} == {
        "a": "a",
        "dies": None,
        "b": "b",
        "c": "c",
    }
    assert found["a"] and found["b"] and found["c"]
    assert found["a"]["pid"] != found["b"]["pid"] == found["c"]["pid"]


def test_run_whose_graphs_stay_pending_is_not_counted() -> None:
    row = programs.Row(name="a", library="b", about="c")
    run = {"traced": 1, "reports": [{"state": "pending", "source": None, "reason": None}], "functions": []}
    with pytest.raises(BenchmarkError, match="still pending"):
        row.add_run([{**run, "seconds": [1.0], "waited": False}])
    assert (row.graphs, row.shares) == ([], "")  # the row prints no figures beside the error
    row.add_run([{**run, "seconds": [1.0, 0.1], "waited": True}, {**run, "seconds": [2.0], "waited": True}])
    assert (row.shares, row.first_steps, row.traced, row.reasons) == ("0/2", "2.0", [2], {"pending": 2})
