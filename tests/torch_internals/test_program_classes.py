"""Tests of tensor subclasses that a worker cannot import. Clients describe such a class by its source, or refuse it."""

from __future__ import annotations

import importlib
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from precompiled.core.errors import Bypass
from precompiled.torch_internals.user_code import program_classes, program_source, user_modules

START = """\
import collections, enum, functools, math, os, sys
import torch
import torch.utils._pytree as pytree
import {lib} as lib

FACTOR = 2.0

def scaled(x):
    return x * FACTOR

class Kind(torch.Tensor):
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Kind(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = pytree.tree_map_only(Kind, lambda x: x.inner, (args, kwargs or {{}}))
        return Kind(scaled(func(*args, **kwargs)))
"""
Kinds = Callable[..., type]


@pytest.fixture
def kind_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kinds]:
    """Returns a function that loads a program and returns its class ``Kind``.

    The function replaces ``old`` by ``new`` in the program's text and appends ``more``.
    """
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        user_modules, "earliest_load", lambda *_: time.time()
    )  # otherwise the files would be newer than the process
    made: list[str] = []

    def load(name: str, text: str) -> Any:
        (tmp_path / f"{name}.py").write_text(text)
        made.append(name)
        return importlib.import_module(name)

    def kind(old: str = "", new: str = "", more: str = "") -> type:
        unique = uuid.uuid4().hex[:8]
        load(f"lib_{unique}", "class Base:\n    pass\n")
        name = f"program_{unique}"
        monkeypatch.setattr(program_source, "PROGRAMS", (name,))
        text = START.format(lib=f"lib_{unique}")
        assert old in text
        found: type = load(name, text.replace(old, new) + more).Kind
        return found

    yield kind
    for name in made:
        sys.modules.pop(name, None)


def unit(kind: type) -> dict[str, Any]:
    described = program_classes.Described()
    described.name(kind, {})
    (found,) = described.units
    return found


# Each case replaces a part of the program's text. The cases in MORE also append text.
SAID = {
    "slots": ("    def __new__", '    __slots__ = ["inner"]\n    def __new__'),
    "a property": ("    def __new__", "    @property\n    def one(self):\n        return 1\n    def __new__"),
    "a private method": ("    def __new__", "    def __one(self):\n        return self.__one\n    def __new__"),
    "super()": ("        self.inner = inner", "        super().__init__()\n        self.inner = inner"),
    "a base of the program": (
        "class Kind(torch.Tensor)",
        "class Before(torch.Tensor):\n    def one(self):\n        return Kind\nclass Kind(Before)",
    ),
    "a base of a module": ("class Kind(torch.Tensor)", "class Kind(lib.Base, torch.Tensor)"),
    "NotImplemented": ("return Kind(scaled", "return NotImplemented if func is None else Kind(scaled"),
    "another class": ("return Kind(scaled", "return Other.one() or Kind(scaled"),
    "a text of several lines": ("    def __new__", '    """One.\n\n  Two."""\n    word = "a\\n  b"\n    def __new__'),
}
MORE = {"another class": "\nclass Other:\n    @staticmethod\n    def one():\n        return None\n"}


@pytest.mark.parametrize("what", SAID)
def test_described_class_is_recreated_in_the_worker(kind_of: Kinds, what: str) -> None:
    kind = kind_of(*SAID[what], more=MORE.get(what, ""))
    described = program_classes.Described()
    modules: dict[str, str] = {}
    module, name, digest = described.name(kind, modules)
    assert (module, name) == ("", "Kind") and modules[f"{program_classes.PREFIX}Kind"] == digest
    assert any(name.startswith("lib_") for name in modules) == (what == "a base of a module")
    (made,) = program_classes.create_classes(described.units).values()
    assert made is not kind and issubclass(made, torch.Tensor)
    inner = torch.ones(3)
    for of in (kind, made):
        value = of.__tensor_unflatten__({"inner": inner}, None, inner.shape, inner.stride())
        assert type(value) is of and type(value + 1) is of
        torch.testing.assert_close((value + 1).inner, (inner + 1) * 2)
    assert vars(made).keys() == vars(kind).keys()
    # A worker's pickle refers to the class by its digest. The client must get the program's own class.
    pickled = program_classes.dumps([made], {digest: made})
    assert program_classes.loads(pickled, {digest: kind}) == [kind]
    assert program_classes.find(modules) == {digest: kind}


