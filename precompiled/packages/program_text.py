"""What of a program's text can change what the program does, as a digest.

People start a program most often after an edit, and many an edit changes nothing that a trace could meet: a comment,
the formatting, a docstring, a line that prints, a function that runs later. So a source counts by the code that Python
makes of it, with line numbers left out, and without docstrings, lines that only tell, and functions that have not run
(executed.py; decision 0024). What reads such a text as data (``argparse``'s description, ``docopt``) comes to a trace
as a value, which guards and descriptions compare, as they do with the command line.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Set
from types import CodeType
from typing import Any

from precompiled.core.definitions import codes_within
from precompiled.packages.describe.codes import code_digest
from precompiled.packages.executed import Place, place_of

# A comment that torch.jit.script reads.
_TYPE_COMMENT = re.compile(rb"#\s*type:.*")
_TELLS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})  # methods of a logger
# What the arguments of a line that tells may call: nothing that changes anything.
_BUILTINS = frozenset(
    {"abs", "bool", "float", "format", "int", "len", "max", "min", "repr", "round", "sorted", "str", "sum", "type"}
)
_METHODS = frozenset(
    {"cpu", "detach", "dim", "format", "item", "join", "max", "mean", "min", "numel", "perf_counter", "size", "sum",
     "time", "tolist"}
)  # fmt: skip
# Decorators that do no more with a function than call it.
_CALL_ONLY = frozenset(
    {"property", "staticmethod", "classmethod", "abstractmethod", "abc.abstractmethod", "override", "typing.override",
     "torch.no_grad", "torch.inference_mode", "torch.enable_grad", "contextmanager", "contextlib.contextmanager",
     "functools.cache", "functools.lru_cache", "functools.cached_property"}
)  # fmt: skip
_PLAIN = (
    ast.Constant, ast.Name, ast.Load, ast.Attribute, ast.Subscript, ast.Slice, ast.JoinedStr, ast.FormattedValue,
    ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop, ast.BoolOp, ast.boolop, ast.Compare, ast.cmpop, ast.IfExp,
    ast.Tuple, ast.List, ast.keyword,
)  # fmt: skip


class Text:
    """One text of a program: its digest, and that of what matters of it, which takes longer and is seldom asked."""

    def __init__(self, content: bytes | None, digest: str = "") -> None:
        """``content``: None for what has no text, which counts by its ``digest``."""
        self.digest = digest if content is None else hashlib.sha256(content).hexdigest()
        self._content = content
        self._source: _Source | None = None

    def parse(self) -> None:
        """Parse the text, once. Only the thread that looks a frame up, or traces it, may: before CPython 3.13, a parse
        in a second thread makes the program's own ``ast.parse`` raise SystemError ("AST constructor recursion depth
        mismatch", python/cpython#106905).
        """
        if self._content is not None and self._source is None:
            self._source = _Source(self._content)

    def code(self, unrun: Set[Place] = frozenset()) -> str:
        """``unrun``: functions that have not run, whose bodies count for nothing."""
        self.parse()
        return self._source.digest(unrun) if self._source is not None else self.digest


class _Source:
    """A Python source, by the code that it stands for; by its bytes where this version of Python cannot read it."""

    def __init__(self, content: bytes) -> None:
        self._rest = b"".join(_TYPE_COMMENT.findall(content))
        self._code: CodeType | None = None
        self._decorated: list[range] = []
        try:
            tree = ast.parse(content)
            _strip(tree, _Telling(tree))
            self._code = compile(ast.fix_missing_locations(tree), "", "exec", dont_inherit=True)
            self._decorated = [
                range(node.decorator_list[0].lineno, (node.end_lineno or node.lineno) + 1)
                for node in ast.walk(tree)
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and _is_made_over(node)
            ]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self._rest = content

    def digest(self, unrun: Set[Place]) -> str:
        state = hashlib.sha256(self._rest)
        if self._code is not None:
            state.update(_without(self._code, self._told(self._code, unrun)).encode())
        return state.hexdigest()

    def _told(self, code: CodeType, unrun: Set[Place]) -> set[Place]:
        """Those of ``unrun`` whose place says which function it is: not that of two lambdas on one line."""
        places = Counter(place_of(inner) for inner in codes_within(code)) if unrun else {}
        return {
            place
            for place in unrun
            if places.get(place) == 1 and not any(place[1] in lines for lines in self._decorated)
        }


def _without(code: CodeType, unrun: Set[Place]) -> str:
    """``code_digest`` without the bodies of functions that have not run; their arguments count, which programs read."""
    if not unrun or not any(isinstance(const, CodeType) for const in code.co_consts):
        return code_digest(code)
    consts: list[Any] = []
    for const in code.co_consts:
        if not isinstance(const, CodeType):
            consts.append(const)
        elif place_of(const) in unrun:
            arguments = const.co_argcount + const.co_kwonlyargcount + 2  # *args and **kwargs
            consts.append((const.co_name, const.co_argcount, const.co_flags, const.co_varnames[:arguments]))
        else:
            consts.append(_without(const, unrun))
    return code_digest(code.replace(co_consts=tuple(consts)))


def _is_made_over(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Whether a decorator may have made another function of it, or may read its source: that of a Triton kernel."""
    return any(ast.unparse(item).removesuffix("()") not in _CALL_ONLY for item in node.decorator_list)


