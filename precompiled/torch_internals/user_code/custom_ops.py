"""Finds the modules and libraries that define a custom operator, for a worker to load, and computes their digest.

A worker imports the modules and loads the libraries that define an operator. Compiled code depends on the operator's
fake kernel and backward, which can change although the graph does not (pytorch#144344, #160472). Therefore the digest
of the sources and libraries is in the key. The digest is also in the worker's wire.Interpreter, so a worker that has
loaded an older version never gets the graph.

Private names: torch._library.custom_ops.OPDEFS, torch._library.custom_ops.CustomOpDef.{_init_fn, _abstract_fn,
_setup_context_fn, _backward_fn, _backend_fns}, torch._library.simple_registry.singleton.find,
torch._ops.OpOverload.{_schema, _overloadname, py_kernels}, torch._C._dispatch_has_kernel_for_dispatch_key,
torch._library.utils.Kernel.source, torch._inductor.lowering.{lowerings, user_lowerings (2.13, 2.15)},
torch._inductor.decomposition.decompositions. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, NoReturn

import torch
from torch._library import custom_ops, simple_registry

from precompiled.core.errors import Bypass
from precompiled.core.files import is_really_torchs
from precompiled.torch_internals.user_code import (
    dispatcher_registrations,
    program_classes,
    program_kernels,
    program_ops,
    program_source,
    schema_ops,
    shared_libraries,
    source_units,
)
from precompiled.torch_internals.user_code.user_modules import import_modules, modules_digest, name_of_library

# The dispatch keys under which a compile looks for an operator's behavior. A module that this file cannot find may have
# registered a kernel under any of these keys. A graph's key lists an operator's dispatch keys in this order.
_DISPATCH_KEYS = tuple(
    """
    CompositeImplicitAutograd CompositeExplicitAutograd Autograd AutogradCPU AutogradCUDA ADInplaceOrView AutocastCPU
    AutocastCUDA FuncTorchBatched Functionalize Meta CPU CUDA
    """.split()
)


# A kernel under one of these keys runs only in the client, when compiled code calls the operator. So a worker does not
# need the kernel's module.
_ONLY_RUN = ("CPU", "CUDA")


def kernels(op: torch._ops.OpOverload) -> str:
    """The dispatch keys for which this operator has a kernel. A worker refuses the operator if the worker's keys
    differ.
    """
    name = _qualified(op)
    return " ".join(key for key in _DISPATCH_KEYS if torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def _qualified(op: torch._ops.OpOverload) -> str:
    return f"{op._schema.name}.{op._schema.overload_name}".removesuffix(".")


def defining_modules(op: torch._ops.OpOverload) -> list[str]:
    """Return what a worker needs to define an operator, as a list of texts.

    - ``["a,b", digest]``: the modules and libraries that define the operator, and their digest.
    - ``["a,b", digest, JSON]``: the program itself defines the operator. ``define`` takes the JSON. The source in the
      JSON imports the modules.
    - ``["", "", JSON]``: the schema describes the operator completely.

    Raises Bypass if the definition is unknown.
    """
    name = op._schema.name
    if op in getattr(sys.modules.get("torch._inductor.lowering"), "user_lowerings", {}):
        raise Bypass(f"{name} is autotuned here (register_custom_op_autotuning)", code="custom-op")
    # ``_functions`` also yields the functions that torch wraps. A method in C (``register_fake(torch.Tensor.clone)``)
    # has no module and defines nothing.
    named = {module for f in _functions(op) if (module := getattr(f, "__module__", None)) is not None}
    modules = sorted({module for module in named if not module.startswith("torch.")} | _by_fake(op))
    own = _definition(op)
    if not modules and own is None and (unit := schema_ops.describe(op)) is not None:
        return ["", "", unit]
    modules = sorted({*modules, *_by_registrations(op)})
    # Torch itself defines the operator (torch_nn::_linear_cross_entropy_batch_chunked, for example).
    if not modules and own is not None:
        modules = [own._init_fn.__module__]
    if not modules:
        raise Bypass(f"the custom op {name} has no Python definition that a worker could import", code="custom-op")
    of_the_program = [module in program_source.PROGRAMS for module in modules]
    if any(of_the_program):
        if own is None or not all(of_the_program):
            program_ops.refuse(name, "not all of it by torch.library.custom_op")
        source, imported = program_ops.describe(own)
        return [",".join(imported), modules_digest(imported) if imported else "", source]
    return [",".join(modules), modules_digest(modules)]


def _by_fake(op: torch._ops.OpOverload) -> set[str]:
    """The module that registered the fake kernel. The kernel itself may come from another module, or from C."""
    kernel = simple_registry.singleton.find(_qualified(op)).fake_impl.kernel
    # Torch itself registers the fake kernel of a ``torch.library.custom_op``.
    if kernel is None or _definition(op) is not None:
        return set()
    module = _module_of(kernel.source.rpartition(":")[0])
    return {module} if module is not None else set()


def _by_registrations(op: torch._ops.OpOverload) -> set[str]:
    """The libraries that register an operator.

    If there are any, also returns the modules that register kernels for the operator. Raises Bypass if the source of a
    registration is unknown.
    """
    places = dispatcher_registrations.of(_qualified(op))
    in_python = [place for place in places if place.file.endswith(".py") or place.file.startswith("<")]
    found: set[str] = set()
    for file in {place.file for place in places if place not in in_python}:
        owners = shared_libraries.registering(file) if file else []
        if not owners:
            _refuse(op, f"the library that registered it at {file or 'an unknown place'} cannot be determined")
        found |= {name_of_library(path) for path in owners}
    for place in in_python if found else ():
        if place.key not in _ONLY_RUN and not _is_known(op, place):
            module = _module_of(place.file)
            if module is None:
                _refuse(op, f"the code that registers {place.key} for it at {place.file} cannot be determined")
            found.add(module)
    return found


def _is_known(op: torch._ops.OpOverload, place: dispatcher_registrations.DispatcherEntry) -> bool:
    """Whether ``_functions`` already yields the function that Python code registered at this place."""
    if _definition(op) is not None and is_really_torchs(place.file):
        return True
    if place.key.startswith("Autograd"):
        return any(True for _ in dispatcher_registrations.backwards(op))
    return place.key == "Meta" and simple_registry.singleton.find(_qualified(op)).fake_impl.kernel is not None


def _module_of(file: str) -> str | None:
    """Return the module that was loaded from a source file; None for torch's own files and for unknown files."""
    if not is_really_torchs(file):
        for name, module in list(sys.modules.items()):
            if getattr(module, "__file__", None) == file:
                return name
    return None


