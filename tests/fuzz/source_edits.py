"""Draws random single edits of the programs of edit_grammar.py."""

from __future__ import annotations

import ast
import io
import random
import re
import tokenize
from collections.abc import Callable

from .edit_grammar import DECORATORS, OUTPUTS, WORDS, Draw

# Statements that an edit may insert. Some print a value whose computation has a side effect.
INSERTED = (
    *OUTPUTS,
    "print(bump())",
    "print(f'{{bump({n})}}')",
    "print(STATE.pop())",
    "print([STATE.append({n}) for _ in (1,)])",
    "log.info('%s', bump())",
    "STATE.append({n})",
    "TABLE['a'] = {n}",
    "TABLE.update(c={n})",
    "print = STATE.append",
    "log = print",
    "A = {n}",
    "v = {n}",
    "bump.tag = {n}",
    "bump()",
    "pass",
    "'A text.'",
    "import string",
    "global C",
    "for C in ({n},): pass",
    "assert v != {n}",
    "def bump(by={n}): return by",
    "class K0:\n    scale = {n}",
)


def edited(texts: dict[str, str], draw: random.Random) -> tuple[str, str, str]:
    """Draws a single edit. Returns the edit's kind, the edited file, and the file's new text, which differs from the
    old text and is valid Python.
    """
    while True:
        kind = draw.choice([*EDITS])
        file = draw.choice([*texts])
        try:
            after = EDITS[kind](texts[file], draw)
            compile(after, file, "exec", dont_inherit=True)
        except (IndexError, SyntaxError, ValueError):  # the text has no place for this edit
            continue
        if after != texts[file]:
            return kind, file, after


def _token(
    text: str, draw: random.Random, wanted: Callable[[tokenize.TokenInfo], bool], new: Callable[[str], str]
) -> str:
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if wanted(token)]
    token = draw.choice(tokens)
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    first, last = (starts[row - 1] + column for row, column in (token.start, token.end))
    return text[:first] + new(token.string) + text[last:]


def _number(text: str, draw: random.Random) -> str:
    return _token(text, draw, lambda one: one.type == tokenize.NUMBER, lambda _: str(draw.randint(0, 20)))


def _operator(text: str, draw: random.Random) -> str:
    return _token(text, draw, lambda one: one.string in ("+", "-", "*", ">"), lambda _: draw.choice("+-*>"))


def _name(text: str, draw: random.Random) -> str:
    names = sorted({node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)})
    return _token(text, draw, lambda one: one.string in names, lambda _: draw.choice(names))


def _string(text: str, draw: random.Random) -> str:
    return _token(text, draw, lambda one: one.type == tokenize.STRING, lambda old: _longer(old, draw))


def _longer(string: str, draw: random.Random) -> str:
    quotes = 3 if string.endswith('"""') else 1
    return f"{string[:-quotes]} {draw.choice(WORDS)}{string[-quotes:]}"


def _comment(text: str, draw: random.Random) -> str:
    ends = [one.start for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type == tokenize.NEWLINE]
    lines = text.split("\n")
    row, column = draw.choice(ends)
    lines[row - 1] = f"{lines[row - 1][:column]}  # {draw.choice((*WORDS, *WORDS, 'type: ignore'))}"
    return "\n".join(lines)


def _blank(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    lines.insert(draw.choice(_statements(text)).lineno - 1, draw.choice(("", "\n", "# a line")))
    return "\n".join(lines)


def _statements(text: str) -> list[ast.stmt]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]


def _blocks(text: str) -> list[list[ast.stmt]]:
    return [block for node in ast.walk(ast.parse(text)) if isinstance(block := getattr(node, "body", None), list)]


