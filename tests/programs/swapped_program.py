"""A model before and after its swap. Prints a line of JSON: the results of a retained and of a double backward."""

from __future__ import annotations

import json

import torch

import precompiled


def main() -> None:
    precompiled.enable()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4), torch.nn.Tanh())
    compiled, x = torch.compile(model), torch.randn(8, 16)

    def twice(function: torch.nn.Module) -> list[torch.Tensor]:
        """Run two backwards through one forward, and return the gradients."""
        model.zero_grad()
        output = function(x)
        output.square().sum().backward(retain_graph=True)
        output.sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    def differentiated() -> str:
        gradients = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()), create_graph=True)
        try:
            gradients[0].sum().backward()
        except RuntimeError as error:
            return str(error)
        return "nothing"

    expected = twice(model)
    answer = []
    for _ in range(2):
        equal = all(
            torch.allclose(left, right, rtol=1e-3, atol=1e-4)
            for left, right in zip(twice(compiled), expected, strict=True)
        )
        (graph,) = precompiled.report()
        answer.append({"state": graph.state, "retained": equal, "differentiated": differentiated()})
        assert precompiled.wait(300)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