def _refuse(op: torch._ops.OpOverload, why: str) -> NoReturn:
    raise Bypass(f"the custom op {_qualified(op)} is in a library, and {why}", code="custom-op")


def define(units: str) -> None:
    """In a worker, define the operators in the JSON of ``defining_modules``. In the user's process, compare the
    operators with the JSON.

    Raises ValueError if an operator of the same name differs.
    """
    for unit in json.loads(units):
        _kind(unit).define(unit)


def digests(units: str) -> dict[str, str]:
    """Map the name of each operator in the JSON of ``defining_modules`` to its digest."""
    return {unit["op"]: source_units.digest(unit) for unit in json.loads(units)}


def _kind(unit: Mapping[str, object]) -> Any:
    return schema_ops if schema_ops.is_unit(unit) else program_ops


def is_made_of_source(name: str) -> bool:
    """Whether this name denotes a class or kernel whose source is sent with the graph."""
    return name.startswith((program_classes.PREFIX, program_kernels.PREFIX))


def load(modules: Mapping[str, str]) -> None:
    """In a worker, import the modules and load the libraries in ``modules``, which maps their names to digests.

    Load everything that a graph needs before defining any of its operators, because one of these modules may define
    such an operator. Raises ValueError if a digest differs. Also raises any exception of an import.
    """
    for name, digest in modules.items():
        if "::" not in name and not is_made_of_source(name):
            import_modules(name, digest)


def compare(modules: Mapping[str, str]) -> None:
    """In the user's process, check that modules and operators have these digests.

    ``modules`` maps names to digests: the names of modules (``a,b``), and of operators that were encoded as JSON
    (``lib::name``). Raises ValueError if one differs. Also raises any exception of an import.
    """
    load(modules)
    for name, digest in modules.items():
        if name.startswith(program_classes.PREFIX):
            continue  # the caller itself looks up a class (program_classes.find)
        if name.startswith(program_kernels.PREFIX):
            program_kernels.compare(name, digest)
        elif "::" in name:
            (program_ops if name in custom_ops.OPDEFS else schema_ops).compare(name, digest)


def _definition(op: torch._ops.OpOverload) -> custom_ops.CustomOpDef | None:
    name = op._schema.name
    return custom_ops.OPDEFS.get(name) or custom_ops.OPDEFS.get(f"{name}.{op._overloadname}")


def _functions(op: torch._ops.OpOverload) -> Iterator[Callable[..., object]]:
    """The Python functions that are registered for an operator, as far as they can be found."""
    definition = _definition(op)
    if definition is not None:
        yield definition._init_fn
        for found in (definition._abstract_fn, definition._setup_context_fn, definition._backward_fn):
            if found is not None:
                yield found
        yield from definition._backend_fns.values()
    for qualified in {op._schema.name, f"{op._schema.name}.{op._overloadname}"}:
        kernel = simple_registry.singleton.find(qualified).fake_impl.kernel  # torch 2.11 has no get()
        if kernel is not None:
            yield from _with_what_it_wraps(kernel.func)
    yield from dispatcher_registrations.backwards(op)
    yield from op.py_kernels.values()
    for module, table in (("lowering", "lowerings"), ("decomposition", "decompositions")):
        # Until Inductor's module is imported, the table counts as empty.
        rule = getattr(sys.modules.get(f"torch._inductor.{module}"), table, {}).get(op)
        if rule is not None:
            yield rule


def _with_what_it_wraps(function: Callable[..., object]) -> Iterator[Callable[..., object]]:
    """Yield the function, and the functions in its closure if the function is torch's own.

    The fake kernel that a program passes to torch.library.register_fake is in the closure of a function of torch
    (``_check_pystubs_once``).
    """
    yield function
    if getattr(function, "__module__", None) == "torch.library":
        for cell in getattr(function, "__closure__", None) or ():
            if isinstance(cell.cell_contents, FunctionType):
                yield cell.cell_contents