def _first(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", None) or [node]
    return int(decorators[0].lineno) - 1


def _lines(text: str, node: ast.stmt) -> list[str]:
    return text.split("\n")[_first(node) : node.end_lineno]


def _with(text: str, first: int, last: int, *new: str) -> str:
    lines = text.split("\n")
    return "\n".join([*lines[:first], *new, *lines[last:]])


def _delete(text: str, draw: random.Random) -> str:
    node = draw.choice(_statements(text))
    return _with(text, _first(node), node.end_lineno or 0, " " * node.col_offset + "pass")


def _duplicate(text: str, draw: random.Random) -> str:
    node = draw.choice(_statements(text))
    return _with(text, node.end_lineno or 0, node.end_lineno or 0, *_lines(text, node))


def _swap(text: str, draw: random.Random) -> str:
    """Swap two statements of a block. The two need not be neighbours."""
    block = draw.choice([block for block in _blocks(text) if len(block) > 1])
    one, other = sorted(draw.sample(range(len(block)), 2))
    if draw.random() < 0.7:
        other = one + 1
    before, after = block[one], block[other]
    between = text.split("\n")[before.end_lineno : _first(after)]
    return _with(text, _first(before), after.end_lineno or 0, *_lines(text, after), *between, *_lines(text, before))


def _insert(text: str, draw: random.Random) -> str:
    node = draw.choice(_statements(text))
    statement = draw.choice(INSERTED)
    lines = Draw(draw).fill(statement.replace("{e}", draw.choice(("v", "A", "B")))).split("\n")
    return _with(text, _first(node), _first(node), *(" " * node.col_offset + line for line in lines))


def _wrap(text: str, draw: random.Random) -> str:
    node = draw.choice(_statements(text))
    header = draw.choice(("if True:", "if A:", "if not STATE:", "for _ in range(2):", "try:", "with torch.no_grad():"))
    indent = " " * node.col_offset
    body = [f"    {line}" for line in _lines(text, node)]
    end = [f"{indent}except ValueError: pass"] if header == "try:" else []
    return _with(text, _first(node), node.end_lineno or 0, indent + header, *body, *end)


def _docstring(text: str, draw: random.Random) -> str:
    """Add, change or remove the docstring of a function, a class or the module."""
    nodes = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module))
    ]
    node = draw.choice(nodes)
    first = node.body[0]
    new = [" " * first.col_offset + f'"""{draw.choice(WORDS)} {draw.randint(0, 99)}."""']
    if ast.get_docstring(node) is None:
        return _with(text, _first(first), _first(first), *new)
    kept = len(node.body) > 1 and draw.random() < 0.4
    return _with(text, _first(first), first.end_lineno or 0, *([] if kept else new))


def _decorator(text: str, draw: random.Random) -> str:
    node = draw.choice([node for node in _statements(text) if isinstance(node, ast.FunctionDef)])
    if node.decorator_list and draw.random() < 0.5:
        return _with(text, _first(node), node.lineno - 1)
    return _with(text, _first(node), _first(node), " " * node.col_offset + draw.choice(DECORATORS))


def _argument(text: str, draw: random.Random) -> str:
    """Add an argument, or hints."""
    node = draw.choice([node for node in _statements(text) if isinstance(node, ast.FunctionDef)])
    line = text.split("\n")[node.lineno - 1]
    new = draw.choice((", more=3):", ", *rest):", ", *, key=2):", ") -> int:"))
    return _with(text, node.lineno - 1, node.lineno, line.replace("):", new))


def _hint(text: str, draw: random.Random) -> str:
    node = draw.choice([node for node in _statements(text) if isinstance(node, ast.Assign)])
    return _with(text, node.lineno - 1, node.lineno, _lines(text, node)[0].replace(" = ", ": int = ", 1))


def _format(text: str, draw: random.Random) -> str:
    """Put the value of an assignment or return into parentheses, on lines of its own."""
    node = draw.choice(
        [node for node in _statements(text) if isinstance(node, (ast.Assign, ast.Return)) and node.value]
    )
    value = ast.get_source_segment(text, node.value or node) or ""
    return _with(
        text,
        node.lineno - 1,
        node.end_lineno or 0,
        *"\n".join(_lines(text, node)).replace(value, f"(\n{value}\n)").split("\n"),
    )


def _expression(text: str, draw: random.Random) -> str:
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.BinOp, ast.Call, ast.Subscript))]
    value = ast.get_source_segment(text, draw.choice(nodes)) or ""
    new = draw.choice(
        (str(draw.randint(0, 9)), "A", "v", f"({value} + 1)", f"int({value})", f"bump({draw.randint(0, 9)})")
    )
    return text.replace(value, new, 1)


def _rename(text: str, draw: random.Random) -> str:
    """Rename a function or class where its module defines it, and where the module uses it."""
    node = draw.choice([node for node in _statements(text) if isinstance(node, (ast.FunctionDef, ast.ClassDef))])
    return re.sub(rf"\b{node.name}\b", f"{node.name}x", text)


EDITS: dict[str, Callable[[str, random.Random], str]] = {
    "number": _number,
    "operator": _operator,
    "name": _name,
    "string": _string,
    "comment": _comment,
    "empty line": _blank,
    "statement deleted": _delete,
    "statement duplicated": _duplicate,
    "statements swapped": _swap,
    "statement inserted": _insert,
    "block indented": _wrap,
    "docstring": _docstring,
    "decorator": _decorator,
    "argument": _argument,
    "hint": _hint,
    "formatting": _format,
    "expression": _expression,
    "function renamed": _rename,
}
