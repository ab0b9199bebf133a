"""What the digest of a user's module covers: sources and values, its own and those of what it imports."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from precompiled.core.errors import Bypass
from precompiled.torch_internals import targets, user_modules

SOURCES = {
    "pc_main": "import types\nimport pc_used\nfrom pc_values import FACTOR\nSCALE = 2.0\n"
    "CONFIG = types.SimpleNamespace(by_name={'scale': [2.0, len]})\n"
    "class Options:\n    width = 4\n"
    "OPTIONS = Options()\n"
    "class Slots:\n    __slots__ = ('width',)\n"
    "SLOTS = Slots()\n"
    "def late():\n    from pc_package import lazy\n",
    "pc_used": "def helper(): pass\n",
    "pc_values": "FACTOR = 3.0\n",
    "pc_package/__init__": "",
    "pc_package/lazy": "from . import sibling\n",
    "pc_package/sibling": "",
    "pc_stranger": "",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "pc_package").mkdir()
    for name, source in SOURCES.items():
        write(tmp_path / f"{name}.py", source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(user_modules, "process_start", lambda: math.inf)  # as if it had begun after all of this
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
            "SCALE = 5.0", "CONFIG.by_name['scale'][0] = 3.0", "CONFIG.more = 1", "Options.width = 5",
            "OPTIONS.width = 5", "SLOTS.width = 5",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("what", COVERED)
def test_a_change_is_another_digest(project: Path, what: str) -> None:
    importlib.import_module("pc_main")
    before = user_modules.modules_digest(["pc_main"])
    assert user_modules.modules_digest(["pc_main"]) == before
    COVERED[what](project)
    assert user_modules.modules_digest(["pc_main"]) != before


def test_what_it_does_not_import_does_not_matter(project: Path) -> None:
    importlib.import_module("pc_main")
    before = user_modules.modules_digest(["pc_main"])
    edit("pc_stranger")(project)
    assert user_modules.modules_digest(["pc_main"]) == before


def test_a_save_after_the_start_of_the_process_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("pc_main")
    now = time.time()
    monkeypatch.setattr(user_modules, "process_start", lambda: now + 0.02)
    user_modules.modules_digest(["pc_main"])
    while time.time() < now + 0.04:  # the clock of files goes by ticks
        pass
    (project / "pc_values.py").write_text("FACTOR = 4.0\n")
    with pytest.raises(Bypass) as refused:
        user_modules.modules_digest(["pc_main"])
    assert refused.value.code == "custom-op-edited"


def test_a_function_that_no_import_leads_to_is_refused() -> None:
    with pytest.raises(Bypass) as refused:
        user_modules.name_of(lambda: None, code="checkpoint-context")
    assert refused.value.code == "checkpoint-context"


def test_what_else_of_a_package_is_imported_does_not_matter(project: Path) -> None:
    """A worker imports what it needs; the program had imported more of the same package."""
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


def test_an_operators_name_says_what_its_modules_values_are_now(project: Path) -> None:
    """A value that is set between two graphs: the second must not be compiled with what the first was."""
    write(project / "pc_operators.py", OPERATOR)
    module = importlib.import_module("pc_operators")
    operator = torch.ops.pc_operators.scale.default
    before = targets.encode(operator)
    assert targets.encode(operator) == before
    module.SCALE = 3.0
    after = targets.encode(operator)
    assert after[5] != before[5] and [*after[:5], after[6]] == [*before[:5], before[6]]


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
def test_what_is_registered_counts_with_what_it_holds(project: Path, way: str) -> None:
    write(project / "pc_registered.py", REGISTERED)
    module = importlib.import_module("pc_registered")
    found = []
    for by in (2.0, 3.0, 2.0):
        module.register(way, by)
        found.append(user_modules.modules_digest(["pc_registered"]))
    assert found[0] == found[2] != found[1]
