"""Custom operators of Python modules: which module defines one, and a digest of its sources.

A worker imports the module that defines an operator. Compiled code depends on its fake kernel and its backward, which
can change under an unchanged graph (pytorch#144344, #160472): the sources' digest is in the key, and in the worker's
wire.Interpreter, so that a worker which has imported an older source never gets the graph.

Private names: torch._library.custom_ops.OPDEFS, torch._library.custom_ops.CustomOpDef.{_init_fn, _abstract_fn,
_setup_context_fn, _backward_fn, _backend_fns}, torch._library.simple_registry.singleton.find,
torch._ops.OpOverload.{_schema, _overloadname}, torch._C._dispatch_has_kernel_for_dispatch_key.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

import torch
from torch._library import custom_ops, simple_registry

from precompiled.core.errors import Bypass
from precompiled.torch_internals import program_classes, program_kernels, program_ops, program_source
from precompiled.torch_internals.user_modules import import_modules, modules_digest

# Where a compile looks for what an operator does. One of them may be registered by a module of which nobody knows.
_DISPATCH_KEYS = (
    "CompositeImplicitAutograd", "CompositeExplicitAutograd", "Autograd", "AutogradCPU", "AutogradCUDA",
    "ADInplaceOrView", "AutocastCPU", "AutocastCUDA", "FuncTorchBatched", "Functionalize", "Meta", "CPU", "CUDA",
)  # fmt: skip


def kernels(op: torch._ops.OpOverload) -> str:
    """The dispatch keys that have a kernel of this operator. A worker refuses an operator that has others there."""
    name = f"{op._schema.name}.{op._schema.overload_name}".removesuffix(".")
    return " ".join(key for key in _DISPATCH_KEYS if torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def defining_modules(op: torch._ops.OpOverload) -> list[str]:
    """The modules that define an operator (a,b), and the digest of their sources. Raises Bypass where there are none.

    Of an operator that the program itself defines: what it imports, the digest of that, and the operator's source.
    """
    name = op._schema.name
    functions = _functions(name, op._overloadname)
    # torch wraps some functions; the wrapped ones are among them, too.
    # A method in C has no module (``register_fake(torch.Tensor.clone)``): it defines nothing.
    named = {module for f in functions if (module := getattr(f, "__module__", None)) is not None}
    modules = sorted(module for module in named if not module.startswith("torch."))
    own = _definition(name, op._overloadname)
    if not modules and own is not None:  # one of torch's own, such as torch_nn::_linear_cross_entropy_batch_chunked
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


def compare(modules: Mapping[str, str]) -> None:
    """In the program: raises ValueError, or what an import raises, where modules or operators are others than those.

    ``modules``: digests by modules (a,b), and by operators of the program itself (lib::name).
    """
    for name, digest in modules.items():
        if name.startswith(program_classes.PREFIX):
            continue  # its caller asks for the class itself: program_classes.find
        if name.startswith(program_kernels.PREFIX):
            program_kernels.compare(name, digest)
        elif "::" in name:
            program_ops.compare(name, digest)
        else:
            import_modules(name, digest)


def _definition(name: str, overload: str) -> custom_ops.CustomOpDef | None:
    return custom_ops.OPDEFS.get(name) or custom_ops.OPDEFS.get(f"{name}.{overload}")


def _functions(name: str, overload: str) -> Iterator[Callable[..., Any]]:
    """The Python functions that are registered for an operator, as far as they can be found."""
    definition = _definition(name, overload)
    if definition is not None:
        yield definition._init_fn
        for found in (definition._abstract_fn, definition._setup_context_fn, definition._backward_fn):
            if found is not None:
                yield found
        yield from definition._backend_fns.values()
    for qualified in {name, f"{name}.{overload}"}:
        kernel = simple_registry.singleton.find(qualified).fake_impl.kernel  # 2.11 has no get
        if kernel is not None:
            yield from _with_what_it_wraps(kernel.func)


def _with_what_it_wraps(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """A fake of torch.library.register_fake lies in the closure of torch's (``_check_pystubs_once``)."""
    yield function
    if getattr(function, "__module__", None) == "torch.library":
        for cell in getattr(function, "__closure__", None) or ():
            if isinstance(cell.cell_contents, FunctionType):
                yield cell.cell_contents
