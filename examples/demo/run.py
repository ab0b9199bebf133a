"""One training process of a demo, and the events that it printed (observed.py)."""

from __future__ import annotations

import math
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any

import timeline


@dataclass
class Run:
    """One training process and its output."""

    label: str
    title: str
    hook: bool
    extra: dict[str, str] = field(default_factory=dict)  # additional environment variables
    wanted_steps: int = 0
    wanted_compiled: int = 0  # smallest number of compiled steps
    most_s: float = math.inf  # after these seconds, the process runs only the missing compiled steps
    process: subprocess.Popen[str] | None = None
    launched: float = 0.0
    heard: float = 0.0  # time of the process's last output
    began: float = 0.0
    steps: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    finished: bool = False

    @property
    def losses(self) -> list[float]:
        return [step["loss"] for step in self.steps]

    def total(self) -> int | None:
        """Return the largest possible number of steps, or None while the time of the swap is unknown."""
        missing = self.wanted_compiled - sum(step["code"] == "compiled" for step in self.steps)
        if missing > 0 and self.steps and self.steps[-1]["code"] != "compiled":
            return None
        return max(self.wanted_steps, len(self.steps) + max(missing, 0))

    def first(self, *codes: str) -> int:
        """Return the number of the first step that ran one of these kinds of code, from 0."""
        return next((i for i, step in enumerate(self.steps) if step["code"] in codes), len(self.steps))

    def first_compiled(self) -> int:
        """Return the number of the first step that ran compiled, in pieces or as a whole, from 0."""
        return self.first("pieces", "compiled")

    def seconds_until(self, step: int) -> float:
        """Return the seconds from the first call of the compiled model to the end of a step."""
        return float(self.steps[step]["at"] - self.began)

    def step_s(self, code: str) -> float | None:
        """Return the median of the steps except the first one, which is shown separately."""
        found = [step["seconds"] for step in self.steps[1:] if step["code"] == code]
        return statistics.median(found) if found else None

    def row(self) -> timeline.Row:
        row = timeline.Row(self.label)
        if not self.launched:
            return row
        now = time.monotonic()
        begin = self.began or now
        row.spans.append((0.0, begin - self.launched, timeline.STARTING))
        if not self.began:
            return row
        first_end = self.steps[0]["at"] if self.steps else now
        # ``backend_s`` is known only at the end. Until then, the whole first call is drawn as Dynamo's.
        waited = min(self.end.get("backend_s", 0.0), first_end - begin)
        first = timeline.TRACING if self.end.get("frames", 1) else timeline.WAITING
        if not self.wanted_compiled:
            first = timeline.EAGER
        row.spans.append((begin - self.launched, first_end - waited - self.launched, first))
        if waited > 0.5:
            row.spans.append((first_end - waited - self.launched, first_end - self.launched, timeline.WAITING))
        for step in self.steps:
            row.ticks.append((step["at"] - self.launched, timeline.STEPS[step["code"]]))
        return row
