"""Makes one result of torch.compile use torch's own backend, while the hook routes all other results.

The result's backend object gets the class ``BypassedBackend``, which the hook and packages leave alone. Dynamo shares
code between equal backends. A BypassedBackend never equals a backend that the hook routes. So its function never runs
code that precompiled supplied for another result of torch.compile.

Private names: torch._TorchCompileInductorWrapper.__eq__. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import torch

from precompiled.torch_internals.client import compiled_functions


class BypassedBackend(torch._TorchCompileInductorWrapper):
    """The backend "inductor" of a result of torch.compile that precompiled does not serve."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and bool(super().__eq__(other))

    __hash__ = None  # type: ignore[assignment]  # as torch's class


def mark(backend: object) -> bool:
    """Leave the graphs of this backend object to torch. Returns false for backends other than "inductor"."""
    if type(backend) is torch._TorchCompileInductorWrapper:
        backend.__class__ = BypassedBackend
    return isinstance(backend, BypassedBackend)


def bypass(compiled: object) -> bool:
    """Leave the graphs of ``compiled``, a result of torch.compile, to torch. Returns false if ``compiled`` is no such
    result or its backend is not "inductor".
    """
    context = compiled_functions.context_of(compiled)
    return context is not None and mark(compiled_functions.backend_of(context))
