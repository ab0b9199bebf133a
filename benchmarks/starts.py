"""Starts of models by all contenders: from a fresh process to the first result, and to the first compiled one.

`python -m benchmarks.starts` (`make bench-full`: everything, hours). Each sample is a fresh process on a host of its
own; the contenders of one model, task and kind of shapes take turns, each turn beginning with another.
Exit status 1 when a contender of ours crashed, was wrong or was not what it should be.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.contenders import CONTENDERS, FILLS, MODE, REPEATED, Contender, chosen
from benchmarks.hosts import BenchmarkError, Host, fresh_host
from benchmarks.models import MODELS, SHAPES, TASKS
from benchmarks.picture import draw
from benchmarks.result import HEADERS as RESULT_HEADERS
from benchmarks.result import Result, banner, markdown, save, spread
from benchmarks.sample import Group, Sample
from precompiled.store.artifacts import Store

Say = Callable[[str], None]
# After the first compiled step. More of them are (c)'s part; the swap is looked at in the first five.
STEPS = 8
AROUND = 5  # steps after the swap that belong to it


@dataclass(frozen=True)
class Plan:
    """One group: who takes part, and in how many turns."""

    group: Group
    contenders: tuple[str, ...]
    repeats: int


class Hosts:
    """The hosts of one group: fresh ones, and those that a run has filled."""

    def __init__(self, group: Group, size: str) -> None:
        self.group, self.size = group, size
        self._filled: dict[str, Host] = {}
        self._stack = ExitStack()
        self._caches = itertools.count()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def sample(self, contender: Contender, turn: int) -> Sample:
        """One start; whatever goes wrong in it is in the sample."""
        sample = Sample(self.group, contender.name, turn)
        try:
            if contender.needs:
                self._take(contender, self._host_with(contender.needs), sample)
            elif contender.leaves and contender.leaves not in self._filled:
                host = self._stack.enter_context(fresh_host())
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
            host = self._stack.enter_context(fresh_host())
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
            "model": group.model, "task": group.task, "shapes": group.shapes, "size": self.size, "way": contender.way,
            "pending": "step", "steps": STEPS, "check": True, **paths,
        }  # fmt: skip
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
        read(sample, found, client)
        _read_compiles(sample, host, found)
        if sample.compiles and sample.compiled_s is not None:
            sample.swap = _swap(client["result"]["steps"], client["result"]["later"] - 1, sample.compiles)
        if MODE in contender.env and not client["result"]["subprocess"]:
            sample.note = f"nothing was compiled in a subprocess: {_last_error(client['errors'])}"
        if contender.bytes_of:
            sample.artifact_bytes = _weigh(host.root / contender.bytes_of)
        if differing := client["result"]["different"]:
            sample.outcome, sample.error = "wrong", f"{len(differing)} tensors are not eager's: {differing[0]}"
        elif problem := unexpected(contender, client["result"]):
            sample.outcome, sample.error = "unexpected", problem


def read(sample: Sample, tree: dict[str, Any], client: dict[str, Any]) -> None:
    """Fill in the figures from what tree.py and program.py said."""
    program = client["result"]
    marks, steps, later = program["marks"], program["steps"], program["later"]
    marks["started"] = client["started"]
    # What is loaded or compiled before the first call (cache artifacts, a package) belongs to it.
    begun = marks["dynamo"]
    sample.process_s = marks["first"] - client["started"]
    sample.first_s = marks["first"] - begun
    contender = CONTENDERS.get(sample.contender)
    if contender is not None and contender.way not in ("eager", "traced"):
        ours = contender.hook and program["first"] and program["first"][0]["state"] == "pending"
        step = steps[later - 1]
        if not ours:
            sample.compiled_s = sample.first_s
        elif step.get("compiled"):
            sample.compiled_s = step["at"] + step["s"] - begun
    sample.step_s = program["step_s"]
    sample.tracing_s = tracing(program["phases"])
    loads = sum(graph["load_s"] for graph in program["reports"] if graph["source"] == "swap")
    # The load of a swap happens beside steps, whose CPU seconds are taken off.
    sample.cpu_s = tree["cpu_s"] - program["aside_cpu_s"] + loads
    sample.memory = {**tree["memory"], "client": [program["peak_bytes"]]}
    sample.program = program


def _read_compiles(sample: Sample, host: Host, tree: dict[str, Any]) -> None:
    """When the daemon's workers compiled, by what the artifacts and the kernel say."""
    monotonic = time.monotonic() - time.time()
    for entry in Store(host.settings.cache_dir).entries():
        ended = entry.manifest.created + monotonic
        if ended > sample.program["marks"]["started"]:
            sample.compiles.append((ended - entry.manifest.compile_s, ended))
    sample.compiles.sort()
    sample.worker_started = min(tree["started"].get("worker", []), default=None)


