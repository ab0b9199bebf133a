"""Tests of custom operators that a main program defines. Clients describe an operator by its source, or refuse it."""

from __future__ import annotations

import importlib
import json
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from precompiled.core.errors import Bypass
from precompiled.torch_internals.user_code import custom_ops, program_ops, program_source

START = """\
import collections, functools, importlib, math, os, sys
import torch
import torch.nn.functional as F
from torch import Tensor
import {lib} as lib

@torch.library.custom_op("{namespace}::called", mutates_args=())
def called(x: Tensor) -> Tensor:
    return x.sin()

@torch.library.custom_op("{namespace}::op", mutates_args=())
def op(x: Tensor, k: float = 2.0) -> Tensor:
    return x * k

op.register_fake(torch.empty_like)
{more}
"""
Describe = Callable[[str], tuple[str, list[str]]]


@pytest.fixture
def describe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Describe]:
    """Returns a function that loads a program with additional text, and describes the program's operator.

    The function returns the units of the description and the modules that they import.
    """
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def load(name: str, text: str) -> ModuleType:
        (tmp_path / f"{name}.py").write_text(text)
        made.append(name)
        return importlib.import_module(name)

    def found(more: str) -> tuple[str, list[str]]:
        unique = uuid.uuid4().hex[:8]
        load(f"lib_{unique}", "def one():\n    return 1\n")
        name = f"program_{unique}"
        monkeypatch.setattr(program_source, "PROGRAMS", (name,))
        monkeypatch.setattr(program_ops, "PROGRAMS", (name,))
        text = START.format(namespace=f"in_{unique}", lib=f"lib_{unique}", more=more)
        program = load(name, text)
        units, modules = program_ops.describe(program.op)
        return units.replace(unique, ""), [module.replace(unique, "") for module in modules]

    yield found
    for name in made:
        sys.modules.pop(name, None)


def backward(body: str, before: str = "") -> str:
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    return f"{before}\ndef backward(ctx, grad):\n{indented}\nop.register_autograd(backward)\n"


SAID = {
    "torch": "return F.relu(grad) + torch.nn.functional.gelu(grad).to(torch.float32), None",
    "a local import": "from torch.nn import functional\nimport math\nreturn functional.relu(grad) * math.pi, None",
    "builtins": "return sum([grad for _ in range(len((1, 2)))]), None",
    "the standard library": "return functools.reduce(lambda a, b: a * b, (grad, grad)) * math.pi, None",
    "an operator by its path": "return called(grad) + torch.ops.aten.sin(grad), None",
}


@pytest.mark.parametrize("what", SAID)
def test_rules_of_plain_code_are_described(describe: Describe, what: str) -> None:
    units, modules = describe(backward(SAID[what]))
    assert modules == []
    assert {unit["op"] for unit in json.loads(units)} == ({"in_::op", "in_::called"} if "path" in what else {"in_::op"})


def test_description_names_imported_modules_of_the_user(describe: Describe) -> None:
    assert describe(backward("return grad * lib.one(), None"))[1] == ["lib_"]
    assert describe(backward("return grad * one(), None", "one = lib.one"))[1] == ["lib_"]


