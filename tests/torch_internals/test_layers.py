"""Tests how graphs are cut into pieces, and that the pieces compute what the graph does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from precompiled.torch_internals.graph import layers


class Block(torch.nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            torch.nn.LayerNorm(width),
            torch.nn.Linear(width, 2 * width),
            torch.nn.Linear(2 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(self.norm(x))
        y = torch.sin(y) * torch.sigmoid(y) + torch.cos(y) - torch.tanh(y).clamp(min=-0.5)
        return x + self.down(y)


class Stack(torch.nn.Module):
    def __init__(self, count: int, between: Callable[[torch.Tensor], torch.Tensor] = lambda x: x) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(count))
        self.head = torch.nn.Linear(8, 3)
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x)
        for block in self.blocks:
            x = self.between(block(x))
        return self.head(x).sum()


X = torch.randn(4, 8)


def captured(function: Callable[..., Any], *args: object, **options: Any) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The graph of ``function`` as Dynamo gives it, and its arguments."""
    found: list[tuple[torch.fx.GraphModule, list[Any]]] = []

    def backend(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        found.append((module, list(example_inputs)))
        return module.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, **options)(*args)
    ((module, inputs),) = found
    return module, inputs


def composed(found: layers.Cut) -> Callable[..., Any]:
    return layers.composed(found, [piece.forward for piece in found.pieces])


def test_equal_layers_are_one_piece() -> None:
    module, inputs = captured(Stack(8), X)
    found = layers.cut(module)
    assert found is not None
    counts = [sum(step.piece == number for step in found.steps) for number in range(len(found.pieces))]
    assert sorted(counts) == [1, 1, 7]  # the first layer's input needs no gradient
    assert len(found.steps) - len(found.pieces) == 6
    torch.testing.assert_close(composed(found)(*inputs), module(*inputs))


def test_share_of_the_pieces_falls_with_the_number_of_layers() -> None:
    shares = []
    for count in (8, 16):
        found = layers.cut(captured(Stack(count), X)[0])
        assert found is not None
        shares.append(found.share)
    assert 0 < shares[1] < 0.6 * shares[0] < 0.6


def test_one_value_crosses_each_cut_and_is_freed_after_its_last_use() -> None:
    module, _ = captured(Stack(8), X)
    found = layers.cut(module)
    assert found is not None
    assert all(len(step.outputs) == 1 for step in found.steps)
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    crossing = {at for step in found.steps for at in step.outputs} - set(found.returns)
    assert crossing <= {at for step in found.steps for at in step.last_used} and min(crossing) >= len(places)


def test_gradients_of_the_pieces_equal_the_graphs() -> None:
    model = Stack(7)
    module, inputs = captured(model, X)
    found = layers.cut(module)
    assert found is not None
    expected = torch.autograd.grad(module(*inputs)[0], list(model.parameters()))
    actual = torch.autograd.grad(composed(found)(*inputs)[0], list(model.parameters()))
    torch.testing.assert_close(actual, expected)


def test_a_deeper_model_has_the_same_pieces() -> None:
    forms = []
    for count in (7, 9):
        found = layers.cut(captured(Stack(count), X)[0])
        assert found is not None
        forms.append([[(node.op, node.target) for node in piece.graph.nodes] for piece in found.pieces])
    assert forms[0] == forms[1]


def test_two_runs_of_layers_are_found() -> None:
    first, second = Stack(7), torch.nn.Sequential(*(Block(16) for _ in range(8)))
    project = torch.nn.Linear(3, 16)

    def both(x: torch.Tensor) -> torch.Tensor:
        for block in first.blocks:
            x = block(x)
        return second(project(first.head(x))).sum()

    module, inputs = captured(both, X)
    found = layers.cut(module)
    assert found is not None and len(found.steps) - len(found.pieces) >= 12
    torch.testing.assert_close(composed(found)(*inputs), module(*inputs))


def doubled_in_place(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (lambda: Stack(1), {}),
        (lambda: Stack(8), {"dynamic": True}),
        (lambda: torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4))), {}),
    ],
    ids=["one layer", "symbolic sizes", "layers too small"],
)
def test_some_graphs_are_not_cut(function: Callable[[], torch.nn.Module], options: dict[str, Any]) -> None:
    module, _ = captured(function(), X, **options)
    assert layers.cut(module) is None


def test_memory_that_the_graph_changes_stays_in_one_piece() -> None:
    model = Stack(8)

    def kept(x: torch.Tensor) -> torch.Tensor:
        sums = torch.zeros(8)
        for block in model.blocks:
            x = block(x)
            sums.add_(x.detach().sum(0))
        return model.head(x).sum() + sums.sum()

    module, inputs = captured(kept, X)
    assert layers.cut(module) is None  # each layer changes ``sums``
    expected = module(*inputs)

    module, inputs = captured(Stack(8, doubled_in_place), X)
    found = layers.cut(module)
    assert found is not None  # each layer changes a value of its own
    torch.testing.assert_close(composed(found)(*inputs), module(*inputs))
    assert expected[0].isfinite()


def test_no_piece_begins_or_ends_within_autocast() -> None:
    model = Stack(8)

    def mixed(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    module, _ = captured(mixed, X)
    assert layers.cut(module) is None

    def each(x: torch.Tensor) -> torch.Tensor:
        for block in model.blocks:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = block(x).float()
        return model.head(x).sum()

    module, inputs = captured(each, X)
    found = layers.cut(module)
    assert found is not None
    torch.testing.assert_close(composed(found)(*inputs), module(*inputs))