def tracing(phases: dict[str, float]) -> float | None:
    """Dynamo's own seconds: its frames, without what its backend took."""
    if "_compile.compile_inner" not in phases:
        return None
    return phases["_compile.compile_inner"] - phases.get("OutputGraph.call_user_compiler", 0.0)


def _swap(
    steps: Sequence[dict[str, float]], first: int, compiles: Sequence[tuple[float, float]]
) -> dict[str, float]:
    """The longest step around the swap, beside the median of the eager ones before and of the compiled ones after.

    Around: from the step in which the artifact was there (``compiles``: from, to; monotonic seconds). What slows down
    those before it is the compile beside them. ``first``: the first step that ran compiled. The first call of the
    process, with Dynamo in it, is no eager step.
    """
    eager = [step["s"] for step in steps[1:first]]
    compiled = [step["s"] for step in steps[first + 1 :]]
    until = steps[first]["at"] + steps[first]["s"]  # a variant for other sizes may come later
    published = max((ended for _, ended in compiles if ended < until), default=0.0)
    around = [step["s"] for step in steps[1 : first + AROUND + 1] if step["at"] + step["s"] >= published]
    if not eager or not compiled:
        return {}
    return {
        "longest_s": max(around),
        "longest_eager_s": max(eager),
        "eager_s": statistics.median(eager),
        "compiled_s": statistics.median(compiled),
        "eager_steps": len(eager),
    }


def unexpected(contender: Contender, program: dict[str, Any]) -> str:
    """Why this is not a sample of what the contender's name says; "" when it is."""
    first, last = program["first"], program["reports"]
    if not contender.hook:
        return "precompiled was on" if last else ""
    if not first:
        return "no graph came to precompiled"
    for graph in first:
        if graph["state"] != contender.state or graph["source"] != contender.source:
            return f"after the first call a graph is not {contender.state} by {contender.source}: {graph}"
    for graph in last:
        if graph["source"] != contender.finally_source:
            return f"in the end a graph does not run compiled by {contender.finally_source}: {graph}"
    return ""


def _last_error(text: str) -> str:
    """The line that says what it was, of a program's errors."""
    lines = [line for line in text.splitlines() if line.strip()]
    named = [line for line in lines if not line.startswith((" ", "\t")) and ("Error" in line or "Exception" in line)]
    return (named or lines or ["it said nothing"])[-1][:500]


def _weigh(path: Path) -> int:
    return sum(item.stat().st_size for item in ([path] if path.is_file() else path.rglob("*")) if item.is_file())


# ---------------------------------------------------------------- all of them


def run(plans: Sequence[Plan], size: str, say: Say) -> list[Sample]:
    """All samples of the plans, group after group, in turns; says one line for each, and how far it is."""
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
    """What `make bench` takes: all contenders on GPT-2's training, the main ones several times and on other models."""
    gpt2 = Group("gpt2", "training", "static")
    once = tuple(name for name in CONTENDERS if name not in REPEATED)
    plans = [Plan(gpt2, REPEATED, repeats), Plan(gpt2, once, 1)]
    if not quick:
        few = tuple(name for name in REPEATED if name != "traced")
        plans += [Plan(Group(model, "training", "static"), few, 1) for model in MODELS if model != "gpt2"]
    return plans


# ---------------------------------------------------------------- tables

HEADERS = [
    "", "first result (s)", "of cold", "of warm", "first compiled (s)", "of cold", "from the process's start (s)",
    "step (ms)", "of torch.compile's", "CPU s", "peak MB: client; daemon; worker", "kept (MB)", "n",
]  # fmt: skip


def tables(samples: Sequence[Sample]) -> str:
    """A Markdown table for each group: medians and extremes; ratios within a turn."""
    parts = []
    for group in dict.fromkeys(sample.group for sample in samples):
        mine = [sample for sample in samples if sample.group == group]
        rows = [
            _row(CONTENDERS[name], [sample for sample in mine if sample.contender == name], mine)
            for name in CONTENDERS
            if any(sample.contender == name for sample in mine)
        ]
        parts.append(f"**{group.title}**\n\n{markdown(HEADERS, rows)}")
        parts += _remarks(mine)
    return "\n\n".join(parts)


