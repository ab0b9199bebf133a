"""Tests of custom operators that a main program defines. A worker cannot import them.

The client sends an operator's source, and the key contains the source, so that the next process has a cache hit.
tests/torch_internals/test_program_source.py tests which operators can be described.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_host import Host, edit

pytestmark = pytest.mark.integration

PROGRAM = '''
from __future__ import annotations
import json, math, os, sys
import torch
from torch import Tensor
import precompiled
precompiled.enable("wait")
import lib

SCALE = float(os.environ.get("SCALE", "1.5"))
TABLE = ((1, 2), (3.0, None))

def helper(x: Tensor, by=SCALE) -> Tensor:
    """Doubles, and more."""
    return x * SCALE + by + TABLE[1][0] + lib.one()

@torch.library.custom_op("mylib::inner", mutates_args=())
def inner(x: Tensor) -> Tensor:
    return x.sin()

inner.register_fake(torch.empty_like)

@torch.library.custom_op("mylib::outer", mutates_args=())
def outer(x: Tensor, k: float = 2.0) -> Tensor:
    return x * k

@outer.register_fake
def _(x, k=2.0):
    return x.new_empty(x.shape)

def setup(ctx, inputs, output):
    x, ctx.k = inputs
    ctx.save_for_backward(x)

def backward(ctx, grad):
    (x,) = ctx.saved_tensors
    parts = [inner(part) for part in (x, x.cos())]
    return helper(grad) * ctx.k * math.pi + sum(parts), None

outer.register_autograd(backward, setup_context=setup)

@torch.library.custom_op("mylib::count_", mutates_args=("x",), device_types="cpu")
def count_(x: Tensor) -> None:
    x.add_(1)

def f(x, counted):
    count_(counted)
    return outer(x.cos(), 3.0).sum() + counted.sum()

def run(function):
    x = torch.linspace(-1, 1, 7).requires_grad_()
    counted = torch.zeros(3)
    y = function(x, counted)
    y.backward()
    return [y.detach(), x.grad, counted]

torch.testing.assert_close(run(torch.compile(f)), run(f))
print(json.dumps([[g.state, g.source, g.reason, g.key] for g in precompiled.report()]))
'''
OTHER_FAKE = ("return x.new_empty(x.shape)", "return torch.empty_like(x)")


@pytest.fixture
def project(served: Host) -> Path:
    return served.project(main=PROGRAM, lib="def one():\n    return 1\n")


def run(host: Host, project: Path, packages: str = "off", **env: str) -> list[Any]:
    """Run the program. Returns state, source, reason and key of each graph."""
    found = {"PYTHONPATH": str(project), "PRECOMPILED_PACKAGES": packages, **env}
    return list(host.program(str(project / "main.py"), env=found).result())


def test_program_operators_are_compiled_by_a_worker_and_hit_later(served: Host, project: Path) -> None:
    (first,) = run(served, project)
    assert first[:3] == ["compiled", "swap", ""]
    edit(project / "main.py", "import json, math", "\n\n# moved\nimport json, math")
    assert run(served, project) == [["compiled", "hit", "", first[3]]]


@pytest.mark.slow
def test_values_and_modules_that_operators_read_are_in_the_key(served: Host, project: Path) -> None:
    (first,) = run(served, project)
    (other,) = run(served, project, SCALE="2.5")
    assert other[:3] == ["compiled", "swap", ""] and other[3] != first[3]
    (project / "lib.py").write_text("def one():\n    return 2\n")
    (imported,) = run(served, project)
    assert imported[:3] == ["compiled", "swap", ""] and imported[3] not in (first[3], other[3])


@pytest.mark.slow
def test_edit_of_a_kernel_that_is_not_traced_keeps_the_key(served: Host, project: Path) -> None:
    (first,) = run(served, project)
    edit(project / "main.py", "return x * k", "return k * x + 0")
    assert run(served, project) == [["compiled", "hit", "", first[3]]]


@pytest.mark.slow
def test_package_is_used_only_if_the_operators_are_equal(served: Host, project: Path) -> None:
    assert run(served, project, packages="program")[0][:3] == ["compiled", "swap", ""]
    assert [graph[:3] for graph in run(served, project, packages="program")] == [["compiled", "package", ""]]
    edit(project / "main.py", *OTHER_FAKE)
    assert [graph[:3] for graph in run(served, project, packages="program")] == [["compiled", "swap", ""]]
