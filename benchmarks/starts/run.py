"""Takes samples: each is a fresh process on its own host. The contenders of a group take turns."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import BenchmarkError, Host, fresh_host
from benchmarks.models.suite import MODELS
from benchmarks.starts.contenders import CONTENDERS, FILLS, MODE, REPEATED, Contender
from benchmarks.starts.figures import read, read_compiles, swap, unexpected
from benchmarks.starts.sample import Group, Sample

# Number of steps after the first compiled step. The first five steps measure the swap. Measure (c) takes more steps.
STEPS = 8


@dataclass(frozen=True)
class Plan:
    """One group, its contenders, and the number of turns."""

    group: Group
    contenders: tuple[str, ...]
    repeats: int


class Hosts(ExitStack):
    """The hosts of one group: fresh hosts, and hosts whose caches a run has filled.

    ``check``: whether results must equal eager's.
    """

    def __init__(self, group: Group, size: str, *, check: bool = True) -> None:
        super().__init__()
        self.group, self.size, self.check = group, size, check
        self._filled: dict[str, Host] = {}
        self._caches = itertools.count()

    def sample(self, contender: Contender, turn: int) -> Sample:
        """Take one sample. An error is recorded in the sample."""
        sample = Sample(self.group, contender.name, turn)
        try:
            if contender.needs:
                self._take(contender, self._host_with(contender.needs), sample)
            elif contender.leaves and contender.leaves not in self._filled:
                host = self.enter_context(fresh_host())
                self._take(contender, host, sample)
                if sample.outcome == "ok":
                    self._filled[contender.leaves] = host
            else:
                with fresh_host() as host:
                    self._take(contender, host, sample)
        except BenchmarkError as error:
            sample.outcome, sample.error = sample.outcome if sample.outcome != "ok" else "crashed", str(error)
        return sample

    def _host_with(self, what: str) -> Host:
        if what not in self._filled:
            host = self.enter_context(fresh_host())
            filling = Sample(self.group, FILLS[what].name, 0)
            self._take(FILLS[what], host, filling)
            if filling.outcome != "ok":
                raise BenchmarkError(f"while it was filled before ({filling.outcome}): {filling.error}")
            self._filled[what] = host
        return self._filled[what]

    def _take(self, contender: Contender, host: Host, sample: Sample) -> None:
        group = self.group
        paths = {name: str(host.root / value) for name, value in contender.spec.items()}
        spec = {
            "model": group.model,
            "task": group.task,
            "shapes": group.shapes,
            "size": self.size,
            "way": contender.way,
            "pending": "step",
            "steps": STEPS,
            "check": self.check,
            "device": group.device,
            "mode": group.mode,
            "dtype": group.dtype,
            **paths,
        }
        extra = dict(contender.env)
        cache = host.root / f"cache-{next(self._caches)}"
        if contender.fresh_cache:
            extra["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
        found = host.tree([host.command(spec, hook=contender.hook, extra=extra)], daemon=contender.daemon)
        shutil.rmtree(cache, ignore_errors=True)
        client = found["clients"][0]
        if client["result"] is None:
            why = "it ran out of time" if not found["in_time"] else f"exit status {client['status']}"
            sample.outcome, sample.error = "crashed", f"{why}\n{_last_error(client['errors'])}"
            return
        read(sample, contender, found, client)
        read_compiles(sample, host, found)
        if sample.compiles and sample.compiled_s is not None:
            sample.swap = swap(client["result"]["steps"], client["result"]["later"] - 1, sample.compiles)
        if MODE in contender.env and not client["result"]["subprocess"]:
            sample.note = f"nothing was compiled in a subprocess: {_last_error(client['errors'])}"
        if contender.bytes_of:
            sample.artifact_bytes = _weigh(host.root / contender.bytes_of)
        if differing := client["result"].get("different"):
            sample.outcome, sample.error = "wrong", f"{len(differing)} tensors are not eager's: {differing[0]}"
        elif problem := unexpected(contender, client["result"]):
            sample.outcome, sample.error = "unexpected", problem


def _last_error(text: str) -> str:
    """Return the last line of stderr that names an error."""
    lines = [line for line in text.splitlines() if line.strip()]
    named = [line for line in lines if not line.startswith((" ", "\t")) and ("Error" in line or "Exception" in line)]
    return (named or lines or ["it said nothing"])[-1][:500]


def _weigh(path: Path) -> int:
    return sum(item.stat().st_size for item in ([path] if path.is_file() else path.rglob("*")) if item.is_file())


def run(plans: Sequence[Plan], size: str, say: Say) -> list[Sample]:
    """Take all samples of the plans, group after group, in turns. Prints a line of progress for each sample."""
    total = sum(len(_taking_part(plan)) * plan.repeats for plan in plans)
    started = time.monotonic()
    samples: list[Sample] = []
    for group in dict.fromkeys(plan.group for plan in plans):
        with Hosts(group, size) as hosts:
            for turn in range(max(plan.repeats for plan in plans if plan.group == group)):
                now = [
                    contender
                    for plan in plans
                    if plan.group == group and turn < plan.repeats
                    for contender in _taking_part(plan)
                ]
                first = turn % len(now) if now else 0
                for contender in now[first:] + now[:first]:
                    sample = hosts.sample(contender, turn)
                    samples.append(sample)
                    spent = time.monotonic() - started
                    left = spent / len(samples) * (total - len(samples)) / 60
                    where = f"{len(samples)}/{total} {group.title}: {contender.name}"
                    say(f"{where}: {sample.line()} ({left:.0f} min left)")
    return samples


def _taking_part(plan: Plan) -> list[Contender]:
    found = [CONTENDERS[name] for name in plan.contenders]
    return [item for item in found if plan.group.task in item.tasks and plan.group.shapes in item.shapes]


def default_plans(repeats: int, *, quick: bool) -> list[Plan]:
    """Return `make bench`'s plans: all contenders on GPT-2's training. The REPEATED ones run more often, and on more
    models.
    """
    gpt2 = Group("gpt2", "training", "static")
    once = tuple(name for name in CONTENDERS if name not in REPEATED)
    plans = [Plan(gpt2, REPEATED, repeats), Plan(gpt2, once, 1)]
    if not quick:
        few = tuple(name for name in REPEATED if name != "traced")
        plans += [Plan(Group(model, "training", "static"), few, 1) for model in MODELS if model != "gpt2"]
    return plans
