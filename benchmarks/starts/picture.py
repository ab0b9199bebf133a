"""Draws how a start spends its time: one bar for each contender, and a second bar for precompiled's worker.

Each section is the difference of two measured times, or a time that torch or precompiled reports. The rest of the first
call is the step: forward, and backward in training.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.hosts import ROOT
from benchmarks.harness.result import RESULTS
from benchmarks.starts.contenders import CONTENDERS
from benchmarks.starts.sample import Group, Sample
from precompiled.timeline.picture import Bar, Section, in_order, svg

IMAGES = ROOT / "docs" / "images"


def sections(sample: Sample) -> list[Section]:
    """Return the sections of one start in order. Raises KeyError for a sample without figures."""
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
    return in_order(parts)


def worker_sections(sample: Sample) -> list[Section]:
    """Return the worker's start and compiles during a start with precompiled."""
    begun = sample.program["marks"]["started"]
    found: list[Section] = []
    for compile_began, compile_ended in sample.compiles:
        if not found and sample.worker_started is not None:
            found.append(("worker: starts", sample.worker_started - begun, compile_began - sample.worker_started))
        found.append(("worker: compiles", compile_began - begun, compile_ended - compile_began))
    return found


def draw(samples: Sequence[Sample], *, docs: bool) -> list[Path]:
    """Write a picture for each group to benchmarks/results/; with ``docs``, the first one also to docs/images/."""
    paths = []
    for group in dict.fromkeys(sample.group for sample in samples):
        mine = [_typical(samples, group, name) for name in CONTENDERS]
        rows = [sample for sample in mine if sample is not None]
        if not rows:
            continue
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"start-{group.model}-{group.task}-{group.shapes}.svg"
        path.write_text(_drawn(rows, group), encoding="utf-8")
        paths.append(path)
        if docs and len(paths) == 1:
            IMAGES.mkdir(exist_ok=True)
            shutil.copy(path, IMAGES / path.name)
            paths.append(IMAGES / path.name)
    return paths


def _typical(samples: Sequence[Sample], group: Group, contender: str) -> Sample | None:
    """Return the sample with the median time of the first result. Of two middle samples, return the faster one."""
    good = [
        sample
        for sample in samples
        if (sample.group, sample.contender, sample.outcome) == (group, contender, "ok") and sample.process_s is not None
    ]
    return sorted(good, key=lambda sample: sample.process_s or 0.0)[(len(good) - 1) // 2] if good else None


def _drawn(rows: Sequence[Sample], group: Group) -> str:
    bars: list[Bar] = []
    for sample in rows:
        bars.append(Bar(CONTENDERS[sample.contender].title, sections(sample), sample.process_s))
        if beside := worker_sections(sample):
            bars.append(Bar("beside it, the worker", beside))
    axis = "seconds since the start of the process; black: the first result"
    return svg(f"Where every second of a start goes: {group.title}", bars, axis)
