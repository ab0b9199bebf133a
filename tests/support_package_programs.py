"""Support: random programs and single edits of them, from a seed (tests/packages/test_package_properties.py)."""

from __future__ import annotations

import random
from dataclasses import dataclass

# The statements of the programs. Each uses the variable ``x``. An edit changes a placeholder's value.
STATEMENTS = (
    "x = torch.addmm(x, x, x, alpha={number})",
    "x = torch.mm(x, x)",
    "x = g(x)",
    "x = method.apply(x)",
    "x = torch.addmm(x, x, x, alpha=GLOBAL)",
    "x = torch.addmm(x, x, x, alpha=SETTINGS['alpha'])",
    "x = torch.addmm(x, x, x, alpha=method.scale)",
    "x = torch.addmm(x, x, x, alpha=CLASS.level)",
    "x = torch.mm(x, x) if flag else torch.addmm(x, x, x, alpha={number})",
    "torch._dynamo.graph_break()",
    "x = NET(x)",
    "x = closure(x)",
    "x = torch.addmm(x, WEIGHT, x, alpha={number})",
)
HEAD = """
import torch
from torch import nn
GLOBAL = {global_}
SETTINGS = {{"alpha": {setting}, "other": 1}}
WEIGHT = torch.full((4, 4), 0.1, dtype=torch.{dtype}).float()
class CLASS:
    level = {level}
class Method:
    def __init__(self, scale):
        self.scale = scale
    def apply(self, x):
        return torch.addmm(x, x, x, alpha={method})
method = Method({scale})
NET = nn.Sequential(nn.Linear(4, 4), nn.Identity() if {identity} else nn.Linear(4, 4))
for parameter in NET.parameters():
    nn.init.constant_(parameter, 0.1)
def g(x, alpha={default}):
    return torch.addmm(x, x, x, alpha=alpha + {inlined})
def make(alpha):
    def closure(x):
        return torch.addmm(x, x, x, alpha=alpha)
    return closure
closure = make({closed})
UNRELATED = {unrelated}
def f(x, flag):
"""
TAIL = """    return x
def build():
    x = torch.full(({size}, 4), 0.1, requires_grad={grad})
    return f, [(x if {size} == 4 else x[:4], {flag})]
"""
VALUES = {
    "global_": 1.5,
    "setting": 0.5,
    "level": 1.25,
    "method": 0.75,
    "scale": 0.25,
    "default": 0.3,
    "inlined": 0.2,
    "closed": 0.6,
    "unrelated": 1,
    "number": 0.9,
}


@dataclass(frozen=True)
class Program:
    before: str
    after: str
    edited: str


def _source(statements: list[str], values: dict[str, object]) -> str:
    body = "".join(f"    {statement.format(**values)}\n" for statement in statements)
    return (HEAD.format(**values) + body + TAIL.format(**values)).replace("{{", "{").replace("}}", "}")


def program(seed: int) -> Program:
    """Returns a random program, and the same program with at most one edit. Equal seeds give equal programs."""
    chance = random.Random(seed)
    statements = [chance.choice(STATEMENTS) for _ in range(chance.randint(1, 5))]
    values: dict[str, object] = {**VALUES, "dtype": "float32", "identity": True, "size": 4, "grad": False, "flag": True}
    before = _source(statements, values)
    edited = chance.choice(["nothing", *values, "statement", "comment"])
    if edited == "statement":
        statements[chance.randrange(len(statements))] = chance.choice(STATEMENTS)
    elif edited in VALUES:
        values[edited] = float(VALUES[edited]) + 1
    elif edited in ("identity", "grad", "flag"):
        values[edited] = not values[edited]
    elif edited == "dtype":
        values["dtype"] = "float64"
    elif edited == "size":
        values["size"] = 6
    after = _source(statements, values)
    return Program(before, "# a comment\n\n" + after if edited == "comment" else after, edited)
