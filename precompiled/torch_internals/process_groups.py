"""The process groups that a graph's collectives name: of the client, and stand-ins of the same size in a worker.

A functional collective (torch.ops._c10d_functional.*) names its group, and what is compiled depends on the group's size
alone. Inductor looks the group up by its name while it compiles. A worker is in no group, so it gets empty ones.

Private names: torch._C._distributed_c10d.{ProcessGroup, _register_process_group, _unregister_process_group},
torch.distributed.distributed_c10d._resolve_process_group. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.fx

from precompiled.errors import Bypass
from precompiled.torch_internals.targets import COLLECTIVE_OP_NAMESPACES


def sizes(module: torch.fx.GraphModule) -> dict[str, int]:
    """The groups of a graph's collectives, by name, with the number of ranks. Raises Bypass where one is not told."""
    found: dict[str, int] = {}
    for held in module.modules():
        if isinstance(held, torch.fx.GraphModule):
            for node in held.graph.nodes:
                if node.op == "call_function" and _namespace(node.target) in COLLECTIVE_OP_NAMESPACES:
                    for name in _groups(node):
                        found[name] = _size(name)
    return dict(sorted(found.items()))


def _namespace(target: object) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace
    return target._qualified_op_name.partition("::")[0] if isinstance(target, torch._ops.OpOverloadPacket) else ""


def _groups(node: torch.fx.Node) -> list[str]:
    target = node.target
    overload = getattr(target, "default", target)
    found = []
    for position, argument in enumerate(overload._schema.arguments):
        if argument.name == "group_name":
            name = node.args[position] if position < len(node.args) else node.kwargs.get("group_name")
            if not isinstance(name, str):
                raise Bypass(f"the collective {target} does not name its group", code="collective")
            found.append(name)
    return found


def _size(name: str) -> int:
    from torch.distributed.distributed_c10d import _resolve_process_group

    return int(_resolve_process_group(name).size())


@contextmanager
def stand_ins(groups: Mapping[str, int]) -> Iterator[None]:
    """In a worker: groups of these names and sizes, that nothing can be sent through."""
    if not groups:
        yield
        return
    from torch._C._distributed_c10d import ProcessGroup, _register_process_group, _unregister_process_group

    # Rank 0 of so many. (torch's stub for this constructor asks for a store; it takes none.)
    made = {name: ProcessGroup(0, size) for name, size in groups.items()}  # type: ignore[call-arg]
    for name, group in made.items():
        _register_process_group(name, group)
    try:
        yield
    finally:
        for name in made:
            _unregister_process_group(name)
