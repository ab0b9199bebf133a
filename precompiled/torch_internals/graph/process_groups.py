"""Reads which process groups a graph's collectives use (client), and creates groups of the same sizes (worker).

A functional collective (torch.ops._c10d_functional.*) names its group, and the compiled code depends only on the
group's size. Inductor looks the group up by its name during the compile. A worker belongs to no group. So it registers
substitutes that cannot communicate, under the names that the groups have in the program (group_names.py).

If a compile reads the rank from such a group, the artifact is valid for one rank only, but all ranks load it. So:

- With the settings under which Inductor is known to read the rank (compiler_config.ask_for_ranks), the key contains the
  rank's position in each group, and the worker's group returns that position.
- Any other code that reads the rank, or requests the group of all ranks, makes the compile fail with the reason
  ``rank-dependent``. The client then compiles the graph in process.

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
from precompiled.torch_internals.patches import Patches


def used_groups(module: torch.fx.GraphModule) -> dict[str, int]:
    """Map the name of each group that a graph's collectives use to the group's size, in the order of first use.

    Raises Bypass if a collective does not name its group.
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
            # Groups of another library (vLLM has its own) are left out, because torch's code cannot query them.
            for name in _groups(node):
                if name not in found and _is_torchs(name):
                    found[name] = size(name)


def with_names(node: torch.fx.Node, names: Mapping[str, str]) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments of a call, with its groups renamed by ``names``. Other groups keep their name."""
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
    except (RuntimeError, LookupError, ValueError):  # no group has this name
        return False


def size(name: str) -> int:
    return int(_resolved(name).size())


def rank(name: str) -> int:
    """The rank of this process within the group."""
    return int(_resolved(name).rank())


def _resolved(name: str) -> Any:
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _resolve_process_group(name)


@contextmanager
def stand_ins(groups: Mapping[str, int], ranks: Mapping[str, int] | None = None) -> Iterator[None]:
    """In a worker, register groups that have these names and sizes, but cannot communicate.

    ``ranks`` maps a group's name to this rank's position in the group, if the key contains the position
    (compiler_config.ask_for_ranks). Raises CompileFailed at the end if any code has read a rank that is not in the key,
    even if that code ignored the error.
    """
    if not groups:
        yield
        return
    from torch._C._distributed_c10d import ProcessGroup, _register_process_group, _unregister_process_group
    from torch.distributed import distributed_c10d

    asked: list[CompileFailed] = []

    def refuse(*_: object) -> NoReturn:
        # The error is both recorded and raised, because Inductor wraps or ignores exceptions of its passes.
        asked.append(CompileFailed("the compiled code depends on the rank", code="rank-dependent"))
        raise asked[0]

    class PlaceholderGroup(ProcessGroup):
        place: int | None = None

        def rank(self) -> int:
            # torch._dynamo.repro is exempt: at every compile, it writes the rank into its script for bug reports.
            caller: str = sys._getframe(1).f_globals.get("__name__", "")
            if self.place is None:
                return 0 if caller.startswith("torch._dynamo.repro.") else refuse()
            return self.place

    def get_rank(group: object = None) -> int:
        return group.rank() if isinstance(group, PlaceholderGroup) else refuse()

    # Torch's type stub for this constructor requires a store, but the constructor works without one.
    made = {name: PlaceholderGroup(0, size) for name, size in groups.items()}  # type: ignore[call-arg]
    for name, place in (ranks or {}).items():
        made[name].place = place
    patches = Patches()
    patches.replace(distributed_c10d, "_get_default_group", lambda _: refuse)
    patches.replace(distributed_c10d, "get_rank", lambda _: get_rank)
    patches.replace(torch.distributed, "get_rank", lambda _: get_rank)
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
        patches.undo()
        for name in made:
            _unregister_process_group(name)
