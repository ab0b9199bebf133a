"""Detects the program's functions that Dynamo runs during a trace instead of tracing them.

Dynamo computes some values in Python: ``f"{MODE.FAST}"`` runs the enum's ``__format__``, and ``SCALES + 1`` runs a
metaclass's ``__add__``. Reads in such a function have no guard. So this file notes each call of a function of the
program during a trace (``NativeCall``). native_reads.py describes what the function read, or refuses the trace.

How this file notes calls:

- CPython 3.12 and newer report calls through ``sys.monitoring``, which costs nothing for code objects that are switched
  off. So this file watches the whole trace.
- Older versions have only ``sys.setprofile``, which makes a trace slow (docs/decisions/0057). So this file watches a
  trace only after the trace has read a value for which Dynamo may call a function of the program (``meets``).

Calls that this file ignores:

- Calls whose result does not affect the trace (_INCIDENTAL). For example, Dynamo hashes values for its tables.
- Calls that an operator or an import makes (_BELOW). Artifacts' keys and requirements cover these calls.
- Calls in methods of tensor subclasses (_OF_SUBCLASSES), and lookups of names that begin with "_" (``_is_a_look``).
- Calls in guards or in the compile (``paused``).

Private names: torch._dynamo.utils.hashable, torch._dynamo.variables.builder.VariableBuilder.wrap_module,
torch._dynamo.variables.user_defined.UserDefinedClassVariable.is_supported_random, torch.utils._pytree. Checked on
2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import logging
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch.utils._pytree as pytree

from precompiled.core import files, interruptions, looks
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.describe.kinds import INSTALLATION

log = logging.getLogger("precompiled.package")

# Packages whose functions Dynamo calls for its own purposes. These functions read nothing of the program.
_DYNAMOS = frozenset(
    {
        *INSTALLATION,
        "precompiled",
        "torchgen",
        "functorch",
        "sympy",
        "mpmath",
        "numpy",
        "networkx",
        "optree",
        "packaging",
        "triton",
        "pytest",
        "_pytest",
        "hypothesis",
    }
)
# Functions of torch that call the program's functions but ignore the results: (end of the file's name, function or None
# for all).
_INCIDENTAL = (
    ("torch/_dynamo/trace_rules.py", None),
    ("torch/_dynamo/utils.py", "hashable"),
    ("torch/_dynamo/variables/builder.py", "wrap_module"),
    ("torch/_dynamo/variables/lazy.py", "__init__"),
    ("torch/_dynamo/variables/user_defined.py", "is_supported_random"),
    ("torch/nn/modules/module.py", "named_modules"),
    ("torch/nn/modules/module.py", "_named_members"),
)
_BELOW = ("torch/_library/", "torch/_ops.py", "torch/library.py", "torch/_subclasses/", "<frozen importlib.")
_CODE_OF_AN_EVAL = "<module>"  # the name of the code of an eval() or an import
_OF_SUBCLASSES = ("__torch_dispatch__", "__torch_function__", "__tensor_flatten__", "__tensor_unflatten__", "__del__")
_ASKED_FOR_A_NAME = ("__getattr__", "__getattribute__")
# Functions that Dynamo calls on an instance of a class of the program. The result affects the trace.
_OF_INSTANCES = ("__class__", "__class_getitem__")
_MAKES_A_CLASS = frozenset({"__new__", "__init__", "__prepare__", "__init_subclass__", "mro"})
_MODULE_OF = type.__dict__["__module__"].__get__  # a metaclass may define another ``__module__``
_FUNCTIONS = (types.FunctionType, staticmethod, classmethod, property)

FROM_THE_BEGINNING = sys.version_info >= (3, 12)


@dataclass(frozen=True)
class NativeCall:
    """An untraced call of a function of the program. ``arguments`` include the values of the closure.

    ``by_pytree``: pytree may call the function. The description of the class covers the function's code.
    """

    code: types.CodeType
    scope: dict[str, Any]
    arguments: tuple[object, ...]
    by_pytree: bool = False


@dataclass
class NativeCalls:
    """The calls in one trace. ``problem`` says why calls may be missing."""

    calls: list[NativeCall] = field(default_factory=list)
    problem: NotPortable | None = None


class _Watch(threading.local):
    """The trace that this thread watches."""

    noticed: NativeCalls | None = None
    pauses: int = 0
    tool: int | None = None


_watch = _Watch()


@contextlib.contextmanager
def watching() -> Iterator[NativeCalls]:
    """Collect the calls of the trace in this block. A collected call may hold objects of the user's program."""
    _watch.noticed, _watch.pauses = NativeCalls(), 0
    try:
        if FROM_THE_BEGINNING:
            _begin(_watch.noticed)
        yield _watch.noticed
    finally:
        _watch.noticed = None
        _end_contained()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Ignore the calls in this block, because they do not affect the trace."""
    _watch.pauses += 1
    try:
        yield
    finally:
        _watch.pauses -= 1


def meets(value: Any) -> None:
    """The trace has read ``value``. If Dynamo may call functions of the value's class, begin to watch the trace."""
    noticed = _watch.noticed
    if noticed is None or FROM_THE_BEGINNING or _is_profiled():
        return
    is_class = issubclass(type(value), type)  # isinstance would read a ``__class__`` property
    if is_class and not _has_functions(value) and (calls := _calls_by_pytree(value)) is not None:
        # Profiling would slow down each trace of a HuggingFace model, because the model's outputs are of a registered
        # class. The trace itself creates the values of the class, so only the functions' globals may change.
        noticed.calls += calls
        return
    if _may_be_called(value):
        _begin(noticed)


