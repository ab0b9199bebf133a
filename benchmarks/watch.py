"""Measures watch mode (`python -m benchmarks.watch`): (w) the time from a save until the watch is ready, and (x) the
time of the next run's first step.

(w) The entry point is a GPT-2 in training, with a constant that is edited repeatedly. Watch mode's own time, which has
a goal, is the time until the watch is ready, minus capture (imports and trace) and compile.

(x) The edited program is examples/watch/train.py, after a recorded run. One edited hyperparameter changes shapes, and
one does not. The next run's first step is compared with that of plain torch.compile, which has a cache from before the
edit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness.console import begin, show, show_results
from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import LIMIT_S, ROOT, BenchmarkError, Host, fresh_host
from benchmarks.harness.result import Result, markdown, save
from precompiled import wire
from precompiled.client import ask
from precompiled.store.artifacts import Store

EXAMPLE = ROOT / "examples" / "watch"
MODEL = """
import torch
from transformers import GPT2Config, GPT2Model

SCALE = {scale}

class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = GPT2Model(GPT2Config(
            n_layer={layers}, n_embd={width}, n_head=4, vocab_size=1024, n_positions=128,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))

    def forward(self, tokens):
        return self.model(tokens).last_hidden_state.square().mean() * SCALE

def factory():
    return Loss(), torch.randint(0, 1024, (2, 64))
"""


def register(host: Host, directory: Path, kind: str, command: list[str], files: list[Path]) -> str:
    registration = wire.Registration(
        kind=kind,  # type: ignore[arg-type]
        command=command,
        executable=sys.executable,
        directory=str(directory),
        store=str(host.root / "store"),
        variables=host.variables(hook=False),
        files=[str(file) for file in files],
    )
    (id,) = ask.request(host.settings, wire.Watch(registration), LIMIT_S).ids
    return str(id)


def until_ready(host: Host, id: str, since: float) -> wire.WatchStatus:
    """Wait until the watch is ready with an edit that was made at ``since`` or later."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for watch in ask.request(host.settings, wire.Watches(), LIMIT_S).watches:
            if watch.id == id and watch.edited_at >= since:
                if watch.state == "failed":
                    raise BenchmarkError(watch.error)
                if watch.state == "ready":
                    found: wire.WatchStatus = watch
                    return found
        time.sleep(0.05)
    raise BenchmarkError(f"the watch is not ready after {LIMIT_S:g} s")


def save_to_ready(layers: int, width: int, repeats: int, say: Say) -> Result:
    """Measure (w)."""
    result = Result("w", "save to ready, less capture and compile", "s", 1.0)
    raw: dict[str, list[float]] = {"save to ready (s)": [], "capture (s)": [], "compile (s)": []}
    with fresh_host() as host:
        host.start_daemon()
        directory = host.root / "project"
        directory.mkdir()
        source = directory / "model.py"
        source.write_text(MODEL.format(scale=1.0, layers=layers, width=width))
        id = register(host, directory, "entry", ["model:factory"], [])
        until_ready(host, id, 0.0)
        say("the worker is warm")
        store = Store(host.root / "store")
        for number in range(repeats):
            time.sleep(1.5)  # people edit less often than this loop
            since = time.time() - 0.1
            source.write_text(MODEL.format(scale=2.0 + number, layers=layers, width=width))
            watch = until_ready(host, id, since)
            if (watch.captured, watch.ready) != (1, 1):
                raise BenchmarkError(f"{watch.captured} graphs were captured, {watch.ready} compiled, not one")
            (artifact,) = store.lookup(watch.graphs[0].key)
            compiled = artifact.manifest.compile_s
            result.samples.append(watch.ready_s - watch.capture_s - compiled)
            for name, value in zip(raw, (watch.ready_s, watch.capture_s, compiled), strict=True):
                raw[name].append(value)
            say(
                f"ready {watch.ready_s:.2f} s after the save: capture {watch.capture_s:.2f} s, compile {compiled:.2f} s"
            )
    result.raw = raw
    return result


