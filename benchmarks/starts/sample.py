"""Holds the measured values of one start by one contender."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Group:
    """Samples that are compared have the same model, task, kind of shapes, device, mode of torch.compile and dtype."""

    model: str
    task: str
    shapes: str
    device: str = "cpu"
    mode: str = ""
    dtype: str = ""  # of the model's parameters; float32 if empty

    @property
    def title(self) -> str:
        further = [text for text in ("" if self.device == "cpu" else self.device, self.mode, self.dtype) if text]
        return ", ".join([self.model, self.task, f"{self.shapes} shapes", *further])


@dataclass
class Sample:
    """One start. Seconds and bytes; None if the contender lacks the value or ended before it was measured.

    ``outcome``: "ok", "crashed", "wrong" (differs from eager) or "unexpected" (did not do what its name says).
    """

    group: Group
    contender: str
    turn: int
    outcome: str = "ok"
    error: str = ""
    note: str = ""  # a remark about the figures
    process_s: float | None = None  # seconds from the start of the process to the first result
    first_s: float | None = None  # seconds from the first call, or the load before it, to the first result
    compiled_s: float | None = None  # seconds from the start of ``first_s`` to the end of the first compiled step
    step_s: float | None = None  # median of the later steps
    tracing_s: float | None = None  # Dynamo's part of the first call
    swap: dict[str, float] = field(default_factory=dict)  # see figures.swap
    cpu_s: float | None = None  # CPU seconds of the whole host, without the client's steps after the first one
    memory: dict[str, list[int]] = field(default_factory=dict)  # maps a role to the memory peaks of its processes
    artifact_bytes: int | None = None
    # Compiles of the daemon: (start, end) in monotonic seconds.
    compiles: list[tuple[float, float]] = field(default_factory=list)
    worker_started: float | None = None
    program: dict[str, Any] = field(default_factory=dict)  # the output of models/program.py

    def line(self) -> str:
        if self.outcome != "ok":
            return f"{self.outcome}: {self.error.splitlines()[-1][:160] if self.error else ''}"
        compiled = f", compiled {self.compiled_s:.2f} s" if self.compiled_s is not None else ""
        return f"first {self.first_s:.2f} s{compiled}, step {1000 * (self.step_s or 0):.1f} ms, {self.cpu_s:.1f} CPU s"


def values(samples: Iterable[Sample], name: str) -> list[float]:
    return [value for sample in samples if (value := getattr(sample, name)) is not None]


def ratios(samples: Iterable[Sample], name: str, contender: str, to: str) -> list[float]:
    """Return the ratios of ``contender`` to ``to``, turn by turn, if both have a value."""
    found: dict[str, dict[int, float]] = {contender: {}, to: {}}
    for sample in samples:
        value = getattr(sample, name)
        if sample.contender in found and sample.outcome == "ok" and value is not None:
            found[sample.contender][sample.turn] = value
    return [value / found[to][turn] for turn, value in found[contender].items() if found[to].get(turn)]
