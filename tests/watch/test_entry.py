"""Tests of a capture process and its messages to the watcher, with real Dynamo and without a daemon."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support_host import TIMEOUT_S, Host

from precompiled.core import python_path

pytestmark = pytest.mark.integration

MODELS = """
import torch, precompiled
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 2)
        self.register_buffer("offset", torch.arange(2.0))
    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.out(x) + self.offset

def block():
    torch.manual_seed(0)
    return Block(), torch.randn(2, 3, 16, 16)

def attention():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    with torch.autocast("cpu", torch.bfloat16):
        yield layer, torch.randn(2, 8, 16)
    with torch.no_grad():
        yield layer.eval(), torch.randn(2, 8, 16)

def sizes():
    def f(x, scale):
        return (x * scale).softmax(-1)
    return f, [(torch.randn(n, 4), 2.0) for n in (3, 5, 7)]

def keywords():
    def f(x, *, y, index):
        return x[index] + y
    x = torch.randn(6, 3, requires_grad=True)
    return f, {"x": x, "y": torch.ones(3), "index": torch.tensor([0, 2])}

def shared():
    whole = torch.randn(8)
    return (lambda a, b: a.add_(1) + b), (whole[2:6], whole[4:8])

def compiled_inside():
    inner = torch.compile(lambda x: x.sin() + 1, dynamic=False)
    def step(x):
        return inner(x).sum().item() if False else inner(x)
    return step, torch.randn(3)

FACTORIES = [block, attention, sizes, keywords, shared]
"""
MARKED = """
import precompiled, models
for number, factory in enumerate(models.FACTORIES):
    globals()[f"f{number}"] = precompiled.entry_point(factory)
del number, factory
inside = precompiled.entry_point(compile=False, files=["declared.yaml"])(models.compiled_inside)
"""
RUN = """
import torch
from models import FACTORIES, compiled_inside
from precompiled.watch.entry import _calls, _pairs
for factory in FACTORIES:
    known = {}
    for function, examples in _pairs(factory()):
        if id(function) not in known:
            known[id(function)] = function, torch.compile(function)
        compiled = known[id(function)][1]
        for args, kwargs in _calls(examples):
            compiled(*args, **kwargs)
function, x = compiled_inside()
function(x)
"""


@dataclass
class Capture:
    """Runs captures in a directory and collects their messages."""

    host: Host
    directory: Path
    messages: list[dict[str, Any]]

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.directory / f"{name}.py").write_text(text)

    def __call__(self, *arguments: str, command: list[str] | None = None, ends: int = 1) -> dict[str, Any]:
        path = self.host.root / "reports"
        self.messages.clear()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reports:
            reports.bind(str(path))
            # Read continuously, as the watcher does: Linux buffers ten messages, after which the capture would block.
            reader = threading.Thread(target=self._read, args=(reports,))
            reader.start()
            try:
                done = subprocess.run(
                    command or [sys.executable, "-m", "precompiled.watch.entry", *arguments],
                    cwd=self.directory,
                    env=python_path.with_hook(
                        self.host.environment({"PRECOMPILED_CAPTURE": f"token:0:{path}", "PRECOMPILED_AUTOSTART": "0"})
                    ),
                    capture_output=True,
                    text=True,
                    timeout=TIMEOUT_S,
                    check=False,
                )
            finally:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
                    end.sendto(b"", str(path))
                reader.join()
        path.unlink()
        assert all(message["token"] == "token" for message in self.messages)
        found = [message for message in self.messages if message["event"] == "done"]
        assert len(found) == ends, (done.stderr, self.messages)
        assert done.returncode == (0 if all(message["ok"] for message in found) else 1), done.stderr
        return found[0] if found else {}

    def _read(self, reports: socket.socket) -> None:
        while data := reports.recv(1 << 18):
            self.messages.append(json.loads(data))

    def keys(self) -> list[str]:
        return [message["key"] for message in self.messages if message["event"] == "graph"]

    def files(self) -> dict[str, str]:
        return {
            path: digest
            for message in self.messages
            if message["event"] == "files"
            for path, digest in message["files"].items()
        }


@pytest.fixture
def capture(host: Host) -> Iterator[Capture]:
    directory = host.root / "project"
    directory.mkdir()
    yield Capture(host, directory, [])


def test_fake_tensors_give_the_keys_of_real_ones_and_of_a_real_run(capture: Capture) -> None:
    capture.write(models=MODELS, marked=MARKED, run=RUN)
    end = capture("marked")
    assert end["ok"] and end["fake"], end
    fake, files = capture.keys(), capture.files()
    assert all(fake), [message for message in capture.messages if message["event"] == "graph"]
    assert str(capture.directory / "declared.yaml") in files
    end = capture("marked", "--real", "to compare")
    assert end["ok"] and not end["fake"], end
    assert capture.keys() == fake
    # A normal run of the same program, without a watch, has the same keys. Only the hook that records the run is
    # enabled.
    capture(command=[sys.executable, "run.py"], ends=0)
    assert capture.keys() == fake
    assert len(fake) >= 8, "one for each factory, and more for its shapes and modes"


def test_large_model_is_captured_without_its_memory(capture: Capture) -> None:
    capture.write(
        large="""
