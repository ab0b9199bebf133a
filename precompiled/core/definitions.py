"""Finds a function's definition in its source file. The definition must compile to the function's own code, so an
edited or replaced source is never returned.
"""

from __future__ import annotations
import __future__

import ast
import copy
import functools
import linecache
import operator
import warnings
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType

# The compiler flags of ``from __future__`` imports. A function's bytecode depends on these flags.
_FLAGS = [getattr(__future__, name).compiler_flag for name in __future__.all_feature_names]
FUTURES = functools.reduce(operator.or_, _FLAGS)


def definition_of(function: FunctionType) -> ast.FunctionDef | None:
    """A function's definition without decorators and annotations. None if the source does not match the function's
    code, or if the function is in a class.
    """
    node = written_definition(function)
    return _bare(node) if node is not None else None


def written_definition(function: FunctionType) -> ast.FunctionDef | None:
    """A function's definition as written in its file. Callers must not change it. None in the same cases as for
    ``definition_of``.
    """
    found = _found(function)
    return found[0] if found is not None and not found[1] else None


def method_of(function: FunctionType, kind: str) -> ast.FunctionDef | None:
    """Like ``definition_of``. The function must be in a class named ``kind``. The name of the innermost class around
    the function matters, because Python adds this name to private names such as ``__x``.
    """
    found = _found(function)
    return _bare(found[0]) if found is not None and found[1] == kind else None


def _found(function: FunctionType) -> tuple[ast.FunctionDef, str] | None:
    code = function.__code__
    text = "".join(linecache.getlines(code.co_filename))
    return _definitions(text, code.co_flags & FUTURES).get(code)


def _bare(node: ast.FunctionDef) -> ast.FunctionDef:
    made = copy.deepcopy(node)
    made.decorator_list, made.returns = [], None
    given = made.args
    for item in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
        if item is not None:
            item.annotation = None
    return made


@cache
def _definitions(text: str, flags: int) -> dict[CodeType, tuple[ast.FunctionDef, str]]:
    """Map the code of each function in a file to the function's definition and innermost class ("" if none). Different
    functions have different keys, because code objects with different line numbers are not equal.

    Compiles the whole file, because the bytecode of a call depends on the file's imports.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree, whole = ast.parse(text), compile(text, "", "exec", flags=flags, dont_inherit=True)
    except (SyntaxError, ValueError):
        return {}
    by_place = {(_first_line(node), node.name): (node, kind) for node, kind in _functions(tree, "")}
    codes = {(code.co_firstlineno, code.co_name): code for code in codes_within(whole)}
    return {codes[place]: by_place[place] for place in by_place if place in codes}


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(item.lineno for item in node.decorator_list)])


def _functions(node: ast.AST, kind: str) -> Iterator[tuple[ast.FunctionDef, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield child, kind
        yield from _functions(child, child.name if isinstance(child, ast.ClassDef) else kind)


def codes_within(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and all code objects that are defined in it."""
    yield code
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield from codes_within(item)
