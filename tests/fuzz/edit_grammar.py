"""Draws random programs of two modules (``python -m tests.fuzz.edits``).

The main module has a few functions to compile, and a function ``run(call)``. ``run`` calls the functions to compile in
some order, and other functions of the program before and between them. The result of each compiled function depends on
one number, which the function computes from constants, globals, classes, closures, defaults, decorators, docstrings and
state.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

WORDS = ("one", "three", "seventeen", "forty-two")
PART = '''
"""Part {word}."""
import contextlib
import functools
import logging

import torch

log = logging.getLogger(__name__)
A = {n}
B = {n}
TABLE = {{"a": {n}, "b": {n}}}
STATE = [{n}, {n}]
DOC = len(__doc__ or "")


def register(function):
    """Count {word}."""
    @functools.wraps(function)
    def call(*args):
        return function(*args) + {n}
    return call


def tagged(function):
    function.tag = {n}
    return function


def bump(by={n}):
    """Bump {word}."""
    STATE.append(by + {n})
    return by
'''
HEAD = '''
"""Main {word}."""
import functools
import logging

import torch

from PART import A, B, DOC, STATE, TABLE, bump, register, tagged
import PART as part

log = logging.getLogger(__name__)
C = {n}
'''
DECORATORS = ("@register", "@tagged", "@torch.no_grad()", "@functools.lru_cache")
# Expressions of a number. {n} stands for a number, {e} for an expression, {h}, {K} and {m} for the program's functions,
# classes and closures.
EXPRESSIONS = (
    "{n}",
    "v",
    "A",
    "B + {n}",
    "TABLE['a']",
    "len(TABLE)",
    "STATE[-1]",
    "len(STATE)",
    "DOC",
    "({e}) + ({e})",
    "({e}) * {n}",
    "({e}) - v",
    "{h}({e})",
    "{h}({n}, {n})",
    "{K}.scale",
    "{K}({n}).m({e})",
    "{K}().size",
    "{K}.fixed({n})",
    "{m}({e})",
    "(lambda w: w + {n})({e})",
    "sum([w * {n} for w in ({n}, v)])",
    "({n} if ({e}) > {n} else v)",
    "len({h}.__doc__ or '')",
    "len({K}.__doc__ or '')",
    "({h}.__defaults__ or ({n},))[0]",
    "len({h}.__name__)",
    "getattr({h}, 'tag', {n})",
    "{h}.__code__.co_argcount",
    "max({n}, {e})",
)
OUTPUTS = (
    "print('at', {n})",
    "print(f'{{v}} of {n}')",
    "print(len(str({e})))",
    "log.info('%s', {n})",
    "logging.warning('%s', v)",
    "if v > {n}:\n    print(v)",
)


class Draw:
    """Fills the templates of a program."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.functions: list[str] = ["bump"]
        self.classes: list[str] = []
        self.closures: list[str] = []

    def number(self) -> str:
        return str(self.draw.randint(0, 9))

    def fill(self, template: str, depth: int = 0) -> str:
        """Replace each placeholder by its own random text."""
        tables = {"h": self.functions, "K": self.classes, "m": self.closures, "word": WORDS}

        def filled(found: re.Match[str]) -> str:
            name = found[1]
            if name in tables:
                return self.draw.choice(tables[name])
            return self.number() if name == "n" else self.expression(depth + 1)

        return re.sub(r"\{(n|e|h|K|m|word)\}", filled, template).replace("{{", "{").replace("}}", "}")

    def expression(self, depth: int = 0) -> str:
        usable = [
            one for one in EXPRESSIONS if (self.classes or "{K}" not in one) and (self.closures or "{m}" not in one)
        ]
        usable = [one for one in usable if depth < 2 or "{e}" not in one]
        return self.fill(self.draw.choice(usable), depth)

    def block(self, indent: str, *, returns: str = "return {e}") -> str:
        lines = []
        if self.draw.random() < 0.5:
            lines.append(self.fill('"""Of {word}."""'))
        for _ in range(self.draw.choice((0, 1, 1, 2))):
            kind = self.draw.random()
            if kind < 0.6:
                lines.append(
                    self.fill(self.draw.choice(("w = {e}\nv = w", "v = {e}", "for w in ({n}, {n}): v = v + w")))
                )
            elif kind < 0.75:
                lines.append(self.fill(self.draw.choice(OUTPUTS)))
            else:
                lines.append(self.fill("if v > {n}:\n    v = {e}\nelse:\n    v = v + {n}"))
        lines.append(self.fill(returns))
        return "".join(f"{indent}{line}\n" for statement in lines for line in statement.split("\n"))

    def decorators(self, indent: str = "") -> str:
        return f"{indent}{self.draw.choice(DECORATORS)}\n" if self.draw.random() < 0.15 else ""

    def function(self, name: str) -> str:
        text = f"{self.decorators()}def {name}(v, k={self.number()}):\n{self.block('    ')}\n\n"
        self.functions.append(name)
        return text

    def klass(self, name: str) -> str:
        methods = [
            f"    def __init__(self, n={self.number()}):\n        self.n = n\n",
            f"    def m(self, v):\n{self.block('        ', returns='return self.n + {e}')}",
            f"    @property\n    def size(self):\n        v = self.n\n{self.block('        ')}",
            f"    @staticmethod\n    def fixed(v):\n{self.block('        ')}",
        ]
        doc = self.fill('    """Class {word}."""\n') if self.draw.random() < 0.5 else ""
        text = f"class {name}:\n{doc}    scale = {self.number()}\n" + "\n".join(methods) + "\n\n"
        self.classes.append(name)
        return text

    def closure(self, name: str) -> str:
        body = self.block("        ", returns="return k + {e}")
        text = f"def make_{name}(k={self.number()}):\n    def inner(v):\n{body}"
        self.closures.append(name)
        return f"{text}    return inner\n\n\n{name} = make_{name}({self.number()})\n"


