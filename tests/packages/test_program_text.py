"""Tests of the rules by which an edit of the source text makes a program a different program for packages."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support_packages import tells_what_ran

from precompiled.core import files
from precompiled.packages import executed, main_program
from precompiled.packages.executed import Place
from precompiled.packages.program_text import Text
from precompiled.packages.source_files import SourceFiles

PROGRAM = '''
"""A program."""
import logging
from a import b
log = logging.getLogger(__name__)

class Model:
    """A model."""
    width: int = 3

    def forward(self, x, scale=2.0):
        """Forward."""
        y = x * scale
        for _ in range(3):
            y = y + 1
        return y

def train(model, steps, logs):
    for step in range(steps):
        loss = model(step)
        if step % 10 == 0:
            print(f"step {step}: loss {loss:.4f}")
            log.info("loss %f", loss)
    return loss
'''
NONE = {
    "a comment": ("y = y + 1", "y = y + 1  # one more"),
    "a line of comment": ("        return y", "        # and done\n        return y"),
    "empty lines": ("def train", "\n\n\ndef train"),
    "formatting": ("y = x * scale", "y = (x\n             * scale)"),
    "quotes": ('"loss %f"', "'loss %f'"),
    "a docstring of the module": ('"""A program."""', '"""Another."""'),
    "a docstring of the module less": ('"""A program."""', ""),
    "a docstring of a class": ('"""A model."""', '"""Another."""'),
    "a docstring of a function less": ('        """Forward."""\n', ""),
    "a docstring more": ("    for step in", '    """Train."""\n    for step in'),
    "what is printed": ('f"step {step}: loss {loss:.4f}"', "step, steps, float(loss), sep='/', flush=True"),
    "more is printed": ("    return loss", "    print('done', loss.item(), len(logs), logs[-1].name)\n    return loss"),
    "nothing is printed": ('            print(f"step {step}: loss {loss:.4f}")\n', ""),
    "what is logged": ('log.info("loss %f", loss)', 'log.warning("%s %.3f", step, loss * 2)'),
    "logged by the module": ('log.info("loss %f", loss)', 'logging.info("at %d", step)'),
    "printed at some steps more": (
        "    return loss",
        "    if steps > 3 and loss:\n        print(loss)\n    elif not logs:\n        pass\n    return loss",
    ),
    "printed at other steps": ("step % 10 == 0", "step % 100 == 1 or step < 5"),
    "printed at no step": (PROGRAM[PROGRAM.index("        if step") : PROGRAM.index("    return loss")], ""),
    "a hint of a local": ("loss = model(step)", "loss: float = model(step)"),
}
SOME = {
    "a constant": ("y + 1", "y + 2"),
    "a default": ("scale=2.0", "scale=3.0"),
    "a value of a class": ("width: int = 3", "width: int = 4"),
    "a hint that a class keeps": ("width: int", "width: float"),
    "a hint of an argument": ("x, scale", "x: float, scale"),
    "the order": ("import logging\nfrom a import b", "from a import b\nimport logging"),
    "a name": ("def train", "def fit"),
    "a statement more": ("    return loss", "    loss = loss + 1\n    return loss"),
    "a call in what is printed": ("{loss:.4f}", "{model(loss):.4f}"),
    "a wait in what is printed": ("{loss:.4f}", "{model.join():.4f}"),
    "an assignment in what is printed": ("{loss:.4f}", "{(loss := 3):.4f}"),
    "printed to a file": ('loss:.4f}")', 'loss:.4f}", file=logs)'),
    "another kind of string that is used": ("__name__)", "'train')"),
    "a call that decides whether it is printed": ("step % 10 == 0", "model(step)"),
    "something is done where nothing is printed": (
        "    return loss",
        "    if steps > 3:\n        print(1)\n    else:\n        loss = 3\n    return loss",
    ),
    "a loop that tells": ("    return loss", "    for item in logs:\n        print(item)\n    return loss"),
    "a text for another than a logger": ("log.info(", "logs.info("),
    "another method of a logger": ("log.info(", "log.addHandler("),
    "a comment that torch.jit reads": ("steps, logs):", "steps, logs):\n    # type: (a, b, c) -> d"),
}


def edited(edits: dict[str, tuple[str, str]], name: str, program: str = PROGRAM) -> bytes:
    before, after = edits[name]
    assert program.count(before) == 1
    return program.replace(before, after).encode()


def code_of(content: bytes) -> str:
    return Text(content).code()


@pytest.mark.parametrize("name", NONE)
def test_edit_without_effect_keeps_the_code(name: str) -> None:
    assert code_of(edited(NONE, name)) == code_of(PROGRAM.encode())


@pytest.mark.parametrize("name", SOME)
def test_edit_with_an_effect_changes_the_code(name: str) -> None:
    assert code_of(edited(SOME, name)) != code_of(PROGRAM.encode())


@pytest.mark.parametrize(
    "bound",
    [
        "from rich import print",
        "def print(*args): ...",
        "import sys as print",
        "for print in (1,): ...",
        "from a import *",
        "def outer(print): ...",
        "class print: ...",
        "try: ...\nexcept E as print: ...",
        "match 1:\n    case print: ...",
        "match {}:\n    case {**print}: ...",
    ],
)
def test_print_arguments_count_if_print_is_rebound(bound: str) -> None:
    program = f"{bound}\n{PROGRAM}"
    changed = edited({"": ("{loss:.4f}", "{loss:.5f}")}, "", program)
    assert code_of(changed) != code_of(program.encode())


@pytest.mark.parametrize(
    "bound", ["log = open('log')", "logging = 3", "from a import logging", "def f(log): ...", "from a import *"]
)
def test_log_arguments_count_if_the_logger_may_be_rebound(bound: str) -> None:
    program = f"{PROGRAM}\n{bound}\n"
    changed = edited({"": ('log.info("loss', 'log.info("lost')}, "", program)
    assert code_of(changed) != code_of(program.encode())


def test_block_that_only_prints_keeps_its_structure() -> None:
    block = b"if a:\n    print(1)\nelse:\n    print(2)\n"
    assert code_of(block) == code_of(block.replace(b"1", b"3").replace(b"2", b"4"))
    assert code_of(b"def f():\n    'doc'\n") == code_of(b"def f():\n    pass\n")


def test_source_that_is_not_python_counts_by_its_bytes() -> None:
    assert code_of(b"a ? b") != code_of(b"a ? c")
    assert code_of(b"\x7fELF\x00") == code_of(b"\x7fELF\x00")


def test_text_without_a_source_uses_the_given_digest() -> None:
    text = Text(b"a = 1  # one")
    assert text.digest != Text(b"a = 1").digest and text.code() == Text(b"a = 1").code() == text.code()
    assert Text(None, "digest").digest == Text(None, "digest").code() == "digest"


RUNS = """
def ran(x):
    def inner(y):
        return y + 1
    return x * 2