def first_step(command: list[str], variables: dict[str, str], directory: Path) -> float:
    done = subprocess.run(
        command, cwd=directory, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    found = re.search(r"^step 0: .*, ([\d.]+) s$", done.stdout, re.MULTILINE)
    if done.returncode != 0 or found is None:
        raise BenchmarkError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return float(found[1])


def recorded_run(layers: int, width: int, say: Say) -> list[dict[str, Any]]:
    """Measure (x)."""
    rows = []
    with fresh_host() as host, fresh_host() as plain:
        host.start_daemon()
        directory = host.root / "project"
        shutil.copytree(EXAMPLE, directory, ignore=shutil.ignore_patterns("__pycache__"))
        hparams = directory / "hparams.json"
        values = {"layers": layers, "width": width, "batch": 2, "lr": 0.001}
        hparams.write_text(json.dumps(values))
        command = [sys.executable, "train.py"]
        id = register(host, directory, "run", command, [hparams])
        first = until_ready(host, id, 0.0)
        say(f"recorded: {first.captured} graphs")
        short = [sys.executable, "train.py", "1"]
        first_step(short, plain.variables(hook=False), directory)
        say("torch.compile's own cache is warm, too")
        for name, value in (("lr", 0.002), ("batch", 4)):
            since = time.time() - 0.1
            values[name] = value
            swap = directory / ".hparams.json.swp"
            swap.write_text(json.dumps(values))
            os.replace(swap, hparams)
            watch = until_ready(host, id, since)
            compiled = host_stats(host)
            ours = first_step(short, host.variables(hook=True), directory)
            if host_stats(host) != compiled:
                raise BenchmarkError("the run after the save was not served from what the watch had compiled")
            theirs = first_step(short, plain.variables(hook=False), directory)
            rows.append(
                {
                    "edit": f"{name} = {value}",
                    "captured": watch.captured,
                    "recompiled": watch.ready,
                    "reused": watch.reused,
                    "ready_s": watch.ready_s,
                    "ours_s": ours,
                    "plain_s": theirs,
                }
            )
            say(f"{name}: {watch.ready} recompiled, {watch.reused} reused; first step {ours:.2f} s, {theirs:.2f} plain")
    return rows


def host_stats(host: Host) -> int:
    """Return the number of submitted graphs."""
    return int(ask.request(host.settings, wire.Stats(), LIMIT_S).submitted)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watch", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small model, few repeats: no figures to be quoted")
    parser.add_argument("--only", default="wx", metavar="wx", help="letters of the measures to take")
    parser.add_argument("--markdown", action="store_true", help="also print tables for docs/reference/benchmarks.md")
    options = parser.parse_args()
    layers, width, repeats = (2, 128, 3) if options.quick else (12, 256, 5)
    console, say = begin(140)
    status = 0
    if "w" in options.only:
        result = save_to_ready(layers, width, repeats, say)
        show_results(console, [result], options.markdown)
        status = 0 if result.met else 1
        path = save({"results": [asdict(result)]}, options.quick, "watch")
        console.print(f"Raw samples: {path}", highlight=False)
    if "x" in options.only:
        rows = recorded_run(layers, width, say)
        columns = [
            "edit",
            "graphs captured",
            "recompiled",
            "reused",
            "save to ready",
            "first step of the next run",
            "plain torch.compile's",
            "ratio",
        ]
        lines = [
            [
                row["edit"],
                str(row["captured"]),
                str(row["recompiled"]),
                str(row["reused"]),
                f"{row['ready_s']:.1f} s",
                f"{row['ours_s']:.2f} s",
                f"{row['plain_s']:.2f} s",
                f"{row['ours_s'] / row['plain_s']:.2f}",
            ]
            for row in rows
        ]
        show(console, columns, lines)
        if options.markdown:
            print(f"\n{markdown(columns, lines)}")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
