"""Sends the source of user Triton kernels that a worker cannot import (in ``__main__`` or in a function).

Triton compiles the text of a kernel's function. Inductor copies this text into its own code, with everything that the
function reads: other kernels, and globals that are numbers, strings or constants. This file writes out the same as a
unit (program_units.py) with more fields::

    {"kernel": "added", "source": "@_precompiled_triton.jit()\\ndef added(x, ...): ...", ...,
     "given": {"scaled": Triton's cache key}}

``given`` lists imported kernels. The source of an imported kernel's module does not determine the kernel, because a
program may set the globals that the kernel reads. So a worker compares Triton's own key of each imported kernel. A
kernel with a closure is refused, because Inductor would not copy the closure's contents.

Private names: triton.runtime.jit.JITFunction.{fn, src, noinline, do_not_specialize, do_not_specialize_on_alignment,
version, debug, launch_metadata, cache_key}, triton.language.core.{constexpr.value, dtype.name}. Checked on 2.11.0,
2.15.0 with the Triton that they require, and on 2.13.0 with Triton 3.7.0.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import linecache
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

from precompiled.core import definitions
from precompiled.core.errors import Bypass
from precompiled.core.names import object_at
from precompiled.torch_internals.user_code import program_source, program_units
from precompiled.torch_internals.user_code.program_source import OURS, PROGRAMS, Source

CODE = "user-kernel"
PREFIX = "kernel "  # prefix of a kernel's name in the list of modules and operators that a graph needs
_OPTIONS = ("noinline", "do_not_specialize", "do_not_specialize_on_alignment")
# Options of triton.jit that do not affect the compiled code, or are deprecated.
_NEEDLESS = ("version", "debug", "launch_metadata")


def describe(function: Any) -> str:
    """JSON of the unit of a kernel (a JITFunction). Raises Bypass if a worker could not rebuild the same kernel."""
    name, source = function.__name__, _Source(function)
    unit = program_units.collect_unit(_subject(function), CODE, source, lambda source: source.refer(name, function))
    return json.dumps({"kernel": name, **unit, "given": source.given}, sort_keys=True)


@cache
def create_kernel(unit_text: str) -> Any:
    """Create the kernel of a unit in a worker. Raises ValueError if the kernel differs. Also raises an import's
    exception.
    """
    unit = json.loads(unit_text)
    import triton

    # Like inspect, Triton finds a kernel's text by the name of the kernel's file.
    file, text = f"<the program's kernel {_digest(unit_text)}>", unit["source"]
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space = program_units.run(unit, unit["kernel"], file, triton=triton)
    for imported, key in unit["given"].items():
        if space[imported].cache_key != key:
            raise ValueError(f"the kernel {imported} differs from that of the process that captured the graph")
    return space[unit["kernel"]]


def modules_of(unit_text: str) -> dict[str, str]:
    """Return what a worker needs for the kernel (modules, the kernel itself), as names mapped to digests."""
    unit = json.loads(unit_text)
    return {**program_units.worker_needs(unit), f"{PREFIX}{unit['kernel']}": _digest(unit_text)}


def innermost(kernel: object) -> Any:
    """The kernel inside the wrappers of Triton's decorators."""
    while hasattr(kernel, "fn") and not isinstance(kernel.fn, FunctionType):
        kernel = kernel.fn
    return kernel


def is_in_module(function: Any) -> bool:
    """Whether a kernel's module has the kernel, or a wrapper of the kernel, under the kernel's name."""
    return innermost(object_at(function.__module__, function.__name__)) is function


def compare(name: str, digest: str) -> None:
    """In the user's process, check that ``__main__`` has this kernel. Raises ValueError if not."""
    found = innermost(getattr(sys.modules[PROGRAMS[0]], name.removeprefix(PREFIX), None))
    try:
        here = _digest(describe(found)) if found is not None else None
    except Bypass as refused:
        raise ValueError(str(refused)) from refused
    if here != digest:
        raise ValueError(f"the program's {name} differs from that of the process that captured the graph")


