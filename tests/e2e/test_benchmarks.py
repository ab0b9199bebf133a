"""The benchmarks' harness works: a figure of each kind from real starts, and a contender that crashes is told."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.edits.edits import EDITS, NANOGPT
from benchmarks.edits.table import Row, examine
from benchmarks.harness.effort import QUICK
from benchmarks.harness.hosts import ROOT
from benchmarks.measures.load import load
from benchmarks.scale.store import copies
from benchmarks.starts import contenders, picture
from benchmarks.starts.contenders import CONTENDERS
from benchmarks.starts.figures import unexpected
from benchmarks.starts.report import tables
from benchmarks.starts.run import Plan, run
from benchmarks.starts.sample import Group, Sample
from precompiled.store.artifact_format import Manifest, Payload
from precompiled.store.artifacts import Store

GROUP = Group("resnet", "inference", "static")


@pytest.fixture(scope="module")
def samples() -> Iterator[dict[str, Sample]]:
    """Ours cold and warm, and eager, on the smallest model."""
    said: list[str] = []
    found = run([Plan(GROUP, ("eager", "ours-cold", "ours-warm"), 1)], "small", said.append)
    assert len(said) == len(found) == 3
    yield {sample.contender: sample for sample in found}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_each_start_is_what_its_contender_says(samples: dict[str, Sample]) -> None:
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
    # One graph, and one worker for it; a hit needs none.
    assert len(cold.compiles) == 1 and len(cold.memory["worker"]) >= 1 and cold.worker_started
    assert not warm.compiles and "worker" not in warm.memory
    assert cold.swap and cold.swap["longest_s"] >= cold.swap["compiled_s"]
    assert not warm.swap


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_sections_of_a_picture_are_the_whole_start(
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
def test_a_contender_that_crashes_or_is_wrong_is_told_with_its_error(
    samples: dict[str, Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    crashing = dataclasses.replace(CONTENDERS["cache-artifacts"], needs="", spec={"path": "absent.bin"})
    monkeypatch.setitem(contenders.CONTENDERS, crashing.name, crashing)
    (crashed,) = run([Plan(GROUP, (crashing.name,), 1)], "small", lambda _: None)
    assert crashed.outcome == "crashed" and "FileNotFoundError" in crashed.error
    assert "FileNotFoundError" in tables([*samples.values(), crashed])
    # Eager is not what "ours, warm" says.
    assert unexpected(CONTENDERS["ours-warm"], samples["eager"].program) == "no graph came to precompiled"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_loading_an_artifact_starts_no_process() -> None:
    """Inductor's own load probes the CPU with subprocesses and precompiles a header, which took 0.9 s."""
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
def test_after_an_edit_is_traced_what_has_to_be(program: str, what: str) -> None:
    (edit,) = (edit for edit in EDITS if (edit.program, edit.what) == (program, what))
    (row,) = examine([edit], 1, True, lambda _: None)
    assert row.right, (row.cells(), row.remarks())
    assert row.ours_s and row.plain_s
    assert row.traced == row.expected and (row.frames > [0]) == bool(row.expected)


def test_an_edit_that_traces_more_than_it_has_to_is_told() -> None:
    row = Row(EDITS[0], expected=frozenset(), traced={"model.GPT.forward"}, frames=[2], ours_s=[2.0], plain_s=[3.0])
    assert not row.right and not row.met
    assert row.cells()[-2:] == ["0.667", "no"] and "traced model.GPT.forward (2 frames)" in row.remarks()[0]


def test_each_edit_is_of_a_text_that_is_there() -> None:
    for edit in EDITS:
        path = (ROOT / "examples" / "nanogpt" if edit.program == NANOGPT else ROOT) / edit.file
        before = path.read_text()
        assert ast.parse(edit.apply(before, 1)) and edit.apply(before, 1) != before


def test_a_copied_artifact_is_one_to_every_reader(tmp_path: Path) -> None:
    manifest = Manifest("0" * 64, "a graph", {}, {}, "cpu", "", {}, 1.0, 1.0, {})
    store = Store(tmp_path / "store")
    entry = store.publish(Payload(manifest, {"entry.bin": b"entry", f"native/{'1' * 64}.so": b"code"}))
    keys = copies(store, entry, 5)
    assert len(set(keys)) == 5 == len(list(store.all_artifacts()))
    for key in keys:
        (found,) = store.lookup(key)
        assert store.read_files(found) == {"entry.bin": b"entry", f"native/{'1' * 64}.so": b"code"}
