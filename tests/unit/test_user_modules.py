"""What the digest of a user's module covers: sources and values, its own and those of what it imports."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from precompiled.errors import Bypass
from precompiled.torch_internals import targets, user_modules

SOURCES = {
    "pc_main": "import pc_used\nfrom pc_values import FACTOR\nSCALE = 2.0\n"
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
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("pc_")]:
        del sys.modules[name]


def write(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, (1e9, 1e9))  # from long before this process


def edit(name: str) -> Callable[[Path], None]:
    return lambda project: write(project / f"{name}.py", SOURCES[name] + "# edited\n")


def set_value(project: Path) -> None:
    sys.modules["pc_main"].SCALE = 5.0


COVERED = {
    **{name: edit(name) for name in SOURCES if name != "pc_stranger"},
    "a value that the program has set": set_value,
}


@pytest.mark.parametrize("what", COVERED)
def test_a_change_is_another_digest(project: Path, what: str) -> None:
    importlib.import_module("pc_main")
    before = user_modules.sources_digest(["pc_main"])
    assert user_modules.sources_digest(["pc_main"]) == before
    COVERED[what](project)
    assert user_modules.sources_digest(["pc_main"]) != before


def test_what_it_does_not_import_does_not_matter(project: Path) -> None:
    importlib.import_module("pc_main")
    before = user_modules.sources_digest(["pc_main"])
    edit("pc_stranger")(project)
    assert user_modules.sources_digest(["pc_main"]) == before


def test_a_save_after_the_start_of_the_process_is_refused(project: Path) -> None:
    importlib.import_module("pc_main")
    (project / "pc_values.py").write_text("FACTOR = 4.0\n")
    with pytest.raises(Bypass) as refused:
        user_modules.sources_digest(["pc_main"])
    assert refused.value.code == "custom-op-edited"


def test_a_function_that_no_import_leads_to_is_refused() -> None:
    with pytest.raises(Bypass) as refused:
        user_modules.name_of(lambda: None, code="checkpoint-context")
    assert refused.value.code == "checkpoint-context"


def test_what_else_of_a_package_is_imported_does_not_matter(project: Path) -> None:
    """A worker imports what it needs; the program had imported more of the same package."""
    write(project / "pc_main.py", "from pc_package import sibling\n")
    importlib.import_module("pc_main")
    before = user_modules.sources_digest(["pc_main"])
    importlib.import_module("pc_package.lazy")
    assert user_modules.sources_digest(["pc_main"]) == before


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
    assert after[:-1] == before[:-1] and after[-1] != before[-1]
