"""Draws random programs in which one input decides a value, for ``make fuzz-packages``.

A program combines:

- the origin of the value (package_values.py, package_tensors.py),
- the expression that reads the value (READS),
- the function around the expression (HOLDERS),
- a graph break (BREAKS),
- and what the function does with its argument (INPUTS).

The text of a program never changes. The file ``ch`` beside the program, or environment variables, decide the value.
"""

# ruff: noqa: E501 - programs as text
from __future__ import annotations

import random
from dataclasses import dataclass

from .package_tensors import REPLACED, REPLACEMENT, TENSORS
from .package_values import NUMBERS, OWNERS, READ_BY, SPECIAL

HEAD = """
import abc, collections, contextlib, contextvars, copy, dataclasses, decimal, enum, functools, importlib, inspect, itertools
import json, logging, math, operator, os, sys, threading, types, weakref
import torch
import torch.nn.functional as F
from torch import nn
CH = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "ch")).read() == "1"
V = 3.0 if CH else 2.0
"""
# Maps names of helper functions to their definitions. A program gets the definitions of the names that it uses in its
# contexts.
CONTEXTS = {
    "handle": "def handle(of): return contextlib.ExitStack() if of is None else of\n",
    "patched": """
@contextlib.contextmanager
def patched(place, name, replacement):
    own, before = name in vars(place), getattr(place, name)
    if CH: setattr(place, name, replacement)
    try: yield
    finally:
        if CH and own: setattr(place, name, before)
        elif CH: delattr(place, name)
""",
    "default_dtype": """
@contextlib.contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try: yield
    finally: torch.set_default_dtype(torch.float32)
""",
    "deterministic": """
@contextlib.contextmanager
def deterministic(on):
    torch.use_deterministic_algorithms(on)
    try: yield
    finally: torch.use_deterministic_algorithms(False)
""",
    "precision": """
@contextlib.contextmanager
def precision(name):
    torch.set_float32_matmul_precision(name)
    try: yield
    finally: torch.set_float32_matmul_precision("highest")
""",
    "limit": """
@contextlib.contextmanager
def limit(number):
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(number)
    try: yield
    finally: sys.setrecursionlimit(before)
""",
    "setting": """
@contextlib.contextmanager
def setting(variable, value):
    token = variable.set(value)
    try: yield
    finally: variable.reset(token)
""",
    "entered": "def entered(k):\n    with k as v: return v\n",
    "assigned": "def assigned(k):\n    k.b = 1.0\n    return k.b\n",
}
READS = (
    "{e}",
    "{e}",
    "{e}",
    "abs({e})",
    "max({e}, 1.0)",
    "[{e}][0]",
    "(lambda: {e})()",
    "{{'a': {e}}}['a']",
    "float(str({e}))",
    "sum([{e}])",
    "next(iter([{e}]))",
    "({e} if {e} > 0 else 1.0)",
    "[v for v in ({e},)][0]",
    "sorted([{e}, 9.0])[0]",
    "functools.reduce(operator.add, [{e}, 0.0])",
    "list(map(float, [{e}]))[0]",
    "math.sqrt({e} * {e})",
    "float(format({e}))",
    "(3.0 if any([{e} == 3.0]) else 2.0)",
    "copy.copy([{e}])[0]",
    "dict(a={e}).get('a')",
    "next(v for v in [{e}])",
    "(lambda *a: a[0])({e})",
    "round({e}, 1)",
    "min(filter(None, [{e}]))",
    "list(zip([{e}], [1]))[0][0]",
    "(lambda v: float(f'{{v}}'))({e})",
    "float('%s' % {e})",
    "[2.0, 3.0][{e} == 3.0]",
    "dict([(2.0, 2.0), (3.0, 3.0)])[{e}]",
    "float(len('x' * int({e})))",
    "operator.itemgetter(0)([{e}])",
    "sum(v for v in range(int({e}))) * 1.0 + 1.0",
    "(2.0 if {e} not in {{3.0}} else 3.0)",
)
# Functions around the expression. The statements replace {body}, with the indentation of its line.
HOLDERS = {
    "function": "def f(x):\n    {body}",
    "called": "def called(x):\n    {body}\ndef f(x): return called(x)",
    "called twice": "def called(x):\n    {body}\ndef f(x): return called(called(x))",
    "module": "class Net(nn.Module):\n    def forward(self, x):\n        {body}\nf = Net()",
    "module in a module": "class In(nn.Module):\n    def forward(self, x):\n        {body}\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.i = In()\n    def forward(self, x): return self.i(x)\nf = Net()",
    "decorated": "def deco(of):\n    @functools.wraps(of)\n    def w(x): return of(x)\n    return w\n@deco\ndef f(x):\n    {body}",
    "closure": "def outer():\n    def inner(x):\n        {body}\n    return inner\nf = outer()",
    "within": "def f(x):\n    def inner(x):\n        {body}\n    return inner(x)",
    "method": "class H:\n    def m(self, x):\n        {body}\nf = H().m",
    "generator": "def ys(x):\n    yield {t}\ndef f(x):\n    for y in ys(x): x = y\n    return x",
    "try": "def f(x):\n    try: y = {t}\n    except KeyError: y = x\n    return y",
    "no_grad": "@torch.no_grad()\ndef f(x):\n    {body}",
    "with": "def f(x):\n    with contextlib.nullcontext():\n        {body}",
    "loop": "def f(x):\n    for _ in range(2): x = {t}\n    return x",
    "partial": "def whole(x, y):\n    {body}\nf = functools.partial(whole, y=1)",
    "graph of another": "def g_other(x): return torch.mm(x, x)\ndef f(x):\n    x = g_other(x)\n    torch._dynamo.graph_break()\n    {body}",
}
ATTRIBUTE = "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.s = {e}\n    def forward(self, x):\n        {body}\nf = Net()"
_BREAK = "torch._dynamo.graph_break()"
BREAKS = {
    "none": ([], []),
    "before": ([_BREAK], []),
    "after": ([], [_BREAK]),
    "both": ([_BREAK], [_BREAK]),
    "printed": ([], ["print(end='')"]),
}
# What a program does with the argument x: statements after the value is computed, and the expression that creates x.
_X = "torch.arange(16.0, dtype=torch.float32).reshape(4, 4) / 16"
INPUTS = {
    "read": ([], _X),
    "with a gradient": ([], f"({_X}).requires_grad_()"),
    "changed": (["x.copy_(y)"], _X),
}
# The INPUTS that programs about tensors use. There are only a few of these INPUTS, because each further graph costs a
# compile.
KEPT_INPUTS = {name: INPUTS[name] for name in ("read", "with a gradient")}


