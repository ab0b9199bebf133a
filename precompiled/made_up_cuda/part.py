"""Implements parts.MadeUpCudaProtocol: the functions of this part that other code calls."""

from __future__ import annotations

from collections.abc import Callable

from precompiled.core.errors import PrecompiledError
from precompiled.made_up_cuda import kinds
from precompiled.made_up_cuda.activate import activate, compiling, in_a_worker, is_active

__all__ = ["activate", "compiling", "in_a_worker", "is_active", "is_made_up", "stand_in"]


def is_made_up(uuid: str) -> bool:
    return uuid.startswith(kinds.UUID_PREFIX)


def stand_in(properties: Callable[[], object]) -> tuple[str, str]:
    from precompiled.made_up_cuda import build

    try:
        build.check(build.find_torch())
    except build.CannotBuild as error:
        raise PrecompiledError(f"a worker without the GPU: {error}", error.action, code="no-made-up-gpu") from error
    return kinds.like(properties()), kinds.FIRST_UUID
