"""A training program that steps until its graph has run compiled and then for 30 further steps.

Each step is compared with an eager one. Prints how the steps ran ("eager" or "compiled") from the swap on, and the
graph's report.
"""

from __future__ import annotations

import json
import time

import torch

import precompiled

STEPS_AFTER, PATIENCE_S = 30, 300.0


class Model(torch.nn.Module):
    """Many operations on one tensor: compiled code, which fuses them, is much faster than eager code."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(256, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(12):
            x = (x * self.scale).sin() + x.sigmoid()
        return x


def step(run: torch.nn.Module, model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss = run(x).square().mean()
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def main() -> None:
    precompiled.enable()
    torch.manual_seed(0)
    model, x = Model(), torch.randn(256, 512)
    compiled = torch.compile(model)
    expected = step(model, model, x)
    ways, until = [], time.monotonic() + PATIENCE_S
    while len(ways) < STEPS_AFTER and time.monotonic() < until:
        before = precompiled.report()
        torch.testing.assert_close(step(compiled, model, x), expected)
        (report,) = precompiled.report()
        if not before:
            print("@called", flush=True)
        if report.calls_compiled or ways or report.state not in ("pending", "eager"):
            ways.append("compiled" if report.calls_compiled > (before[0].calls_compiled if before else 0) else "eager")
    print(json.dumps({"ways": ways, "state": report.state, "reason": report.reason, "message": report.message}))


if __name__ == "__main__":
    main()