def _row(contender: Contender, samples: Sequence[Sample], group: Sequence[Sample]) -> list[str]:
    good = [sample for sample in samples if sample.outcome == "ok"]
    bad = sorted({sample.outcome for sample in samples if sample.outcome != "ok"})
    if not good:
        return [contender.title, f"**{', '.join(bad)}**", *[""] * (len(HEADERS) - 3), str(len(samples))]
    peaks = [_megabytes(good, role) for role in ("client", "daemon", "worker")]
    kept = [sample.artifact_bytes / 1e6 for sample in good if sample.artifact_bytes is not None]
    return [
        contender.title,
        spread(_values(good, "first_s")),
        _ratio(good, group, "first_s", "plain-cold"),
        _ratio(good, group, "first_s", "plain-warm"),
        spread(_values(good, "compiled_s")),
        _ratio(good, group, "compiled_s", "plain-cold"),
        spread(_values(good, "process_s")),
        spread([1000 * value for value in _values(good, "step_s")]),
        _ratio(good, group, "step_s", "plain-cold"),
        spread(_values(good, "cpu_s")),
        "; ".join(peak or "–" for peak in peaks),
        f"{statistics.median(kept):.1f}" if kept else "",
        f"{len(good)}" + (f" ({len(samples) - len(good)} {', '.join(bad)})" if bad else ""),
    ]


def _values(samples: Iterable[Sample], name: str) -> list[float]:
    return [value for sample in samples if (value := getattr(sample, name)) is not None]


def ratios(samples: Iterable[Sample], name: str, contender: str, to: str) -> list[float]:
    """``contender``'s over ``to``'s, turn by turn, where both are there."""
    found: dict[str, dict[int, float]] = {contender: {}, to: {}}
    for sample in samples:
        value = getattr(sample, name)
        if sample.contender in found and sample.outcome == "ok" and value is not None:
            found[sample.contender][sample.turn] = value
    return [value / found[to][turn] for turn, value in found[contender].items() if found[to].get(turn)]


def _ratio(mine: Sequence[Sample], group: Sequence[Sample], name: str, to: str) -> str:
    found = ratios(group, name, mine[0].contender, to)
    return f"{statistics.median(found):.2f}" if found else ""


def _megabytes(samples: Sequence[Sample], role: str) -> str:
    """The largest process of a role, by the median of the samples."""
    found = [sample.memory[role][0] / 1e6 for sample in samples if sample.memory.get(role)]
    return f"{statistics.median(found):.0f}" if found else ""


def _remarks(samples: Sequence[Sample]) -> list[str]:
    lines = []
    for sample in samples:
        if sample.outcome != "ok":
            why = " ".join(sample.error.split())
            lines.append(f"- {CONTENDERS[sample.contender].title}: {sample.outcome}: `{why}`")
        if sample.note:
            lines.append(f"- {CONTENDERS[sample.contender].title}: {sample.note}")
        if sample.swap:
            swap = sample.swap
            lines.append(
                f"- {CONTENDERS[sample.contender].title}: the longest step around the swap took "
                f"{1000 * swap['longest_s']:.1f} ms, {swap['longest_s'] / swap['eager_s']:.2f} of a median eager one, "
                f"{swap['longest_s'] / swap['compiled_s']:.2f} of a compiled one"
            )
    return ["\n".join(dict.fromkeys(lines))] if lines else []


def publish(samples: Sequence[Sample], quick: bool, say: Say, *, docs: bool = False) -> None:
    """The tables, on stdout; the pictures and the raw samples, as files."""
    print(f"\n{tables(samples)}\n")
    for path in draw(samples, docs=docs):
        say(f"timeline: {path}")
    say(f"raw samples: {save({'samples': [asdict(sample) for sample in samples]}, quick, 'starts')}")


# ---------------------------------------------------------------- goals


