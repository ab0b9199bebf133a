"""Runs a training script like nanoGPT's as the main program, then prints its results as a JSON line.

Usage: python -m benchmarks.edits.script SCRIPT ARGUMENTS. The script prints the time and the loss of each iteration.
The time of its first iteration starts before the first evaluation. The caller enables precompiled.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import sys
from pathlib import Path

_ITERATION = re.compile(r"^iter \d+: loss ([\d.]+), time ([\d.]+)ms", re.MULTILINE)


def main() -> None:
    script = Path(sys.argv[1]).absolute()
    sys.argv = [str(script), *sys.argv[2:]]
    sys.path[0] = str(script.parent)  # `python SCRIPT` does the same
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        runpy.run_path(str(script), run_name="__main__")

    from benchmarks.harness import state

    iterations = _ITERATION.findall(said.getvalue())
    found = {
        "first_s": float(iterations[0][1]) / 1000,
        "losses": [float(loss) for loss, _time in iterations],
        "waited": state.waited(),
        **state.counted(),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
