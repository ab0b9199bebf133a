"""Custom operators that the program itself defines: as source that a worker runs, since nobody can import ``__main__``.

A compile asks of an operator its schema and what traces run of it: the fake kernel, the backward and what is kept for
it, the rule for vmap. Its kernels are called by name from the compiled code, in the program: a worker has one that
raises. So what travels, and is in the key, are these functions with what they refer to::

    {"op": "lib::name", "schema": "(Tensor x) -> Tensor", "mutates": [], "devices": [null], "flags": 0,
     "roles": {"fake": "_precompiled_fake"}, "source": "def _precompiled_fake(x): ..."}

A function's source counts only where compiling its file gives the very code that the function has; names that it reads
are written out as they are now: modules and what can be imported from them, plain values, the program's functions.
All else (closures, objects, classes of the program) is told in a Bypass, and the graph is compiled in process.

Private names: torch._library.custom_ops.OPDEFS, torch._library.custom_ops.CustomOpDef.{_init_fn, _schema, _abstract_fn,
_setup_context_fn, _backward_fn, _vmap_fn, _backend_fns, _torch_dispatch_fns, _autocast_dtype (2.13, 2.15),
_autocast_cpu_dtype (2.11), _autocast_cuda_dtype (2.11), _opoverload}, torch._library.simple_registry.singleton.find.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import copy
import dis
import functools
import hashlib
import json
import linecache
import operator
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, NoReturn

import torch
from torch._library import custom_ops, simple_registry

from precompiled.core.errors import Bypass
from precompiled.core.names import object_at
from precompiled.torch_internals import user_values

PROGRAM = "__main__"
_CODE = "custom-op-in-main"
_ROLES = {
    "fake": "_abstract_fn", "setup_context": "_setup_context_fn", "backward": "_backward_fn", "vmap": "_vmap_fn",
}  # fmt: skip
_AUTOCAST = ("_autocast_dtype", "_autocast_cpu_dtype", "_autocast_cuda_dtype")
# What a function was compiled with besides its source (``from __future__ import annotations``).
_FLAGS = [getattr(__future__, name).compiler_flag for name in __future__.all_feature_names]
_FUTURES = functools.reduce(operator.or_, _FLAGS)
_OURS = "_precompiled_"  # what names of ours begin with, in the midst of the program's
_DEFINED: dict[str, str] = {}  # in a worker: operators, by name, and what defined them


def describe(definition: custom_ops.CustomOpDef) -> tuple[str, list[str]]:
    """JSON of the operator and of those of the program that it calls, and the modules that their source imports.

    Raises Bypass where a worker could not have the same.
    """
    found: dict[str, dict[str, Any]] = {}
    modules: set[str] = set()
    waiting = [definition]
    while waiting:
        item = waiting.pop()
        name = _name(item)
        if name not in found:
            source = _Source(name)
            found[name] = _unit(item, source)
            waiting += source.operators
            modules |= source.modules
    return json.dumps([found[name] for name in sorted(found)], sort_keys=True), sorted(modules)


def define(units: str) -> None:
    """Define in a worker the operators that ``describe`` told; in the program itself, compare them with its own.

    Raises ValueError where an operator of the name is another one.
    """
    for unit in json.loads(units):
        name, content = unit["op"], _text(unit)
        own = custom_ops.OPDEFS.get(name)
        if own is None:
            _define(unit)
            _DEFINED[name] = content
        elif content != (_DEFINED[name] if name in _DEFINED else _described(own)):
            raise ValueError(f"the custom op {name} is another one here than where the graph was captured")


def digests(units: str) -> dict[str, str]:
    """The digest of each operator that ``describe`` told, by its name."""
    return {unit["op"]: _digest(_text(unit)) for unit in json.loads(units)}


def compare(name: str, digest: str) -> None:
    """In the program: raises ValueError where it has no operator of the name, or another than that of the digest."""
    own = custom_ops.OPDEFS.get(name)
    if own is None:
        raise ValueError(f"the program has not defined the custom op {name}")
    if _digest(_described(own)) != digest:
        raise ValueError(f"the custom op {name} is another one here than where the graph was captured")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _text(unit: dict[str, Any]) -> str:
    return json.dumps(unit, sort_keys=True)


def _described(own: custom_ops.CustomOpDef) -> str:
    try:
        return _text(_unit(own, _Source(_name(own))))
    except Bypass as refused:
        raise ValueError(str(refused)) from refused


def _define(unit: dict[str, Any]) -> None:
    space: dict[str, Any] = {"__name__": f"precompiled.program.{unit['op']}", f"{_OURS}torch": torch}
    name = f"<the program's {unit['op']}>"
    exec(compile(unit["source"], name, "exec", flags=unit["flags"], dont_inherit=True), space)
    devices = unit["devices"]
    op = torch.library.custom_op(
        unit["op"], _no_kernel, mutates_args=unit["mutates"], schema=unit["schema"],
        device_types=None if None in devices else devices,
    )  # fmt: skip
    for device in devices if None in devices else ():
        if device is not None:
            op.register_kernel(device)(_no_kernel)
    functions = {role: space[name] for role, name in unit["roles"].items()}
    if "fake" in functions:
        op.register_fake(functions["fake"])
    if "backward" in functions:
        op.register_autograd(functions["backward"], setup_context=functions.get("setup_context"))
    if "vmap" in functions:
        op.register_vmap(functions["vmap"])


def _no_kernel(*arguments: Any, **named: Any) -> NoReturn:
    raise RuntimeError("a custom op of a program has no kernel in a worker")


def _unit(definition: custom_ops.CustomOpDef, source: _Source) -> dict[str, Any]:
    name, overload = _name(definition), definition._opoverload
    entry = simple_registry.singleton.find(name)
    if definition._torch_dispatch_fns or any(getattr(definition, attribute, None) for attribute in _AUTOCAST):
        _refuse(name, "has rules for modes or autocast")
    if getattr(getattr(entry, "effect", None), "effect", None) is not None:
        _refuse(name, "has effects")
    if set(overload.tags) - _usual_tags():
        _refuse(name, f"has tags: {overload.tags}")
    roles = {}
    for role, attribute in _ROLES.items():
        function = getattr(definition, attribute)
        if function is not None:
            roles[role] = source.add(function, f"{_OURS}{role}")
    mutates = [item.name for item in overload._schema.arguments if item.alias_info and item.alias_info.is_write]
    return {
        "op": name, "schema": definition._schema, "mutates": mutates, "roles": roles, "source": source.text(),
        "flags": source.flags, "devices": sorted(definition._backend_fns, key=str),
    }  # fmt: skip


def _name(definition: custom_ops.CustomOpDef) -> str:
    return str(definition._opoverload._schema.name)


@cache
def _usual_tags() -> frozenset[torch.Tag]:
    return frozenset({torch.Tag.pt2_compliant_tag})


def _refuse(name: str, why: str) -> NoReturn:
    raise Bypass(
        f"the custom op {name} is defined in the program itself, and {why}",
        "Move it to a module that can be imported",
        code=_CODE,
    )


class _Source:
    """The source of some of the program's functions, and of what they refer to."""

    def __init__(self, op: str) -> None:
        self.operators: list[custom_ops.CustomOpDef] = []
        self.modules: set[str] = set()
        self.flags = 0
        self._op = op
        self._texts: dict[str, str] = {}
        self._globals = vars(sys.modules[PROGRAM])

    def text(self) -> str:
        return "\n".join(self._texts[name] for name in sorted(self._texts))

    def add(self, function: Any, name: str) -> str:
        """Add a function under ``name``, which is returned, with all that it reads."""
        if type(function) is not FunctionType or function.__globals__ is not self._globals:
            _refuse(self._op, f"uses {function!r}, which is no function of the program's")
        if function.__dict__:
            _refuse(self._op, f"{function.__qualname__} has attributes: {', '.join(function.__dict__)}")
        node = _definition(function)
        if node is None:
            _refuse(self._op, f"the source of {function.__qualname__} is not to be had (or it has a closure)")
        node.name = name
        given = function.__defaults__ or ()
        node.args.defaults = [self._plain(value, function) for value in given]
        named = function.__kwdefaults__ or {}
        node.args.kw_defaults = [
            self._plain(named[item.arg], function) if item.arg in named else None for item in node.args.kwonlyargs
        ]
        self._texts[name] = ast.unparse(ast.fix_missing_locations(node))
        self.flags |= function.__code__.co_flags & _FUTURES
        for kind, read in _instructions(function.__code__):
            if kind == "IMPORT_NAME":
                self._import(read)
            elif kind in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                _refuse(self._op, f"{function.__qualname__} sets the global {read}")
            elif kind not in ("LOAD_GLOBAL", "LOAD_NAME"):
                continue
            elif read.startswith(_OURS):
                _refuse(self._op, f"{function.__qualname__} reads {read}")
            elif read in self._globals:
                self._refer(read, self._globals[read])
            elif kind == "LOAD_GLOBAL" and not hasattr(builtins, read):
                _refuse(self._op, f"{function.__qualname__} reads {read}, which is not set")
        return name

    def _refer(self, name: str, value: Any) -> None:
        if name in self._texts:
            return
        if isinstance(value, ModuleType):
            if sys.modules.get(value.__name__) is not value or value.__name__ == PROGRAM:
                _refuse(self._op, f"{name} is a module that cannot be imported")
            self._import(value.__name__)
            package, _, last = value.__name__.rpartition(".")
            self._texts[name] = f"from {package} import {last} as {name}" if package else f"import {last} as {name}"
        elif (text := _as_source(value)) is not None:
            self._texts[name] = f"{name} = {text}"
        elif isinstance(value, custom_ops.CustomOpDef):
            if value._init_fn.__module__ != PROGRAM:
                _refuse(self._op, f"{name} is a custom op of another module")
            self.operators.append(value)
            namespace, _, op = _name(value).partition("::")
            self._texts[name] = f"{name} = lambda *given, **named: {_OURS}torch.ops.{namespace}.{op}(*given, **named)"
        elif type(value) is FunctionType and value.__globals__ is self._globals:
            self._texts[name] = ""  # a function that calls itself, or the one that calls it
            self.add(value, name)
        else:
            module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
            if not module or not qualname or module == PROGRAM or object_at(module, qualname) is not value:
                _refuse(self._op, f"reads {name}, a {type(value).__qualname__}")
            first, _, rest = qualname.partition(".")
            self._import(module)
            imported = f"from {module} import {first} as {name}"
            self._texts[name] = f"{imported}\n{name} = {name}.{rest}" if rest else imported

    def _import(self, module: str) -> None:
        root = module.partition(".")[0]
        if root == PROGRAM or not module:
            _refuse(self._op, "imports the program itself, or by a relative name")
        if root != "torch" and root not in sys.stdlib_module_names:
            self.modules.add(module)

    def _plain(self, value: Any, function: FunctionType) -> ast.expr:
        text = _as_source(value)
        if text is None:
            _refuse(self._op, f"{function.__qualname__} has a default of type {type(value).__qualname__}")
        return ast.parse(text, mode="eval").body


