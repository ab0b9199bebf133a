"""Computes a digest of the parts of a program's text that affect a trace.

Many edits cannot affect a trace: edits of a comment, the formatting, a docstring, a line that prints, or a function
that runs later. So the digest covers a source's compiled code without:

- line numbers and docstrings,
- statements that only print or log,
- the bodies of functions that have not run (executed.py).

A program may read a removed text as data (a docstring as ``argparse``'s description, or as ``docopt``'s grammar).
Guards and descriptions compare this data like any value.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Set
from types import CodeType

from precompiled.core.definitions import codes_within
from precompiled.packages.describe.codes import code_digest
from precompiled.packages.executed import Place, place_of

# Comments that torch.jit.script reads.
_TYPE_COMMENT = re.compile(rb"#\s*type:.*")
_LOGGER_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
# Functions and methods without side effects. The arguments of a removed print or log call may call only these.
_BUILTINS = frozenset(
    {"abs", "bool", "float", "format", "int", "len", "max", "min", "repr", "round", "sorted", "str", "sum", "type"}
)
_METHODS = frozenset("cpu detach dim format item join max mean min numel perf_counter size sum time tolist".split())
# Decorators that only call their function.
_CALL_ONLY = frozenset(
    """
    abc.abstractmethod abstractmethod classmethod contextlib.contextmanager contextmanager functools.cache
    functools.cached_property functools.lru_cache override property staticmethod torch.enable_grad torch.inference_mode
    torch.no_grad typing.override
    """.split()
)
_PLAIN = (
    ast.Constant,
    ast.Name,
    ast.Load,
    ast.Attribute,
    ast.Subscript,
    ast.Slice,
    ast.JoinedStr,
    ast.FormattedValue,
    ast.BinOp,
    ast.operator,
    ast.UnaryOp,
    ast.unaryop,
    ast.BoolOp,
    ast.boolop,
    ast.Compare,
    ast.cmpop,
    ast.IfExp,
    ast.Tuple,
    ast.List,
    ast.keyword,
)


class Text:
    """A program's text, with a digest of the whole text, and a digest of the parts that matter.

    Few processes need the second digest.
    """

    def __init__(self, content: bytes | None, digest: str = "") -> None:
        """``content``: None for a program without a text. ``digest`` then identifies the program."""
        self.digest = digest if content is None else hashlib.sha256(content).hexdigest()
        self._content = content
        self._source: _Source | None = None

    def parse(self) -> None:
        """Parse the text, once.

        Only the thread that looks up or traces a frame may parse. Before CPython 3.13, two parses at a time may raise
        SystemError in the program's own ``ast.parse`` ("AST constructor recursion depth mismatch",
        python/cpython#106905).
        """
        if self._content is not None and self._source is None:
            self._source = _Source(self._content)

    def code(self, unrun: Set[Place] = frozenset()) -> str:
        """The digest of the parts that matter, without the bodies of ``unrun``, the functions that have not run."""
        self.parse()
        return self._source.digest(unrun) if self._source is not None else self.digest


class _Source:
    """A Python source, reduced to its code. If Python cannot parse the source, all bytes count."""

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
            state.update(_without(self._code, self._unambiguous_places(self._code, unrun)).encode())
        return state.hexdigest()

    def _unambiguous_places(self, code: CodeType, unrun: Set[Place]) -> set[Place]:
        """The members of ``unrun`` that identify a single function.

        Two lambdas on one line, for example, have the same name and line. Excludes functions whose decorator may
        replace them or read their source.
        """
        places = Counter(place_of(inner) for inner in codes_within(code)) if unrun else {}
        return {
            place
            for place in unrun
            if places.get(place) == 1 and not any(place[1] in lines for lines in self._decorated)
        }


def _without(code: CodeType, unrun: Set[Place]) -> str:
    """``code_digest`` without the bodies of functions that have not run.

    Includes the names of their arguments, because other code can read these names.
    """
    if not unrun or not any(isinstance(const, CodeType) for const in code.co_consts):
        return code_digest(code)
    consts: list[object] = []
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
    """Whether a decorator may replace the function or class, or read its source, as Triton's decorator does."""
    return any(ast.unparse(item).removesuffix("()") not in _CALL_ONLY for item in node.decorator_list)


def _strip(node: ast.AST, telling: _Telling) -> None:
    """In all blocks within ``node``, remove docstrings, and statements that only print or log."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        block = getattr(node, name, None)
        if not isinstance(block, list):  # a lambda's body is an expression
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
    """Whether a statement is an ``if`` whose test has no effect and whose blocks are empty (``print`` was removed)."""
    if not isinstance(statement, ast.If):
        return False
    within = (*statement.body, *statement.orelse)
    return _is_plain(statement.test) and all(isinstance(inner, ast.Pass) for inner in within)


class _Telling:
    """Finds the statements of one source that only print or log.

    Such statements are constants, ``print(...)``, and ``log.info(...)`` of a logger. The source must bind ``print`` and
    the logger's name to nothing else.
    """

    def __init__(self, tree: ast.Module) -> None:
        bound = Counter(name for node in ast.walk(tree) for name in _bound(node))
        self._prints = not bound["print"] and not bound["*"]
        self._loggers: set[str] = set()
        if not bound["*"] and bound["logging"] == 1 and any(map(_imports_logging, tree.body)):
            loggers = {name for node in ast.walk(tree) for name in _loggers(node)}
            self._loggers = {"logging", *(name for name in loggers if bound[name] == 1)}

    def only(self, statement: ast.AST) -> bool:
        """Whether a statement has no effect except its output."""
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call):
            return isinstance(call, ast.Constant)
        return self._tells(call.func) and all(_is_plain(argument) for argument in (*call.args, *call.keywords))

    def _tells(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Name):
            return function.id == "print" and self._prints
        if not isinstance(function, ast.Attribute) or function.attr not in _LOGGER_METHODS:
            return False
        return isinstance(function.value, ast.Name) and function.value.id in self._loggers


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a node binds in any scope. ``*`` for unknown names (``from module import *``)."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    else:  # names of functions, classes, exceptions and patterns; ``rest`` of a mapping pattern
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
    """Whether computing an argument has no side effects."""
    for node in ast.walk(argument):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=name) if name in _BUILTINS:
                    continue
                case ast.Attribute(attr="join", value=value) if not isinstance(value, ast.Constant):
                    return False  # Thread.join would wait
                case ast.Attribute(attr=name) if name in _METHODS:
                    continue
            return False
        elif not isinstance(node, _PLAIN) or (isinstance(node, ast.keyword) and node.arg in ("file", None)):
            return False
    return True
