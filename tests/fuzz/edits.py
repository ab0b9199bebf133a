"""Edits random programs, and checks that packages serve no function whose result the edit changes.

One process records the packages of each program (edit_grammar.py). A second process runs each program unedited, and
with each single edit. A function that its package still serves must return the result of eager mode. A deviation that
plain torch.compile has, too, does not count. Functions that Dynamo would trace again are counted, and run in eager
mode.

Prints a line for each wrong edit, and a table of the kinds of edits: calls of compiled functions that the package
served, calls that Dynamo would trace again, and calls whose result the edit changes. The exit status is 0 if no edit is
wrong, and otherwise 1. With ``--self-check``, packages compare nothing, so the command finds wrong edits.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from support_host import TIMEOUT_S, Host, new_host

from .edit_grammar import program
from .source_edits import edited

PROGRAM = Path(__file__).parents[1] / "programs" / "edited_program.py"
EDITS_PER_PROGRAM = 50
PROGRAMS_PER_PROCESS = 2500  # Dynamo keeps parts of each program, so a process grows by 100 kB per program
ROWS = ("used", "retraced", "changed")


class Case(NamedTuple):
    """A program, which may have an edit. Modules in the first folder replace those in the second one."""

    seed: int
    kind: str  # of the edit
    folders: list[str]


@dataclass
class Counts:
    """The number of edits, and the number of calls of compiled functions after the edits."""

    edits: int = 0
    all: collections.Counter[str] = field(default_factory=collections.Counter)
    kinds: dict[str, collections.Counter[str]] = field(default_factory=dict)
    unedited: int = 0  # calls that the package did not serve although the program is unedited
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = {**self.kinds, "all": self.all}
        lines = [f"{'':22}" + "".join(f"{name:>10}" for name in ROWS)]
        lines += [f"{kind:22}" + "".join(f"{row[name]:10,d}" for name in ROWS) for kind, row in rows.items()]
        return "\n".join([*self.wrong, *lines, f"{self.edits:,} edits, {len(self.wrong)} wrong"])


def check(host: Host, first: int, edits: int, without: bool = False) -> Counts:
    """Try ``edits`` random edits of the programs from seed ``first`` on.

    ``without``: packages compare nothing, for a check of this command.
    """
    folder = host.root / f"edited_{first}"
    unedited, cases = [], []
    for seed in range(first, first + -(-edits // EDITS_PER_PROGRAM)):
        texts, draw = program(seed), random.Random(seed)
        unedited.append(Case(seed, "nothing", [_write(folder / f"{seed}", f"p{seed}", texts)]))
        cases.append(unedited[-1])
        for number in range(EDITS_PER_PROGRAM):
            kind, file, after = edited(texts, draw)
            new = _write(folder / f"{seed}_{number}", f"p{seed}", {file: after})
            cases.append(Case(seed, kind, [new, *unedited[-1].folders]))
    warm = Case(first - 1, "nothing", [_write(folder / "warm", f"p{first - 1}", program(0))])
    _run(host, [warm, *unedited], "record")
    answers = []
    for start in range(0, len(cases), PROGRAMS_PER_PROCESS):
        answers += _run(host, [warm, *cases[start : start + PROGRAMS_PER_PROCESS]], "use", without)[1:]
    counts = _counts(cases, answers)
    doubtful = [(case, one) for case, one in zip(cases, answers, strict=True) if one["got"] != one["eager"]]
    plain = _run(host, [case for case, _ in doubtful], "plain") if doubtful else []
    for (case, one), other in zip(doubtful, plain, strict=True):
        # The exception of an endless recursion depends on the depth of the stack, so two processes may raise different
        # ones. Each call is therefore compared on its own.
        results = itertools.zip_longest(one["got"], one["eager"], other["got"])
        if any(got not in (eager, of_plain) for got, eager, of_plain in results):
            counts.wrong.append(f"{case.folders[0]} ({case.kind}): {one}; plain: {other['got']}")
    return counts


def _write(folder: Path, name: str, texts: dict[str, str]) -> str:
    folder.mkdir(parents=True)
    for file, text in texts.items():
        (folder / f"{name}{'' if file == 'main' else '_part'}.py").write_text(text.replace("PART", f"{name}_part"))
    return str(folder)


def _run(host: Host, cases: list[Case], task: str, without: bool = False) -> list[dict[str, Any]]:
    """Run the programs one after the other in one new process. Returns what the process prints for each program."""
    spec = host.root / f"edits_{task}.json"
    programs = [(f"p{case.seed}", case.folders) for case in cases]
    spec.write_text(json.dumps({"programs": programs, "task": task, "without": without}))
    settings = {"PRECOMPILED": str(int(task != "plain")), "PRECOMPILED_PACKAGES": "program", "PRECOMPILED_MODE": "wait"}
    settings["OMP_NUM_THREADS"] = "1"
    client = host.program(str(PROGRAM), str(spec), env=settings, forked=False)
    client.ended(timeout_s=10 * TIMEOUT_S)
    return [json.loads(line) for line in client.lines if line.startswith("{")]


def _counts(cases: list[Case], answers: list[dict[str, Any]]) -> Counts:
    counts, before = Counts(), {}
    for case, answer in zip(cases, answers, strict=True):
        if case.kind == "nothing":
            before[case.seed] = answer["eager"]
            counts.unedited += sum(served != "used" for served in answer["served"])
            continue
        counts.edits += 1
        for number, served in enumerate(answer["served"]):
            found = ["used" if served == "used" else "retraced"]
            if answer["eager"][number : number + 1] != before[case.seed][number : number + 1]:
                found.append("changed")
            counts.all.update(found)
            counts.kinds.setdefault(case.kind, collections.Counter()).update(found)
    return counts


def main(arguments: list[str]) -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.edits", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000, help="number of edits (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first program (default: %(default)s)")
    parser.add_argument("--self-check", action="store_true", help="packages compare nothing")
    options = parser.parse_args(arguments)
    with new_host() as host:
        host.start_daemon()
        counts = check(host, options.seed, options.count, options.self_check)
    print(counts)
    return 1 if counts.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
