"""Tests that a watch with packages enabled records packages, so that the next run neither traces nor compiles."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support_host import Host
from support_watch import PROJECT, Project, sources

# A package belongs to a compiled function, so the run must compile the same function as the entry point.
PRINT_REPORT = """
print(json.dumps({
    "graphs": [[g.key, g.state, g.source, g.reason] for g in precompiled.report()],
    "frames": [[f.name, f.state, f.message, f.reasons] for f in precompiled.package_report()],
    "traced": dict(torch._dynamo.utils.counters["frames"]),
}))
"""
TRAIN = """
import json, sys
import torch, precompiled
from layers import Layer

WIDTH = json.load(open("config.json"))["width"]
torch.manual_seed(0)
layer = Layer(WIDTH)
model = torch.compile(layer)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
x = torch.randn(4, WIDTH)
for step in range(int(sys.argv[1])):
    expected = layer(x)
    found = model(x)
    torch.testing.assert_close(found, expected)
    found.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def project(shared_host: Host) -> Iterator[Project]:
    found = Project(shared_host, shared_host.root / "project", {"PRECOMPILED_PACKAGES": "1"})
    found.write({**PROJECT, "run.py": PROJECT["run.py"] + PRINT_REPORT, "train.py": TRAIN + PRINT_REPORT})
    yield found
    found.unwatch()


def check(found: dict[str, Any], name: str) -> None:
    assert sources(found) == ["package"], found
    assert found["traced"] == {}, found
    assert {frame[1] for frame in found["frames"]} <= {"used", "skipped"}, found
    assert name in [frame[0] for frame in found["frames"]]


@pytest.mark.slow
def test_watch_of_an_entry_point_with_fake_tensors_records_packages(project: Project) -> None:
    id = project.register("model:factory")
    status = project.until_ready(id)
    assert status.fake and status.packages == 1, status
    check(project.run("run.py"), "model.Model.forward")
    status = project.until_ready(id, project.save("layers.py", "* 2.0", "* 3.0"))
    assert status.fake and status.packages == 1, status
    check(project.run("run.py"), "model.Model.forward")


@pytest.mark.slow
def test_watch_of_a_recorded_run_records_packages(project: Project) -> None:
    config = project.directory / "config.json"
    id = project.register(sys.executable, "train.py", "1000000", kind="run", files=[str(config)])
    status = project.until_ready(id)
    assert status.packages == 1, status
    check(project.run("train.py", "3"), "layers.Layer.forward")
    project.until_ready(id, project.replace("config.json", json.dumps({"width": 12, "depth": 2})))
    check(project.run("train.py", "3"), "layers.Layer.forward")