def _as_source(value: Any) -> str | None:
    """An expression for a plain value; None for what is none."""
    if isinstance(value, torch.dtype):
        return f"{_OURS}{value!r}"
    if isinstance(value, torch.device):
        return f"{_OURS}torch.{value!r}"
    if not user_values.is_plain(value):
        return None
    text = repr(value)
    try:
        again = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):  # no literal; infinities are none either
        return None
    return text if repr(again) == text else None


def _definition(function: FunctionType) -> ast.FunctionDef | None:
    """A function's definition, without decorators and annotations; None where the source is not the function's."""
    code = function.__code__
    text = "".join(linecache.getlines(code.co_filename))
    node = _definitions(text, code.co_flags & _FUTURES).get(code)
    if node is None or function.__closure__:
        return None
    made = copy.deepcopy(node)
    made.decorator_list, made.returns = [], None
    given = made.args
    for item in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
        if item is not None:
            item.annotation = None
    return made


@cache
def _definitions(text: str, flags: int) -> dict[CodeType, ast.FunctionDef]:
    """The functions that a file defines, by the code that they have; equal codes have the same line, too.

    The whole file is compiled: what Python makes of a call depends on what the file imports.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree, whole = ast.parse(text), compile(text, "", "exec", flags=flags, dont_inherit=True)
    except (SyntaxError, ValueError):
        return {}
    by_place = {(_first_line(node), node.name): node for node in _outside_of_classes(tree)}
    codes = {(code.co_firstlineno, code.co_name): code for code in _codes(whole)}
    return {codes[place]: by_place[place] for place in by_place if place in codes}


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(item.lineno for item in node.decorator_list)])


def _outside_of_classes(node: ast.AST) -> Iterator[ast.FunctionDef]:
    """Not those in classes, where a name such as __x means another one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield child
        if not isinstance(child, ast.ClassDef):
            yield from _outside_of_classes(child)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield from _codes(item)


def _instructions(code: CodeType) -> Iterator[tuple[str, Any]]:
    """The names and arguments of all instructions, those of the functions in it as well."""
    for inner in _codes(code):
        for instruction in dis.get_instructions(inner):
            yield instruction.opname, instruction.argval
