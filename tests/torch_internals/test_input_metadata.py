"""Tests of the metadata of a graph's inputs. Clients send only metadata, and workers recreate inputs from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support_graphs import captured, captures

from precompiled.core.errors import Bypass
from precompiled.torch_internals.graph import input_metadata
from precompiled.torch_internals.graph.fixed_floats import FixedFloats

X = torch.randn(4, 6)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def leaf() -> torch.Tensor:
    return torch.randn(4, 6, requires_grad=True)


INPUTS: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.randn(4, 6),
    "scalar": lambda: torch.tensor(1.5),
    "empty": lambda: torch.randn(0, 6),
    "transposed": lambda: torch.randn(6, 4).T,
    "every other": lambda: torch.randn(8, 6)[::2],
    "with an offset": lambda: torch.randn(9, 6)[1:],
    "expanded": lambda: torch.randn(1, 6).expand(4, 6),
    "channels last": lambda: torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "half": lambda: torch.randn(4).half(),
    "bool": lambda: torch.ones(4, dtype=torch.bool),
    "complex": lambda: torch.randn(4, dtype=torch.complex64),
    "float8": lambda: torch.randn(4).to(torch.float8_e4m3fn),
    "an odd storage": lambda: torch.zeros(9, dtype=torch.uint8)[:8].view(torch.int16),
    "a leaf": leaf,
    "a parameter": lambda: torch.nn.Parameter(torch.randn(4, 6)),
    "a frozen parameter": lambda: torch.nn.Parameter(torch.randn(4, 6), requires_grad=False),
    "not a leaf": lambda: leaf() * 2,
}


@pytest.mark.parametrize("name", INPUTS)
def test_recreated_inputs_have_the_same_metadata(name: str) -> None:
    function = double if name != "float8" else (lambda x: x.float())
    described = json.loads(captured(function, INPUTS[name]()).program.sections["inputs"])
    mode = input_metadata.new_fake_mode()
    (made,) = input_metadata.make_inputs(described, input_metadata.size_maker(described, [], [], mode), mode)
    (described_one,) = described["args"]
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    node.meta.update(example_value=made, tensor_dict=described_one["flags"])
    again = input_metadata.describe_inputs([node]).to_plain()
    assert json.loads(json.dumps(again)) == described


def test_inference_tensor_is_recreated_as_one() -> None:
    mode = input_metadata.new_fake_mode()
    with torch.inference_mode(), mode:
        described = input_metadata.describe_inputs([placeholder(torch.empty(4, 6))]).to_plain()
    assert described["args"][0]["inference"]
    (made,) = input_metadata.make_inputs(described, input_metadata.size_maker(described, [], [], mode), mode)
    assert made.is_inference()


def test_inputs_that_share_memory_are_recreated_with_shared_memory() -> None:
    whole = torch.randn(8, 6)
    found = captured(lambda x, y, z: x + y + z, whole[:4], torch.randn(4, 6), whole[4:])
    described = json.loads(found.program.sections["inputs"])
    assert ["shares" in item for item in described["args"]] == [True, False, True]
    mode = input_metadata.new_fake_mode()
    made = input_metadata.make_inputs(described, input_metadata.size_maker(described, [], [], mode), mode)
    storages = [item.untyped_storage()._cdata for item in made]
    assert storages[0] == storages[2] != storages[1]
    apart = captured(lambda x, y, z: x + y + z, whole[:4].clone(), torch.randn(4, 6), whole[4:])
    assert apart.key != found.key


def test_symbolic_sizes_are_recreated() -> None:
    x = torch.randn(4, 6)
    torch._dynamo.mark_dynamic(x, 0)
    found = captured(lambda x: x.reshape(-1) * x.shape[0], x)
    described = json.loads(found.program.sections["inputs"])
    mode = input_metadata.new_fake_mode()
    sizes = input_metadata.size_maker(described, found.program.hints, [], mode)
    made = input_metadata.make_inputs(described, sizes, mode)
    assert [type(item).__name__ for item in made] == ["SymInt", "FakeTensor"]
    assert (int(made[0]), tuple(map(int, made[1].shape))) == (4, (4, 6))


def test_program_can_be_sent_with_other_sizes() -> None:
    x = torch.randn(4, 6)
    torch._dynamo.mark_dynamic(x, 0)
    program = captured(double, x).program
    assert program.sizes(program.hints) == [4]
    assert program.hints_for([9]) == [9]
    assert json.loads(program.to_bytes([9]))["hints"] == [9]


# ---------------------------------------------------------------- inputs that are refused


def test_a_lazy_conjugate_is_refused() -> None:
    with pytest.raises(Bypass) as refused:
        captures(double, torch.randn(4, dtype=torch.complex64).conj())
    assert refused.value.code == "unsupported-input"


def test_a_sparse_input_is_refused() -> None:
    with input_metadata.new_fake_mode():
        sparse = torch.sparse_coo_tensor(torch.zeros(1, 2, dtype=torch.int64), torch.zeros(2), (4,))
    with pytest.raises(Bypass) as refused:
        input_metadata.describe_inputs([placeholder(sparse)])
    assert refused.value.code == "unsupported-input"


def placeholder(value: Any, **flags: Any) -> torch.fx.Node:
    node = torch.fx.Graph().placeholder("x")
    node.meta.update(example_value=value, tensor_dict=flags)
    return node


def fake(**arguments: Any) -> torch.Tensor:
    with input_metadata.new_fake_mode():
        return torch.empty(4, 6, **arguments)


def test_a_real_tensor_is_refused() -> None:
    # An input without Dynamo's metadata is refused, because it holds real data, and clients never send data.
    with pytest.raises(Bypass) as refused:
        input_metadata.describe_inputs([placeholder(X)])
    assert refused.value.code == "unsupported-input"


@pytest.mark.parametrize("value", [None, 1.5, "x", True])
def test_input_that_is_neither_tensor_nor_size_is_refused(value: Any) -> None:
    with pytest.raises(Bypass) as refused:
        input_metadata.describe_inputs([placeholder(value)])
    assert refused.value.code == "unsupported-input"


def test_float_that_dynamo_specialized_is_retraced() -> None:
    # Dynamo treats the eps of a layer norm as a constant, although the graph has a symbol for it. Without a retrace, a
    # worker would compile for an unknown number.
    with pytest.raises(FixedFloats) as fixed:
        captured(torch.nn.LayerNorm(6), X, dynamic=True)
    assert len(fixed.value.names) == 1


@pytest.mark.parametrize("bag", [False, True])
def test_float_that_no_operator_reads_is_retraced(bag: bool) -> None:
    """AOTAutograd turns a float that no operator reads into a constant. Without a retrace, an artifact would be valid
    for one value only.
    """
    model = torch.nn.EmbeddingBag(10, 4) if bag else torch.nn.Embedding(10, 4)
    with pytest.raises(FixedFloats) as fixed:
        captured(model, torch.zeros(2, 3, dtype=torch.long), dynamic=True)
    assert len(fixed.value.names) == 1


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 2.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def test_a_float_that_an_operator_reads_stays_a_symbol() -> None:
    assert captured(Scaled(), X, dynamic=True).program.floats == [2.5]
