"""The process groups that a graph's collectives name: of the client, and stand-ins of the same size in a worker.

A functional collective (torch.ops._c10d_functional.*) names its group, and what is compiled depends on the group's size
alone. Inductor looks the group up by its name while it compiles. A worker is in no group, so it gets empty ones, under
the names that a program has (group_names.py).

What asks such a group for its rank would compile for one rank what all of them are going to load. Under the settings
that are known to do so (configs.ask_for_ranks) the rank's place in its groups is in the key, and the stand-ins have it.
Where something else does, or asks for the group of all ranks (to which one rank would have to talk), the compile ends
with that reason, and the graph is compiled in process.

Private names: torch._C._distributed_c10d.{ProcessGroup, _register_process_group, _unregister_process_group},
torch.distributed.distributed_c10d.{_resolve_process_group, _get_default_group, get_rank},
torch._ops.{OpOverload._schema, OpOverloadPacket._qualified_op_name}, torch._dynamo.repro. Checked on 2.11.0, 2.13.0,
2.15.0.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
import torch.fx

from precompiled.core.errors import Bypass, CompileFailed
from precompiled.torch_internals.graph.call_targets import COLLECTIVE_OP_NAMESPACES, GROUP_ARGUMENT, names_group


def used(module: torch.fx.GraphModule) -> dict[str, int]:
    """The groups of a graph's collectives, by name, in the order of their first use, with the number of ranks.

    Raises Bypass where one is not told.
    """
    found: dict[str, int] = {}
    _collect(module, found, set())
    return found


def _collect(module: torch.fx.GraphModule, found: dict[str, int], seen: set[int]) -> None:
    if id(module) in seen:
        return
    seen.add(id(module))
    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(held := getattr(module, str(node.target), None), torch.fx.GraphModule):
            _collect(held, found, seen)
        if node.op != "call_function":
            continue
        if _namespace(node.target) in COLLECTIVE_OP_NAMESPACES:
            for name in _groups(node):
                if not isinstance(name, str):
                    raise Bypass(f"the collective {node.target} does not name its group", code="collective")
                found.setdefault(name, size(name))
        elif names_group(node.target):
            # Of a group that is not torch's (vLLM has its own), no code of torch's can ask anything.
            for name in _groups(node):
                if name not in found and _is_torchs(name):
                    found[name] = size(name)


def with_names(node: torch.fx.Node, names: Mapping[str, str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, with these names of its groups for those that it has."""
    args, kwargs = list(node.args), dict(node.kwargs)
    for position, name in _places(node.target):
        if position < len(args) and isinstance(found := args[position], str):
            args[position] = names.get(found, found)
        elif isinstance(found := kwargs.get(name), str):
            kwargs[name] = names.get(found, found)
    return tuple(args), kwargs


def _namespace(target: object) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace
    return target._qualified_op_name.partition("::")[0] if isinstance(target, torch._ops.OpOverloadPacket) else ""


def _groups(node: torch.fx.Node) -> list[Any]:
    return [
        node.args[position] if position < len(node.args) else node.kwargs.get(name)
        for position, name in _places(node.target)
    ]


def _places(target: Any) -> list[tuple[int, str]]:
    """Positions and names of the arguments that name groups."""
    overload = getattr(target, target.overloads()[0]) if isinstance(target, torch._ops.OpOverloadPacket) else target
    arguments = overload._schema.arguments
    return [(at, argument.name) for at, argument in enumerate(arguments) if argument.name == GROUP_ARGUMENT]


def _is_torchs(name: object) -> bool:
    if not isinstance(name, str) or not torch.distributed.is_available():
        return False
    try:
        return bool(size(name))
    except (RuntimeError, LookupError, ValueError):  # there is none of this name
        return False


def size(name: str) -> int:
    return int(_resolved(name).size())


def rank(name: str) -> int:
    """This rank's place in the group."""
    return int(_resolved(name).rank())


def _resolved(name: str) -> Any:
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _resolve_process_group(name)


@contextmanager
def stand_ins(groups: Mapping[str, int], ranks: Mapping[str, int] | None = None) -> Iterator[None]:
    """In a worker: groups of these names and sizes, that nothing can be sent through. ``ranks``: this rank's place in
    each, where it is in the key (configs.ask_for_ranks).

    Raises CompileFailed at the end where something has asked for a rank that is not, whatever became of it.
    """
    if not groups:
        yield
        return
    from torch._C._distributed_c10d import ProcessGroup, _register_process_group, _unregister_process_group
    from torch.distributed import distributed_c10d

    asked: list[CompileFailed] = []

    def refuse(*_: object) -> NoReturn:
        # TraceLog as well: Inductor wraps what a pass of its raises, or goes on without.
        asked.append(CompileFailed("what is compiled depends on the rank", code="rank-dependent"))
        raise asked[0]

    class StandIn(ProcessGroup):
        place: int | None = None

        def rank(self) -> int:
            # What would make a bug report of this graph writes the rank into it, with every compile.
            caller: str = sys._getframe(1).f_globals.get("__name__", "")
            if self.place is None:
                return 0 if caller.startswith("torch._dynamo.repro.") else refuse()
            return self.place

    def get_rank(group: Any = None) -> int:
        return group.rank() if isinstance(group, StandIn) else refuse()

    # torch's stub for this constructor asks for a store; it takes none.
    made = {name: StandIn(0, size) for name, size in groups.items()}  # type: ignore[call-arg]
    for name, place in (ranks or {}).items():
        made[name].place = place
    default_group = distributed_c10d._get_default_group
    get_rank_of_torch = distributed_c10d.get_rank
    distributed_c10d._get_default_group = refuse
    torch.distributed.get_rank = distributed_c10d.get_rank = get_rank
    for name, group in made.items():
        _register_process_group(name, group)
    try:
        yield
    except Exception as error:
        if asked:
            raise asked[0] from error
        raise
    else:
        if asked:
            raise asked[0]
    finally:
        distributed_c10d._get_default_group = default_group
        torch.distributed.get_rank = distributed_c10d.get_rank = get_rank_of_torch
        for name in made:
            _unregister_process_group(name)
