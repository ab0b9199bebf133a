"""The programs that users in the container run."""

# This user's script does not mention precompiled.
SCRIPT = """\
import os

import torch
from torch import nn

torch.manual_seed(0)
width = int(os.environ.get("WIDTH", "32"))
model = nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Linear(width, 4))
compiled = torch.compile(model)
batch = torch.randn(8, 16)


def step():
    model.zero_grad()
    loss = compiled(batch).square().mean()
    loss.backward()
    return [loss.detach().clone(), *(parameter.grad.clone() for parameter in model.parameters())]


def expected():
    model.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    return [loss.detach().clone(), *(parameter.grad.clone() for parameter in model.parameters())]


for _ in range(2):
    step()
"""

# This program runs a user's script, and then reports the script's graphs before and after the artifacts arrived.
OBSERVER = """\
import json
import runpy
import sys

names = runpy.run_path(sys.argv[1], run_name="__main__")

import precompiled
import torch


def graphs():
    return [{"state": report.state, "source": report.source, "reason": report.reason, "key": report.key,
             "calls_eager": report.calls_eager, "calls_compiled": report.calls_compiled}
            for report in precompiled.report()]


before = graphs()
done = precompiled.wait(float(sys.argv[2]))
outputs = names["step"]()
wrong = [index for index, (got, wanted) in enumerate(zip(outputs, names["expected"]()))
         if not torch.allclose(got, wanted, rtol=1.3e-6, atol=1e-5)]
print(json.dumps({"before": before, "done": done, "after": graphs(), "wrong": wrong}))
"""

# This client sends an undecodable graph. The daemon starts a worker of the client's user, and nothing is compiled.
SUBMITTER = """\
import os
import platform
import sys
import time
from importlib import metadata
from pathlib import Path

from precompiled import wire
from precompiled.client.daemon_link import Link
from precompiled.core.config import Settings

link = Link(Settings(runtime_dir=Path("/run/precompiled")))
environment = wire.Interpreter(
    executable=sys.executable, prefix=sys.prefix, python=platform.python_version(), torch=metadata.version("torch"),
    triton="", variables={"PATH": os.environ["PATH"]},
)
job = wire.Submit(
    id=sys.argv[1], key=sys.argv[1], store=f"/var/cache/precompiled/{os.getuid()}", environment=environment,
    device="cpu",
)
until = time.monotonic() + 30
is_sent, replies = False, []
while not replies:
    assert time.monotonic() < until and not link.is_lost(time.monotonic())
    is_sent = is_sent or link.send(job, b"not a graph")
    link.wait(30)
    replies = link.receive()
assert isinstance(replies[0], wire.Accepted), replies
"""
