"""Where every second of a start goes: one bar for each contender, and beside ours the worker's.

Each section is a difference of two times that were taken, or what torch or precompiled measured itself; what is left
of the first call is the step: forward, and backward in training.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.hosts import ROOT
from benchmarks.harness.result import RESULTS
from benchmarks.starts.contenders import CONTENDERS
from benchmarks.starts.sample import Group, Sample

IMAGES = ROOT / "docs" / "images"

# In the order of a start; the colours are matplotlib's.
COLOURS = {
    "Python, and the hook": "#bbbbbb",
    "import torch": "#999999",
    "import transformers": "#777777",
    "the model": "#555555",
    "import Dynamo": "#c5b0d5",
    "artifacts or package, before the call": "#e7ba52",
    "Dynamo: tracing and guards": "#9467bd",
    "capture, key, lookup": "#17becf",
    "load of the artifact": "#1f77b4",
    "AOTAutograd and Inductor, or their cache": "#d62728",
    "Inductor, backward": "#ff9896",
    "the rest of the backend": "#8c564b",
    "the step": "#2ca02c",
    "eager steps": "#c7e9c0",
    "worker: starts": "#ffd8a8",
    "worker: compiles": "#ff7f0e",
}
Section = tuple[str, float, float]  # name, seconds since the process's start, seconds


def sections(sample: Sample) -> list[Section]:
    """The sections of one start, one after the other. Raises KeyError for a sample without figures."""
    program, contender = sample.program, CONTENDERS[sample.contender]
    marks, phases, reports = program["marks"], program["phases"], program["first"]
    backend = phases.get("OutputGraph.call_user_compiler", 0.0)
    looked_up = sum(graph["lookup_s"] for graph in reports)
    load = sum(graph["load_s"] for graph in reports if graph["source"] == "hit")
    served = all(graph["state"] in ("pending", "compiled") for graph in reports) and bool(reports)
    plain = not served and contender.way != "traced"
    rest = "AOTAutograd and Inductor, or their cache" if plain else "the rest of the backend"
    call = [
        ("Dynamo: tracing and guards", sample.tracing_s or 0.0),
        ("capture, key, lookup", looked_up),
        ("load of the artifact", load),
        (rest, max(0.0, backend - looked_up - load)),
        ("Inductor, backward", phases.get("backward._backward_impl", 0.0)),
    ]
    step = marks["first"] - marks["prepared"] - sum(seconds for _, seconds in call)
    parts = [
        ("Python, and the hook", marks["began"] - marks["started"]),
        ("import torch", marks["torch"] - marks["began"]),
        ("import transformers", marks["imported"] - marks["torch"]),
        ("the model", marks["built"] - marks["imported"]),
        ("import Dynamo", marks["dynamo"] - marks["built"]),
        ("artifacts or package, before the call", marks["prepared"] - marks["dynamo"]),
        *call,
        ("the step", max(0.0, step)),
    ]
    if contender.state == "pending":
        flipped = program["steps"][program["later"] - 1]["at"]
        parts.append(("eager steps", max(0.0, flipped - marks["first"])))
    found: list[Section] = []
    at = 0.0
    for name, seconds in parts:
        if seconds > 0:
            found.append((name, at, seconds))
            at += seconds
    return found


def worker_sections(sample: Sample) -> list[Section]:
    """Beside a start of ours: the worker's start, and its compiles."""
    begun = sample.program["marks"]["started"]
    found: list[Section] = []
    for compile_began, compile_ended in sample.compiles:
        if not found and sample.worker_started is not None:
            found.append(("worker: starts", sample.worker_started - begun, compile_began - sample.worker_started))
        found.append(("worker: compiles", compile_began - begun, compile_ended - compile_began))
    return found


def draw(samples: Sequence[Sample], *, docs: bool) -> list[Path]:
    """A picture for each group, to benchmarks/results/; the first one also to docs/images/ with ``docs``."""
    import matplotlib

    matplotlib.use("Agg")
    paths = []
    for group in dict.fromkeys(sample.group for sample in samples):
        mine = [_typical(samples, group, name) for name in CONTENDERS]
        rows = [sample for sample in mine if sample is not None]
        if not rows:
            continue
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"start-{group.model}-{group.task}-{group.shapes}.png"
        _draw(rows, group, path)
        paths.append(path)
        if docs and len(paths) == 1:
            IMAGES.mkdir(exist_ok=True)
            shutil.copy(path, IMAGES / path.name)
            paths.append(IMAGES / path.name)
    return paths


def _typical(samples: Sequence[Sample], group: Group, contender: str) -> Sample | None:
    """The sample whose first result came in the median time (the lower of two)."""
    good = [
        sample
        for sample in samples
        if (sample.group, sample.contender, sample.outcome) == (group, contender, "ok") and sample.process_s is not None
    ]
    return sorted(good, key=lambda sample: sample.process_s or 0.0)[(len(good) - 1) // 2] if good else None


def _draw(rows: Sequence[Sample], group: Group, path: Path) -> None:
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    bars: list[tuple[str, list[Section], float | None]] = []
    for sample in rows:
        bars.append((CONTENDERS[sample.contender].title, sections(sample), sample.process_s))
        if beside := worker_sections(sample):
            bars.append(("beside it, the worker", beside, None))
    figure, axes = pyplot.subplots(figsize=(12, 1.6 + 0.42 * len(bars)), layout="constrained")
    for number, (_, found, result_s) in enumerate(bars):
        for name, at, seconds in found:
            axes.barh(number, seconds, left=at, color=COLOURS[name], height=0.7)
        if result_s is not None:
            axes.plot([result_s, result_s], [number - 0.45, number + 0.45], color="black", linewidth=1.5)
    axes.set_yticks(range(len(bars)), [title for title, _, _ in bars])
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the start of the process; black: the first result")
    axes.set_title(f"Where every second of a start goes: {group.title}")
    used = {name for _, found, _ in bars for name, _, _ in found}
    axes.legend(
        handles=[Patch(color=colour, label=name) for name, colour in COLOURS.items() if name in used],
        loc="upper center", bbox_to_anchor=(0.5, -0.12 if len(bars) > 6 else -0.3), ncols=4, fontsize=8, frameon=False,
    )  # fmt: skip
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
