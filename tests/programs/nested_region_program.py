"""Prints the largest relative error of a compiled gradient. Without precompiled, this error is 0.3 with torch 2.13 and
2.15.
"""

import torch


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(32), torch.nn.Linear(32, 128), torch.nn.Linear(128, 32)

    @torch.compiler.nested_compile_region
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


torch.manual_seed(0)
first, last, t = torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64, bias=False), torch.randint(0, 64, (2, 16))
model = torch.nn.Sequential(first, Layer(), Layer(), torch.nn.LayerNorm(32), last, torch.nn.Flatten(0, 1))
compiled = torch.compile(lambda t: torch.nn.functional.cross_entropy(model(t), t.flatten()))
expected = torch.autograd.grad(torch.nn.functional.cross_entropy(model(t), t.flatten()), list(model.parameters()))
actual = torch.autograd.grad(compiled(t), list(model.parameters()))
print(max(((a - b).norm() / b.norm()).item() for a, b in zip(actual, expected, strict=True)))
