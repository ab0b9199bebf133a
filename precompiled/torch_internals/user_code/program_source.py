"""Writes out the source of functions and classes that the program (``__main__``) defines, with all that they read.

A function's source is used only if the compiled source gives exactly the function's code. Each name that the function
reads is written out with its current value, which must be one of these:

- an immutable value: a number, a string, a tuple of such values, a dtype, a device
- a function of the program that has no attributes and is known under only one name. The function may have a closure
  only if the subject (the function or class to send) is rebuilt for each compile. The closure's contents are written
  out like globals
- if the subject is rebuilt for each compile, also a class that the program defines and that has no metaclass. The class
  may contain methods, static methods, class methods, properties, slots, immutable values and functions of torch
- a builtin that does not depend on the process
- torch or a stateless module of the standard library, and the functions and classes of such a module
- a module that can be imported, or its functions and classes. ``Source.modules`` lists the module, and the caller
  computes its digest
- an operator of the program or of torch

Any other value raises Bypass.

Private names: torch._ops.OpOverload._schema, torch._library.custom_ops.OPDEFS,
torch._library.custom_ops.CustomOpDef.{_init_fn, _opoverload}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import abc
import ast
import builtins
import dis
import os
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any, NoReturn

import torch
from torch._library import custom_ops

from precompiled.core.definitions import FUTURES, codes_within, definition_of, method_of
from precompiled.core.errors import Bypass
from precompiled.core.files import is_really_torchs
from precompiled.core.names import object_at

PROGRAMS = ("__main__", "__mp_main__")  # the second one in a process that multiprocessing spawned
OURS = "_precompiled_"  # prefix of the names that this project adds to the program's source
_READING = frozenset(
    """
    DELETE_DEREF DELETE_GLOBAL IMPORT_NAME LOAD_CLASSDEREF LOAD_DEREF LOAD_FROM_DICT_OR_DEREF LOAD_GLOBAL LOAD_NAME
    STORE_DEREF STORE_GLOBAL
    """.split()
)
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
# The list excludes globals(), eval(), __import__(), open() and similar functions, whose results differ in a worker.
_BUILTINS = frozenset(
    """
    AssertionError AttributeError Exception IndexError KeyError NotImplemented NotImplementedError RuntimeError
    TypeError ValueError abs all any bool bytes callable complex dict divmod enumerate filter float frozenset getattr
    hasattr int isinstance issubclass iter len list map max min next object pow print range repr reversed round set
    slice sorted str sum super tuple type zip
    """.split()
)
_STANDARD = frozenset({"collections", "functools", "itertools", "math", "operator", "typing"})
_STANDARD_FOLDER = os.path.realpath(sysconfig.get_paths()["stdlib"]) + os.sep
_TORCHS_OPERATORS = frozenset({"aten", "prims"})
_METACLASSES = (type, type(torch.Tensor), abc.ABCMeta)
# Attributes that a class statement or pickling creates, and that do not affect the class's behavior.
_NOT_OF_A_CLASS = frozenset(
    """
    __abstractmethods__ __annotate__ __annotate_func__ __annotations__ __annotations_cache__ __dict__ __doc__
    __firstlineno__ __module__ __qualname__ __slotnames__ __static_attributes__ __weakref__ _abc_impl
    """.split()
)
# The wrappers of functions in a class's body, each with the attribute that contains the function.
_HOLD_A_FUNCTION: dict[type, str] = {staticmethod: "__func__", classmethod: "__func__", property: "fget"}


def is_nowhere(thing: Any) -> bool:
    """Whether a function or class cannot be imported."""
    return thing.__module__ in PROGRAMS or "<locals>" in thing.__qualname__


def refuse(subject: str, why: str, code: str) -> NoReturn:
    """Raise Bypass (``code``) for something that the program defines."""
    raise Bypass(
        f"{subject} is defined in the program itself, and {why}", "Move it to a module that can be imported", code=code
    )


class Source:
    """Collects the source of some functions and classes of the program, and of everything that they read.

    ``subject`` names what the source is for. ``subject`` and ``code`` appear in the error if the source is refused.
    ``module`` is the module of a subject that is defined inside a function. ``anew`` means that the subject is rebuilt
    for each compile. Only such a subject may use functions with closures, or classes of the program: if a compile
    changes their state, the next compile is not affected.
    """

    def __init__(self, subject: str, code: str, module: str = "", *, anew: bool = False) -> None:
        self.operators: list[custom_ops.CustomOpDef] = []  # operators of the program that the source calls
        self.modules: set[str] = set()  # modules for which the caller needs a digest
        self.imports: set[str] = set()  # modules of torch and of the standard library
        self.flags = 0  # flags for compile()
        self._subject, self._code, self._anew = subject, code, anew
        self._texts: dict[str, str] = {}
        self._classes: dict[str, type] = {}
        self._names: dict[int, str] = {}
        self._values: dict[str, object] = {}  # to detect a global and a closure variable of one name
        self._globals = vars(sys.modules[PROGRAMS[0] if not module or module in PROGRAMS else module])

    def text(self) -> str:
        """The source text.

        Classes come last, since Python runs their bodies at once. Base classes precede derived ones.
        """
        order = sorted(self._texts, key=lambda name: (len(getattr(self._classes.get(name), "__mro__", ())), name))
        return "\n".join(self._texts[name] for name in order)

    def refer(self, name: str, value: object, read: Sequence[str] = ()) -> None:
        """Make ``name`` stand for this value in the text. ``read``: the chain of attributes read from the value."""
        if self._values.setdefault(name, value) is not value:
            self._refuse(f"{name} has one value in a closure and a different value elsewhere")
        if isinstance(value, ModuleType):
            self._read_of_module(value, read)
            package, _, last = value.__name__.rpartition(".")
            self._texts[name] = f"from {package} import {last} as {name}" if package else f"import {last} as {name}"
        elif name in self._texts:
            return
        elif isinstance(value, custom_ops.CustomOpDef):
            self._operator(value)
            namespace, _, op = value._opoverload._schema.name.partition("::")
            self._texts[name] = f"{name} = lambda *given, **named: {OURS}torch.ops.{namespace}.{op}(*given, **named)"
        elif type(value) is FunctionType and value.__globals__ is self._globals:
            if self._names.setdefault(id(value), name) != name:  # a second name would create a second function
                self._refuse(f"{value.__qualname__} has two names, {name} and {self._names[id(value)]}")
            self._texts[name] = ""  # set before the recursion: a function may call itself, or its caller
            self._texts[name] = self._definition(name, value)
        elif isinstance(value, type) and self._has_no_name(value):
            if not self._anew:
                self._refuse(f"{name} is a class of the program")
            if name != value.__name__ or self._classes.setdefault(name, value) is not value:
                self._refuse(f"the class {value.__qualname__} has two names, or two classes have one")
            self._texts[name] = ""
            self._texts[name] = self._class(name, value)
        elif (text := as_source(value)) is not None:
            self._texts[name] = f"{name} = {text}"
        else:
            self._texts[name] = self._imported(name, value)

    def _definition(self, name: str, function: FunctionType) -> str:
        return self._unparsed(name, self._written(name, function, definition_of(function)))

    def _written(
        self, name: str, function: FunctionType, node: ast.FunctionDef | None, of: type | None = None
    ) -> ast.FunctionDef:
        """The definition of the function, under ``name``. ``of``: the class whose method the function is."""
        if function.__dict__:
            self._refuse(f"{function.__qualname__} has attributes: {', '.join(function.__dict__)}")
        if node is None:
            if any("@pytest_ar" in code.co_names for code in codes_within(function.__code__)):
                self._refuse(f"pytest has rewritten the assert statements of {function.__qualname__}")
            self._refuse(f"the source of {function.__qualname__} cannot be found")
        held = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        if of is not None and "__class__" in held and held.pop("__class__").cell_contents is not of:
            self._refuse(f"{function.__qualname__} is a method of another class")
        if held and not self._anew:
            self._refuse(f"{function.__qualname__} has a closure")
        node.name = name
        named = function.__kwdefaults__ or {}
        node.args.defaults = [self._default(value, function) for value in function.__defaults__ or ()]
        node.args.kw_defaults = [
            self._default(named[item.arg], function) if item.arg in named else None for item in node.args.kwonlyargs
        ]
        self.flags |= function.__code__.co_flags & FUTURES
        self._read_all(function, held)
        return node

    def _read_all(self, function: FunctionType, held: Mapping[str, types.CellType] = MappingProxyType({})) -> None:
        """Write out everything that the function reads. ``held``: the names and cells of its closure."""
        for code in codes_within(function.__code__):
            for opname, read, attributes in _reads(code):
                if opname.endswith("_DEREF"):
                    if read in held:
                        self._read_of_closure(function, opname, read, held[read], attributes)
                else:
                    self._read(function, opname, read, attributes)

    def _unparsed(self, name: str, node: ast.stmt) -> str:
        text = ast.unparse(ast.fix_missing_locations(node))
        if ast.dump(ast.parse(text).body[0]) != ast.dump(node):
            self._refuse(f"the source of {name} cannot be written out")
        return text

    def _read_of_closure(
        self, function: FunctionType, opname: str, name: str, cell: types.CellType, attributes: list[str]
    ) -> None:
        if opname != "LOAD_DEREF":
            self._refuse(f"{function.__qualname__} sets {name}, which is of its closure")
        if name.startswith(OURS) or name in vars(builtins):
            self._refuse(f"{function.__qualname__} has {name} in its closure")
        try:
            content = cell.cell_contents
        except ValueError:
            self._refuse(f"{name}, of the closure of {function.__qualname__}, is not set")
        self.refer(name, content, attributes)

    def _class(self, name: str, kind: type) -> str:
        """A class statement that creates an equivalent class."""
        registered = type(kind) is abc.ABCMeta and abc._get_dump(kind)[0]  # type: ignore[attr-defined]
        if type(kind) not in _METACLASSES or registered:
            self._refuse(f"the class {name} has a metaclass, or classes that are registered with it")
        bases = [self._base(base) for base in kind.__bases__]
        if any("__init_subclass__" in vars(base) for base in kind.__mro__ if base is not object):
            self._refuse(f"{name} has an __init_subclass__")
        (made,) = ast.parse(f"class {name}({', '.join(bases)}): pass").body
        assert isinstance(made, ast.ClassDef)
        body = [
            self._member(kind, attribute, value)
            for attribute, value in vars(kind).items()
            if attribute not in _NOT_OF_A_CLASS and not _is_a_slot(kind, attribute, value)
        ]
        made.body = body or made.body
        return self._unparsed(name, made)

    def _has_no_name(self, kind: type) -> bool:
        """Whether a class cannot be imported."""
        if kind.__module__ in PROGRAMS:
            return True
        return "<locals>" in kind.__qualname__ and vars(sys.modules.get(kind.__module__, types)) is self._globals

    def _base(self, base: type) -> str:
        if base is object:
            return "object"
        name = base.__name__
        if not self._has_no_name(base):
            name = f"{OURS}{base.__module__}_{name}".replace(".", "_")
        self.refer(name, base)
        return name

    def _member(self, kind: type, attribute: str, value: Any) -> ast.stmt:
        """The statement that defines one attribute in a class's body."""
        if isinstance(value, property) and (value.fset is not None or value.fdel is not None):
            self._refuse(f"{kind.__name__}.{attribute} can be set")
        held = _HOLD_A_FUNCTION.get(type(value))
        function = getattr(value, held) if held else value
        if type(function) is FunctionType and function.__globals__ is self._globals:
            name = function.__name__
            private = name.startswith("__") and not name.endswith("__")
            if attribute != (f"_{kind.__name__.lstrip('_')}{name}" if private else name):
                self._refuse(f"{kind.__name__}.{attribute} is a function of another name")
            node = self._written(name, function, method_of(function, kind.__name__), kind)
            node.decorator_list = [ast.Name(type(value).__name__, ast.Load())] if held else []
            return node
        text = None if held else as_source(tuple(value) if attribute == "__slots__" else value)
        if text is None and isinstance(value, BuiltinFunctionType):
            text = f"{OURS}{kind.__name__}_{attribute}"
            self.refer(text, value)
        if text is None:
            self._refuse(f"{kind.__name__}.{attribute} is a {type(value).__qualname__}")
        return ast.parse(f"{attribute} = {text}").body[0]

    def _read(self, function: FunctionType, opname: str, name: str, attributes: list[str]) -> None:
        if opname == "IMPORT_NAME":
            if not _is_standard(name) and name.partition(".")[0] != "torch":
                self._refuse(f"{function.__qualname__} imports {name or 'by a relative name'}")
            self.imports.add(name)
        elif opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            self._refuse(f"{function.__qualname__} sets the global {name}")
        elif name.startswith(OURS):
            self._refuse(f"{function.__qualname__} reads {name}")
        elif name in self._globals:
            self.refer(name, self._globals[name], attributes)
        elif opname == "LOAD_GLOBAL" and (name not in _BUILTINS or not _is_own(getattr(builtins, name))):
            self._refuse(f"{function.__qualname__} reads {name}")

    def _read_of_module(self, module: ModuleType, attributes: Sequence[str]) -> None:
        found: object = module
        for attribute in attributes:
            if not isinstance(found, ModuleType) or found is torch.ops:
                break
            self._import(found)
            found = getattr(found, attribute, None)
        if found is torch.ops:
            self._operator_at([] if module is torch.ops else attributes[attributes.index("ops") + 1 :])
        elif isinstance(found, ModuleType):
            self._import(found)
        elif getattr(found, "__module__", None) in PROGRAMS or (
            module.__name__ not in self.modules and type(found) is FunctionType and not _is_own(found)
        ):
            self._refuse(f"{'.'.join([module.__name__, *attributes])} is not code of that module")

    def _operator_at(self, path: Sequence[str]) -> None:
        name = "::".join(path[:2])
        if path[:1] and path[0] in _TORCHS_OPERATORS:
            return
        definition = custom_ops.OPDEFS.get(name)
        if definition is None:
            self._refuse(f"reads torch.ops{''.join('.' + part for part in path)}")
        self._operator(definition)

    def _operator(self, definition: custom_ops.CustomOpDef) -> None:
        if definition._init_fn.__module__ not in PROGRAMS:
            self._refuse(f"calls {definition._opoverload._schema.name}, a custom op of another module")
        self.operators.append(definition)

    def _imported(self, name: str, value: object) -> str:
        """The import statement for a function or class."""
        module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        short = getattr(value, "__name__", None)
        # The __module__ of some functions (torch.empty_like) is wrong.
        if short and getattr(torch, short, None) is value:
            module, qualname = "torch", short
        if not module or not qualname or module in PROGRAMS or object_at(module, qualname) is not value:
            self._refuse(f"{name.removeprefix(OURS)} is a {type(value).__qualname__}")
        self._import(sys.modules[module])
        first, _, rest = qualname.partition(".")
        imported = f"from {module} import {first} as {name}"
        return f"{imported}\n{name} = {name}.{rest}" if rest else imported

    def _import(self, module: ModuleType) -> None:
        name = module.__name__
        if sys.modules.get(name) is not module or name in PROGRAMS:
            self._refuse(f"{name} is a module that cannot be imported")
        if _is_standard(name) or is_really_torchs(getattr(module, "__file__", None) or ""):
            self.imports.add(name)
        elif name.partition(".")[0] in sys.stdlib_module_names:
            self._refuse(f"reads the module {name}")  # the module has state, or a user's file hides it
        else:
            self.modules.add(name)

    def _default(self, value: object, function: FunctionType) -> ast.expr:
        text = as_source(value)
        if text is None:
            self._refuse(f"{function.__qualname__} has a default of type {type(value).__qualname__}")
        return ast.parse(text, mode="eval").body

    def _refuse(self, why: str) -> NoReturn:
        refuse(self._subject, why, self._code)