# ---------------------------------------------------------------------- what may be called


def _may_be_called(value: Any) -> bool:
    kind = type(value)
    if kind is types.ModuleType:
        return "__getattr__" in vars(value) and not _is_dynamos(value.__name__)
    named: Any = value if issubclass(kind, type) else kind
    return _has_functions(named) or _is_flattened_by_the_program(named)


def _has_functions(kind: type) -> bool:
    """Whether Dynamo may call functions that this class or its metaclass defines."""
    meta = type(kind)
    if any(name not in _MAKES_A_CLASS for name in _functions_of(meta)):
        return True
    if issubclass(meta, enum.EnumMeta) or any(base in kind.__mro__ for base in (str, bytes, int, float, complex)):
        return any(True for _name in _functions_of(kind))
    return any(name in _OF_INSTANCES for name in _functions_of(kind))


def _is_flattened_by_the_program(kind: type) -> bool:
    """Whether a function of the program flattens values of this class (torch.utils._pytree)."""
    return kind in pytree.SUPPORTED_NODES and not _is_dynamos(pytree.SUPPORTED_NODES[kind].flatten_fn.__module__)


def _calls_by_pytree(kind: type) -> list[NativeCall] | None:
    """Calls of the functions that flatten and unflatten values of this class. The values are not among the arguments.

    None if an edit of the program could change such a function, because no installed library contains the function.
    """
    calls: list[NativeCall] = []
    if not _is_flattened_by_the_program(kind):
        return calls
    node = pytree.SUPPORTED_NODES[kind]
    for registered in (node.flatten_fn, node.unflatten_fn):
        function: object = registered
        while isinstance(function, functools.partial):
            function = function.func
        if not isinstance(function, types.FunctionType) or not _installed_name(function.__code__.co_filename):
            return None
        cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
        calls.append(NativeCall(function.__code__, function.__globals__, cells, by_pytree=True))
    return calls


def _functions_of(kind: type) -> Iterator[str]:
    """The names of methods (also static ones) and properties of a class and its bases.

    Skips bases from modules in _DYNAMOS.
    """
    for base in type.mro(kind) if kind is not type else ():
        if not _is_dynamos(_MODULE_OF(base)):
            for name, member in looks.namespace_of(base).items():
                if isinstance(member, _FUNCTIONS):
                    yield name


def _is_dynamos(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _DYNAMOS


# ---------------------------------------------------------------------- noticing


def _note(frame: types.FrameType) -> None:
    """Record a function call. Never raises, because this runs in the middle of the user's program."""
    noticed, code = _watch.noticed, frame.f_code
    if noticed is None or _watch.pauses or _is_ours(code.co_filename, frame.f_globals):
        return
    try:
        if not _counts(frame):
            return
        values = frame.f_locals
        # + 2: the names of *args and **kwargs follow, if the function has them
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]
        arguments = [values[name] for name in (*names, *code.co_freevars) if name in values]
        noticed.calls.append(NativeCall(code, frame.f_globals, tuple(arguments)))
    except BaseException as error:  # noqa: BLE001 - the user's objects may raise anything
        interruptions.pass_on(error)
        said = f"a call of {code.co_name} cannot be inspected: {type(error).__name__}"
        noticed.problem = NotPortable(said, code="package-native-call")


