"""What a trace saw and has no guard for: names that were not there, and classes behind names.

Dynamo guards on what it found, rarely on what it did not find: ``hasattr(module, "x")``, a builtin that no global of
the module shadows. And a few classes have no guard: those that a closure holds, subclasses of tensors. Within one
process that is tolerable. A package outlives the process, so both are noted here, and compared.

Private names: torch._dynamo.variables.base.VariableTracker.call_obj_hasattr, in all classes that define it;
VariableTracker.source; torch._guards.Guard. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch._dynamo.guards import GuardBuilder
from torch._dynamo.variables.base import VariableTracker
from torch._guards import Guard

from precompiled.package.identity import TORCH_FILES, Descriptions, Mismatch, NotPortable, Places, codes_within

_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = os.sep + "site-packages" + os.sep
_METHOD = "call_obj_hasattr"


@dataclass
class Seen:
    """``attributes``: source, name, whether it was there; ``globals``: module (None: the frame's own), name, fact."""

    attributes: list[tuple[Any, str, bool]] = field(default_factory=list)
    globals: list[tuple[str | None, str, Any]] = field(default_factory=list)

    def told(self) -> list[list[Any]]:
        """For people, and to be compared: what, and what it was."""
        found = [[f"hasattr({source.name}, {name!r})", there] for source, name, there in self.attributes]
        named = [[f"{module}.{name}" if module else name, fact] for module, name, fact in self.globals]
        return found + [[f"the global {name}", fact] for name, fact in named]


# ---------------------------------------------------------------------- noting


def wrap(note: Callable[[Any, str], None]) -> Callable[[], None]:
    """Have ``note(source, name)`` called for each attribute that Dynamo asks an object for; gives what ends that."""
    wrapped = {kind: vars(kind)[_METHOD] for kind in _kinds(VariableTracker) if _METHOD in vars(kind)}
    for kind, original in wrapped.items():
        setattr(kind, _METHOD, _noting(original, note))

    def restore() -> None:
        for kind, original in wrapped.items():
            setattr(kind, _METHOD, original)

    return restore


def _noting(original: Callable[..., Any], note: Callable[[Any, str], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call_obj_hasattr(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if self.source is not None:
            note(self.source, name)
        return original(self, tx, name, *args, **kwargs)

    return call_obj_hasattr


def _kinds(kind: type) -> Iterator[type]:
    yield kind
    inner: type
    for inner in kind.__subclasses__():
        yield from _kinds(inner)


# ---------------------------------------------------------------------- describing, then and now


def seen(
    asked: Iterable[tuple[Any, str]], codes: Iterable[types.CodeType], root: types.CodeType, scope: dict[str, Any],
    places: Places, reader: Any, described: Descriptions,
) -> Seen:  # fmt: skip
    """What is to be kept. ``asked``: as noted; ``reader``: a GuardBuilder, or a Reader. Raises NotPortable."""
    found = Seen()
    for source, name in sorted({(source.name, name): (source, name) for source, name in asked}.values(),
                               key=lambda item: (item[0].name, item[1])):  # fmt: skip
        try:
            value = reader.get(Guard(source, GuardBuilder.TYPE_MATCH))
        except Exception as error:
            raise NotPortable(f"{source.name}, which was asked for {name}, cannot be read: {error}",
                              code="package-guard") from error  # fmt: skip
        found.attributes.append((source, name, _has(value, name)))
    wanted: set[tuple[str, str]] = set()
    for name in sorted(globals_read(root)):
        if (fact := _global(scope, name, described)) is not None:
            found.globals.append((None, name, fact))
    for code in codes:
        if code is root or code.co_filename.startswith(TORCH_FILES) or _is_standard(code.co_filename):
            continue  # the environment says what is in there
        module = places.module_of(code.co_filename)
        if module is not None:
            wanted |= {(module, name) for name in globals_read(code)}
    for module, name in sorted(wanted):
        if (fact := _global(vars(sys.modules[module]), name, described)) is not None:
            found.globals.append((module, name, fact))
    return found


def compare(kept: Seen, scope: dict[str, Any], reader: Any, described: Descriptions, *, check_source: bool) -> None:
    """Raise Mismatch unless all of it is so here."""
    for module, name, fact in kept.globals:
        place = scope if module is None else vars(sys.modules[module]) if module in sys.modules else {}
        try:
            found = _global(place, name, described)
        except NotPortable as reason:
            raise Mismatch(f"the global {name}: {reason}") from reason
        if found != fact and (check_source or found is None or found[0] != fact[0]):
            raise Mismatch(f"the global {name} is another thing here")
    for source, name, there in kept.attributes:
        try:
            here = _has(reader.get(Guard(source, GuardBuilder.TYPE_MATCH)), name)
        except Exception as error:
            raise Mismatch(f"{source.name}: {type(error).__name__}: {error}") from error
        if here != there:
            raise Mismatch(f"{source.name} has {'an' if here else 'no'} attribute {name} here")


def _has(value: Any, name: str) -> bool:
    if isinstance(value, types.ModuleType):
        return hasattr(value, name)  # as Dynamo asks it: it may be one that is loaded when asked for
    missing = object()
    return inspect.getattr_static(value, name, missing) is not missing  # no property of the user's is run


def _global(scope: dict[str, Any], name: str, described: Descriptions) -> Any:
    """["builtin"] where only the builtins have the name, the class where it names one, None for what has guards."""
    if name not in scope:
        return ["builtin"] if hasattr(builtins, name) else None
    value = scope[name]
    return described.a_class(value) if isinstance(value, type) else None


@functools.lru_cache(maxsize=65536)
def _read(code: types.CodeType) -> tuple[frozenset[str], bool]:
    """The globals that code reads, and whether it goes through a set whose order is of this process.

    Once for each code: frames share most of what they inline, and reading instructions takes longer than the rest.
    """
    names, ordered = set(), False
    instructions = list(dis.get_instructions(code))
    for number, instruction in enumerate(instructions):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(instruction.argval)
        elif instruction.opname == "LOAD_CONST" and _has_an_order_of_its_own(instruction.argval):
            ordered |= [item.opname for item in instructions[number + 1 : number + 2]] != ["CONTAINS_OP"]
    return frozenset(names), ordered


def globals_read(code: types.CodeType) -> frozenset[str]:
    """Names that code reads from its globals, or from the builtins; not those of functions inside of it."""
    return _read(code)[0]


# ---------------------------------------------------------------------- refusing


def globals_within(code: types.CodeType) -> set[str]:
    """The same of code and of the functions inside of it."""
    return {name for inner in codes_within(code) for name in globals_read(inner)}


def check_code(code: types.CodeType) -> None:
    """Refuse what makes something of this process alone part of the trace. Raises NotPortable.

    ``id()``, and ``hash()`` of texts and objects, are numbers of one process; a set of texts has another order in each;
    what a storage says of itself has no guard. Not in the standard library or torch: there they are keys of memos
    (inspect.unwrap, copy), and which object is which is described anyway (Descriptions.number).
    """
    if _is_standard(code.co_filename) or code.co_filename.startswith(TORCH_FILES):
        return
    names, ordered = _read(code)
    for asked in sorted(names & {"id", *(["hash"] if code.co_name != "__hash__" else [])}):
        raise NotPortable(f"{code.co_name} asks for {asked}(), a number of this process", code="package-id")
    if ordered:
        raise NotPortable(
            f"{code.co_name} has a set of texts, whose order is another one in each process",
            "Use a tuple where the order matters", code="package-set-order",
        )  # fmt: skip
    if "untyped_storage" in code.co_names:
        raise NotPortable(f"{code.co_name} asks for a tensor's storage", code="package-id")
    if _top_level(code.co_filename) in sys.stdlib_module_names:
        # Dynamo takes it for the standard library's, and guards on none of its globals.
        raise NotPortable(f"{code.co_filename} has the name of a module of Python's", code="package-inlined")


def _has_an_order_of_its_own(value: Any) -> bool:
    if not isinstance(value, frozenset) or len(value) < 2:
        return False
    return not all(isinstance(item, (int, float, complex)) for item in value)


def _top_level(filename: str) -> str:
    """The first part of the name that a file is imported by."""
    places = [entry for entry in sys.path if entry and filename.startswith(entry.rstrip(os.sep) + os.sep)]
    if not places:
        return ""
    return filename[len(max(places, key=len).rstrip(os.sep)) + 1 :].partition(os.sep)[0].removesuffix(".py")


def _is_standard(filename: str) -> bool:
    return (filename.startswith(_STANDARD_LIBRARY) and _INSTALLED not in filename) or filename.startswith("<frozen ")