OTHERS = {
    "a value": ("FACTOR = 2.0", "FACTOR = 3.0"),
    "a function": ("return x * FACTOR", "return FACTOR * x"),
    "a method": ("Kind(inner[", "Kind(inner.copy()["),
    "a value of the class": ("    def __new__", "    word = 1\n    def __new__"),
    "a default": ("kwargs=None", "kwargs=()"),
    "what a method is": ("    @staticmethod\n", ""),
    "a base": ("class Kind(torch.Tensor)", "class Kind(lib.Base, torch.Tensor)"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_description_changes_with_code_that_a_compile_runs(kind_of: Kinds, what: str) -> None:
    assert unit(kind_of()) == unit(kind_of()) != unit(kind_of(*OTHERS[what]))


def test_description_includes_values_that_the_program_set_in_the_class(kind_of: Kinds) -> None:
    kind = kind_of("    def __new__", "    word = 1\n    def __new__")
    before = unit(kind)
    kind.word = 2  # type: ignore[attr-defined]
    assert unit(kind) != before


IN_BODY = "    def __new__"
REFUSED = {
    "a list": ("FACTOR = 2.0", "FACTOR = [2.0]", ""),
    "a table": ("return x * FACTOR", "return x * TABLE['a']", "\nTABLE = {'a': 2.0}\n"),
    "a list of the class": (IN_BODY, "    seen = []\n    def __new__", ""),
    "an object of the class": (IN_BODY, "    seen = os.environ\n    def __new__", ""),
    "a property that is set": (
        IN_BODY,
        "    one = property(lambda self: 1, lambda self, value: None)\n    def __new__",
        "",
    ),
    "a lambda": (IN_BODY, "    one = lambda self: 1\n    def __new__", ""),
    "a decorator": (IN_BODY, "    @functools.cache\n    def one(self):\n        return 1\n    def __new__", ""),
    "a descriptor": (
        IN_BODY,
        "    @functools.cached_property\n    def one(self):\n        return 1\n    def __new__",
        "",
    ),
    "a metaclass": (
        "class Kind(torch.Tensor)",
        "class Meta(type(torch.Tensor)):\n    pass\nclass Kind(torch.Tensor, metaclass=Meta)",
        "",
    ),
    "a hook of its bases": (
        "class Kind(torch.Tensor)",
        "class Base(torch.Tensor):\n    def __init_subclass__(cls):\n        cls.one = 1\nclass Kind(Base)",
        "",
    ),
    "a method from elsewhere": ("", "", "\nKind.one = scaled\n"),
    "a method of another class": (
        "",
        "",
        "\nclass Other(torch.Tensor):\n    def one(self):\n        return super().abs()\nKind.one = Other.one\n",
    ),
    "a method under another name": ("", "", "\nKind.two = Kind.__tensor_flatten__\n"),
    "attributes of a method": ("", "", "\nKind.__tensor_flatten__.seen = 1\n"),
    "the environment": ("return x * FACTOR", "return x * len(os.environ)", ""),
    "an enum": ("return x * FACTOR", "return x * Which.ONE.value", "\nclass Which(enum.Enum):\n    ONE = 1\n"),
    "a patch of a module": ("return x * FACTOR", "return lib.Base(x)", "\nlib.Base = scaled\n"),
    "code that is made": ("", "", "\nexec('def one(self):\\n    return 1')\nKind.one = one\n"),
    "its entry in pytree": ("", "", "\npytree.register_constant(Kind)\n"),
    "rules of an operator": (
        "",
        "",
        "\n@torch.library.custom_op(f'{__name__}::op', mutates_args=())\ndef op(x: torch.Tensor) -> torch.Tensor:\n"
        "    return x + 1\nop.register_torch_dispatch(Kind, lambda mode, func, types, args, kwargs: args[0])\n",
    ),
    "rules of a higher-order operator": ("", "", "\ntorch.ops.higher_order.cond.py_impl(Kind)(lambda *given: None)\n"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_class_without_complete_source_is_refused(kind_of: Kinds, what: str) -> None:
    old, new, more = REFUSED[what]
    with pytest.raises(Bypass) as refused:
        unit(kind_of(old, new, more))
    assert refused.value.code == "unsupported-input" and "defined in the program itself" in str(refused.value)


def test_two_classes_with_one_description_are_refused(kind_of: Kinds) -> None:
    kind = kind_of("", "", "\ndef another():\n    class Kind(torch.Tensor):\n        pass\n    return Kind\n")
    one, other = (sys.modules[kind.__module__].another() for _ in range(2))
    described = program_classes.Described()
    modules: dict[str, str] = {}
    described.name(one, modules)
    with pytest.raises(Bypass, match="two classes with this source"):
        described.name(other, modules)
    with pytest.raises(ValueError, match="has 2 tensor subclasses"):
        program_classes.find(modules)


def test_description_includes_current_values_of_closures(kind_of: Kinds) -> None:
    more = """
def made(factor):
    class Inner(torch.Tensor):
        def one(self):
            return self * factor
    return Inner
"""
    module = sys.modules[kind_of(more=more).__module__]
    found = [unit(module.made(factor)) for factor in (2, 2, 3)]
    assert found[0] == found[1] != found[2]
    assert program_source.is_nowhere(module.made(2))
