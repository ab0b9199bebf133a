"""Tests of opaque objects that operators take as inputs, such as the name of a layer.

One artifact must serve all objects of a class.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_host import Host

pytestmark = pytest.mark.integration

LAYERS = """
import torch
from torch._library.opaque_object import register_opaque_type
from torch._opaque_base import OpaqueBase

class Name(OpaqueBase):
    def __init__(self, value):
        self.value = value
    def __eq__(self, other):
        return isinstance(other, Name) and self.value == other.value
    def __hash__(self):
        return hash(self.value)
    def __fx_repr__(self):
        return f"Name({self.value!r})", {"Name": Name}

register_opaque_type(Name, typ="value", hoist=True)
SCALES = {"first": 2.0, "second": 3.0}

@torch.library.custom_op("pc_opaque::scale", mutates_args=())
def scale(x: torch.Tensor, name: Name) -> torch.Tensor:
    return x * SCALES[name.value]

@scale.register_fake
def _(x, name):
    return torch.empty_like(x)
"""
PROGRAM = """
import functools, json, sys
import torch
import precompiled
precompiled.enable("wait")
import layers

def layer(x, name):
    return layers.scale(x.sin(), layers.Name(name)).cos()

x = torch.linspace(-1, 1, 7)
for name in sys.argv[1:]:
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(layer)(x, name), layer(x, name))
print(json.dumps([[graph.state, graph.source, graph.reason, graph.key] for graph in precompiled.report()]))
"""


@pytest.fixture
def project(served: Host) -> Path:
    return served.project(main=PROGRAM, layers=LAYERS)


def run(host: Host, project: Path, *names: str) -> Any:
    return host.program(str(project / "main.py"), *names, forked=False).result()


def test_one_artifact_serves_every_object_of_a_class(served: Host, project: Path) -> None:
    (*first, key), second = run(served, project, "first", "second")
    assert first == ["compiled", "swap", ""] and second == ["compiled", "hit", "", key]
    assert run(served, project, "second") == [["compiled", "hit", "", key]]
    (project / "layers.py").write_text(LAYERS.replace("torch.empty_like(x)", "x.new_empty(x.shape)"))
    ((*edited, other),) = run(served, project, "first")
    assert edited == ["compiled", "swap", ""] and other != key


def test_object_with_members_that_the_compile_reads_is_refused(served: Host, project: Path) -> None:
    members = "from torch._library.opaque_object import MemberType\n"
    registration = 'hoist=True, members={"value": MemberType.USE_REAL})'
    (project / "layers.py").write_text(members + LAYERS.replace("hoist=True)", registration))
    ((*refused, _key),) = run(served, project, "first")
    assert refused == ["bypassed", "inline", "unsupported-input"]