def program(seed: int) -> dict[str, str]:
    """Draws the program of a seed. Maps "main" and "part" to texts, in which PART stands for the name of the part."""
    source = Draw(random.Random(seed))
    draw = source.draw
    made: list[Callable[[str], str]] = [source.function, source.klass, source.closure]
    part = source.fill(PART) + "\n\n" + "".join(draw.choice(made)(f"{name}0") for name in "gKc")
    imported = [name for name in (*source.functions, *source.classes, *source.closures) if name != "bump"]
    main = source.fill(HEAD) + f"from PART import {', '.join(imported)}\n\n\n"
    main += "".join(draw.choice(made)(f"{name}1") for name in "gK")
    compiled = [f"f{number}" for number in range(draw.randint(1, 2))]
    for name in compiled:
        uses = [f"{one}({{e}})" for one in (*source.functions, *source.closures)]
        uses += [
            use for one in source.classes for use in (f"{one}({{n}}).m({{e}})", f"{one}().size", f"{one}.fixed(v)")
        ]
        used = " + ".join(draw.sample([*uses, "A", "TABLE['a']", "STATE[-1]"], 5))
        returned = f"return torch.addmm(x, x, x, alpha=({{e}} + {used}) % 7 + 1)"
        main += f"def {name}(x, v={source.number()}):\n{source.block('    ', returns=returned)}\n\n"
    main += source.function("after")
    calls = [f"got.append(call({name}, x))" for name in compiled]
    for _ in range(draw.randint(0, 3)):
        calls.insert(draw.randrange(len(calls) + 1), source.fill("{h}({n})"))
    if draw.random() < 0.5:
        calls.append(source.fill("after({n})"))
    main += "def run(call, x, got):\n" + "".join(f"    {line}\n" for line in calls)
    return {"main": main.lstrip(), "part": part.lstrip()}
