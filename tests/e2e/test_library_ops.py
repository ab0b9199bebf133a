"""Tests of operators of C++ libraries. A worker loads the library, and the key contains the library's digest.

tests/torch_internals/test_libraries.py tests which files of a library count, and which operators are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import support_library_ops
from support_host import Host
from support_slow import everyday_or_slow

pytestmark = pytest.mark.integration

PROGRAM = """
import json, sys
import torch
import precompiled
precompiled.enable("wait")
import how

def in_cpp(x):
    return torch.ops.pc_library.scaled(x.sin()).cos().sum() + torch.ops.pc_library.widened(x.detach()).sum()

def in_python(x):
    return torch.ops.pc_library.bare(x.sin()).cos().sum()

def run(function):
    x = torch.linspace(-1, 1, 7).requires_grad_()
    y = function(x)
    y.backward()
    return [y.detach(), x.grad]

function = globals()[sys.argv[1]]
torch.testing.assert_close(run(torch.compile(function)), run(function))
(graph,) = precompiled.report()
print(json.dumps([graph.state, graph.source, graph.reason, graph.key]))
"""
FAKES = """
import torch

@torch.library.register_fake("pc_library::bare")
def _(x):
    return torch.empty_like(x)

def backward(ctx, grad):
    return grad * 3

torch.library.register_autograd("pc_library::bare", backward)
"""
HOW = {
    "an extension module": "import pc_extension",
    "load_library": f"torch.ops.load_library(r'{{folder}}/{support_library_ops.EXTENSION}')",
}


@pytest.fixture
def project(served: Host) -> Path:
    folder = served.project(main=PROGRAM)
    support_library_ops.build(folder)
    return folder


def run(host: Host, project: Path, *arguments: str) -> Any:
    return host.program(str(project / "main.py"), *arguments, forked=False).result()


def loads(project: Path, how: str, more: str = "") -> None:
    (project / "how.py").write_text(f"import torch\n{HOW[how].format(folder=project)}\n{more}")


@pytest.mark.parametrize("how", everyday_or_slow(HOW, ["an extension module"]))
def test_cpp_operators_are_compiled_by_the_daemon_and_hit_later(served: Host, project: Path, how: str) -> None:
    loads(project, how)
    *first, key = run(served, project, "in_cpp")
    assert first == ["compiled", "swap", ""]
    assert run(served, project, "in_cpp") == ["compiled", "hit", "", key]
    # The operator's library depends on the edited library. After the edit, the fake kernel returns a different size.
    support_library_ops.width(project, 4)
    *edited, other = run(served, project, "in_cpp")
    assert edited == ["compiled", "swap", ""] and other != key


@pytest.mark.slow
def test_fake_and_backward_in_python_are_part_of_the_key(served: Host, project: Path) -> None:
    (project / "fakes.py").write_text(FAKES)
    loads(project, "load_library", "import fakes\n")
    *first, key = run(served, project, "in_python")
    assert first == ["compiled", "swap", ""]
    assert run(served, project, "in_python") == ["compiled", "hit", "", key]
    (project / "fakes.py").write_text(FAKES.replace("grad * 3", "3 * grad"))
    *edited, other = run(served, project, "in_python")
    assert edited == ["compiled", "swap", ""] and other != key
    support_library_ops.width(project, 4)
    assert run(served, project, "in_python")[-1] not in (key, other)