def goals(samples: Sequence[Sample]) -> list[Result]:
    """GPT-2's training against its goals, (a), (b) and (h)."""
    mine = [sample for sample in samples if sample.group == Group("gpt2", "training", "static")]
    good = {(sample.contender, sample.turn): sample for sample in mine if sample.outcome == "ok"}
    for sample in mine:
        if sample.contender in REPEATED and sample.outcome != "ok":
            raise BenchmarkError(f"{sample.contender}: {sample.outcome}: {sample.error}")
    cold = Result("a", "first call, nothing cached: ours / torch.compile", "", 0.1)
    added = Result("a", "first call, nothing cached: ours - (Dynamo + eager step)", "s", 0.1)
    compiled = Result("a", "first compiled result, nothing cached: ours / torch.compile", "", None)
    warm = Result("b", "first call, artifact present: ours / torch.compile warm", "", 0.7)
    beyond = Result("b", "first call, artifact present: ours - (Dynamo's tracing + compiled step)", "s", 0.15)
    eager = Result("h", "longest step around the swap / eager step", "", 1.5)
    steady = Result("h", "longest step around the swap / compiled step", "", None)
    beside = Result("h", "eager step while a worker compiles / eager step of a process alone", "", None)
    worst = Result("h", "the longest of them / eager step of a process alone", "", None)
    cpu = Result("a", "CPU s of a start, nothing cached: ours / torch.compile", "", None)
    cold.samples = ratios(mine, "first_s", "ours-cold", "plain-cold")
    compiled.samples = ratios(mine, "compiled_s", "ours-cold", "plain-cold")
    warm.samples = ratios(mine, "first_s", "ours-warm", "plain-warm")
    cpu.samples = ratios(mine, "cpu_s", "ours-cold", "plain-cold")
    for (name, turn), sample in good.items():
        if name == "ours-cold":
            if traced := good.get(("traced", turn)):
                added.samples.append(_of(sample.first_s) - _of(traced.first_s))
            if sample.swap:
                eager.samples.append(sample.swap["longest_s"] / sample.swap["eager_s"])
                steady.samples.append(sample.swap["longest_s"] / sample.swap["compiled_s"])
                if traced := good.get(("traced", turn)):
                    beside.samples.append(sample.swap["eager_s"] / _of(traced.step_s))
                    worst.samples.append(sample.swap["longest_eager_s"] / _of(traced.step_s))
        elif name == "ours-warm":
            beyond.samples.append(_of(sample.first_s) - _of(sample.tracing_s) - _of(sample.step_s))
    for result, names, attribute in (
        (cold, ("ours-cold", "plain-cold", "traced"), "first_s"), (compiled, ("ours-cold",), "compiled_s"),
        (warm, ("ours-warm", "plain-warm"), "first_s"), (beyond, ("ours-warm",), "tracing_s"),
        (cpu, ("ours-cold", "plain-cold"), "cpu_s"),
    ):  # fmt: skip
        for name in names:
            values = _values([sample for sample in mine if sample.contender == name], attribute)
            result.raw[f"{CONTENDERS[name].title}: {attribute.removesuffix('_s')} (s)"] = values
    results = (cold, added, compiled, warm, beyond, eager, steady, beside, worst, cpu)
    return [result for result in results if result.samples]


def _of(value: float | None) -> float:
    if value is None:
        raise BenchmarkError("a figure is missing in a sample that counts")
    return value


# ---------------------------------------------------------------- command


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.starts", description=__doc__)
    parser.add_argument("--model", default="", help=f"a,b of {', '.join(MODELS)}; all of them")
    parser.add_argument("--contender", default="", help=f"a,b of {', '.join(CONTENDERS)}, or their first parts; all")
    parser.add_argument("--task", choices=TASKS)
    parser.add_argument("--shapes", choices=SHAPES)
    parser.add_argument("--repeats", type=int, default=1, metavar="N")
    parser.add_argument("--quick", action="store_true", help="small models: no figures to be quoted")
    parser.add_argument("--docs", action="store_true", help="the picture of the first group also to docs/images/")
    arguments = parser.parse_args()
    wanted = arguments.model.split(",") if arguments.model else list(MODELS)
    if unknown := set(wanted) - set(MODELS):
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    try:
        contenders = tuple(chosen(arguments.contender) if arguments.contender else CONTENDERS)
    except ValueError as error:
        parser.error(str(error))
    # As Ctrl-C does: daemons and directories of the sample in hand are cleaned up on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console()
    console = console if console.is_terminal else Console(width=180)
    banner(console)
    plans = [
        Plan(Group(model, task, shapes), contenders, arguments.repeats)
        for model in wanted
        for task in TASKS
        if arguments.task in (None, task)
        for shapes in SHAPES
        if arguments.shapes in (None, shapes)
    ]
    size = "small" if arguments.quick else "full"

    def say(text: str) -> None:
        console.print(f"    {text}", highlight=False, markup=False)

    samples = run(plans, size, say)
    publish(samples, arguments.quick, say, docs=arguments.docs)
    wrong = any(item.outcome != "ok" and item.contender.startswith("ours") for item in samples)
    if not wrong and (results := goals(samples)):
        print(f"\n{markdown(RESULT_HEADERS, [result.row() for result in results])}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
