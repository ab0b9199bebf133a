"""A table of architectures: is each compiled by the daemon, hit in the next process, and equal to eager?

`make architectures` (`python -m benchmarks.architectures`). Exit status 1 when one row is not as it should be.
`--made-up KIND`, with a CUDA build of torch: on a made-up GPU (docs/explanation/made-up-cuda.md), whose kernels do not
run. No value is compared there. A row is right if each kernel that the second process loads is a cubin for that GPU,
and that process has started no other. If a kernel computes a graph's size, the graph differs there: the row says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.architectures.rows import asked, conclude, rows_parser
from benchmarks.architectures.table import examine, headers
from benchmarks.harness.console import begin
from benchmarks.harness.hosts import BenchmarkError
from precompiled.made_up_cuda import activate, host
from precompiled.made_up_cuda.kinds import KINDS


def main() -> int:
    parser = rows_parser("python -m benchmarks.architectures", __doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the models are")
    parser.add_argument("--made-up", choices=KINDS, metavar="KIND", help=f"on a made-up GPU ({', '.join(KINDS)})")
    arguments = parser.parse_args()
    names = asked(parser, arguments)
    if arguments.made_up and not activate.is_active():
        return _on_made_up(arguments.made_up)
    console, say = begin(200, stderr=arguments.json)
    target = ""
    if arguments.made_up:
        kind = KINDS[arguments.made_up]
        target, arguments.device = f"sm_{kind.major}{kind.minor}", "cuda"
        console.print(f"A made-up {kind.name}: no kernel runs, and no value is compared.", style="bold")
    started = time.monotonic()
    try:
        rows = examine(names, say, arguments.device, target)
    except BenchmarkError as error:
        console.print(str(error), style="bold red", markup=False, highlight=False)
        return 1
    return conclude(console, arguments, headers(target), rows, f"; {time.monotonic() - started:.0f} s")


def _on_made_up(kind: str) -> int:
    """This command in a process that has the device, from before torch is loaded there."""
    with tempfile.TemporaryDirectory(prefix="made-up-cuda-") as state:
        environment = {**os.environ, **host.variables(sys.executable, kind, Path(state))}
        command = [sys.executable, "-m", "benchmarks.architectures", *sys.argv[1:]]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