def later(x, y=2, *rest, key=3, **others):
    for item in rest:
        x = x + y * 3
    return x

def register(function):
    return function

@register
def decorated(x):
    def nested(y):
        return y * 5
    return x * 4

class Model:
    @staticmethod
    def fixed(x):
        return x * 6

    @torch.no_grad()
    def generate(self):
        return 8

    @functools.cached_property
    def made(self):
        return 9

    @property
    def size(self):
        return 7

first, second = lambda: 31, lambda: 32
"""


def unrun(source: str, called: str) -> frozenset[Place]:
    """Load ``source`` as a module and execute ``called``. Returns the places of the functions that have not run."""
    module = ModuleType("runs")
    vars(module).update(torch=torch, functools=functools)
    exec(compile(source, "/runs.py", "exec"), vars(module))
    functions = executed.Module(module, "/runs.py")
    exec(called, vars(module))
    return functions.unrun()


@tells_what_ran
def test_functions_that_have_not_run_are_listed() -> None:
    functions = {"ran", "ran.<locals>.inner", "later", "decorated", "decorated.<locals>.nested", "Model.fixed"}
    functions |= {"Model.generate", "Model.made"}
    functions |= {"<lambda>"}
    assert {name for name, _line in unrun(RUNS, "")} == functions | {"Model.size"}
    for calls in (1, 7, 8, 9, 1000):  # precompiled reads CPython's count of calls, which stops at 8
        found = {name for name, _line in unrun(RUNS, f"for _ in range({calls}): ran(1); Model().size")}
        assert found == functions - {"ran"}, calls


@tells_what_ran
@pytest.mark.parametrize(
    ("edit", "counts"),
    [
        (("x + y * 3", "x - y * 33"), False),
        (("    return x\n\ndef register", "    print(x)\n    return later(x)\n\ndef register"), False),
        (("x * 6", "x * 66"), False),
        (("return 7", "return 77"), False),
        (("return 8", "return 88"), False),
        (("return 9", "return 99"), False),
        (("y + 1", "y + 11"), False),
        (("x * 2", "x * 22"), True),
        (("y=2", "y=22"), True),
        (("key=3", "other=3"), True),
        (("*rest", "*more"), True),
        (("def later", "def sooner"), True),
        (("x * 4", "x * 44"), True),
        (("y * 5", "y * 55"), True),
        (("31", "33"), True),
        (("32", "33"), True),
    ],
)
def test_only_the_signature_of_a_function_that_has_not_run_counts(edit: tuple[str, str], counts: bool) -> None:
    """An edit in the body of a function that has not run must keep the package. There are two exceptions.

    A decorator may read the source of its function. If two lambdas are in one line, it is unknown which of them has
    run.
    """
    before, after = edit
    assert RUNS.count(before) == 1
    edited_source = RUNS.replace(before, after)
    here = Text(RUNS.encode()).code(unrun(RUNS, "ran(1); first()"))
    assert (Text(edited_source.encode()).code(unrun(edited_source, "ran(1); first()")) != here) is counts


def test_module_that_is_imported_anew_at_the_same_address_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "save_time", lambda _path: 0.0)
    monkeypatch.setattr(main_program, "texts", list)
    for name, module in list(sys.modules.items()):  # kernels of an earlier test, whose files are gone
        if isinstance(file := vars(module).get("__file__"), str) and not os.path.exists(file):
            monkeypatch.delitem(sys.modules, name)

    def program(number: int) -> str:
        path = tmp_path / f"{number}.py"
        path.write_text(f"A = {number}")
        sys.modules["imported_anew"].__file__ = str(path)
        return sources.program().sources

    sources = SourceFiles()
    monkeypatch.setitem(sys.modules, "imported_anew", ModuleType("imported_anew"))
    first, address = program(1), id(sys.modules["imported_anew"])
    del sys.modules["imported_anew"]
    others = []
    while id(module := ModuleType("imported_anew")) != address:
        others.append(module)
    sys.modules["imported_anew"] = module
    assert program(2) != first
