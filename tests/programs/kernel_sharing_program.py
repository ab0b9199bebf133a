"""A program with two graphs that have the same C++ kernels. The program compiles and runs one graph, and compares its
result with eager's.

Arguments: "once" or "twice", the number of matrix products after the last kernel; "unsafe" for other compiler flags.
"""

from __future__ import annotations

import sys

import torch

import precompiled


def once(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.mm(torch.cos(torch.mm(torch.sin(x) * 2.0 + 1.0, weight)), weight)


def twice(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.mm(once(x, weight), weight)


def main() -> None:
    precompiled.enable()
    torch.manual_seed(0)
    x, weight = torch.randn(48, 64, dtype=torch.float64), torch.randn(64, 64, dtype=torch.float64) / 8
    function = {"once": once, "twice": twice}[sys.argv[1]]
    options = {"cpp.enable_unsafe_math_opt_flag": True} if "unsafe" in sys.argv else None
    with torch.no_grad():
        actual = torch.compile(function, options=options)(x, weight)
        torch.testing.assert_close(actual, function(x, weight))
    (report,) = precompiled.report()
    assert (report.state, report.calls_compiled) == ("compiled", 1), report


if __name__ == "__main__":
    main()
