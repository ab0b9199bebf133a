"""Tests of symbolic_sizes.py: how the key represents symbolic sizes, and how a worker recreates them."""

from __future__ import annotations

import json

import pytest
import torch
from support_graphs import captured
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from precompiled.core.errors import CompileFailed
from precompiled.graph import capture
from precompiled.torch_internals.graph import input_metadata
from precompiled.torch_internals.graph.symbolic_sizes import (
    SizeMaker,
    guard_check,
    install_guards,
    produced_guards,
    size_values,
    tell_nothing_new,
)


def pooled(x: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    return torch.nn.functional.adaptive_max_pool2d(x, size)


def test_size_with_one_known_value_is_still_a_size_input() -> None:
    """An artifact's guards name size inputs by number. If client and worker counted differently, a guard would check
    the wrong input.
    """
    x = torch.randn(2, 8, 9)
    program = captured(pooled, x, (3, 4), dynamic=True).program
    args = json.loads(program.sections["inputs"])["args"]
    assert [args[at]["size"] for at in program.size_inputs][-2:] == [3, 4]
    assert program.sizes(program.hints)[-2:] == [3, 4]
    assert program.hints_for(program.sizes([7, 8, 9])) == [7, 8, 9]


def test_size_with_one_value_becomes_a_symint_with_that_value() -> None:
    """AOTAutograd would treat a plain integer as a size that may change, and would guard on a new symbol for it."""
    inputs = {"args": [{"size": 5}, {"size": {"s": 0}}, {"size": 5}], "ranges": [[2, None]]}
    mode = input_metadata.new_fake_mode()
    made = input_metadata.make_inputs(inputs, input_metadata.size_maker(inputs, [7], [], mode), mode)
    assert [type(size) for size in made] == [torch.SymInt] * 3
    assert [size.node.maybe_as_int() for size in made] == [5, None, 5]
    guards = produced_guards(made, [5, 7, 5])
    assert guard_check(guards)([5, 9, 5]) and not guard_check(guards)([5, 1, 5])


def test_unbacked_size_is_not_a_size_input_and_has_no_hint() -> None:
    """Code for an unbacked size serves all values, so the key and the guards must not depend on the first value."""

    def program(rows: int, **marked: int) -> capture.SerializedGraph:
        x = torch.randn(rows, 6)
        torch._dynamo.mark_dynamic(x, 1)  # first, because mark_dynamic removes other marks
        torch._dynamo.decorators.mark_unbacked(x, 0, **marked)
        return captured(lambda x: x * 2, x).program

    one = program(4)
    args = json.loads(one.sections["inputs"])["args"]
    assert [item["size"] for item in args if "size" in item] == [{"u": 0}, {"s": 0}]
    assert [args[position]["size"] for position in one.size_inputs] == [{"s": 0}]
    assert one.hints == one.sizes(one.hints) == [6]
    assert one.sections == program(9).sections == program(1).sections
    assert one.sections != program(4, hint_override=512).sections, "Inductor would compile for another size"


def test_assertions_on_unbacked_sizes_come_from_the_graph_alone() -> None:
    """If the worker's sizes already satisfied the assertion, torch would omit it from the compiled code."""
    mode = input_metadata.new_fake_mode()
    inputs = {"args": [{"size": {"u": 0}}, {"size": {"Mul": [2, {"u": 0}]}}], "ranges": [], "unbacked": [[True, None]]}
    size, twice = input_metadata.make_inputs(inputs, input_metadata.size_maker(inputs, [], [], mode), mode)
    assert twice.node.expr == 2 * size.node.expr and not size.node.has_hint()
    assert mode.shape_env is not None and not mode.shape_env.deferred_runtime_asserts
    torch._check(size == 4)
    assert mode.shape_env.deferred_runtime_asserts


def maker(*hints: int) -> tuple[SizeMaker, list[torch.SymInt]]:
    sizes = SizeMaker(ShapeEnv(), [[0, None]] * len(hints), list(hints), [])
    return sizes, [sizes.size_input({"s": position}) for position in range(len(hints))]


def test_guard_from_before_two_sizes_became_equal_is_kept() -> None:
    """torch's own guard expression lacks this guard, because the guard's symbol no longer belongs to an input."""
    for first in (0, 1):
        _, sizes = maker(8, 8)
        assert sizes[first] % 4 == 0
        assert sizes[0] == sizes[1]
        check = guard_check(produced_guards(sizes, [8, 8]))
        assert check([12, 12]) and not check([10, 10]) and not check([8, 12])


@pytest.mark.reason("size-guards")
def test_guard_on_a_value_that_no_input_shows_is_an_error() -> None:
    made, sizes = maker(8)
    source = ConstantSource("other")
    other = made._env.create_unspecified_symbol(3, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    assert made._env.create_symintnode(other, hint=3, source=source) < sizes[0]
    with pytest.raises(CompileFailed, match="does not follow from its inputs") as raised:
        produced_guards(sizes, [8])
    assert raised.value.code == "size-guards"


@pytest.mark.reason("size-guards")
def test_guards_that_reject_their_own_example_are_an_error() -> None:
    """Without this error, the daemon would publish an artifact that does not serve the client's call. The client would
    submit the graph again and again.
    """
    _, sizes = maker(8)
    assert sizes[0] > 4
    with pytest.raises(CompileFailed, match="the guards fail") as raised:
        produced_guards(sizes, [3])
    assert raised.value.code == "size-guards"


@pytest.mark.reason("size-guards")
def test_guards_on_inputs_that_a_client_lacks_are_an_error() -> None:
    with pytest.raises(CompileFailed, match="cannot be evaluated") as raised:
        guard_check("L['t4'] == 5")([1, 2])
    assert raised.value.code == "size-guards"


@pytest.mark.parametrize(
    ("guards", "nothing_new"),
    [
        ("", True),
        ("2 <= L['t0']", True),
        ("2 <= L['t0'] and L['t0'] <= 64 and L['t1'] == 5", True),
        ("2 <= L['t0'] <= 64", True),
        ("5 == L['t1']", True),
        ("3 <= L['t0']", False),
        ("L['t0'] <= 63", False),
        ("L['t0'] == 2", False),
        ("L['t0'] != 2", False),
        ("2 <= L['t0'] or L['t1'] == 5", False),
        ("Mod(L['t0'], 8) == 0", False),
        ("L['t0'] == L['t1']", False),
        ("2 <= L['t2']", False),
    ],
)
def test_guards_already_implied_by_the_capture_are_recognised(guards: str, nothing_new: bool) -> None:
    inputs = {"args": [{"size": {"s": 0}}, {"size": 5}, {"size": {"s": 1}}], "ranges": [[2, 64], [None, None]]}
    assert tell_nothing_new(guards, inputs) is nothing_new


def test_guard_that_divides_by_zero_rejects_the_size() -> None:
    assert not guard_check("8 % L['t0'] == 0")([0])


def test_guards_on_values_alone_need_no_dynamo() -> None:
    assert install_guards("L['t0'] == 5", [5])  # type: ignore[list-item]


def test_client_and_worker_read_the_same_size_inputs() -> None:
    program = captured(pooled, torch.randn(2, 8, 9), (3, 4), dynamic=True).program
    parsed = capture.parse(program.to_bytes())
    assert size_values(parsed["inputs"], parsed["hints"]) == program.sizes(program.hints)
