"""Replaces nodes of the syntax tree in the text of generated Python code, and keeps the line numbers.

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable


class SpansLines(Exception):
    """The node to replace spans several lines."""

    def __init__(self, node: ast.expr) -> None:
        super().__init__(ast.unparse(node))
        self.node = node


def replace_nodes(text: str, places: Iterable[tuple[ast.expr, str]]) -> str:
    """Return ``text`` after replacing each node in ``places`` by its code. Raises SpansLines."""
    lines = text.split("\n")  # splitlines recognizes more line ends than ast
    for node, written in sorted(places, key=lambda place: (place[0].lineno, place[0].col_offset), reverse=True):
        if node.lineno != node.end_lineno:
            raise SpansLines(node)
        # ast counts columns in bytes.
        line = lines[node.lineno - 1].encode()
        lines[node.lineno - 1] = (line[: node.col_offset] + written.encode() + line[node.end_col_offset :]).decode()
    return "\n".join(lines)
