"""Tests of the digest of a user's module.

The digest covers the sources and values of the module and of all modules that it imports.
"""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
import time
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from precompiled.core.errors import Bypass
from precompiled.torch_internals.graph import call_targets
from precompiled.torch_internals.user_code import user_modules

SOURCES = {
    "pc_main": "import types\nimport pc_used\nfrom pc_values import FACTOR\nSCALE = 2.0\n"
    "CONFIG = types.SimpleNamespace(by_name={'scale': [2.0, len]})\n"
    "class Options:\n    width = 4\n"
    "OPTIONS = Options()\n"
    "class Slots:\n    __slots__ = ('width', '__rate')\n"
    "SLOTS = Slots()\n"
    "__hidden, __rate, __dunder__ = __import__('importlib').import_module('pc_hidden'), 2.0, 2.0\n"
    "KEYS = {'__rate': 2.0, '__dunder__': [2.0, len]}\n"
    "class Private:\n    pass\n"
    "PRIVATE = Private()\n"
    "def late():\n    from pc_package import lazy\n",
    "pc_hidden": "",
    "pc_used": "def helper(): pass\n",
    "pc_values": "FACTOR = 3.0\n",
    "pc_package/__init__": "",
    "pc_package/lazy": "from . import sibling\nfrom .namespace.inner import deep\n",
    "pc_package/namespace/inner/deep": "",
    "pc_package/sibling": "",
    "pc_stranger": "",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "pc_package" / "namespace" / "inner").mkdir(parents=True)  # without __init__.py
    for name, source in SOURCES.items():
        write(tmp_path / f"{name}.py", source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    # The files are newer than the process. Without this patch, they would be refused.
    monkeypatch.setattr(user_modules, "earliest_load", lambda *_: math.inf)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("pc_")]:
        del sys.modules[name]


def write(path: Path, text: str) -> None:
    path.write_text(text)


def edit(name: str) -> Callable[[Path], None]:
    return lambda project: write(project / f"{name}.py", SOURCES[name] + "# edited\n")


def having_run(statement: str) -> Callable[[Path], None]:
    return lambda project: exec(statement, vars(sys.modules["pc_main"]))


COVERED = {
    **{name: edit(name) for name in SOURCES if name != "pc_stranger"},
    **{
        statement: having_run(statement)
        for statement in (
            "SCALE = 5.0",
            "CONFIG.by_name['scale'][0] = 3.0",
            "CONFIG.more = 1",
            "Options.width = 5",
            "OPTIONS.width = 5",
            "SLOTS.width = 5",
            "SLOTS._Slots__rate = 5",
            "__rate = 5.0",
            "__dunder__ = 5.0",
            "KEYS['__dunder__'][0] = 5.0",
            "setattr(PRIVATE, '__rate', 5.0)",
            "PRIVATE.__dunder__ = 5.0",
            "late.__dunder__ = 5.0",
        )
    },
}


@pytest.mark.parametrize("what", COVERED)
def test_change_of_a_source_or_value_changes_the_digest(project: Path, what: str) -> None:
    importlib.import_module("pc_main")
    before = user_modules.modules_digest(["pc_main"])
    assert user_modules.modules_digest(["pc_main"]) == before
    COVERED[what](project)
    assert user_modules.modules_digest(["pc_main"]) != before


def test_modules_that_are_not_imported_do_not_count(project: Path) -> None:
    importlib.import_module("pc_main")
    before = user_modules.modules_digest(["pc_main"])
    edit("pc_stranger")(project)
    assert user_modules.modules_digest(["pc_main"]) == before


def test_file_saved_after_the_process_started_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("pc_main")
    now = time.time()
    monkeypatch.setattr(user_modules, "earliest_load", lambda *_: now + 0.02)
    user_modules.modules_digest(["pc_main"])
    while time.time() < now + 0.04:  # Linux stamps files with the last clock tick, up to 10 ms ago
        pass
    (project / "pc_values.py").write_text("FACTOR = 4.0\n")
    with pytest.raises(Bypass) as refused:
        user_modules.modules_digest(["pc_main"])
    assert refused.value.code == "custom-op-edited"


def test_function_that_cannot_be_imported_is_refused() -> None:
    with pytest.raises(Bypass) as refused:
        user_modules.name_of(lambda: None, code="checkpoint-context")
    assert refused.value.code == "checkpoint-context"


def test_other_imported_modules_of_a_package_do_not_count(project: Path) -> None:
    """A program may import more modules of a package than a worker needs. These modules must not change the digest."""
    write(project / "pc_main.py", "from pc_package import sibling\n")
    importlib.import_module("pc_main")
    before = user_modules.modules_digest(["pc_main"])
    importlib.import_module("pc_package.lazy")
    assert user_modules.modules_digest(["pc_main"]) == before


OPERATOR = """
import torch
SCALE = 2.0
@torch.library.custom_op("pc_operators::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE
"""


