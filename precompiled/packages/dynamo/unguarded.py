"""Describes what a trace read without guards, and compares the descriptions in a later process.

Within one process, Dynamo may assume that a name stays unset and that a class stays the same. An entry outlives the
process. So this file describes a trace's reads without guards (trace_patches.py), and the order of dictionaries and
sets.

Private names: torch._guards.{Guard, Source}, torch._dynamo.source.{ConstDictKeySource,
NonSerializableSetGetItemSource}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import enum
import functools
import hashlib
import importlib.machinery
import inspect
import os
import re
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.source import ConstDictKeySource, NonSerializableSetGetItemSource
from torch._guards import Guard, Source

from precompiled.core import files
from precompiled.core.definitions import codes_within
from precompiled.core.looks import is_a
from precompiled.packages.describe import difference
from precompiled.packages.describe.codes import globals_read, is_hashed_alike, read_by
from precompiled.packages.describe.descriptions import MAX_DEPTH, Descriptions
from precompiled.packages.describe.errors import Mismatch, NotPortable
from precompiled.packages.describe.kinds import ATOMS, OF_C
from precompiled.packages.describe.object_paths import Places
from precompiled.packages.dynamo import native_reads, ranks
from precompiled.packages.dynamo.guard_facts import NO_FACT, WHEN, keys_of, value_at, without_code
from precompiled.packages.dynamo.trace_log import TraceLog
from precompiled.packages.dynamo.trace_patches import HAS
from precompiled.packages.dynamo.value_facts import kind_of

STATE = "state"
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_WHOLE = (*ATOMS, set, frozenset)
_THINGS = (
    *OF_C,
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.CodeType,
    functools.partial,
    enum.Enum,
    inspect.Signature,
    inspect.Parameter,
    importlib.machinery.ModuleSpec,
)


@dataclass
class Seen:
    """Facts without guards.

    A tuple in ``globals`` or ``native`` begins with a module (None: the frame's own) and a name. A tuple in another
    field begins with one or several sources.
    """

    attributes: list[tuple[Source, str, bool]] = field(default_factory=list)  # name, whether it exists
    keys: list[tuple[Source, Any, bool]] = field(default_factory=list)  # key of a dictionary, whether it exists
    values: list[tuple[Source, Any]] = field(default_factory=list)  # description
    globals: list[tuple[str | None, str, object]] = field(default_factory=list)
    # the fields of TraceLog.wholes, and the description
    wholes: list[tuple[Source, str, Any]] = field(default_factory=list)
    same: list[list[Source]] = field(default_factory=list)  # sources that lead to one object
    native: list[native_reads.Read] = field(default_factory=list)
    # Sources of the functions with closures, and the cells that the functions share. Empty for one function.
    cells: list[tuple[list[Source], list[list[str]]]] = field(default_factory=list)

    def facts(self) -> list[list[Any]]:
        """The facts for reports and comparisons, as phrases and descriptions."""
        return [
            *([f"hasattr({source.name}, {name!r})", there] for source, name, there in self.attributes),
            *([f"{key!r} in {source.name}", there] for source, key, there in self.keys),
            *([source.name, fact] for source, fact in self.values),
            *([f"{how}({source.name})", fact] for source, how, fact in self.wholes),
            *([" is ".join(source.name for source in sources), True] for sources in self.same),
            *([f"the global {f'{module}.{name}' if module else name}", fact] for module, name, fact in self.globals),
            *([f"{module}.{name}, read by a function that Dynamo called", fact] for module, name, fact in self.native),
            *([" and ".join(shared), "one cell"] for _sources, groups in self.cells for shared in groups),
        ]


# ---------------------------------------------------------------------- describing and comparing


def describe_facts(
    noted: TraceLog,
    guards: Iterable[Guard],
    codes: Iterable[types.CodeType],
    root: types.CodeType,
    scope: dict[str, Any],
    places: Places,
    reader: object,
    described: Descriptions,
) -> Seen:
    """Describe the facts of a trace. ``reader``: a GuardBuilder or a SourceReader. Raises NotPortable."""
    found = Seen()
    for source, name in _once(noted.attributes):
        found.attributes.append((source, name, _has(value_at(source, reader), name)))
    for source, key in _once(noted.keys):
        found.keys.append((source, key, key in value_at(source, reader)))
    for source, how in _once(noted.wholes):
        found.wholes.append((source, how, _whole(value_at(source, reader), how, described)))
    closures: list[object] = []
    for _name, source in sorted({source.name: source for source in noted.values}.items()):
        with contextlib.suppress(NotPortable):  # ignore a value that cannot be read
            value = value_at(source, reader)
            if _cells(value):
                closures.append(source)
            # Dynamo guards on the content of a set, but {0, 8} and {8, 0} have different orders.
            if type(value) in (set, frozenset) and len(value) > 1 and all(map(is_hashed_alike, value)):
                found.wholes.append((source, "order", _whole(value, "order", described)))
    found.wholes += [
        (source, STATE, _whole(value_at(source, reader), STATE, described))
        for source in native_reads.instances(noted, described)
    ]
    several = [sources for _, sources in noted.met.values() if len(sources) > 1]
    found.same = [[one[name] for name in sorted(one)] for one in sorted(several, key=sorted)]
    _check_same(found.same, reader, NotPortable)
    # A guard on an attribute's existence is not a guard on its value.
    guarded = {guard.name for guard in guards if guard.create_fn_name() not in ("HASATTR", "NOT_NONE_MATCH", *NO_FACT)}
    read = {source.name: source for source in noted.values}
    for name in sorted(read.keys() - guarded):
        source = read[name]
        if _is_of_a_stand_in(source, reader):
            continue
        if not _is_a_builtin(source) and not _is_a_key_of_pythons(source) and not _is_in_a_set(source):
            found.values.append((source, _unguarded(source, value_at(source, reader), described)))
    wanted: set[tuple[str, str]] = set()
    for name in sorted(globals_read(root)):
        if (fact := _global(scope, name, described)) is not None:
            found.globals.append((None, name, fact))
    for code in codes:
        if code is root or files.is_torchs(code.co_filename) or is_standard(code.co_filename):
            continue  # an entry requires the versions of torch and Python
        module = places.module_of(code.co_filename)
        if module is not None:
            wanted |= {(module, name) for name in globals_read(code)}
        else:  # a notebook's cell, whose globals are the frame's
            for name in sorted(globals_read(code) - scope.keys()):
                found.globals.append((None, name, _global(scope, name, described)))
    for module, name in sorted(wanted):
        if (fact := _global(vars(sys.modules[module]), name, described)) is not None:
            found.globals.append((module, name, fact))
    if len(closures) > 1:
        found.cells.append((closures, _shared_cells(closures, reader)))
    for value in noted.made.values():
        _check_made(value, described)
    found.native = native_reads.reads(noted.native, described)
    return found


def compare(kept: Seen, scope: dict[str, Any], reader: object, described: Descriptions, *, check_source: bool) -> None:
    """Raise Mismatch unless every fact holds now. Raises NotPortable if a value has no description.

    Compares in the order of ``describe_facts``, because descriptions of classes that refer to each other depend on the
    order.
    """
    _check_same(kept.same, reader, Mismatch)
    for source, name, there in kept.attributes:
        if (here := _has(value_at(source, reader), name)) != there:
            raise Mismatch(f"{source.name} has {'an' if here else 'no'} attribute {name} here")
    for source, key, there in kept.keys:
        if (here := key in value_at(source, reader)) != there:
            raise Mismatch(f"{source.name} has {'a' if here else 'no'} key {key!r} here")
    for source, how, fact in kept.wholes:
        if _whole(value_at(source, reader), how, described) != fact:
            raise Mismatch(f"{how}({source.name}) differs from when it was traced")
    if any(_shared_cells(sources, reader) != groups for sources, groups in kept.cells):
        raise Mismatch("other functions share a variable of their closures here")
    for source, fact in kept.values:
        now = _unguarded(source, value_at(source, reader), described)
        if now != fact and (check_source or without_code(now) != without_code(fact)):
            raise Mismatch(f"{source.name}: {difference.fact('', now, fact).said(WHEN)}")
    for module, name, fact in kept.globals:
        place = scope if module is None else vars(sys.modules[module]) if module in sys.modules else {}
        found = _global(place, name, described)
        if found != fact and (check_source or without_code(found) != without_code(fact)):
            raise Mismatch(f"the global {name} differs from when it was traced")
    native_reads.compare(kept.native, described)


def _is_a_builtin(source: Source) -> bool:
    """Whether a source is a builtin (``G['__builtins_dict___3']['IndexError']``)."""
    base = getattr(source, "base", None)
    return base is not None and re.fullmatch(r"G\['__builtins_dict__\w*'\]", base.name) is not None


def _is_a_key_of_pythons(source: Source) -> bool:
    """Whether a source is a key of Python's own table (copyreg.dispatch_table). Lookups have their own notes."""
    found = re.match(r"list\(dict\.keys\(G\['__import_(\w+?)(?:_dot_\w+)?'\]", source.name)
    return found is not None and found[1] in sys.stdlib_module_names


def _is_in_a_set(source: Source) -> bool:
    """Whether a source names an item of a set by its position, which differs between processes.

    Membership tests have their own notes.
    """
    return isinstance(source, NonSerializableSetGetItemSource)


def _is_of_a_stand_in(source: Source, reader: object) -> bool:
    """Whether a source leads through a FakeScriptObject, which replaces a process group in a trace."""
    while (base := getattr(source, "base", None)) is not None:
        if getattr(source, "member", None) == "__getattribute__":
            return ranks.is_a_group(value_at(base, reader))
        source = base
    return False


def _once(items: Iterable[tuple[Source, Any]]) -> list[tuple[Source, Any]]:
    named = {(source.name, repr(what)): (source, what) for source, what in items}
    return [named[name] for name in sorted(named)]


def _unguarded(source: Source, value: Any, described: Descriptions) -> object:
    """Describe a value without its contents, because the trace log has a separate source for each read of the
    contents.
    """
    kind = type(value)
    if is_a(value, torch.Tensor):
        return described.a_class(kind_of(value))
    if is_a(value, types.MethodType) and not is_a(value.__self__, (type, types.ModuleType)):
        return ["method", described.a_class(type(value.__self__)), described.thing(value.__func__)]
    if isinstance(source, ConstDictKeySource) and is_a(value, (type, types.FunctionType)):
        return ["key", value.__module__, value.__qualname__]
    of = getattr(value, "__self__", None)
    if is_a(value, types.BuiltinMethodType) and type(of) in _WHOLE:  # `{...}.__contains__`
        return ["method", value.__name__, described.attribute(of)]
    if kind in _WHOLE or is_a(value, _THINGS):
        return described.thing(value)
    if kind is dict and source.name.endswith(".__annotations__"):  # Dynamo drops its guards on the keys of annotations
        return [kind.__name__, [described.value(key) for key in value]]
    # Leave out the object's contents: those of os.environ, for example, include secrets of the user.
    return ["object", described.a_class(kind), len(value) if is_a(value, (list, tuple)) else None]


def _whole(value: Any, how: str, described: Descriptions) -> Any:
    """Describe the text, the names or the keys of a value. A text may be private, so it becomes a digest."""
    if how in ("keys", "order"):
        keys = keys_of(value, described)
        return sorted(keys, key=repr) if how == "keys" and is_a(value, (set, frozenset)) else keys
    if how.startswith(HAS):
        name = how.removeprefix(f"{HAS} ")
        return any(f"{getattr(key, '__module__', '')}.{getattr(key, '__qualname__', '')}" == name for key in value)
    if how == STATE:
        return described.value(value)
    try:
        if how == "dir":
            return sorted(dir(value))
        text = str(value)
    except Exception as error:
        raise NotPortable(f"{how}() of a {type(value).__qualname__}: {type(error).__name__}: {error}") from error
    if _ADDRESS.search(text):
        raise NotPortable(f"the text of a {type(value).__qualname__} contains an address")
    return hashlib.sha256(text.encode()).hexdigest()


def _check_same(same: list[list[Source]], reader: object, refuse: type[Exception]) -> None:
    for first, *others in same:
        value = value_at(first, reader)
        for other in others:
            if value_at(other, reader) is not value:
                raise refuse(f"{other.name} is not {first.name} here")


def _cells(value: object) -> tuple[types.CellType, ...]:
    """The cells in the closure of a function or method. Empty for functions of torch and for other values."""
    function = value.__func__ if type(value) is types.MethodType else value
    if type(function) is not types.FunctionType or files.is_torchs(function.__code__.co_filename):
        return ()
    return function.__closure__ or ()


def _shared_cells(sources: list[Source], reader: object) -> list[list[str]]:
    """Return the cells that several closures share: one function may write to a cell that another function reads."""
    names: dict[int, list[str]] = {}
    for source in sources:
        for number, cell in enumerate(_cells(value_at(source, reader))):
            names.setdefault(id(cell), []).append(f"{source.name}[{number}]")
    return sorted(shared for shared in names.values() if len(shared) > 1)


def _check_made(value: Any, described: Descriptions, depth: int = 0) -> None:
    """Raise NotPortable if a value that a trace took from a class or function has an incomplete description.

    For example, Descriptions.attribute describes a module only by name.
    """
    if type(value) in (tuple, list, dict, set, frozenset, collections.OrderedDict) and depth <= MAX_DEPTH:
        for item in [*value, *(value.values() if is_a(value, dict) else ())]:
            _check_made(item, described, depth + 1)
    if is_a(value, types.ModuleType):
        if value.__name__.split(".")[0] not in {"torch", *sys.stdlib_module_names}:
            raise NotPortable(f"the module {value.__name__} is read through a class or a function that holds it")
    elif is_a(value, enum.Enum):
        described.thing(value)
    elif is_a(value, re.Match):
        raise NotPortable("a match of a regular expression is part of the trace")


def _has(value: object, name: str) -> bool:
    if is_a(value, types.ModuleType):
        return hasattr(value, name)  # as Dynamo does, because a module may load attributes lazily
    missing = object()
    found = inspect.getattr_static(value, name, missing)  # runs no property of the user's
    if isinstance(found, types.MemberDescriptorType):  # a slot, which may be empty
        try:
            found.__get__(value)
        except AttributeError:
            return False
        except TypeError:  # ``value`` is the class itself
            return True
    return found is not missing


def _global(scope: dict[str, Any], name: str, described: Descriptions) -> object:
    """Describe a global that is a class, or a name that only the builtins have.

    Returns None for a missing name, and for any other value, because such a value has a guard.
    """
    if name not in scope:
        if not hasattr(builtins, name):
            return None
        value = getattr(builtins, name)  # the program may have replaced it
        return ["builtin"] if callable(value) else ["builtin", described.attribute(value)]
    value = scope[name]
    return described.a_class(value) if is_a(value, type) else None


# ---------------------------------------------------------------------- refusing


def globals_within(code: types.CodeType) -> set[str]:
    """The globals that code and its inner functions read."""
    return {name for inner in codes_within(code) for name in globals_read(inner)}


def addresses_within(code: types.CodeType) -> list[str]:
    """The texts among the constants of code that contain an object's address, such as ``str()`` of a function."""
    return [
        value
        for inner in codes_within(code)
        for value in inner.co_consts
        if is_a(value, str) and _ADDRESS.search(value)
    ]


def check_code(code: types.CodeType) -> None:
    """Refuse code that makes data of this process, or data without a guard, part of the trace. Raises NotPortable.

    - ``id()``, and ``hash()`` of texts and objects, return different numbers in each process.
    - A set of texts has a different order in each process.
    - Reads of a storage have no guard.
    - Dynamo does not guard on the globals of a file that has the name of one of Python's own modules.

    The standard library and torch are exempt. The standard library uses ``id()`` for keys of memos (inspect.unwrap,
    copy), and descriptions cover the identity of objects (Descriptions.number).
    """
    if is_standard(code.co_filename) or files.is_torchs(code.co_filename):
        return
    names, ordered = read_by(code)
    for asked in sorted(names & {"id", *(["hash"] if code.co_name != "__hash__" else [])}):
        raise NotPortable(
            f"{code.co_name} calls {asked}(), whose result is specific to this process", code="package-id"
        )
    if ordered:
        raise NotPortable(
            f"{code.co_name} has a set of strings, whose order differs between processes",
            "Use a tuple where the order matters",
            code="package-set-order",
        )
    if "untyped_storage" in code.co_names:
        raise NotPortable(f"{code.co_name} reads a tensor's storage", code="package-id")
    if _top_level(code.co_filename) in sys.stdlib_module_names:
        # Because of this name, Dynamo treats the user's file as part of the standard library, and does not guard on its
        # globals.
        raise NotPortable(f"{code.co_filename} has the name of a module of Python", code="package-inlined")


def _top_level(filename: str) -> str:
    """The first part of the name of a file's module."""
    places = [entry for entry in sys.path if entry and filename.startswith(entry.rstrip(os.sep) + os.sep)]
    if not places:
        return ""
    return filename[len(max(places, key=len).rstrip(os.sep)) + 1 :].partition(os.sep)[0].removesuffix(".py")


def is_standard(filename: str) -> bool:
    return files.is_standard(filename) or filename.startswith("<frozen ")