@dataclass(frozen=True)
class Program:
    """The text of a program, and the names of the components that it combines."""

    seed: int
    text: str
    made_of: tuple[str, ...]


def program(seed: int) -> Program:
    """Draws the program of a seed."""
    draw = random.Random(seed)
    made_of: list[str] = []

    def one_of(table: dict[str, object]) -> str:
        made_of.append(draw.choice([*table]))
        return made_of[-1]

    kind = draw.choices(("number", "special", "tensor", "replaced"), (5, 4, 4, 2))[0]
    around, number = "", None
    if kind == "replaced":
        place, name, tensor = REPLACED[one_of(REPLACED)]
        setup = REPLACEMENT.replace("PLACE", place).replace("NAME", name)
    elif kind == "tensor":
        setup, tensor, around = TENSORS[one_of(TENSORS)]
    else:
        if kind == "special":
            owner, owned = OWNERS[one_of(OWNERS)]
            method, number = SPECIAL[one_of(SPECIAL)]
            setup, number = owner.format(method=method), number.replace("_K_", owned)
        else:
            setup, number = NUMBERS[one_of(NUMBERS)]
        made_of.append(draw.choice(READS))
        number = made_of[-1].format(e=number)
        tensor = f"torch.addmm(x, x, x, alpha={number})"
    if "_G_" in setup:
        before, expression = READ_BY[one_of(READ_BY)]
        setup = f"{before}\n{setup.replace('_G_', expression)}"
    holder = HOLDERS[one_of(HOLDERS)]
    if number is not None and draw.random() < 0.05:
        made_of[-1] = "attribute"
        holder, tensor = ATTRIBUTE.replace("{e}", number), "torch.addmm(x, x, x, alpha=self.s)"
    before, after = BREAKS[one_of(BREAKS)]
    change, given = INPUTS[one_of(KEPT_INPUTS if number is None else INPUTS)]
    body = [*before, f"y = {tensor}", *change, *after, "return y"]
    parts = [HEAD, *(text for name, text in CONTEXTS.items() if f"{name}(" in f"{setup}{tensor}{around}"), setup]
    parts += [_filled(holder, body, tensor)]
    parts += [f"def context(): return {around}"] if around else []
    parts += [f"def build():\n    return f, [({given},)]\n"]
    return Program(seed, "\n".join(parts), (kind, *made_of))


def _filled(holder: str, body: list[str], tensor: str) -> str:
    lines = []
    for line in holder.replace("{t}", tensor).split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        lines += [indent + statement for statement in body] if line.strip() == "{body}" else [line]
    return "\n".join(lines)
