"""Undoes the side effects of a failed eager run of a graph.

If an eager run raises an exception, compiled code runs instead (client/dispatch.py). So the inputs, the random state
and a surrounding checkpoint must be as they were before the eager run.

- Before the run, the client copies inputs that the graph may write to, and reads the random state. The graph's nodes
  show whether the graph writes to inputs or draws random numbers. Most graphs do neither.
- If the inputs that the graph may write to have more than MAX_BYTES, or if autograd would record their changes, none of
  them is copied. They are then unchanged only if the run failed before the first node that writes to them.
- The variables of FX's generated code show how far a run got: a node that has run has set the variable with the node's
  name.

This file reads the attributes tensors and prev_versions of a version guard (_unsafe_preserve_version_counter).

Private names: torch.autograd._unsafe_preserve_version_counter, torch.Tensor._version,
torch._ops.{HigherOrderOperator, OpOverload, OpOverloadPacket}, torch._C._dispatch_has_kernel_for_dispatch_key,
torch.utils._python_dispatch._disable_current_modes. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, TracebackType
from typing import Any

import torch
import torch.fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.utils._python_dispatch import _disable_current_modes

from precompiled.core import interruptions
from precompiled.torch_internals import gpu_room
from precompiled.torch_internals.eager import autograd_edges, enclosing_regions
from precompiled.torch_internals.graph import operation_effects
from precompiled.torch_internals.graph.call_targets import BUILTIN_OP_NAMESPACES

# Statistics, counters and small caches are copied before each eager run. A copy of an optimizer's state or of a large
# KV cache would cost noticeable time and memory.
MAX_BYTES = 32 << 20


class Effects:
    """Records which changes a run of a graph may make to its inputs, to the graph's attributes and to the random state.

    ``chain(node)`` returns the node, then the node that it is a view of, and so on. The last node owns the memory.
    """

    def __init__(self, module: torch.fx.GraphModule, chain: Callable[[torch.fx.Node], list[torch.fx.Node]]) -> None:
        self._module = module
        self.nodes = [node for node in module.graph.nodes if node.op not in ("placeholder", "output")]
        self.draws = any(operation_effects.may_draw(node) for node in _nested(module))
        self.writers: set[str] = set()  # names of the nodes that may write to inputs
        self.lasting: set[str] = set()  # names of the writers whose changes a copy of an input cannot undo
        places = {node: at for at, node in enumerate(module.graph.find_nodes(op="placeholder"))}
        inputs: dict[int, None] = {}
        for node in self.nodes:
            owners = [chain(value)[-1] for value in _written(module, node)]
            inputs.update((places[owner], None) for owner in owners if owner in places)
            if any(owner in places or owner.op == "get_attr" for owner in owners):
                self.writers.add(node.name)
                if operation_effects.name(node) in operation_effects.CHANGE_THE_TENSOR or any(
                    one.op == "get_attr" for one in owners
                ):
                    self.lasting.add(node.name)
        self.inputs = list(inputs)

    def is_opaque(self) -> bool:
        """Whether the graph calls an operator whose code must not run more often than in the program."""
        return any(_is_opaque(node.target) for node in _nested(self._module))

    def before(self, args: Sequence[object], records: Callable[[], bool]) -> Before:
        """The state before a run on ``args``. ``records``: whether autograd would record writes to the inputs."""
        if not self.writers:
            return Before(self, (), {}, self.lasting, random_state(args) if self.draws else [])
        with _disable_current_modes(), torch.no_grad():
            random = random_state(args) if self.draws else []
            copies = _copied(args, self.inputs, records)
        if copies is None:
            return Before(self, args, {}, self.writers, random)
        return Before(self, args, copies, self.lasting, random)


class Before:
    """The state before one run."""

    def __init__(
        self,
        effects: Effects,
        args: Sequence[Any],
        copies: dict[int, torch.Tensor],
        lasting: set[str],
        random: list[tuple[torch.device, torch.Tensor]],
    ) -> None:
        self._effects, self._args, self._copies, self._lasting, self._random = effects, args, copies, lasting, random
        versioned = tuple(value for value in args if isinstance(value, torch.Tensor) and not value.is_inference())
        self._versions = torch.autograd._unsafe_preserve_version_counter(versioned) if args else None
        self._saved = enclosing_regions.saved_in_a_checkpoint()

    def undo(self, error: BaseException, code: CodeType) -> bool:
        """After ``error`` in the run's generated code ``code``, restore the state and free the run's tensors.

        Returns False and changes nothing if undoing is impossible, or if compiled code would raise the same error.
        """
        reached = self._reached(error, code)
        if reached is None:
            return False
        known, failed = reached
        if self._lasting & known or (failed is not None and self._is_final(failed, error)):
            return False
        if self._changed_elsewhere():
            return False
        traceback.clear_frames(error.__traceback__)
        if self._versions is not None:
            with _disable_current_modes(), torch.no_grad(), self._versions:
                for at, copy in self._copies.items():
                    self._args[at].copy_(copy)
        restore_random_state(self._random)
        enclosing_regions.forget_saved(self._saved)
        return True

    def _reached(self, error: BaseException, code: CodeType) -> tuple[set[str], torch.fx.Node | None] | None:
        """The names of the nodes that have run, and the node that raised. None if ``code`` has not raised."""
        here: TracebackType | None = error.__traceback__
        while here is not None and here.tb_frame.f_code is not code:
            here = here.tb_next
        if here is None:
            return None
        known = set(here.tb_frame.f_locals)
        return known, next((node for node in self._effects.nodes if node.name not in known), None)

    def _is_final(self, failed: torch.fx.Node, error: BaseException) -> bool:
        """Whether the run must not be repeated after the node ``failed`` has raised.

        True if the node may have written to an input. Also true if the node calls an operator that is not torch's own
        and that compiled code calls, too. The code of such an operator must not run twice, unless it failed because
        memory was full.
        """
        if failed.name in self._lasting and isinstance(failed.target, HigherOrderOperator):
            return True
        is_of_memory = isinstance(error, torch.OutOfMemoryError) or gpu_room.is_full(error)
        return _is_opaque(failed.target) and not is_of_memory

    def _changed_elsewhere(self) -> bool:
        """Whether the run has changed an input that cannot be restored, because this input shares no memory with a
        copied input.
        """
        if self._versions is None:
            return False
        copied = {autograd_edges.storage(self._args[at]) for at in self._copies}
        versions = zip(self._versions.tensors, self._versions.prev_versions, strict=True)
        return any(
            tensor._version != version and autograd_edges.storage(tensor) not in copied for tensor, version in versions
        )


def _copied(args: Sequence[Any], inputs: Sequence[int], records: Callable[[], bool]) -> dict[int, torch.Tensor] | None:
    """A copy of each of ``inputs``. None if the inputs are too large, or if copies do not suffice, because they lack
    autograd's history.
    """
    tensors = {at: args[at] for at in inputs if isinstance(args[at], torch.Tensor)}
    try:
        if sum(tensor.nbytes for tensor in tensors.values()) > MAX_BYTES:
            return None
        if any(tensor.requires_grad for tensor in tensors.values()) and records():
            return None
        return {at: tensor.clone() for at, tensor in tensors.items()}
    except Exception as error:  # noqa: BLE001 - no room, or a tensor that cannot be copied; the run may succeed
        interruptions.pass_on(error)
        return None


def random_state(args: Sequence[object]) -> list[tuple[torch.device, torch.Tensor]]:
    """The random state of the CPU, of the current GPU and of the inputs' GPUs."""
    found = [(torch.device("cpu"), torch.get_rng_state())]
    if torch.cuda.is_initialized():
        devices = {value.device for value in args if isinstance(value, torch.Tensor) and value.is_cuda}
        devices.add(torch.device("cuda", torch.cuda.current_device()))
        found += [(device, torch.cuda.get_rng_state(device)) for device in devices]
    return found


