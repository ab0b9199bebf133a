"""Compiles graphs with plain torch.compile's backend "inductor", and interprets mode= and options= as this backend
does.

Private names: torch._TorchCompileInductorWrapper.config, torch._TorchCompileWrapper.{compiler_name, kwargs},
torch._inductor.compile_fx.compile_fx. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from precompiled.torch_internals.client import garbage_collection
from precompiled.torch_internals.inductor import direct_inductor_calls


def options_of(mode: str | None, options: Mapping[str, object] | None) -> dict[str, object]:
    """Inductor's settings for mode= and options=. Raises torch.compile's errors for unknown modes and options."""
    return dict(torch._TorchCompileInductorWrapper(mode, options, None).config)


def options_of_backend(backend: Any) -> dict[str, object] | None:
    """Inductor's settings in ``backend``, if it is torch.compile()'s backend "inductor" or "precompiled"; None for
    other backends.
    """
    if type(backend) is torch._TorchCompileInductorWrapper:
        return dict(backend.config)
    if type(backend) is torch._TorchCompileWrapper and backend.compiler_name == "precompiled":
        return options_of(backend.kwargs.get("mode"), backend.kwargs.get("options"))
    return None


def compile_in_process(
    module: torch.fx.GraphModule, inputs: Sequence[object], options: Mapping[str, object]
) -> Callable[..., object]:
    """Compile exactly as plain torch.compile does."""
    from torch._inductor.compile_fx import compile_fx

    with garbage_collection.as_usual(), direct_inductor_calls.ours():
        return compile_fx(module, inputs, config_patches=dict(options))  # type: ignore[no-any-return, unused-ignore]