def test_operator_encoding_reflects_current_values_of_its_module(project: Path) -> None:
    """A program may change a module's value between two graphs. The second graph must not get the first value's key."""
    write(project / "pc_operators.py", OPERATOR)
    module = importlib.import_module("pc_operators")
    operator = torch.ops.pc_operators.scale.default
    before = call_targets.encode(operator)
    assert call_targets.encode(operator) == before
    module.SCALE = 3.0
    after = call_targets.encode(operator)
    assert after[5] != before[5] and [*after[:5], after[6]] == [*before[:5], before[6]]


CHOSEN = """
import collections, decimal, fractions, functools, types
import numpy, torch
def plain(g): return g * 1.0
def tenfold(g): return g * 10.0
def scaled(g, by): return g * by
def make(by):
    def rule(g): return g * by
    return rule
def attributed(g): return g * attributed.factor
attributed.factor = 1.0
class Plain:
    @staticmethod
    def rule(g): return g * 1.0
class Ten:
    @staticmethod
    def rule(g): return g * 10.0
class Patched:
    def back(self, g): return g * 1.0
    def __call__(self, g): return g * 1.0
    @classmethod
    def __torch_dispatch__(cls, g): return g * 1.0
def ten(self, g): return g * 10.0
first, then, dispatch = Patched.back, Patched.__call__, vars(Patched)["__torch_dispatch__"]
operator = torch.ops.aten.sin.default
table, queue = {"rule": plain}, collections.deque([1.0])
function, cached, builtin, kind, closure = plain, functools.lru_cache(plain), len, Plain, make(1.0)
partial, bound = functools.partial(scaled, by=1.0), Patched().back
number, exact, share, layout = numpy.float64(1.0), decimal.Decimal(1), fractions.Fraction(1), torch.channels_last
view, span, activation = types.MappingProxyType({"by": 1.0}), range(3), torch.nn.ReLU()
"""
# For each case, a statement that sets a value of the module, and a statement that restores it.
CHOICES = {
    "function": ("function = tenfold", "function = plain"),
    "in a table": ("table['rule'] = tenfold", "table['rule'] = plain"),
    "cached": ("cached = functools.lru_cache(tenfold)", "cached = functools.lru_cache(plain)"),
    "builtin": ("builtin = abs", "builtin = len"),
    "class": ("kind = Ten", "kind = Plain"),
    "closure": ("closure = make(10.0)", "closure = make(1.0)"),
    "partial": ("partial = functools.partial(scaled, by=10.0)", "partial = functools.partial(scaled, by=1.0)"),
    "bound": ("bound = 3 .__mul__", "bound = Patched().back"),
    "attribute": ("attributed.factor = 10.0", "attributed.factor = 1.0"),
    "method": ("Patched.back = ten", "Patched.back = first"),
    "special method": ("Patched.__call__ = ten", "Patched.__call__ = then"),
    "special class method": (
        "Patched.__torch_dispatch__ = classmethod(ten)",
        "Patched.__torch_dispatch__ = dispatch",
    ),
    "operator": ("operator = torch.ops.aten.cos.default", "operator = torch.ops.aten.sin.default"),
    "numpy": ("number = numpy.float64(10.0)", "number = numpy.float64(1.0)"),
    "decimal": ("exact = decimal.Decimal(10)", "exact = decimal.Decimal(1)"),
    "fraction": ("share = fractions.Fraction(10)", "share = fractions.Fraction(1)"),
    "memory format": ("layout = torch.contiguous_format", "layout = torch.channels_last"),
    "deque": ("queue[0] = 10.0", "queue[0] = 1.0"),
    "mapping": ("view = types.MappingProxyType({'by': 10.0})", "view = types.MappingProxyType({'by': 1.0})"),
    "range": ("span = range(10)", "span = range(3)"),
    "module of torch": ("activation = torch.nn.GELU()", "activation = torch.nn.ReLU()"),
}


@pytest.mark.parametrize("what", CHOICES)
def test_choice_of_the_program_changes_the_digest(project: Path, what: str) -> None:
    """A program may call `set_backend(...)` of a library. A worker imports the library with its default backend."""
    write(project / "pc_chosen.py", CHOSEN)
    module = importlib.import_module("pc_chosen")
    before, (choose, take_back) = user_modules.modules_digest(["pc_chosen"]), CHOICES[what]
    exec(choose, vars(module))
    assert user_modules.modules_digest(["pc_chosen"]) != before
    exec(take_back, vars(module))
    assert user_modules.modules_digest(["pc_chosen"]) == before


OF_PYTEST = """
import unittest
import pytest
import torch
@torch.library.custom_op("pc_of_pytest::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    assert x.dim() == 1
    return x * 2
@pytest.fixture(params=[1, 2])
def number(request):
    return request.param
@pytest.mark.parametrize("p", [3, 4], ids=str)
def test_p(p):
    assert p
class Case(unittest.TestCase):
    def test(self):
        assert True
"""


