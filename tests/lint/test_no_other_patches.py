"""Tests that only torch_internals/patches.py replaces functions of torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "precompiled"
FILES = [path for path in sorted(ROOT.rglob("*.py")) if path.name != "patches.py"]
FOLDERS = sorted({path.parent for path in FILES})


def _replaced(tree: ast.Module) -> Iterator[str]:
    """Yield each assignment that puts a function of the file into an attribute of something imported from torch or
    triton.
    """
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    imported: set[str] = set()
    for node in ast.walk(tree):
        names = [
            alias.asname or alias.name.partition(".")[0]
            for alias in getattr(node, "names", ())
            if isinstance(node, (ast.Import, ast.ImportFrom))
        ]
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ".".join(names)
        if module.startswith(("torch", "triton")):
            imported |= {*names}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not _is_function(node.value, functions):
            continue
        for target in node.targets:
            if isinstance(target, ast.Attribute) and ast.unparse(target).partition(".")[0] in imported:
                yield f"line {node.lineno}: {ast.unparse(target)}"


def _is_function(value: ast.expr, functions: set[str]) -> bool:
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) in ("staticmethod", "classmethod", "functools.partial", "functools.wraps")
    return isinstance(value, ast.Lambda) or (isinstance(value, ast.Name) and value.id in functions)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_functions_of_torch_are_replaced_by_patches(folder: Path) -> None:
    for path in FILES:
        if path.parent == folder and re.search("import torch|import triton|from torch|from triton", path.read_text()):
            assert not [*_replaced(ast.parse(path.read_text()))], f"{path.name}: use torch_internals/patches.py"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import torch\ndef f(): ...\ntorch.sin = f", ["line 3: torch.sin"]),
        ("from torch import nn\nnn.Linear.forward = lambda self: 1", ["line 2: nn.Linear.forward"]),
        ("from torch import nn\nnn.Linear.forward = staticmethod(len)", ["line 2: nn.Linear.forward"]),
        ("import torch\ntorch.backends.x = 3", []),
        ("import os\ndef f(): ...\nos.getcwd = f", []),
    ],
)
def test_a_replaced_function_is_found(text: str, found: list[str]) -> None:
    assert [*_replaced(ast.parse(text))] == found
