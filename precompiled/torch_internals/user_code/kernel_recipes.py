"""Describes the compile of a user's Triton kernel as plain data (a *recipe*), and repeats the compile in a worker.

::

    {"kernel": [module, qualified name, digest of its sources],    or for a kernel that cannot be imported
     "kernel": unit, "lines": {"added": 12},                       its source (program_kernels.py), and first lines
     "key": Triton's cache key of the function, "triton": "3.6.0",
     "signature": [...], "constants": [...], "attributes": [...],  the arguments of ASTSource
     "options": [...]}                                             those that differ from the GPU's defaults

Triton's cache key of a function contains the line number at which the function starts. So a worker restores the line
numbers. If the key differs nevertheless, the worker refuses the recipe, because the program would not find the kernel.

Private names: triton.runtime.jit.JITFunction.{cache_key, fn, hash, starting_line_number},
triton.compiler.compiler.ASTSource.{attrs, constants, fn, signature}, triton.compiler.compiler.{compile, make_backend},
triton.runtime.driver.active.get_current_target.
Checked on 2.11.0, 2.15.0 with the Triton that they require, and on 2.13.0 with Triton 3.7.0.
"""

from __future__ import annotations

import ast
import json
from typing import Any

from precompiled.core.errors import Bypass
from precompiled.torch_internals.user_code import program_kernels, user_modules
from precompiled.torch_internals.user_code.program_source import PROGRAMS

CODE = "user-kernel"
Recipe = dict[str, Any]


def describe(source: Any, options: Any, backend: Any) -> Recipe:
    """The recipe of a compile (an ASTSource, with the options of Triton's ``backend``). Raises Bypass."""
    import triton

    defaults = vars(backend.parse_options({}))
    changed = {name: value for name, value in vars(options).items() if name not in defaults or defaults[name] != value}
    return {
        **_describe_function(source.fn),
        "key": source.fn.cache_key,
        "triton": triton.__version__,
        "signature": _encode(list(source.signature.items())),
        "constants": _encode(list(source.constants.items())),
        "attributes": _encode(list(source.attrs.items())),
        "options": _encode(list(changed.items())),
    }


def _describe_function(function: Any) -> Recipe:
    module, name = function.__module__, function.__name__
    if module not in PROGRAMS and program_kernels.is_in_module(function):
        return {"kernel": [module, name, user_modules.modules_digest([module], code=CODE)]}
    unit = program_kernels.describe(function)
    space = function.fn.__globals__
    lines = {name: program_kernels.innermost(space[name]).starting_line_number for name in _kernels(unit)}
    return {"kernel": unit, "lines": lines}


def modules_of(recipe: Recipe) -> dict[str, str]:
    """Return everything that a worker needs for the kernel, as names mapped to digests."""
    kernel = recipe["kernel"]
    return program_kernels.modules_of(kernel) if isinstance(kernel, str) else {kernel[0]: kernel[2]}


def compile_kernel(recipe: Recipe) -> None:
    """Compile a kernel for this process's GPU, through Triton's cache.

    Raises ValueError, ImportError or AttributeError if the kernel differs in this process. Also raises the compile's
    error.
    """
    import triton
    from triton.compiler import ASTSource
    from triton.runtime import driver

    function = _create_function(recipe)
    if recipe["triton"] == triton.__version__ and function.cache_key != recipe["key"]:
        raise ValueError(f"the kernel {function.__name__} differs from the one that the program compiled")
    signature, constants, attributes, options = (
        dict(_decode(recipe[name])) for name in ("signature", "constants", "attributes", "options")
    )
    source = ASTSource(function, signature, constants, attributes)
    triton.compile(source, target=driver.active.get_current_target(), options=options)


def _create_function(recipe: Recipe) -> Any:
    kernel = recipe["kernel"]
    if not isinstance(kernel, str):
        return program_kernels.innermost(user_modules.find(kernel))
    # Bypass the cache of ``create_kernel``, because graphs use the cached kernels with different line numbers.
    function = program_kernels.create_kernel.__wrapped__(kernel)
    for name, line in recipe["lines"].items():
        part = function.fn.__globals__[name]
        part.starting_line_number, part.hash = line, None
    return function


def _kernels(unit: str) -> list[str]:
    """The names of the kernels that a unit defines."""
    return [node.name for node in ast.parse(json.loads(unit)["source"]).body if isinstance(node, ast.FunctionDef)]


def _encode(value: Any) -> object:
    """``value`` as JSON.

    Lists and tuples are encoded differently, because Triton's cache key contains the text of the values.
    """
    if value is None or type(value) in (bool, int, str) or (type(value) is float and value - value == 0):
        return value
    if type(value) in (list, tuple):
        return {type(value).__name__: [_encode(item) for item in value]}
    if type(value).__module__.startswith("triton.language") and type(value).__name__ in ("dtype", "constexpr"):
        return {type(value).__name__: value.name if type(value).__name__ == "dtype" else _encode(value.value)}
    raise Bypass(f"a Triton kernel is compiled with a value of type {type(value).__qualname__}", code=CODE)


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind in ("list", "tuple"):
        items = [_decode(item) for item in content]
        return items if kind == "list" else tuple(items)
    from triton.language import core

    return core.dtype(content) if kind == "dtype" else core.constexpr(_decode(content))