def test_digest_of_a_test_module_is_equal_without_pytest(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker imports a test module without pytest, which rewrites asserts and sets attributes of tests."""
    write(project / "pc_of_pytest.py", OF_PYTEST)
    plain = importlib.import_module("pc_of_pytest")
    digest = user_modules.modules_digest(["pc_of_pytest"])
    del sys.modules["pc_of_pytest"]
    pytest.register_assert_rewrite("pc_of_pytest")
    rewritten = importlib.import_module("pc_of_pytest")
    assert "@pytest_ar" in vars(rewritten).keys() - vars(plain).keys()
    (mark,) = rewritten.test_p.pytestmark
    object.__setattr__(mark, "_param_ids_generated", ["3", "4"])  # as pytest does when it collects the test
    assert unittest.TestSuite([rewritten.Case("test")]).run(unittest.TestResult()).testsRun == 1
    assert user_modules.modules_digest(["pc_of_pytest"]) == digest
    rewritten.FACTOR = 2.0
    assert user_modules.modules_digest(["pc_of_pytest"]) != digest


TRACED = """
import torch
import pc_traced_helper
@torch.library.custom_op("pc_traced::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2
double.register_fake(torch.empty_like)
class Tagged(torch.Tensor): pass
def traced(x):
    y = pc_traced_helper.double(double(x))
    torch._dynamo.graph_break()
    return [double(y * number) for number in (1, 2)], len(y), y.as_subclass(Tagged) + 1
"""


def test_names_and_attributes_of_dynamo_do_not_change_the_digest(project: Path) -> None:
    """A client traces the functions of a module. A worker only imports the module."""
    write(project / "pc_traced.py", TRACED)
    write(project / "pc_traced_helper.py", "import math\ndef double(x):\n    return x * math.sqrt(4.0)\n")
    module = importlib.import_module("pc_traced")
    before, names = user_modules.modules_digest(["pc_traced"]), set(vars(module))
    torch.compile(module.traced, backend="eager")(torch.ones(4))
    assert {name[:10] for name in set(vars(module)) - names} >= {"__compiled", "__resume_a", "__subclass"}
    assert user_modules.modules_digest(["pc_traced"]) == before


@pytest.mark.integration
def test_digest_is_equal_in_another_process(project: Path) -> None:
    """Memory addresses and the hash seed differ in a worker. The digest must not depend on addresses or on the hash
    seed.
    """
    write(
        project / "pc_chosen.py",
        CHOSEN
        + """
class Tagged(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl
held, names = Tagged.as_subclass, {plain, tenfold}
method, lock = torch.nn.ReLU().forward, __import__("threading").Lock()
@torch.compile
def compiled(g): return g * 1.0
@torch.compiler.disable
def disabled(g): return g * 1.0
""",
    )
    text = "import importlib; from precompiled.torch_internals.user_code import user_values; "
    text += "importlib.import_module('pc_chosen'); print(user_values.values('pc_chosen'))"
    found = {
        subprocess.run(
            [sys.executable, "-c", text],
            env={**os.environ, "PYTHONPATH": str(project), "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    (values,) = found
    assert " at 0x" not in values and "tenfold" in values


def test_value_set_in_an_installed_module_changes_the_digest(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a program sets values in an installed module, they must count, as they do in a module beside the program."""
    write(project / "pc_operators.py", OPERATOR)
    monkeypatch.setattr(user_modules, "_INSTALLED", (str(project.resolve()),))
    monkeypatch.setattr(user_modules.installations, "digest", lambda package: f"the record of {package}")
    module = importlib.import_module("pc_operators")
    before = user_modules.modules_digest(["pc_operators"])
    monkeypatch.setattr(module, "SCALE", 3.0)
    assert user_modules.modules_digest(["pc_operators"]) != before


REGISTERED = """
import functools
import torch
@torch.library.custom_op("pc_registered::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return x * 2
scale.register_fake(lambda x: torch.empty_like(x))
def times(ctx, grad, by):
    return grad * by
class Times:
    def __init__(self, by):
        self.by = by
    def __call__(self, ctx, grad):
        return grad * self.by
WAYS = {
    "closure": lambda by: lambda ctx, grad: grad * by,
    "partial": lambda by: functools.partial(times, by=by),
    "object": Times,
    "method": lambda by: Times(by).__call__,
}
def register(way, by):
    scale.register_autograd(WAYS[way](by))
LOOP = {"itself": None}
LOOP["itself"] = LOOP
class Awkward(dict):
    def __getattribute__(self, name):
        raise RuntimeError(name)
AWKWARD = Awkward()
"""


@pytest.mark.parametrize("way", ["closure", "partial", "object", "method"])
def test_registered_function_counts_with_the_values_that_it_holds(project: Path, way: str) -> None:
    write(project / "pc_registered.py", REGISTERED)
    module = importlib.import_module("pc_registered")
    found = []
    for by in (2.0, 3.0, 2.0):
        module.register(way, by)
        found.append(user_modules.modules_digest(["pc_registered"]))
    assert found[0] == found[2] != found[1]
