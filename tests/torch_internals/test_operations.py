"""Tests of operation_effects.py (writes, torch's batch norms), and of the context in which an artifact is loaded."""

from __future__ import annotations

import contextvars
import uuid

import torch
import torch.fx

from precompiled.torch_internals.graph import compiler_config, operation_effects


def test_statistics_of_the_programs_own_batch_norm_are_left_alone() -> None:
    name = f"mine_{uuid.uuid4().hex[:8]}::my_batch_norm"

    @torch.library.custom_op(name, mutates_args=())
    def my_batch_norm(x: torch.Tensor, running_mean: torch.Tensor, running_var: torch.Tensor) -> torch.Tensor:
        return (x - running_mean) / running_var

    assert operation_effects.with_unversioned_statistics(my_batch_norm._opoverload) is None
    assert operation_effects.with_unversioned_statistics(torch.ops.aten.layer_norm.default) is None
    for ours in (torch.batch_norm, torch.ops.aten.batch_norm.default, torch.ops.aten.native_batch_norm.default):
        assert operation_effects.with_unversioned_statistics(ours) is not None


def test_mutation_by_a_custom_operator_is_known_from_its_schema() -> None:
    name = f"mine_{uuid.uuid4().hex[:8]}::scale"

    @torch.library.custom_op(name, mutates_args=("x",))
    def scale(x: torch.Tensor, by: float) -> None:
        x.mul_(by)

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    nodes = [graph.call_function(target, (x, 2.0)) for target in (scale._opoverload, torch.ops.aten.mul.Tensor)]
    assert [operation_effects.writes(node) for node in nodes] == [True, False]


VARIABLE: contextvars.ContextVar[object] = contextvars.ContextVar("a request of the program's")


def test_context_of_a_load_holds_no_values_of_the_program() -> None:
    token = VARIABLE.set(object())
    try:
        made = compiler_config.context({"max_fusion_size": 17})
    finally:
        VARIABLE.reset(token)
    assert VARIABLE not in made
    if compiler_config._OF_A_CONTEXT:
        assert made.run(lambda: torch._inductor.config.max_fusion_size) == 17
    assert torch._inductor.config.max_fusion_size != 17
