"""Private torch names stay in rooms that are marked for them, where each file says on which versions they were checked.

Read from the syntax tree: the project's own rule, which no linter knows. Attributes of values (``module._x``) cannot be
told apart from other people's and are not looked at, but for those of objects that only torch makes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MARKED = (ROOT / "precompiled" / "torch_internals", ROOT / "precompiled" / "packages" / "dynamo")
SOURCES = sorted(
    path
    for folder in ("precompiled", "service", "systemd")
    for path in (ROOT / folder).rglob("*.py")
    if path.parent not in MARKED
)
INTERNALS = sorted(path for room in MARKED for path in room.glob("[!_]*.py"))
TORCH_ATTRIBUTES = {"_codegen", "_dynamo_source", "_param_name_to_source", "_schema", "_overloadname", "_cdata"}


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def _is_private(dotted: str) -> bool:
    first, *rest = dotted.split(".")
    return first == "torch" and any(part.startswith("_") and not part.startswith("__") for part in rest)


def private_names(tree: ast.AST) -> Iterator[str]:
    """Every private name of torch that is imported or reached by dots from ``torch``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _is_private(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name for name in names if _is_private(name))
        elif isinstance(node, ast.Attribute):
            if _is_private(dotted := _dotted(node)):
                yield dotted
            elif node.attr in TORCH_ATTRIBUTES:
                yield f"*.{node.attr}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_private_torch_name(path: Path) -> None:
    relative = str(path.relative_to(ROOT))
    found = set(private_names(ast.parse(path.read_text())))
    assert not found, f"{relative} uses {', '.join(sorted(found))}: move that to a room marked for it"


@pytest.mark.parametrize("path", INTERNALS, ids=lambda path: path.name)
def test_each_file_says_on_which_versions_it_was_checked(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert re.search(r"Checked\s+on\s+\d+\.\d+\.\d+", text), f"{path.name} does not say on which versions"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch._dynamo", ["torch._dynamo"]),
        ("from torch._inductor import config", ["torch._inductor.config"]),
        ("from torch import _guards", ["torch._guards"]),
        ("import torch\nx = torch._C._nn", ["torch._C._nn", "torch._C"]),
        ("import torch\nx = torch.__version__, torch.fx.Graph", []),
        ("x = graph._codegen", ["*._codegen"]),
        ("self._lock", []),
    ],
)
def test_the_check_sees(source: str, found: list[str]) -> None:
    assert list(private_names(ast.parse(source))) == found
