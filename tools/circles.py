"""Finds import cycles among modules: `PYTHON tools/circles.py [FOLDER ...]`.

Python rejects only cycles of imports at module level. An import inside a function or for types couples modules just as
much for a reader. Therefore every import is an edge, and each cycle is an error. A lookup of a module of this package
in ``sys.modules`` is always an error.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PLAIN, LAZY, TYPES, STRING = "plain", "lazy", "for types", "by a string"


@dataclass(frozen=True)
class Import:
    """An import of the module ``imported`` by ``importer`` in ``line``. Modules have dotted names."""

    importer: str
    imported: str
    line: int
    kind: str


def modules(folder: Path, prefix: str = "") -> dict[str, Path]:
    """Return all modules below ``folder`` by dotted name. ``prefix``: the package's name, by default the folder's."""
    prefix = prefix or folder.name
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        found[".".join((prefix, *parts))] = path
    return found


def imports(found: Mapping[str, Path]) -> list[Import]:
    """Return each import between these modules, once per line."""
    edges = []
    for importer, path in found.items():
        visitor = _Visitor(importer, path.name == "__init__.py", found)
        visitor.visit(ast.parse(path.read_text()))
        edges += visitor.edges
    return list(dict.fromkeys(edges))  # `from a import b, c` is one edge


class _Visitor(ast.NodeVisitor):
    def __init__(self, importer: str, is_package: bool, known: Mapping[str, Path]) -> None:
        self.edges: list[Import] = []
        self._importer, self._known = importer, known
        self._package = importer if is_package else importer.rpartition(".")[0]
        self._kind = PLAIN

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            above = self._package.split(".")
            base = ".".join([*above[: len(above) - node.level + 1], *([base] if base else [])])
        for alias in node.names:
            submodule = f"{base}.{alias.name}"
            self._add(submodule if submodule in self._known else base, node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and self._in_lookup:
            self._add(node.value, node, STRING)

    _in_lookup = False

    def visit_Call(self, node: ast.Call) -> None:
        """``sys.modules.get("...")``"""
        self._lookup(node, isinstance(node.func, ast.Attribute) and _is_sys_modules(node.func.value))

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._lookup(node, _is_sys_modules(node.value))

    def visit_Compare(self, node: ast.Compare) -> None:
        self._lookup(node, any(_is_sys_modules(item) for item in node.comparators))

    def _lookup(self, node: ast.AST, is_one: bool) -> None:
        before, self._in_lookup = self._in_lookup, self._in_lookup or is_one
        self.generic_visit(node)
        self._in_lookup = before

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before, self._kind = self._kind, self._kind if self._kind == TYPES else LAZY
        self.generic_visit(node)
        self._kind = before

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_If(self, node: ast.If) -> None:
        test = ast.unparse(node.test)
        if test in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            before, self._kind = self._kind, TYPES
            for statement in node.body:
                self.visit(statement)
            self._kind = before
            for statement in node.orelse:
                self.visit(statement)
        else:
            self.generic_visit(node)

    def _add(self, name: str, node: ast.stmt | ast.expr, kind: str | None = None) -> None:
        if name in self._known and name != self._importer:
            self.edges.append(Import(self._importer, name, node.lineno, kind or self._kind))


def _is_sys_modules(node: ast.AST) -> bool:
    return ast.unparse(node) == "sys.modules"


def circles(edges: list[Import]) -> list[list[str]]:
    """Return the sorted cycles: strongly connected components with more than one module."""
    after: dict[str, list[str]] = {}
    for edge in edges:
        after.setdefault(edge.importer, []).append(edge.imported)
        after.setdefault(edge.imported, [])
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:  # Tarjan's algorithm
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in after[name]:
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            place = stack.index(name)
            component = stack[place:]
            del stack[place:]
            if len(component) > 1:
                found.append(sorted(component))

    for name in sorted(after):
        if name not in order:
            visit(name)
    return sorted(found)


def lines(edges: list[Import], found: Mapping[str, Path]) -> Iterator[str]:
    """Describe each cycle, with its imports."""
    for circle in circles(edges):
        yield f"a circle of {len(circle)} modules: {', '.join(circle)}"
        inside = set(circle)
        for edge in edges:
            if edge.importer in inside and edge.imported in inside:
                yield f"    {found[edge.importer]}:{edge.line}: {edge.importer} imports {edge.imported} ({edge.kind})"


def main(arguments: list[str]) -> int:
    found = {name: path for argument in arguments for name, path in modules(Path(argument)).items()}
    edges = imports(found)
    strings = [edge for edge in edges if edge.kind == STRING]
    said = [
        *lines(edges, found),
        *(f"{found[edge.importer]}:{edge.line}: {edge.imported} is looked up in sys.modules" for edge in strings),
    ]
    print("\n".join(said), end="\n" if said else "")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