import torch
def factory():
    layers = [torch.nn.Linear(100_000, 100_000) for _ in range(8)]  # 320 GB
    return torch.nn.Sequential(*layers), torch.randn(4, 100_000)
def end():
    import resource
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20, "KiB"
import atexit
"""
    )
    end = capture("large:factory")
    assert end["ok"] and end["fake"], end
    assert len(capture.keys()) == 1


def test_entry_point_that_needs_values_uses_real_tensors(capture: Capture) -> None:
    capture.write(
        values="""
import torch
def factory():
    steps = int(torch.arange(4).sum())  # no fake tensor has a value
    return (lambda x: x * steps), torch.randn(steps)
"""
    )
    end = capture("values:factory")
    assert end["ok"] and not end["fake"], end
    assert "real tensors" in end["note"]
    assert len(capture.keys()) == 1


def test_sources_are_digested_as_they_are_read(capture: Capture) -> None:
    """importlib compares only the time and size of a source. If an edit in the same second keeps the size, importlib
    may use an old bytecode file. A capture must read the source instead.
    """
    capture.write(helper="VALUE = 1\n", entry="import helper\nraise RuntimeError(f'helper says {helper.VALUE}')\n")
    helper = capture.directory / "helper.py"
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", "import helper"], cwd=capture.directory, env=plain, check=True)
    times = helper.stat()
    helper.write_text("VALUE = 2\n")
    os.utime(helper, ns=(times.st_atime_ns, times.st_mtime_ns))
    stale = subprocess.run(
        [sys.executable, "-c", "import helper; print(helper.VALUE)"],
        cwd=capture.directory,
        env=plain,
        capture_output=True,
        text=True,
        check=True,
    )
    assert stale.stdout == "1\n", "Python itself would have been right: this test proves nothing"
    end = capture("entry:factory")
    assert "helper says 2" in end["error"]
    assert capture.files() == {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in capture.directory.glob("*.py")
    }


@pytest.mark.parametrize(
    ("text", "said", "not_said"),
    [
        ("x = (\n", "SyntaxError", "importlib"),
        ("import not_there\n", "No module named 'not_there'", "importlib"),
        ("def factory():\n    return 1 / 0\n", "ZeroDivisionError", "watch/entry.py"),
        ("def factory():\n    return 3\n", "the factory returned a int", "Traceback"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3", "watch/entry.py"),
        ("", "entry:factory is not a function", "Traceback"),
    ],
)
def test_error_is_reported_as_the_user_would_see_it(capture: Capture, text: str, said: str, not_said: str) -> None:
    capture.write(entry=text)
    end = capture("entry:factory")
    assert not end["ok"]
    assert said in end["error"] and not_said not in end["error"], end["error"]
    assert str(capture.directory / "entry.py") in capture.files(), "or its correction would not be seen"
    if "not_there" in text:
        assert str(capture.directory / "not_there.py") in end["missing"]


def test_module_without_entry_points_is_an_error(capture: Capture) -> None:
    capture.write(entry="")
    assert "nothing in entry is marked" in capture("entry")["error"]