EQUAL = "return grad * K, None"
OTHERS = {
    "a value": (backward(EQUAL, "K = 1"), backward(EQUAL, "K = 2")),
    "a type of value": (backward(EQUAL, "K = 1"), backward(EQUAL, "K = 1.0")),
    "a tuple": (backward(EQUAL, "K = (1, (2,))"), backward(EQUAL, "K = (1, (3,))")),
    "a dtype": (backward(EQUAL, "K = torch.float32"), backward(EQUAL, "K = torch.float64")),
    "a function": (
        backward(EQUAL.replace("K", "k()"), "def k():\n    return 1"),
        backward(EQUAL.replace("K", "k()"), "def k():\n    return 2"),
    ),
    "a default": (
        backward(EQUAL.replace("K", "k()"), "def k(a=1, *, b=2):\n    return a"),
        backward(EQUAL.replace("K", "k()"), "def k(a=1, *, b=3):\n    return a"),
    ),
    "a fake": ("", "op.register_fake(torch.zeros_like)"),
    "a rule for vmap": ("", "@op.register_vmap\ndef vmap(info, dims, x, k=2.0):\n    return op(x, k), dims[0]\n"),
    "a device": ("", "@op.register_kernel('cuda')\ndef other(x, k=2.0):\n    return x\n"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_description_changes_with_code_that_a_compile_runs(describe: Describe, what: str) -> None:
    one, other = OTHERS[what]
    assert describe(one) == describe(one) != describe(other)


REFUSED = {
    "a closure": "op.register_fake((lambda of: lambda x, k=2.0: of(x))(torch.empty_like))",
    "an object": backward("return grad * SCALE, None", "class Scale(float): pass\nSCALE = Scale(1.5)"),
    "a list": backward("return grad * len(SEEN), None", "SEEN = []"),
    "a list as a default": backward("return k(grad), None", "NOTHING = []\ndef k(g, by=NOTHING):\n    return g"),
    "a global that is set": backward("global CALLS\nCALLS = 1\nreturn grad, None"),
    "a function with two names": backward("return a(b(grad)), None", "def a(x):\n    return x\nb = a"),
    "attributes of a function": backward("return a(grad), None", "def a(x):\n    return x\na.seen = 1"),
    "globals()": backward("return grad * globals().get('K', 1), None"),
    "eval()": backward("return eval('grad'), None"),
    "an import by name": backward("return importlib.import_module('math').pi * grad, None"),
    "a local import of the user's": backward("from json import decoder\nreturn grad, None"),
    "the program's arguments": backward("return grad * len(sys.argv), None"),
    "the environment": backward("return grad * len(os.environ), None"),
    "a patch of torch": backward("return F.softsign(grad), None", "F.softsign, WAS = (lambda x: x), F.softsign"),
    "a patch of a module": backward("return lib.one(grad), None", "def one(x):\n    return x\nlib.one = one"),
    "a patch of a builtin": backward("return sum(grad), None", "def sum(x, seen=[]):\n    return x"),
    "what is not set": backward("return nowhere(grad), None"),
    "namespaces of operators": backward("return getattr(torch.ops, 'aten').sin(grad), None"),
    "operators of others": backward("return torch.ops.unknown.operator(grad), None"),
    "a class of the program": backward("return Of.twice(grad), None", "class Of:\n    twice = staticmethod(torch.sin)"),
    "a method": "class Of:\n    def fake(x, k=2.0):\n        return torch.empty_like(x)\nop.register_fake(Of.fake)",
    "a decorated function": backward(
        "return a(grad), None", "def twice(f):\n    return lambda x: f(f(x))\n@twice\ndef a(x):\n    return x"
    ),
    "source that is not there": (
        "exec(compile('def unseen(x, k=2.0):\\n    return torch.empty_like(x)', 'nowhere', 'exec'))\n"
        "op.register_fake(unseen)"
    ),
    "autocast": "op.register_autocast('cpu', torch.float32)",
    "a library's kernel": (
        "KEEP = torch.library.Library(op._namespace, 'FRAGMENT')\nKEEP.impl('op', lambda x, k=2.0: x * k, 'CPU')"
    ),
    "a kernel for Python": "op._opoverload.py_impl(torch._C.DispatchKey.CPU)(lambda x, k=2.0: x * k)",
    "a rule for a mode": (
        "import torch.utils._python_dispatch as dispatch\n"
        "class Mode(dispatch.TorchDispatchMode): pass\nop.register_torch_dispatch(Mode, lambda *a: None)"
    ),
    "a lowering": (
        "import torch._inductor.lowering as lowering\nlowering.lowerings[op._opoverload] = lambda x, k=2.0: x"
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_operator_without_complete_source_is_refused(describe: Describe, what: str) -> None:
    was = torch.nn.functional.softsign
    try:
        with pytest.raises(Bypass) as refused:
            describe(REFUSED[what])
    finally:
        torch.nn.functional.softsign = was
    assert refused.value.code == "custom-op-in-main"


def test_worker_refuses_a_second_description_of_an_operator() -> None:
    unit = {
        "op": f"in_a_cell_{uuid.uuid4().hex[:8]}::op",
        "schema": "(Tensor x) -> Tensor",
        "mutates": [],
        "devices": [None],
        "registered": [],
        "roles": {},
        "source": "",
        "flags": 0,
        "imports": [],
    }
    units = json.dumps([unit], sort_keys=True)
    custom_ops.define(units)
    defined = custom_ops.custom_ops.OPDEFS[unit["op"]]
    with pytest.raises(RuntimeError, match="no kernel in a worker"):
        defined(torch.ones(1))
    custom_ops.define(units)
    other: dict[str, Any] = {**unit, "imports": ["math"]}
    with pytest.raises(ValueError, match="differs from that of the process"):
        custom_ops.define(json.dumps([other], sort_keys=True))
