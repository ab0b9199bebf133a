"""`make gpu-check`: runs the parts one after the other, each with a time limit. Exits 1 if a part failed.

After each part it writes gpu-check.json and gpu-check.md. Without a GPU, the same code runs on a made-up device, as a
dry run. ``--docs`` writes an earlier result into docs/reference/benchmarks.md instead.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.gpu_check.parts import LAST_S, PARTS, Part
from benchmarks.harness.hosts import ROOT
from benchmarks.harness.result import RESULTS, machine, markdown, write_part

MADE_UP_TORCH, MADE_UP_KIND = "2.11.0", "h100"
MARK = "GPU_CHECK_PART"
DRY_FACTOR = 6  # a dry run compiles on few cores
KEPT_OUTPUT = 6000  # characters of a part's output that the JSON keeps if the part failed


def run(part: Part, *, made_up: bool) -> dict[str, Any]:
    """Run a part. If the part exceeds its limit, end its processes, and keep its files."""
    started, limit_s = time.monotonic(), part.limit_s * (DRY_FACTOR if made_up else 1)
    with tempfile.TemporaryDirectory(prefix="pc-gpu-") as directory, tempfile.TemporaryFile() as output:
        result = Path(directory) / "result"
        # The variable marks all processes of the part, including its daemons.
        variables = {MARK: directory, "PRECOMPILED_TESTS_UNTIL": str(time.time() + limit_s - LAST_S)}
        process = subprocess.Popen(
            part.command(result, made_up), cwd=ROOT, env=os.environ | variables, stdout=output, stderr=output
        )
        try:
            outcome = "passed" if process.wait(limit_s) == 0 else "FAILED"
        except subprocess.TimeoutExpired:
            outcome = f"cut off after {limit_s:.0f} s"
        left = [other for other in psutil.process_iter() if _marked(other, directory)]
        for other in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                other.kill()
        process.wait()
        found: dict[str, Any] = {"part": part.name, "outcome": outcome, "seconds": time.monotonic() - started}
        try:
            found["result"] = part.read(result)
        except (OSError, ValueError, SyntaxError) as error:  # the part was cut off before it wrote its result
            found["error"] = f"no result: {error}"
        if outcome != "passed":
            output.seek(0)
            found["output"] = output.read().decode(errors="replace")[-KEPT_OUTPUT:]
        return found


def _marked(process: psutil.Process, mark: str) -> bool:
    try:
        return bool(process.environ().get(MARK) == mark)
    except (psutil.Error, OSError):
        return False


def report(document: dict[str, Any]) -> list[str]:
    """Return the paragraphs of the report: the machine, and a table for each part."""
    where = "a made-up GPU: no kernel runs, and no value or time means anything" if document["made_up"] else "a GPU"
    paragraphs = [f"On {where}. Commit {document['machine']['commit']}, {document['at']}."]
    for found in document["parts"]:
        part = next(part for part in PARTS if part.name == found["part"])
        rows = [list(row) for row in part.rows(found["result"])] if "result" in found else [["", found["error"]]]
        said = f"{found['outcome']}, {found['seconds']:.0f} s"
        paragraphs += [f"**{part.name}**: {said}", markdown([part.name, "outcome"], rows)]
    return paragraphs


def write(document: dict[str, Any], folder: Path) -> None:
    for name, text in (("json", json.dumps(document, indent=1)), ("md", "\n\n".join(report(document)) + "\n")):
        path = folder / f"gpu-check.{name}"
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="where the results are written")
    parser.add_argument("--only", default="", metavar="TEXT", help="run the parts whose names contain TEXT")
    parser.add_argument("--made-up", action="store_true", help="use a made-up device, even if there is a GPU")
    parser.add_argument("--docs", type=Path, metavar="JSON", help="write this result into the docs, and run nothing")
    arguments = parser.parse_args()
    if arguments.docs:
        document = json.loads(arguments.docs.read_text())
        if document["made_up"]:
            parser.error("a result of a made-up device has no figures for the docs")
        write_part("make gpu-check ARGS='--docs JSON'", report(document))
        return 0
    import torch

    if (arguments.made_up or not torch.cuda.is_available()) and "CUDA_MADE_UP" not in os.environ:
        return _on_made_up_gpu()
    made_up = "CUDA_MADE_UP" in os.environ
    arguments.out.mkdir(parents=True, exist_ok=True)
    at = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    document = {"made_up": made_up, "at": at, "machine": machine(), "parts": []}
    for part in PARTS:
        if arguments.only not in part.name:
            continue
        print(f"{part.name} (at most {part.limit_s:.0f} s)", flush=True)
        found = run(part, made_up=made_up)
        document["parts"].append(found)
        write(document, arguments.out)
        print(f"  {found['outcome']} after {found['seconds']:.0f} s", flush=True)
    print("\n\n".join(report(document)))
    return int(any(found["outcome"] != "passed" for found in document["parts"]))


def _on_made_up_gpu() -> int:
    sys.path.insert(0, str(ROOT / "tests" / "versions"))
    environments = importlib.import_module("environments")
    from benchmarks.harness.made_up import run_on_made_up_gpu

    print("NO GPU: a dry run on a made-up device. No kernel runs, and no value or time means anything.", flush=True)
    return run_on_made_up_gpu("gpu_check", environments.python_of(MADE_UP_TORCH), MADE_UP_KIND)


if __name__ == "__main__":
    raise SystemExit(main())
