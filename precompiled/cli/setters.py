"""Finds the source lines of a program that set a mode, a setting or an environment variable.

The source is parsed, not run. For a `with` block or a decorated function, the frames of the trace show whether the
traced call was inside. For any other line, it is unknown whether the line ran. If a file was edited since the trace,
the line may be missing. Hooks in the functions that set modes and settings would find every line, but would slow down
every program.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from precompiled.core.files import is_users
from precompiled.graph import listing
from precompiled.graph.advice import Cause
from precompiled.graph.mode_names import SET_BY

if TYPE_CHECKING:
    from precompiled.core.program_data import ProgramData

MAX_FILES = 40
MAX_FILE_BYTES = 1 << 20
MAX_LINES = 3
# Functions that set environment variables.
_ENVIRONMENT = frozenset({"putenv", "setdefault", "update"})


@dataclass(frozen=True)
class Line:
    file: str
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.code}"


def lines(program: ProgramData, cause: Cause, more: Sequence[str] = ()) -> list[Line]:
    """The lines that may set the cause's mode, setting or variable, at most MAX_LINES. A certain line is returned
    alone.

    ``more``: files to search in addition to those of the graph's frames.
    """
    if not cause.set_by:
        return []
    calls = listing.calls(program)
    places = [operation.place for operation in listing.operations(program) if operation.place is not None]
    files = dict.fromkeys([*(call.file for call in calls), *(place.file for place in places), *more])
    found = []
    for file in list(files)[:MAX_FILES]:
        for node, around in _setters(file, cause.kind, cause.set_by):
            line = _line(file, node.lineno)
            if around is not None and any(call.file == file and around[0] <= call.line <= around[1] for call in calls):
                return [line]
            found.append(line)
    return list(dict.fromkeys(found))[:MAX_LINES]


def _setters(file: str, kind: str, name: str) -> Iterator[tuple[ast.expr | ast.stmt, tuple[int, int] | None]]:
    """Yield each node of ``file`` that sets ``name``, with the first and last line of its block (None: no block)."""
    tree = _tree(file)
    if tree is None:
        return
    if kind == "mode":
        setters = re.findall(r"torch[\w.]*\.\w+", SET_BY.get(name.partition(".")[0], ""))
        yield from _calls_of(tree, {setter.rpartition(".")[2] for setter in setters})
    elif kind == "setting":
        yield from ((node, None) for node in _nodes(tree) if _sets(node, name.partition(".")[2]))
    elif kind == "variable":
        yield from ((node, None) for node in _nodes(tree) if _sets_variable(node, name))


def _nodes(tree: ast.Module) -> Iterator[ast.expr | ast.stmt]:
    return (node for node in ast.walk(tree) if isinstance(node, (ast.expr, ast.stmt)))


def _calls_of(tree: ast.Module, names: set[str]) -> Iterator[tuple[ast.expr, tuple[int, int] | None]]:
    blocks: dict[int, tuple[int, int]] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.With, ast.AsyncWith)):
            held = [item.context_expr for item in node.items]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            held = node.decorator_list
        else:
            continue
        for expression in held:
            blocks |= dict.fromkeys(map(id, ast.walk(expression)), (node.lineno, node.end_lineno or node.lineno))
    for node in ast.walk(tree):
        bare = id(node) in blocks and isinstance(node, (ast.Attribute, ast.Name))  # a decorator without a call
        if isinstance(node, ast.Call) and _last(node.func) in names:
            yield node, blocks.get(id(node))
        elif bare and isinstance(node, ast.expr) and _last(node) in names:
            yield node, blocks[id(node)]


def _sets(node: ast.AST, setting: str) -> bool:
    """Whether a node sets a setting of Inductor or functorch, such as ``triton.cudagraphs``.

    Recognizes an assignment, a keyword (``config.patch(max_autotune=True)``), a key of a dict
    (``options={"max_autotune": True}``), and a call of ``compile`` with a ``mode``.
    """
    last = setting.rpartition(".")[2]
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        attributes = (ast.unparse(target) for target in targets if isinstance(target, ast.Attribute))
        return any(attribute.endswith(f".{setting}") for attribute in attributes)
    if isinstance(node, ast.Call):
        named = any(keyword.arg == last for keyword in node.keywords)
        by_mode = _last(node.func) == "compile" and any(
            keyword.arg == "mode" and not _is(keyword.value, ("default", None)) for keyword in node.keywords
        )
        return named or by_mode or any(_is(argument, (setting,)) for argument in node.args)
    return isinstance(node, ast.Dict) and any(key is not None and _is(key, (setting,)) for key in node.keys)


def _sets_variable(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Store) and _last(node.value) == "environ" and _is(node.slice, (name,))
    if isinstance(node, ast.Call) and _last(node.func) in _ENVIRONMENT:
        keys = [key for argument in node.args if isinstance(argument, ast.Dict) for key in argument.keys if key]
        return any(_is(item, (name,)) for item in [*node.args[:1], *keys]) or any(
            keyword.arg == name for keyword in node.keywords
        )
    return False


def _is(node: ast.expr, values: Sequence[object]) -> bool:
    return isinstance(node, ast.Constant) and node.value in values


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


@cache
def _tree(file: str) -> ast.Module | None:
    """The syntax tree of a user's file; None for other files and for unreadable or invalid ones."""
    if not is_users(file):
        return None
    try:
        if os.path.getsize(file) > MAX_FILE_BYTES:
            return None
        with open(file, "rb") as source:
            return ast.parse(source.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _line(file: str, number: int) -> Line:
    return Line(file, number, linecache.getline(file, number).strip())
