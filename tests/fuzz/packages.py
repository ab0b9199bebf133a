"""Runs random programs in which an input decides a value, with packages (``python -m tests.fuzz.packages``).

Three processes run each program:

- A records the packages of the program.
- B runs the program again.
- C runs the program with a changed input.

In each process, the result must equal eager's, or be the same exception. If the result differs, another process runs
the program without packages. A deviation that plain torch.compile has, too, does not count.

Prints a line for each wrong program, and a table at the end. The exit status is 0 if no program is wrong, and otherwise
1. With ``--self-check`` packages omit some facts, and the status is 0 only if the command finds a wrong program.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support_host import Host, new_host
from support_packages import run_alone

from .package_grammar import Program, program

BATCH = 100  # programs per parent process, which forks once for each of them
MODES = ("program", "function")
ROWS = (
    "pairs",
    "used again",
    "traced again",
    "used when changed",
    "traced when changed",
    "input without effect",
    "eager raises",
    "plain differs",
    "wrong",
)


@dataclass
class Verdict:
    """The rows of the table (ROWS) that count a program, and the program's errors."""

    rows: list[str] = field(default_factory=lambda: ["pairs"])
    wrong: list[str] = field(default_factory=list)


def run(
    host: Host, programs: list[Program], mode: str, *, changed: bool, without: str = "nothing", plain: bool = False
) -> dict[int, Any]:
    """Run each program in a separate process. Returns the outcome of each program by its seed."""
    # Concurrent batches need separate folders, because the file ``ch`` is the input of all programs in its folder.
    folder = host.root / f"fuzzed_{mode}_{programs[0].seed}"
    folder.mkdir(exist_ok=True)
    for item in programs:
        (folder / f"{mode}_{item.seed}.py").write_text(item.text)
    (folder / "ch").write_text(str(int(changed)))
    environment = {"PRECOMPILED": "0"} if plain else {"PRECOMPILED_PACKAGES": mode}
    environment |= {"FUZZED_VALUE": "3.0", "FUZZED_FLAG": "3.0"} if changed else {"FUZZED_VALUE": "2.0"}
    cases = {f"{mode}_{item.seed}": item.seed for item in programs}
    answers = run_alone(host, folder, [*cases], environment, without=without, forked=plain or mode == "function")
    return {cases[name]: answer for name, answer in answers.items()}


def check(host: Host, programs: list[Program], mode: str, without: str = "nothing") -> dict[int, Verdict]:
    """Run the programs in the three processes. Returns the verdict of each program by its seed.

    ``mode`` is the mode of packages.
    """
    recorded = run(host, programs, mode, changed=False)
    repeated = run(host, programs, mode, changed=False)
    found = run(host, programs, mode, changed=True, without=without)
    verdicts = {item.seed: _verdict(recorded[item.seed], repeated[item.seed], found[item.seed]) for item in programs}
    for changed, of in ((False, {"recording": recorded, "again": repeated}), (True, {"when changed": found})):
        doubtful = [item for item in programs if not all(one[item.seed]["equal"] for one in of.values())]
        plain = run(host, doubtful, mode, changed=changed, plain=True) if doubtful else {}
        for item in doubtful:
            for when, one in of.items():
                _judge(verdicts[item.seed], when, one[item.seed], plain[item.seed])
    return verdicts


def _verdict(recorded: dict[str, Any], repeated: dict[str, Any], found: dict[str, Any]) -> Verdict:
    rows = ["pairs"]
    rows.append("used again" if _is_used(repeated) else "traced again")
    rows.append("used when changed" if _is_used(found) else "traced when changed")
    if recorded.get("eager") == found.get("eager"):
        rows.append("input without effect")
    if ": " in recorded.get("eager", "") or "error" in recorded:
        rows.append("eager raises")
    return Verdict(rows)


def _is_used(of: dict[str, Any]) -> bool:
    """Returns whether the process traced nothing. A program without frames counts as traced."""
    return bool(of["states"]) and {*of["states"]} <= {"used", "skipped"}


def _judge(verdict: Verdict, when: str, of: dict[str, Any], plain: dict[str, Any]) -> None:
    if of["equal"]:
        return
    # Exceptions count as equal whatever they say, because the texts of Dynamo's errors vary.
    alike = bool(of.get("raised")) and bool(plain.get("raised"))
    if plain["equal"] or not (alike or plain.get("got") == of.get("got")):
        facts = {name: of.get(name) for name in ("states", "got", "eager", "error")}
        verdict.wrong.append(f"wrong {when}: {facts}; plain is {'right' if plain['equal'] else plain.get('got')}")
        verdict.rows.append("wrong")
    else:
        verdict.rows.append("plain differs")


def _report(mode: str, programs: list[Program], verdicts: dict[int, Verdict], keep: Path | None) -> None:
    for item in programs:
        for wrong in verdicts[item.seed].wrong:
            print(f"{mode} {item.seed} ({' | '.join(item.made_of)}): {wrong[:1500]}", flush=True)
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{mode}_{item.seed}.py").write_text(item.text)


def _parsed(arguments: list[str]) -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.packages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2000, help="number of programs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first program (default: %(default)s)")
    parser.add_argument("--mode", choices=(*MODES, "both"), default="both", help="mode of packages (default: both)")
    parser.add_argument("--batch", type=int, default=BATCH, help="programs of one batch (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="batches that run at a time (default: %(default)s)")
    parser.add_argument("--show", action="store_true", help="print each program, run none")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the programs that are wrong into FOLDER")
    parser.add_argument(
        "--self-check",
        metavar="KIND",
        default="nothing",
        help="process C compares no facts of this kind: one of tests/package_ablation.py",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = _parsed(arguments)
    started = time.monotonic()
    programs = [program(seed) for seed in range(options.seed, options.seed + options.count)]
    if options.show:
        for item in programs:
            print(f"# {item.seed}: {' | '.join(item.made_of)}{item.text}")
        return 0
    modes = MODES if options.mode == "both" else (options.mode,)
    counted: dict[str, collections.Counter[str]] = {mode: collections.Counter() for mode in modes}
    batches = [programs[first : first + options.batch] for first in range(0, len(programs), options.batch)]
    with new_host() as host, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        host.start_daemon()
        running = {}
        for mode in modes:
            running |= {pool.submit(check, host, one, mode, options.self_check): (mode, one) for one in batches}
        for done in concurrent.futures.as_completed(running):
            mode, batch = running[done]
            for verdict in done.result().values():
                counted[mode].update({*verdict.rows})
            _report(mode, batch, done.result(), options.keep)
            print(f"{mode}: {counted[mode]['pairs']} programs, {time.monotonic() - started:.0f} s", flush=True)
    print(f"seeds {options.seed} to {options.seed + options.count - 1}, {time.monotonic() - started:.0f} s")
    print(f"{'':22}" + "".join(f"{mode:>10}" for mode in modes))
    for name in ROWS:
        print(f"{name:22}" + "".join(f"{counted[mode][name]:10d}" for mode in modes))
    return status(any(of["wrong"] for of in counted.values()), options.self_check)


def status(is_wrong: bool, without: str) -> int:
    """Returns the exit status, as this file's docstring describes it."""
    return int(is_wrong) if without == "nothing" else int(not is_wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
