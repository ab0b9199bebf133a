"""Makes one result of torch.compile use torch's own backend, while the hook routes the others.

The result's backend object gets the class ``BypassedBackend``, which the hook and packages leave alone. Dynamo shares
code between equal backends. A BypassedBackend equals only itself, so its function never runs code that precompiled
supplied for another call of torch.compile.

Private names: torch._TorchCompileInductorWrapper.__eq__. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import torch

from precompiled.torch_internals.client import compiled_functions


class BypassedBackend(torch._TorchCompileInductorWrapper):
    """torch.compile's backend "inductor", which precompiled does not serve."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and bool(super().__eq__(other))

    __hash__ = None  # type: ignore[assignment]  # as torch's class


def mark(backend: object) -> bool:
    """Leave the graphs of this backend object to torch. Returns false for backends other than "inductor"."""
    if type(backend) is torch._TorchCompileInductorWrapper:
        backend.__class__ = BypassedBackend
    return isinstance(backend, BypassedBackend)


def bypass(compiled: object) -> bool:
    """Leave the graphs of a result of torch.compile to torch. Returns false if ``compiled`` is not a result of
    torch.compile with the backend "inductor".
    """
    context = compiled_functions.context_of(compiled)
    return context is not None and mark(compiled_functions.backend_of(context))
