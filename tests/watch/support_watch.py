"""Provides projects to watch, and reads what their daemon reports about the watches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support_host import TIMEOUT_S, Host

from precompiled import wire
from precompiled.client import ask
from precompiled.core.errors import DaemonError

# A typical model in four files. The tests name the effect of each file on the graph.
PROJECT = {
    "config.json": json.dumps({"width": 8, "depth": 2}),
    "ops.py": """
import torch

@torch.library.custom_op("watched::shift", mutates_args=())
def shift(x: torch.Tensor) -> torch.Tensor:
    return x + 1.0

@shift.register_fake
def _(x):
    return torch.empty_like(x)

def _backward(ctx, grad):
    return grad * 1.0

shift.register_autograd(_backward)
""",
    "layers.py": """
import torch
from ops import shift

class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x):
        return shift(torch.relu(self.linear(x)) * 2.0)
""",
    "model.py": """
import json, pathlib
import torch
from layers import Layer

CONFIG = pathlib.Path(__file__).with_name("config.json")

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        config = json.loads(CONFIG.read_text())
        self.layers = torch.nn.Sequential(*[Layer(config["width"]) for _ in range(config["depth"])])
        self.width = config["width"]

    def forward(self, x):
        return self.layers(x).sum() * 0.5

def factory():
    model = Model()
    return model, (torch.randn(4, model.width),)
""",
    "unrelated.py": "ANSWER = 41\n",
    # The user's run, which checks its results against eager code and prints how its graphs were served.
    "run.py": """
import json
import torch, precompiled
from model import Model

torch.manual_seed(0)
model = Model()
x = torch.randn(4, model.width)
expected = model(x)
expected.backward()
wanted = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
found = torch.compile(model)(x)
found.backward()
torch.testing.assert_close(found, expected)
for parameter, gradient in zip(model.parameters(), wanted):
    torch.testing.assert_close(parameter.grad, gradient)
print(json.dumps({
    "value": found.item(),
    "graphs": [[g.key, g.state, g.source, g.reason] for g in precompiled.report()],
    "frames": dict(torch._dynamo.utils.counters["inductor"]),
}))
""",
}


@dataclass
class Project:
    """A directory of sources on a host, with its watches."""

    host: Host
    directory: Path
    variables: dict[str, str] = field(default_factory=dict)

    def write(self, files: dict[str, str]) -> None:
        self.directory.mkdir(exist_ok=True, parents=True)
        for name, text in files.items():
            (self.directory / name).write_text(text)

    def save(self, name: str, old: str, new: str) -> Path:
        """Replace text in a file, as an editor does that saves by rename."""
        path = self.directory / name
        text = path.read_text()
        assert old in text, (name, old)
        return self.replace(name, text.replace(old, new))

    def replace(self, name: str, text: str) -> Path:
        path = self.directory / name
        swap = path.with_name(f".{name}.swp")
        swap.write_text(text)
        os.replace(swap, path)
        return path

    def register(self, *command: str, kind: str = "entry", **how: Any) -> str:
        registration = wire.Registration(
            kind=kind,
            command=list(command),
            executable=sys.executable,
            directory=str(self.directory),  # type: ignore[arg-type]
            store=str(self.host.root / "store"),
            variables=self.host.environment(self.variables),
            **{"time_limit_s": TIMEOUT_S, **how},
        )
        (id,) = ask.request(self.host.settings, wire.Watch(registration), TIMEOUT_S).ids
        return str(id)

    def record(self, id: str) -> Path:
        """Return the file in which the daemon keeps a watch."""
        return (self.host.served_by or self.host).store.root / "watch" / f"{id}.json"

    def unwatch(self) -> None:
        """End all watches of the project, including those that commands started."""
        ids = [watch.id for watch in self.watches().watches if watch.directory == str(self.directory)]
        ask.request(self.host.settings, wire.Unwatch(ids), TIMEOUT_S)

    def watches(self) -> wire.WatchesReply:
        reply: wire.WatchesReply = ask.request(self.host.settings, wire.Watches(), TIMEOUT_S)
        return reply

    def watch(self, id: str) -> wire.WatchStatus | None:
        try:
            return next((watch for watch in self.watches().watches if watch.id == id), None)
        except DaemonError:  # no daemon runs at the moment, for example between two daemons
            return None

    def until(self, id: str, condition: Callable[[wire.WatchStatus], Any], what: str = "") -> wire.WatchStatus:
        """Poll until ``condition`` is true for the watch. The time limit is generous, because the tests do not measure
        speed.
        """
        deadline = time.monotonic() + TIMEOUT_S
        last = None
        while time.monotonic() < deadline:
            last = self.watch(id)
            if last is not None and condition(last):
                return last
            time.sleep(0.02)
        raise AssertionError(f"did not happen: {what or condition}; last seen: {last}")

    def until_ready(self, id: str, edited: Path | None = None, since: float = 0.0) -> wire.WatchStatus:
        """Poll until the watch is ready. If ``edited`` is given, the last edit of the watch must be that of
        this file.
        """

        def is_ready(watch: wire.WatchStatus) -> bool:
            assert not (
                watch.state == "failed" and (edited is None or watch.edited == str(edited)) and watch.edited_at >= since
            ), watch.error
            return (
                watch.state == "ready" and (edited is None or watch.edited == str(edited)) and watch.edited_at >= since
            )

        return self.until(id, is_ready, f"ready after {edited}")

    def run(self, *command: str) -> dict[str, Any]:
        """Run a program with the hook, in a mode that submits nothing, and return the program's last line, parsed as
        JSON.
        """
        done = subprocess.run(
            [sys.executable, "-m", "precompiled", "run", "--mode", "lookup", "--", sys.executable, *command],
            cwd=self.directory,
            env=self.host.environment(self.variables),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
        return result


def sources(result: dict[str, Any]) -> list[str]:
    """Return the source of each graph of a run."""
    return [graph[2] for graph in result["graphs"]]