def _is_standard(name: str) -> bool:
    """Whether a module is a stateless module of the standard library, and not a user's file of the same name."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return name in _STANDARD and (file is None or os.path.realpath(file).startswith(_STANDARD_FOLDER))


def _is_own(value: object) -> bool:
    """Whether a callable is defined in torch, in the standard library or in C.

    False for a function that replaces such a callable.
    """
    if isinstance(value, FunctionType):
        file = os.path.realpath(value.__code__.co_filename)
        return is_really_torchs(file) or (file.startswith(_STANDARD_FOLDER) and "-packages" not in file)
    return (
        isinstance(value, BuiltinFunctionType)
        or value is NotImplemented
        or (isinstance(value, type) and value.__module__.partition(".")[0] in ("builtins", "torch", *_STANDARD))
    )


def as_source(value: object) -> str | None:
    """An expression for an immutable value; None for other values."""
    if isinstance(value, torch.dtype):
        return f"{OURS}{value!r}"
    if isinstance(value, torch.device):
        return f"{OURS}torch.{value!r}"
    if not _is_plain(value):
        return None
    text = repr(value)
    try:
        again = ast.literal_eval(text)
    except (ValueError, SyntaxError):  # infinities have no literal
        return None
    return text if repr(again) == text else None


def _is_a_slot(kind: type, name: str, value: object) -> bool:
    """Whether an attribute is a descriptor that ``__slots__`` created."""
    slots = vars(kind).get("__slots__", ())
    return isinstance(value, types.MemberDescriptorType) and name in slots and value.__objclass__ is kind


def _is_plain(value: object) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(_is_plain(item) for item in value))


def _reads(code: CodeType) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the instructions that import a module, or that read, set or delete a variable that is not local.

    Each item contains the opcode, the name of the module or variable, and the attributes that the code reads from it.
    For example, ``a.b.c`` with a global ``a`` gives ("LOAD_GLOBAL", "a", ["b", "c"]).
    """
    instructions = list(dis.get_instructions(code))
    for position, instruction in enumerate(instructions):
        if instruction.opname in _READING:
            attributes = []
            for following in instructions[position + 1 :]:
                if following.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                    break
                attributes.append(following.argval)
            yield instruction.opname, instruction.argval, attributes
