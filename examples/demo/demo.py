"""`make demo`: a model trains during its compile, and the next process starts with compiled code.

Five processes train the same model, one after the other, each through observed.py:

    eager          not compiled, to compare its steps with A's eager steps during the compile
    plain, cold    plain torch.compile with an empty cache
    A              `precompiled run` with an empty store: eager, then the pieces of its graph, then the whole
    B              `precompiled run` after A: compiled from its first step, without a trace or a compile
    plain, warm    plain torch.compile with the cache of "plain, cold"

All files are in a temporary directory. At the end, also after Ctrl-C, the demo stops its daemon and removes all files.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from run import Run
from show import COMPARED_STEPS, COMPILED_STEPS, TOLERANCE, Show, main
from timeline import STEPS


class Demo(Show):
    title = "precompiled: the demo"
    about = (
        "Five processes train the same small GPT-2 (examples/demo/train.py), one after the other: one eager, two with\n"
        "plain torch.compile, two with `precompiled run`. This takes two to four minutes on two idle cores.\n"
    )
    try_it = "For your own program: [bold]precompiled run -- python train.py[/]"

    def __init__(self, console: Console, directory: Path) -> None:
        super().__init__(console, directory)
        self.eager = Run("eager", "not compiled", hook=False, extra={"TORCH_COMPILE_DISABLE": "1"})
        self.plain_cold = Run("plain, cold", "nothing cached", hook=False)
        self.a = Run("A", "nothing cached", hook=True)
        self.b = Run("B", "after A", hook=True)
        self.plain_warm = Run("plain, warm", "its own cache", hook=False)
        self.compiling = [self.plain_cold, self.a, self.b, self.plain_warm]
        self.runs = [self.eager, *self.compiling]

    # ------------------------------------------------------------------ the processes

    def variables(self, run: Run) -> dict[str, str]:
        return {
            **self.plain_variables(),
            "PRECOMPILED_CACHE_DIR": str(self.directory / "store"),
            "PRECOMPILED_RUNTIME_DIR": str(self.directory / "run"),
            # The runs of plain torch.compile fill a cache. The cache of runs with precompiled must stay empty.
            "TORCHINDUCTOR_CACHE_DIR": str(self.directory / ("inductor-ours" if run.hook else "inductor-plain")),
            # `precompiled enable` may have switched the hook on for this interpreter.
            **({} if run.hook else {"PRECOMPILED": "0"}),
            **run.extra,
        }

    def run_all(self) -> None:
        with self.progress():
            self.train(self.eager, COMPILED_STEPS, compiled=0)
            self.train(self.plain_cold, 0)
            self.train(self.a, 0)
            # B makes as many steps as A, to compare each loss. If the machine has become slower, B stops after A's
            # time.
            self.train(self.b, len(self.a.steps), most_s=self.a.steps[-1]["at"] - self.a.began)
            self.train(self.plain_warm, 2 * COMPILED_STEPS)
        self.stats = json.loads(self.precompiled(self.a, "cache", "stats", "--json").stdout)
        self.artifacts = json.loads(self.precompiled(self.a, "cache", "ls", "--json").stdout)["entries"]

    def close(self) -> None:
        self.end(self.runs)
        self.stop(self.a)

    # ------------------------------------------------------------------ what it shows

    def table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("", no_wrap=True)
        for run in self.compiling:
            what = "precompiled" if run.hook else "torch.compile"
            table.add_column(f"{run.label}\n[not bold bright_black]{what}\n{run.title}[/]", justify="right")

        def milliseconds(value: float | None) -> str:
            return "-" if value is None else f"{value * 1000:.0f} ms"

        def row(label: str, values: list[str], style: str = "") -> None:
            table.add_row(label, *values, style=style)

        row("first training step took", [f"{run.steps[0]['seconds']:.1f} s" for run in self.compiling], "bold")
        row("  Dynamo's tracing", [f"{run.end['tracing_s']:.1f} s" for run in self.compiling])
        row("  compile, or lookup and load", [f"{run.end['backend_s']:.2f} s" for run in self.compiling])
        row("runs compiled after", [f"{run.seconds_until(run.first_compiled()):.1f} s" for run in self.compiling])
        row("  as a whole", [f"{run.seconds_until(run.first('compiled')):.1f} s" for run in self.compiling])
        row("steps until then, eager", [str(run.first_compiled()) for run in self.compiling])
        row("step, eager (median)", [milliseconds(run.step_s("eager")) for run in self.compiling])
        row("step, in pieces (median)", [milliseconds(run.step_s("pieces")) for run in self.compiling])
        row("step, compiled (median)", [milliseconds(run.step_s("compiled")) for run in self.compiling])
        row("compiled by this process", ["yes" if self.compiles_itself(run) else "no" for run in self.compiling])
        row("processes that it started", [str(len(run.end["started"])) for run in self.compiling])
        return table

    @staticmethod
    def compiles_itself(run: Run) -> bool:
        return bool(run.end["cache_misses"] if not run.hook else run.end["compiles"])

    def swap(self, code: str) -> Text:
        """Return A's steps around its swap to ``code``."""
        a = self.a
        swap = a.first(code)
        text = Text(f"A's steps around the swap to {'pieces' if code == 'pieces' else 'the whole graph'}: ")
        for number in range(max(0, swap - 4), min(len(a.steps), swap + 5)):
            step = a.steps[number]
            text.append(f"{step['seconds'] * 1000:.0f} ", STEPS[step["code"]][1])
            if number == swap - 1:
                text.append("│ swap │ ", "bold")
        return text.append("ms")

    def pace(self) -> Text:
        """Compare A's eager steps during the compile with the steps of an uncompiled process."""
        a = self.a
        alone = statistics.median(step["seconds"] for step in self.eager.steps[1:])
        beside = a.steps[1 : a.first_compiled()]
        if not beside:
            return Text("A made no eager step during its compile.")
        seconds = [step["seconds"] for step in beside]
        share = len(beside) * alone / (beside[-1]["at"] - a.steps[0]["at"])
        return Text(
            f"A's {len(beside)} steps during its compile took {statistics.median(seconds) / alone:.1f} times as long "
            f"as eager steps alone ({alone * 1000:.0f} ms) in the median, {max(seconds) / alone:.1f} times at worst. "
            f"A made {share:.0%} of the steps that eager alone makes in that time"
        )

    def claims(self) -> Iterator[tuple[bool, str]]:
        plain, a, b = self.plain_cold, self.a, self.b
        first, cold = a.steps[0], plain.steps[0]
        yield (
            first["code"] == "eager" and a.end["compiles"] == 0,
            f"A's first step was eager and took {first['seconds']:.1f} s, {first['seconds'] / cold['seconds']:.2f} of "
            f"plain torch.compile's {cold['seconds']:.1f} s",
        )
        meanwhile = sum(step["at"] - a.began <= cold["at"] - plain.began for step in a.steps)
        yield (
            all((graph["state"], graph["source"]) == ("compiled", "swap") for graph in a.end["graphs"])
            and 0 < a.first("pieces") < a.first("compiled") < len(a.steps),
            f"A swapped to the pieces of its graph before its step {a.first('pieces') + 1}, to the whole graph before "
            f"its step {a.first('compiled') + 1}, and made {meanwhile} steps in the time of plain torch.compile's "
            "first step",
        )
        yield (
            all(step["code"] == "compiled" for step in b.steps)
            and all((graph["state"], graph["source"]) == ("compiled", "package") for graph in b.end["graphs"])
            and b.end["frames"] == 0,
            f"B ran compiled from its first step, after {b.steps[0]['seconds']:.1f} s: Dynamo traced nothing",
        )
        filled = [path for path in (self.directory / "inductor-ours").rglob("*") if path.is_file()]
        yield (
            b.end["compiles"] == 0 and not b.end["started"] and not filled,
            f"B compiled nothing: {b.end['compiles']} graphs went to torch's compiler, {len(b.end['started'])} "
            f"processes were started, {len(filled)} files are in Inductor's cache",
        )
        graphs = {graph["key"] for graph in a.end["graphs"] + b.end["graphs"]}
        pieces = len(self.artifacts) - len(graphs)
        yield (
            self.stats["compiled"] == len(self.artifacts) and len(graphs) == 1 and pieces > 0,
            f"the daemon compiled the graph of both processes and its {pieces} different pieces, each once",
        )
        yield self.equal_losses()

    def equal_losses(self) -> tuple[bool, str]:
        a, worst = self.a, self.worst_difference(self.a)
        both = min(len(a.steps), len(self.b.steps), COMPARED_STEPS)
        over = f"{both} steps" if both == len(a.steps) else f"the first {both} of A's {len(a.steps)} steps"
        eager = ", all eager in A" if both <= a.first_compiled() else ""
        return worst <= TOLERANCE, (
            f"all trained the same: the losses of A and B over {over}{eager}, and of plain torch.compile over "
            f"its {len(self.plain_warm.steps)}, differ by {worst:.1e} at most (tolerance {TOLERANCE:g}: eager and "
            "compiled code round differently)"
        )

    def shown(self) -> Iterator[Any]:
        yield self.table()
        yield ""
        yield self.swap("pieces")
        yield self.swap("compiled")
        yield self.pace()


if __name__ == "__main__":
    sys.exit(main(Demo))
