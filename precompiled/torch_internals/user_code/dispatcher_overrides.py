"""Finds kernels that the program registers for torch's operators: ``Library("aten", "IMPL").impl("silu", f, ...)``.

AOTAutograd traces through these kernels. Only kernels for a device are not traced, because compiled code calls them. A
worker has torch's own kernels.

Torch has no list of these kernels with their functions. But each Library object has the names that it has registered,
and the dispatcher knows the file that created each Library. So one query per Library shows whether the Library is
torch's. There is one exception: ``torch.library.impl``, ``register_fake`` and similar functions create a Library
themselves, so the file of such a Library is torch/library.py. Torch calls none of these functions for its own
operators, so this Library counts as the program's.

The names that a Library has registered (namespace/operator/key) are available only through its finalizer
(torch/library.py: Library.__init__).

Private names: torch.library.{_impls, _del_library}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator
from functools import cache
from operator import is_
from typing import Any

import torch.library

from precompiled.core.files import is_really_torchs
from precompiled.torch_internals.user_code import dispatcher_registrations

# Dispatch keys whose kernels run but are never traced. Compiled code calls these kernels in this process, so a graph
# that uses them need not be refused.
_ONLY_RUN = frozenset({"CPU", "CUDA", "XPU", "MPS", "HPU", "MTIA", "XLA", "PrivateUse1"})

# The Libraries in which the last check found no override, and how many names each of them had registered. Only a new
# name can become an override. The Libraries' sets are kept alive so that no new Library's set gets the same identity.
_harmless: tuple[list[set[str]], list[int]] = ([], [])


def find_overrides(namespaces: Collection[str]) -> dict[str, str]:
    """Map each operator (aten::silu) to the place and key of the traced kernel that the program registered."""
    global _harmless  # noqa: PLW0603
    libraries = list(_libraries())
    sizes = list(map(len, libraries))
    if sizes == _harmless[1] and all(map(is_, libraries, _harmless[0])):
        return {}
    overrides: dict[str, str] = {}
    for names in libraries:
        overrides.update(_of(names, namespaces))
    if not overrides:
        _harmless = libraries, sizes
    return overrides


def _libraries() -> Iterator[set[str]]:
    """The names that each Library has registered, including destroyed Libraries."""
    registry: dict[Any, Any] = weakref.finalize._registry  # type: ignore[attr-defined, unused-ignore]
    for info in list(registry.values()):
        if info.func is torch.library._del_library and info.args[0] is torch.library._impls:
            yield info.args[1]


def _of(names: Collection[str], namespaces: Collection[str]) -> dict[str, str]:
    # A destroyed Library's names are included, because torch removes them from its list even if another Library has
    # registered the same names.
    operators = (
        f"{namespace}::{operator}"
        for namespace, operator, key in (name.split("/") for name in names)
        if namespace in namespaces and key not in _ONLY_RUN
    )
    first = next(operators, None)
    if first is None or _foreign(first) is None:
        return {}
    # The Library may be torch's: the program has overridden its first operator, but not the others.
    places = {operator: _foreign(operator) for operator in (first, *operators)}
    return {operator: place for operator, place in places.items() if place is not None}


def _foreign(operator: str) -> str | None:
    """The place where code other than torch has registered a traced kernel of this operator; None if there is none."""
    for place in dispatcher_registrations.of(operator):
        in_python = place.file.endswith(".py") or place.file.startswith("<")
        if in_python and place.key not in _ONLY_RUN and not _is_torchs(place.file):
            return f"a kernel for {place.key} is registered at {_shown(place.file)}"
    return None


def _shown(file: str) -> str:
    return "a place that torch.library does not record" if file == torch.library.__file__ else file


@cache
def _is_torchs(file: str) -> bool:
    return file != torch.library.__file__ and is_really_torchs(file)