def _strip(node: ast.AST, telling: _Telling) -> None:
    """Take docstrings and lines that only tell out of all blocks of statements within ``node``."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        block = getattr(node, name, None)
        if not isinstance(block, list):  # the body of a lambda is one expression
            continue
        kept = []
        for statement in block:
            if telling.only(statement):
                continue
            _strip(statement, telling)
            if not _decides_nothing(statement):
                kept.append(statement)
        if len(kept) < len(block):
            setattr(node, name, kept or [ast.Pass()] if name == "body" else kept)


def _decides_nothing(statement: ast.AST) -> bool:
    """Whether it is an ``if`` with nothing left in it, whose test changes nothing: every hundredth step is printed."""
    if not isinstance(statement, ast.If):
        return False
    within = (*statement.body, *statement.orelse)
    return _is_plain(statement.test) and all(isinstance(inner, ast.Pass) for inner in within)


class _Telling:
    """Which statements of one source only tell: a text by itself, ``print(...)``, and ``log.info(...)`` of a logger.

    They do where no other ``print``, and nothing else by the logger's name, can be in the place of these.
    """

    def __init__(self, tree: ast.Module) -> None:
        bound = Counter(name for node in ast.walk(tree) for name in _bound(node))
        self._prints = not bound["print"] and not bound["*"]
        self._loggers: set[str] = set()
        if not bound["*"] and bound["logging"] == 1 and any(map(_imports_logging, tree.body)):
            loggers = {name for node in ast.walk(tree) for name in _loggers(node)}
            self._loggers = {"logging", *(name for name in loggers if bound[name] == 1)}

    def only(self, statement: ast.AST) -> bool:
        """Whether nothing but a text would be missing without the statement."""
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call):
            return isinstance(call, ast.Constant)
        return self._tells(call.func) and all(_is_plain(argument) for argument in (*call.args, *call.keywords))

    def _tells(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Name):
            return function.id == "print" and self._prints
        if not isinstance(function, ast.Attribute) or function.attr not in _TELLS:
            return False
        return isinstance(function.value, ast.Name) and function.value.id in self._loggers


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a node alone binds, in any scope; ``*`` for names that nobody knows."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    else:  # a function, a class, an exception, a pattern; the rest of a mapping
        names = getattr(node, "name", None), getattr(node, "rest", None)
        yield from (name for name in names if isinstance(name, str))


def _imports_logging(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import) and any(
        alias.name == "logging" and alias.asname is None for alias in statement.names
    )


def _loggers(node: ast.AST) -> Iterator[str]:
    """Names that a node binds to one of Python's loggers."""
    if (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "logging.getLogger"
    ):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _is_plain(argument: ast.AST) -> bool:
    """Whether an argument is computed without changing anything."""
    for node in ast.walk(argument):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=name) if name in _BUILTINS:
                    continue
                case ast.Attribute(attr="join", value=value) if not isinstance(value, ast.Constant):
                    return False  # a thread is waited for
                case ast.Attribute(attr=name) if name in _METHODS:
                    continue
            return False
        elif not isinstance(node, _PLAIN) or (isinstance(node, ast.keyword) and node.arg in ("file", None)):
            return False
    return True
