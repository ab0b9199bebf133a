"""Tests of tensor subclasses that a main program defines. A worker cannot import them.

The client sends a subclass's source, and the key contains the source, so that the next process has a cache hit.
tests/torch_internals/test_program_classes.py tests which subclasses can be described.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support_host import Host, edit

pytestmark = pytest.mark.integration

PROGRAM = '''
import json, sys
import torch
from torch.utils._pytree import tree_map_only
import precompiled
precompiled.enable("wait")
import lib

RAISED_BY = 2

@torch.library.custom_op("of_main::negated", mutates_args=())
def negated(x: torch.Tensor) -> torch.Tensor:
    return -x

negated.register_fake(torch.empty_like)

def raised(x):
    return negated(x) + RAISED_BY * lib.one()

class Wraps(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl

    def __init__(self, inner, word):
        self.inner, self.word = inner, word

class Raised(Wraps):
    """Whatever is multiplied is also raised."""
    __slots__ = ["inner", "word"]
    private = 1

    def __new__(cls, inner, word):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device,
            requires_grad=inner.requires_grad)

    def __init__(self, inner, word):
        super().__init__(inner, word)

    @property
    def __factor(self):
        return self.private

    def __repr__(self):
        return f"{self.word}"

    def __tensor_flatten__(self):
        return ["inner"], (self.word, self.__factor)

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Raised(inner["inner"], context[0])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        (word, *_) = [x.word for x in args if isinstance(x, Raised)]
        args, kwargs = tree_map_only(Raised, lambda x: x.inner, (args, kwargs or {}))
        found = func(*args, **kwargs)
        if func is torch.ops.aten.mul.Tensor:
            found = raised(found)
        return Raised(found, word)

def f(x):
    return (x * 3).sin()

def run(function):
    found = function(Raised(torch.linspace(-1, 1, 7), "a word"))
    assert type(found) is Raised and found.word == "a word"
    return found.inner

torch.testing.assert_close(run(torch.compile(f)), run(f))
print(json.dumps([[g.state, g.source, g.reason, g.message, g.key] for g in precompiled.report()]))
'''


@pytest.fixture
def project(served: Host) -> Path:
    return served.project(main=PROGRAM, lib="def one():\n    return 1\n")


def run(host: Host, project: Path, packages: str = "off") -> tuple[list[str], str]:
    """Run the program. Returns state, source, reason and message of the program's graph, and the graph's key."""
    found = {"PYTHONPATH": str(project), "PRECOMPILED_PACKAGES": packages}
    ((*what, key),) = host.program(str(project / "main.py"), env=found).result()
    return what, key


SWAP, HIT, PACKAGE = (["compiled", source, "", ""] for source in ("swap", "hit", "package"))


def test_program_subclasses_are_compiled_by_a_worker_and_found_later(served: Host, project: Path) -> None:
    first, key = run(served, project, "program")
    assert first == SWAP
    assert run(served, project, "program")[0] == PACKAGE
    edit(project / "main.py", "import json, sys", "# moved\nimport json, sys")
    assert run(served, project) == (HIT, key)


@pytest.mark.slow
def test_values_and_code_that_subclasses_use_are_in_the_key(served: Host, project: Path) -> None:
    keys = [run(served, project, "program")[1]]
    for file, old, new in (
        ("main.py", "RAISED_BY = 2", "RAISED_BY = 3"),
        ("main.py", "private = 1", "private = 4"),
        ("main.py", "aten.mul.Tensor", "aten.sin.default"),
        ("main.py", "fake(torch.empty_like)", "fake(torch.zeros_like)"),
        ("lib.py", "return 1", "return 5"),
    ):
        edit(project / file, old, new)
        what, key = run(served, project, "program")
        assert what == SWAP, "neither a package nor an artifact of another class is used"
        keys.append(key)
    assert len(set(keys)) == len(keys)
