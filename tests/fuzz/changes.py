"""Changes the inputs of random programs whose text stays the same, and compares with eager mode.

One process runs each program (package_grammar.py) unchanged, and records its packages. A second process runs each
program again, and then with random changes: of a file, of environment variables, of arguments, of torch's and the
compiler's configuration, and of the tensor that the compiled function gets. The result must equal eager's, or be the
same type of exception. A deviation that plain torch.compile has, too, does not count.

With ``--upstream``, torch's ``torch._dynamo.config.caching_precompile`` takes the place of precompiled's packages.
Prints the wrong changes, and a table at the end. The exit status is 0 if no change is wrong, and otherwise 1.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support_host import TIMEOUT_S, Host, new_host

from .package_grammar import program

PROGRAM = Path(__file__).parents[1] / "programs" / "changed_program.py"
CHANGES_PER_PROGRAM = 50
NOTHING: dict[str, Any] = {
    "file": "0",
    "environment": {"FUZZED_VALUE": "2.0"},
    "arguments": ["2.0"],
    "settings": [],
    "tensor": "same",
}
# These names are the keys of SETTINGS and TENSORS in programs/changed_program.py.
SETTINGS = (
    "default dtype",
    "no grad",
    "inference mode",
    "deterministic",
    "threads",
    "precision",
    "autocast",
    "default device",
    "anomaly",
    "no mkldnn",
    "dynamo: no specialization",
    "dynamo: dynamic",
    "dynamo: outputs",
    "dynamo: limit",
    "inductor: no fusion",
    "inductor: casts",
)
TENSORS = ("values", "double", "transposed", "smaller", "gradient", "parameter")
ROWS = ("changes", "used", "traced", "result changed", "plain differs", "raises", "wrong")


@dataclass
class Counts:
    """The numbers of changes, by the rows of the table (ROWS). ``again`` counts the unchanged runs instead."""

    rows: collections.Counter[str] = field(default_factory=collections.Counter)
    again: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        again = f"unchanged programs: {self.again['used']:,} used, {self.again['traced']:,} traced"
        return "\n".join([*self.wrong[:40], again, *(f"{name:15}{self.rows[name]:8,d}" for name in ROWS)])


def changes_of(seed: int, number: int) -> list[dict[str, Any]]:
    """Draw the changes of a program. All changes draw from the same two conditions, because each new graph costs a
    compile.
    """
    draw = random.Random(seed)
    conditions = [("settings", [draw.choice(SETTINGS)]), ("tensor", draw.choice(TENSORS))]
    found = []
    for _ in range(number):
        environment = {"FUZZED_VALUE": draw.choice(("2.0", "2.0", "3.0"))}
        if draw.random() < 0.3:
            environment["FUZZED_FLAG"] = "3.0"
        if draw.random() < 0.3:
            environment[f"UNRELATED_{draw.randint(0, 3)}"] = str(draw.random())
        found.append(
            {
                **NOTHING,
                "file": draw.choice("001"),
                "environment": environment,
                "arguments": [draw.choice(("2.0", "2.0", "3.0")), *["--more"] * draw.randint(0, 1)],
                **dict([draw.choice(conditions)] if draw.random() < 0.3 else []),
            }
        )
    return found


def check(host: Host, first: int, number: int, task: str = "ours", each: int = CHANGES_PER_PROGRAM) -> Counts:
    """Try ``number`` changes of the programs from seed ``first`` on."""
    folder = host.root / f"changed_{task}_{first}"
    folder.mkdir()
    cases = []
    for seed in range(first, first + -(-number // each)):
        name = f"changed_{seed}"
        (folder / f"{name}.py").write_text(program(seed).text)
        cases.append((name, [NOTHING, *changes_of(seed, each)]))
    _run(host, folder, [(name, changes[:1]) for name, changes in cases], task)
    answers = _run(host, folder, cases, task)
    doubtful = [
        (name, differing)
        for (name, changes), answer in zip(cases, answers, strict=True)
        if (differing := [change for change, one in zip(changes, answer, strict=True) if _differs(one)])
    ]
    plain = {
        name: iter(answer) for (name, _), answer in zip(doubtful, _run(host, folder, doubtful, "plain"), strict=True)
    }
    counts = Counts()
    for (name, changes), answer in zip(cases, answers, strict=True):
        counts.again["used" if answer[0]["used"] else "traced"] += 1
        for change, one in zip(changes, answer, strict=True):
            rows = ["changes", "used" if one["used"] else "traced"]
            rows += ["result changed"] * (one["eager"] != answer[0]["eager"])
            if _differs(one):
                other = next(plain[name])
                # A program that raises in eager mode, and that replaced a function that Dynamo itself calls, breaks
                # Dynamo at different places with and without packages.
                raises = all(text.startswith("raised") for text in (one["eager"], one["got"], other["got"]))
                if raises or _is_equal(one["got"], other["got"]):
                    rows.append("plain differs")
                else:
                    rows.append("raises" if one["got"].startswith("raised") else "wrong")
                    counts.wrong.append(f"{name} {change}: {json.dumps(one)[:900]}; plain: {other['got'][:300]}")
            if change is not NOTHING:
                counts.rows.update(rows)
    return counts


def _differs(answer: dict[str, Any]) -> bool:
    return not _is_equal(answer["eager"], answer["got"])


def _is_equal(one: str, other: str) -> bool:
    """Whether two outcomes are equal. Exceptions count by their type, because the texts of Dynamo's errors vary."""
    if one.startswith("raised") or other.startswith("raised"):
        return one.partition(":")[0] == other.partition(":")[0]
    return one == other


def _run(
    host: Host, folder: Path, cases: list[tuple[str, list[dict[str, Any]]]], task: str
) -> list[list[dict[str, Any]]]:
    if not cases:
        return []
    changes = sum(len(changes) for _, changes in cases)
    print(f"{task}: {changes:,} runs of {len(cases)} programs", file=sys.stderr, flush=True)
    spec = folder / f"{task}.json"
    spec.write_text(json.dumps({"folder": str(folder), "programs": cases, "task": task}))
    settings = {"PRECOMPILED": str(int(task == "ours")), "PRECOMPILED_PACKAGES": "program", "PRECOMPILED_MODE": "wait"}
    client = host.program(
        str(PROGRAM),
        str(spec),
        env={**settings, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"},
        forked=False,
    )
    client.ended(timeout_s=10 * TIMEOUT_S)
    return [json.loads(line) for line in client.lines if line.startswith("[{")]


def main(arguments: list[str]) -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.changes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000, help="number of changes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first program (default: %(default)s)")
    parser.add_argument(
        "--each", type=int, default=CHANGES_PER_PROGRAM, help="changes per program (default: %(default)s)"
    )
    parser.add_argument("--upstream", action="store_true", help="run torch's caching_precompile instead")
    options = parser.parse_args(arguments)
    with new_host() as host:
        host.start_daemon()
        counts = check(host, options.seed, options.count, "upstream" if options.upstream else "ours", options.each)
    print(counts)
    return 1 if counts.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
