"""Builds the guards of an entry on a live frame with Dynamo's own GuardBuilder, once all facts (guard_facts.py) agree.

The result equals the guards of a trace in this process, including guards on identity.

Private names: torch._dynamo.guards.{CheckFunctionManager, GuardBuilder, GuardManagerWrapper.{check_verbose,
closure_vars, global_scope}}, torch._guards.{Guard, GuardsSet, TracingContext, tracing},
torch._dynamo.output_graph.{OutputGraphCommon, OutputGraphGuardsState}, torch._dynamo.mark_static_address,
torch._C.DisableTorchFunction, torch.utils._device.CURRENT_DEVICE, torch.utils._ordered_set.OrderedSet,
torch.autograd.forward_ad._current_level. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils._device
from torch._dynamo.guards import CheckFunctionManager, GuardBuilder
from torch._dynamo.output_graph import OutputGraphCommon, OutputGraphGuardsState
from torch._guards import Guard, GuardsSet, TracingContext, tracing
from torch.utils._ordered_set import OrderedSet

from precompiled.core import interruptions
from precompiled.packages.describe.descriptions import Descriptions
from precompiled.packages.describe.errors import Mismatch
from precompiled.packages.dynamo import dynamo_state, guard_facts, optimizers
from precompiled.packages.dynamo.guard_facts import Guards, SourceReader


class Rebuilder:
    """Builds the guards of one entry on a live frame."""

    def __init__(self, kept: Guards, code: types.CodeType, local: dict[str, Any], scope: dict[str, Any]) -> None:
        self._kept = kept
        self._code = code
        self._local = local
        self._scope = scope
        self.reader = SourceReader(local, scope)

    def verify(self, described: Descriptions, *, check_source: bool = True) -> None:
        """Raise Mismatch unless every fact holds now. With ``check_source=False``, digests of code may differ."""
        dynamo_state.check_global_state(self._kept.global_state)
        if differs := guard_facts.sizes_differ(self._kept, self._local):
            raise Mismatch(differs)
        guard_facts.compare(self._kept.guards, self.reader, described, check_source=check_source)
        for source, order in self._kept.key_order:
            if guard_facts.order_of(guard_facts.value_at(source, self.reader), source, described) != order:
                raise Mismatch(f"{source.name} has different keys here, or a different order")

    def build(self, fail: Callable[..., None] | None) -> Any:
        """Build Dynamo's guard manager. Raises Mismatch if the manager does not accept the frame."""
        kept = self._kept
        guards = [
            Guard(
                source,
                functools.partial(getattr(GuardBuilder, kind), **parameters)
                if parameters
                else getattr(GuardBuilder, kind),
            )
            for source, kind, parameters, _fact_ in kept.guards
        ]
        shapes = kept.shapes
        if shapes is not None and not shapes.python_fallback:
            # Use the Python expression, because the C++ expression would have to be compiled first.
            shapes = dataclasses.replace(shapes, python_fallback=True)
        state = OutputGraphGuardsState(
            local_scope=self._local,
            global_scope=self._scope,
            torch_function_mode_stack=[],
            guard_on_key_order={source for source, _order in kept.key_order},
            input_source_to_sizes_strides=kept.sizes,
            dual_level=torch.autograd.forward_ad._current_level,
            functorch_layers=[],
            current_device=torch.utils._device.CURRENT_DEVICE,
            global_state_guard=dynamo_state.restored_global_state(self._kept.global_state),
            _guards=GuardsSet(OrderedSet(guards)),
            _aotautograd_guards=kept.aotautograd,
            skip_guards_check=True,
            name_of_builtins_dict_key_in_fglobals=kept.builtins_name,
            **kept.extra,
        )
        # Some guards look up the trace's constants in the tracing context, so they get an empty context. Like Dynamo,
        # disable torch functions. ``manager.check`` runs outside the block, because it must see the current state.
        with (
            tracing(TracingContext(None)),
            torch._C.DisableTorchFunction(),
        ):
            manager = CheckFunctionManager(
                self._code, OutputGraphCommon(state), None, fail, None, shape_code_parts=shapes
            ).guard_manager
        if guard_facts.codes_digest(guards) != kept.codes:
            raise Mismatch("the guards of this process differ from the recorded guards")
        if not manager.check(self._local):
            raise Mismatch(f"this call fails a guard: {_failed_guard(manager, self._local)}")
        return manager

    def mark_static(self) -> None:
        """Mark parameters as static, as a trace does. Compiled autograd and other frames' traces read these marks."""
        for source in self._kept.static:
            value = guard_facts.value_at(source, self.reader)
            if getattr(value, optimizers.STATIC, None) != "unguarded":
                torch._dynamo.mark_static_address(value, guard=False)


def _failed_guard(manager: Any, local: Mapping[str, object]) -> str:
    """The guard that rejects the call.

    torch gives a single message, or all expressions of one guard on several sizes. Some of these expressions may hold.
    """
    try:
        parts = manager.check_verbose(local).verbose_code_parts
        scope = {**manager.global_scope, **manager.closure_vars, "L": local, "G": manager.global_scope["G"]}
        failed = next(part for part in parts if len(parts) == 1 or not eval(part, scope))
        return str(failed).partition("  # ")[0].strip()  # torch adds source lines and remarks
    except Exception as error:  # noqa: BLE001 - only for a message
        interruptions.pass_on(error)
        return f"it cannot be named ({type(error).__name__})"
