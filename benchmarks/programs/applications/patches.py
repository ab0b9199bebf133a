"""Acts as a library that replaces functions of torch and hooks all modules, as profilers and loggers do."""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

CALLS: Counter[str] = Counter()


def wrapped(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        CALLS[name] += 1
        return function(*args, **kwargs)

    return counted


def clipped_gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """The library's approximation of GELU."""
    return x * torch.sigmoid(1.702 * x)


def patch() -> None:
    functional.gelu = clipped_gelu  # type: ignore[assignment]
    functional.cross_entropy = wrapped(functional.cross_entropy, "cross_entropy")
    torch.nn.Module.train = wrapped(torch.nn.Module.train, "train")


def watch(model: torch.nn.Module, found: dict[str, torch.Tensor]) -> None:
    """Record the output of each leaf module in ``found``."""

    def hook(name: str, module: torch.nn.Module, args: Any, output: torch.Tensor) -> None:
        found[name] = output.detach().abs().mean()

    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(functools.partial(hook, name))
