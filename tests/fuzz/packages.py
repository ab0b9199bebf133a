"""``python -m tests.fuzz.packages``: random programs in which an input decides a value, with packages and without.

Each program is run by three processes: one records its packages, one repeats it, and in one the input has changed. The
results of the last must be those of eager in the same process, unless those of plain torch.compile are not either.
Prints a line for each that is wrong, and a table at the end. Exit status 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support_host import Host, new_host
from support_packages import PROGRAM

from .package_grammar import Program, program

BATCH = 200  # programs of one process
MINUTES = 60.0


def run(host: Host, programs: list[Program], mode: str, *, changed: bool, without: str = "nothing") -> dict[str, Any]:
    """What became of each program in a process of its own. ``mode``: of packages, or "plain"."""
    folder = host.root / "fuzzed"
    folder.mkdir(exist_ok=True)
    for item in programs:
        if not (folder / f"{item.name}.py").exists():
            (folder / f"{item.name}.py").write_text(item.text)
    (folder / "ch").write_text(str(int(changed)))
    environment = {"PRECOMPILED_PACKAGE_AUDIT": "0", "PRECOMPILED_MODE": "wait", "OMP_NUM_THREADS": "1"}
    environment |= {"PRECOMPILED": "0"} if mode == "plain" else {"PRECOMPILED_PACKAGES": mode}
    spec = {"folder": str(folder), "cases": [item.name for item in programs], "without": without}
    # Not forked: the files are younger than the process that others are forked from.
    client = host.program(str(PROGRAM), json.dumps(spec), env=environment, forked=False)
    found: dict[str, Any] = client.result(timeout_s=60 * MINUTES)
    return found


def check(host: Host, programs: list[Program], mode: str, without: str = "nothing") -> dict[str, str]:
    """By program: "used", "traced", "plain differs", "raises", or what is wrong."""
    run(host, programs, mode, changed=False)
    repeated = run(host, programs, mode, changed=False)
    found = run(host, programs, mode, changed=True, without=without)
    doubtful = [item for item in programs if not found[item.name]["equal"] or not repeated[item.name]["equal"]]
    plain = {changed: run(host, doubtful, "plain", changed=changed) if doubtful else {} for changed in (False, True)}
    verdicts = {}
    for item in programs:
        wrong = [
            f"wrong {when}: {of[item.name].get('error', of[item.name]['states'])}"
            for when, of, changed in (("again", repeated, False), ("when changed", found, True))
            if not of[item.name]["equal"] and plain[changed][item.name]["equal"]
        ]
        if wrong:
            verdicts[item.name] = wrong[0]
        elif item in doubtful:
            verdicts[item.name] = "plain differs"
        else:
            verdicts[item.name] = "used" if {"used", "skipped"} & {*repeated[item.name]["states"]} else "traced"
    return verdicts


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.packages", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000, help="programs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the first one's (default: %(default)s)")
    parser.add_argument("--mode", choices=("program", "function"), default="program", help="of packages")
    parser.add_argument("--show", action="store_true", help="print each program")
    parser.add_argument("--self-check", metavar="KIND", default="nothing", help="compare no facts of this kind")
    options = parser.parse_args(arguments)
    started, counted = time.monotonic(), collections.Counter[str]()
    programs = [program(seed) for seed in range(options.seed, options.seed + options.count)]
    for item in programs if options.show else ():
        print(f"# {item.name}: {', '.join(item.made_of)}{item.text}")
    wrong = 0
    for first in range(0, len(programs), BATCH):
        batch = programs[first : first + BATCH]
        with new_host() as host:
            host.start_daemon()
            verdicts = check(host, batch, options.mode, options.self_check)
        for item in batch:
            verdict = verdicts[item.name]
            counted["wrong" if verdict.startswith("wrong") else verdict] += 1
            if verdict.startswith("wrong"):
                wrong += 1
                print(f"{item.name} ({', '.join(item.made_of)}): {verdict[-600:]}", flush=True)
        print(f"{first + len(batch)} of {len(programs)} programs, {time.monotonic() - started:.0f} s", flush=True)
    print(f"{time.monotonic() - started:.0f} s, packages = {options.mode}, seeds from {options.seed}")
    for name in ("used", "traced", "plain differs", "wrong"):
        print(f"{counted[name]:8d} {name}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
