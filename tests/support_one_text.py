"""Merges the two source texts of a package case into one program. An environment variable selects one of the two texts.

In the default mode (``packages = "program"``), an entry does not serve an edited text. But two runs of one text may
differ in their inputs (arguments, environment variables, files, the time). So the merged program has one text with both
versions:

- If statements at the top level, in a class or in ``build()`` differ, both versions stand below an ``if``.
- A function that differs is defined twice.
"""

from __future__ import annotations

import ast
import difflib

VARIABLE = "PACKAGE_CASE"  # "after" selects the statements of the later process
_DECIDES = f"__import__('os').environ.get('{VARIABLE}') == 'after'"
_INPUTS = ("build", "context")  # functions of a case that only create the inputs of the compiled function


def one_text(before: str, after: str) -> str:
    return ast.unparse(ast.Module(_merged(ast.parse(before).body, ast.parse(after).body), []))


def _merged(before: list[ast.stmt], after: list[ast.stmt]) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    texts = [[ast.dump(statement) for statement in side] for side in (before, after)]
    for kind, a, b, c, d in difflib.SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        if kind == "equal":
            found += before[a:b]
        elif b - a == d - c and all(map(_is_alike, before[a:b], after[c:d])):
            for old, new in zip(before[a:b], after[c:d], strict=True):
                old.body = _merged(old.body, new.body)  # type: ignore[attr-defined]
                found.append(old)
        else:
            test = ast.parse(_DECIDES, mode="eval").body
            found.append(ast.If(test, after[c:d] or [ast.Pass()], before[a:b]))
    return found


def _is_alike(old: ast.stmt, new: ast.stmt) -> bool:
    """Returns whether two statements differ only in bodies that can be merged."""
    if type(old) is not type(new) or not isinstance(old, (ast.ClassDef, ast.FunctionDef)):
        return False
    if isinstance(old, ast.FunctionDef) and old.name not in _INPUTS:
        return False
    heads = []
    for statement in (old, new):
        head = {name: value for name, value in ast.iter_fields(statement) if name != "body"}
        heads.append(ast.dump(type(statement)(**head, body=[])))
    return heads[0] == heads[1]