def _counts(frame: types.FrameType) -> bool:
    """Whether a call may affect the trace."""
    if frame.f_code.co_name == _CODE_OF_AN_EVAL:
        return False
    caller: types.FrameType | None = frame
    among_the_programs = True
    while caller is not None:
        file, function = caller.f_code.co_filename, caller.f_code.co_name
        if among_the_programs and not _is_ours(file, caller.f_globals):
            if function in _OF_SUBCLASSES or _is_a_look(caller):
                return False
        elif among_the_programs:  # this frame called the program's outermost function
            among_the_programs = False
            if files.is_ours(file) or any(
                file.endswith(end) and function == (of or function) for end, of in _INCIDENTAL
            ):
                return False
        if any(part in file for part in _BELOW) or function in _OF_SUBCLASSES:
            return False
        caller = caller.f_back if not files.is_ours(file) else None  # the trace began in a frame of ours
    return True


def _is_a_look(frame: types.FrameType) -> bool:
    """Whether Dynamo reads a special attribute (``__class__``), or a mark that Dynamo sets, from an object."""
    if frame.f_code.co_name not in _ASKED_FOR_A_NAME or frame.f_code.co_argcount != 2:
        return False
    asked = frame.f_locals.get(frame.f_code.co_varnames[1])
    return type(asked) is str and asked.startswith("_")


_files: dict[str, bool] = {}


def _is_ours(file: str, scope: Mapping[str, object]) -> bool:
    """Whether code belongs to torch, Python, precompiled, or a library that Dynamo itself uses."""
    known = _files.get(file)
    if known is None:
        if file.startswith("<") and not file.startswith("<frozen "):  # a dataclass's __init__, a namedtuple's __new__
            name = scope.get("__name__")
            return _is_dynamos(name) or (isinstance(name, str) and name.startswith("namedtuple_"))
        known = _files[file] = (
            files.is_torchs(file)
            or files.is_standard(file)
            or files.is_ours(file)
            or file.startswith("<frozen ")
            or _is_dynamos(_installed_name(file))
        )
    return known


def _installed_name(file: str) -> str:
    """The first part of an installed module's name; "" for other files."""
    for folder in ("/site-packages/", "/dist-packages/"):
        _before, found, name = file.rpartition(folder)
        if found:
            return name.partition("/")[0].removesuffix(".py")
    return ""


# ---------------------------------------------------------------------- how Python reports calls


def _profile(frame: types.FrameType, event: str, _argument: object) -> None:
    if event == "call":
        _note(frame)


def _is_profiled() -> bool:
    return sys.getprofile() is _profile


def _begin(noticed: NativeCalls) -> None:
    try:
        _report_calls(noticed)
    except BaseException as error:  # noqa: BLE001 - a trace must not fail because of our error
        interruptions.pass_on(error)
        noticed.problem = _unnoticed(f"{type(error).__name__}: {error}")


def _end_contained() -> None:
    try:
        _end()
    except BaseException as error:
        interruptions.pass_on(error)
        log.warning("packages: recording of calls continues, because it could not be stopped", exc_info=True)


def _report_calls(noticed: NativeCalls) -> None:
    if sys.version_info >= (3, 12):
        _watch.tool = _monitor()
        if _watch.tool is None:
            noticed.problem = _unnoticed("no tool of sys.monitoring is free")
    elif sys.getprofile() is None:
        sys.setprofile(_profile)
    else:
        noticed.problem = _unnoticed("a profiler runs")


def _unnoticed(why: str) -> NotPortable:
    return NotPortable(
        f"{why}, so calls of the program's functions cannot be recorded",
        "Run once without a profiler or debugger",
        code="package-profiler",
    )


def _end() -> None:
    if sys.version_info >= (3, 12):
        if _watch.tool is not None:
            sys.monitoring.set_events(_watch.tool, 0)
            sys.monitoring.free_tool_id(_watch.tool)
            _watch.tool = None
    elif _is_profiled():
        sys.setprofile(None)


if sys.version_info >= (3, 12):

    def _monitor() -> int | None:
        """Report calls by a tool of sys.monitoring, if a tool id is free."""
        monitoring = sys.monitoring
        for tool in (4, 3):  # ids that are not reserved for a kind of tool
            if monitoring.get_tool(tool) is None:
                monitoring.use_tool_id(tool, "precompiled")
                monitoring.register_callback(tool, monitoring.events.PY_START, _started)
                monitoring.set_events(tool, monitoring.events.PY_START)
                monitoring.restart_events()
                return tool
        return None

    def _started(code: types.CodeType, _offset: int) -> object:
        """Python reports calls in any thread to this function. In a thread without a trace, ignore the calls."""
        if not code.co_filename.startswith("<") and _is_ours(code.co_filename, {}):
            return sys.monitoring.DISABLE
        if _watch.noticed is not None:
            _note(sys._getframe(1))
        return None