def restore_random_state(states: Sequence[tuple[torch.device, torch.Tensor]]) -> None:
    """``states``: the result of ``random_state``."""
    for device, state in states:
        torch.set_rng_state(state) if device.type == "cpu" else torch.cuda.set_rng_state(state, device)


def _nested(module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    for held in module.modules():
        if isinstance(held, torch.fx.GraphModule):
            yield from held.graph.nodes


def _written(module: torch.fx.GraphModule, node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes whose values ``node`` may write to."""
    if not isinstance(node.target, HigherOrderOperator):
        return operation_effects.written_arguments(node)
    held = [getattr(module, one.target, None) for one in node.all_input_nodes if one.op == "get_attr"]
    graphs = [one for one in held if isinstance(one, torch.fx.GraphModule)]
    writes = "mutation" in operation_effects.name(node) or any(
        operation_effects.written_arguments(one) for g in graphs for one in _nested(g)
    )
    if not writes:
        return []
    return [one for one in node.all_input_nodes if one.op != "get_attr"]


def _is_opaque(target: object) -> bool:
    """Whether an operator comes from a library other than torch, and compiled code calls the operator unchanged."""
    if isinstance(target, OpOverloadPacket):
        return any(_is_opaque(getattr(target, overload)) for overload in target.overloads())
    if not isinstance(target, OpOverload) or target.namespace in BUILTIN_OP_NAMESPACES:
        return False
    return not torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