class _Source(Source):
    """The source text of kernels and of everything that they read."""

    def __init__(self, kernel: object) -> None:
        super().__init__(_subject(kernel), CODE, kernel.__module__)
        # maps the name that an imported kernel has in this module to Triton's cache key
        self.given: dict[str, str] = {}
        self._kernels: set[str] = set()

    def text(self) -> str:
        """The source text: imports, then values, then kernels, because a definition evaluates its annotations."""

        def order(name: str) -> tuple[bool, bool, str]:
            return name in self._kernels, "import " not in self._texts[name].partition("\n")[0], name

        return "\n".join(self._texts[name] for name in sorted(self._texts, key=order))

    def refer(self, name: str, value: Any, read: Sequence[str] = ()) -> None:
        from triton.language.core import constexpr, dtype
        from triton.runtime.jit import JITFunction

        known = name in self._texts
        if isinstance(value, JITFunction):
            if not isinstance(value.fn, FunctionType) or value.fn.__globals__ is not self._globals:
                super().refer(name, value, read)
                self.given[name] = value.cache_key
            elif not known:
                self._texts[name] = ""  # set before the recursion, because kernels may call each other
                self._kernels.add(name)
                self._texts[name] = self._kernel(name, value)
        elif known:
            super().refer(name, value, read)
        elif isinstance(value, constexpr) and (text := program_source.as_source(value.value)) is not None:
            self._texts[name] = f"{self._annotated(name)} = {OURS}triton.language.constexpr({text})"
        elif type(value) is dtype:
            self._texts[name] = f"{name} = {OURS}triton.language.core.dtype({value.name!r})"
        elif (text := program_source.as_source(value)) is not None:
            self._texts[name] = f"{self._annotated(name)} = {text}"
        else:
            super().refer(name, value, read)

    def _annotated(self, name: str) -> str:
        """A global's name with its annotation. Triton treats a global as a constant because of its annotation."""
        from triton.language.core import constexpr

        annotation = self._globals.get("__annotations__", {}).get(name)
        if annotation is None:
            return name
        if annotation is constexpr:
            return f"{name}: {OURS}triton.language.core.constexpr"
        if isinstance(annotation, str):
            return f"{name}: {annotation!r}"
        self._refuse(f"{name} is annotated by {annotation!r}")

    def _kernel(self, name: str, kernel: Any) -> str:
        function = kernel.fn
        if name != kernel.__name__:
            self._refuse(f"{kernel.__name__} is called by another name")
        node = definitions.written_definition(function)
        if node is None or function.__closure__:
            self._refuse(f"the source of {name} cannot be found (or the kernel has a closure)")
        bare = copy.deepcopy(node)
        bare.decorator_list = []
        if ast.dump(ast.parse(kernel.src).body[0]) != ast.dump(bare):
            self._refuse(f"{name} differs from its function")
        unusual = [option for option in _NEEDLESS if getattr(kernel, option, None)]
        if unusual:
            self._refuse(f"{name} has the option {unusual[0]}")
        self._defaults(function, node)
        for read in sorted(_named_in(node)):
            self._read(function, "LOAD_GLOBAL", read, [])
        self._read_all(function)
        self.flags |= function.__code__.co_flags & definitions.FUTURES
        options = [(option, getattr(kernel, option, None)) for option in _OPTIONS]
        shown = ", ".join(f"{option}={self._option(name, value)}" for option, value in options if value)
        return f"@{OURS}triton.jit({shown})\n{kernel.src}"

    def _option(self, name: str, value: object) -> str:
        text = program_source.as_source(tuple(value) if isinstance(value, list) else value)
        if text is None:
            self._refuse(f"{name} has options of type {type(value).__qualname__}")
        return text

    def _defaults(self, function: FunctionType, node: ast.FunctionDef) -> None:
        """Check that the function's defaults equal those in its source text, which is used unchanged."""
        try:
            written = [ast.literal_eval(default) for default in node.args.defaults]
            named = [default if default is None else ast.literal_eval(default) for default in node.args.kw_defaults]
        except ValueError:
            self._refuse(f"{function.__qualname__} has a default that is not a constant")
        here = [(function.__kwdefaults__ or {}).get(item.arg) for item in node.args.kwonlyargs]
        if repr([written, named]) != repr([list(function.__defaults__ or ()), here]):
            self._refuse(f"{function.__qualname__} has defaults that differ from its source")

    def _read_of_module(self, module: ModuleType, attributes: Sequence[str]) -> None:
        found: object = module
        if not _is_tritons(module.__name__):
            return super()._read_of_module(module, attributes)
        for attribute in attributes:
            if not isinstance(found, ModuleType):
                break
            self._import(found)
            found = getattr(found, attribute, None)
        if not _is_tritons(getattr(found, "__module__", None) or getattr(found, "__name__", None) or ""):
            self._refuse(f"{'.'.join([module.__name__, *attributes])} is not Triton's own")
        return None

    def _import(self, module: ModuleType) -> None:
        if _is_tritons(module.__name__) and sys.modules.get(module.__name__) is module:
            self.imports.add(module.__name__)  # the key has Triton's version
        else:
            super()._import(module)


def _named_in(node: ast.FunctionDef) -> Iterator[str]:
    """The names that a function's annotations read."""
    given = node.args
    items = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    for annotation in [node.returns, *(item.annotation for item in items if item is not None)]:
        if annotation is not None:
            yield from {part.id for part in ast.walk(annotation) if isinstance(part, ast.Name)}


def _is_tritons(module: str) -> bool:
    return module.partition(".")[0] in ("triton", "builtins")


def _subject(kernel: Any) -> str:
    return f"the Triton kernel {kernel.__name__}"


def _digest(unit_text: str) -> str:
    return hashlib.sha256(unit_text.encode()).hexdigest()
