"""Numbers the process groups of a program's collectives, in the order of their first use.

Torch names a group by the number of groups created before it (``"0"``, ``"1"``), or by a digest of its ranks. With
torch's names, ranks that do the same work in different groups would have different graphs. So artifacts contain
numbers, and a client replaces them by the names of its groups when it loads an artifact (docs/decisions/0039).

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from precompiled.core.errors import Bypass
from precompiled.torch_internals import code_edits

_PREFIX = "precompiled-group-"


def numbered_name(number: int) -> str:
    return f"{_PREFIX}{number}"


def moved_text(text: str, names: Sequence[str]) -> str:
    """In Python code, replace the numbers of groups by these names.

    Raises Bypass if the code contains a group in an unknown form.
    """
    moved = {numbered_name(number): name for number, name in enumerate(names)}
    places = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or _PREFIX not in node.value:
            continue
        if node.value not in moved:
            raise _unknown(node)
        places.append((node, repr(moved[node.value])))
    try:
        return code_edits.replace_nodes(text, places)
    except code_edits.SpansLines as error:
        raise _unknown(error.node) from None


def for_a_client(plain: object, names: Sequence[str]) -> object:
    """In a program's plain data, replace the numbers of groups by these names."""
    return _renamed(plain, {numbered_name(number): name for number, name in enumerate(names)}) if names else plain


def _renamed(plain: object, moved: dict[str, str]) -> object:
    if isinstance(plain, str):
        return moved.get(plain, plain)
    if isinstance(plain, list):
        return [_renamed(item, moved) for item in plain]
    if isinstance(plain, dict):
        return {_renamed(name, moved): _renamed(item, moved) for name, item in plain.items()}
    return plain


def _unknown(node: ast.expr) -> Bypass:
    shown = ast.unparse(node)
    return Bypass(f"the artifact names its process group in an unknown way: {shown[:200]}", code="collective")
