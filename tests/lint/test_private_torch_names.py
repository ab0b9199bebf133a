"""Tests that private torch names occur only in marked folders. Each file in these folders lists its private names and
the torch versions in which they were checked. docs/reference/private-torch-names.md is generated from these lists.

The check reads syntax trees, because no linter has this rule. Attributes of values (``module._x``) cannot be attributed
to torch and are ignored, except attributes of objects that only torch creates.
"""

from __future__ import annotations

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = runpy.run_path(str(ROOT / "tools" / "private_names_page.py"))
INTERNALS: list[Path] = PAGE["FILES"]
SOURCES = sorted(
    path
    for folder in ("precompiled", "service", "systemd")
    for path in (ROOT / folder).rglob("*.py")
    if path not in INTERNALS
)
FOLDERS = sorted({path.parent for path in SOURCES})
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
    """Yield every private name of torch that is imported, or reached by attributes from ``torch``."""
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


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_unmarked_files_use_no_private_torch_name(folder: Path) -> None:
    for path in SOURCES:
        text = path.read_text() if path.parent == folder else ""
        if not any(name in text for name in ("torch", *TORCH_ATTRIBUTES)):
            continue
        found = ", ".join(sorted(set(private_names(ast.parse(text)))))
        assert not found, f"{path.relative_to(ROOT)} uses {found}: move that to torch_internals/ or packages/dynamo/"


@pytest.mark.parametrize("path", INTERNALS, ids=lambda path: path.name)
def test_each_file_lists_the_names_that_it_uses(path: Path) -> None:
    listed = [f"{name}." for name, _versions in PAGE["listed"](path)]  # raises if the file has no list
    for name in set(private_names(ast.parse(path.read_text()))):
        found = f"{name.removeprefix('*')}."
        assert any(other.endswith(found) or other.startswith(found) or found.startswith(other) for other in listed), (
            f"{path.name} uses {name}: say so in its docstring"
        )


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "reference" / "private-torch-names.md").read_text()
    assert page == PAGE["page"](page), "run `python tools/private_names_page.py`"


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
def test_private_names_are_found_in_all_forms(source: str, found: list[str]) -> None:
    assert list(private_names(ast.parse(source))) == found
