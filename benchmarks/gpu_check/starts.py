"""Measures starts on the GPU: GPT-2 in training with bfloat16, then a Llama of 1B in inference.

Usage: python -m benchmarks.gpu_check.starts RESULT [--made-up]. RESULT: the JSON file, which is written after each
sample. On a made-up device, there is one small model, and no result is compared, because no kernel runs.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.starts.contenders import CONTENDERS
from benchmarks.starts.run import Hosts
from benchmarks.starts.sample import Group, Sample

GROUPS = (
    Group("gpt2", "training", "static", "cuda", dtype="bfloat16"),
    Group("llama_1b", "inference", "static", "cuda", dtype="bfloat16"),
)
WAYS = ("plain-cold", "plain-warm", "ours-cold", "ours-warm", "ours-package")
DRY_WAYS = ("ours-cold", "ours-warm")


def _row(sample: Sample) -> dict[str, Any]:
    figures = asdict(sample)
    for long in ("program", "compiles"):
        figures.pop(long)
    return {**figures, "group": sample.group.title, "line": sample.line()}


def main() -> int:
    made_up, file = "--made-up" in sys.argv, Path(sys.argv[1])
    rows: list[dict[str, Any]] = []
    for group in GROUPS[:1] if made_up else GROUPS:
        with Hosts(group, "small" if made_up else "full", check=not made_up) as hosts:
            for way in DRY_WAYS if made_up else WAYS:
                rows.append(_row(hosts.sample(CONTENDERS[way], 0)))
                print(f"{rows[-1]['group']}: {way}: {rows[-1]['line']}", flush=True)
                file.write_text(json.dumps({"samples": rows}))
    return int(any(row["outcome"] != "ok" for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
