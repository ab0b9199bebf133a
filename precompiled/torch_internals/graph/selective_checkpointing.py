"""Encodes the function that decides what a selective activation checkpoint keeps, so that a worker can rebuild it.

``torch.utils.checkpoint.checkpoint(..., context_fn=...)`` names a function that returns two context managers.
AOTAutograd runs ``context_fn`` during its trace, to mark the values that the backward recomputes. Known forms, as plain
data:

    ["ops", [target, ...], mutation]       partial(create_selective_checkpoint_contexts, [operators to keep])
    ["policy", name, mutation]             partial(create_selective_checkpoint_contexts, policy)
    ["function", name, false]              any function of a module

``name`` is a result of user_modules.name_of; ``mutation`` is allow_cache_entry_mutation. A function in ``__main__`` or
inside another function cannot be imported, so a graph with such a function is bypassed.

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import create_selective_checkpoint_contexts

from precompiled.core.errors import Bypass
from precompiled.torch_internals.graph import call_targets
from precompiled.torch_internals.user_code import user_modules

# The key of a graph's ``meta`` under which Dynamo keeps the context function (torch/_higher_order_ops/wrap.py).
CONTEXT = "_checkpoint_context_fn"
_MUTATION = "allow_cache_entry_mutation"


def encode(context: Callable[..., object]) -> list[object]:
    """Plain data for a context function. Raises Bypass if the function has none of the known forms."""
    if not isinstance(context, functools.partial):
        return ["function", user_modules.name_of(context, code="checkpoint-context"), False]
    arguments = dict(zip(("policy_fn_or_list", _MUTATION), context.args, strict=False)) | context.keywords
    policy, mutation = arguments.pop("policy_fn_or_list", None), arguments.pop(_MUTATION, False)
    if context.func is not create_selective_checkpoint_contexts or arguments or policy is None:
        raise Bypass("selective checkpointing has a context function of an unknown form", code="checkpoint-context")
    if isinstance(policy, list):
        return ["ops", [call_targets.encode(operator) for operator in policy], bool(mutation)]
    return ["policy", user_modules.name_of(policy, code="checkpoint-context"), bool(mutation)]


def decode(encoded: list[Any]) -> Callable[..., Any]:
    """The context function. Raises ValueError, ImportError or AttributeError for data that ``encode`` never returns."""
    kind, content, mutation = encoded
    if kind == "function":
        return user_modules.find(content)
    if kind not in ("ops", "policy"):
        raise ValueError(f"unknown kind of checkpointing {kind!r}")
    policy = [call_targets.decode(name) for name in content] if kind == "ops" else user_modules.find(content)
    return functools.partial(create_selective_checkpoint_contexts, policy, allow_cache_entry_mutation=mutation)


def modules_of(encoded: list[Any]) -> dict[str, str]:
    """Map the names of the modules and operators that a worker needs for this context function to their digests."""
    kind, content, _ = encoded
    if kind == "ops":
        return {module: digest for name in content for module, digest in call_targets.modules_of(name).items()}
    return {content[0]: content[2]} if content[2] else {}
