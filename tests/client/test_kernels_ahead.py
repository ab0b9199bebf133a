"""Tests of Triton kernels that workers compile before the program launches them. No worker compiles a kernel here;
tests/gpu/test_triton_kernels_ahead.py has real compiles.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support_daemon import wait_until
from support_host import TIMEOUT_S, Host

from precompiled.client import kernels_ahead
from precompiled.client.kernels_ahead import KernelsAhead
from precompiled.core.config import Settings
from precompiled.core.errors import Bypass
from precompiled.store.recipe_lists import ListedRecipe, RecipeList
from precompiled.store.triton_kernels import TritonKernels, seal

KEY, OTHER = "a" * 64, "b" * 64
RECIPE: dict[str, Any] = {"kernel": ["kernel_library", "added", "0" * 64], "key": "1", "triton": "3.6.0"}
ITEM = ListedRecipe(RECIPE, "added", KEY, "", False, "cuda:GPU-00000000-0000-0000-0000-000000000000", "H100", 2.0)


@pytest.fixture
def settings(served: Host) -> Settings:
    return replace(served.settings, triton="on")


@pytest.fixture
def listed(settings: Settings) -> RecipeList:
    found = RecipeList(settings.cache_dir, kernels_ahead.identity())
    found.add(ITEM)
    return found


@pytest.fixture
def ahead(settings: Settings, listed: RecipeList) -> Iterator[KernelsAhead]:
    found = KernelsAhead(settings)
    yield found
    found._connected().close()


@pytest.mark.reason("kernel-ahead")
def test_recipe_that_no_worker_can_compile_is_counted_and_removed(
    ahead: KernelsAhead, served: Host, listed: RecipeList
) -> None:
    ahead.begin()
    wait_until(lambda: listed.read() == [], "a worker has no module kernel_library", TIMEOUT_S)
    wait_until(lambda: served.stats().fallbacks == {"kernel-ahead": 1})
    assert (served.stats().submitted, served.stats().failed, served.stats().compiled) == (1, 1, 0)
    assert list(served.store.failures()) == [], "the program itself may compile the kernel"


@pytest.mark.parametrize("change", [{"triton": "on"}, {"triton": "texts"}, {"mode": "lookup"}], ids=str)
def test_kernel_that_is_not_missing_is_not_submitted(
    change: dict[str, str], settings: Settings, served: Host, listed: RecipeList
) -> None:
    if change == {"triton": "on"}:  # the store has the kernel
        TritonKernels(settings.cache_dir).publish(KEY, seal(KEY, "added", {"added.json": b"{}"}))
    found = KernelsAhead(replace(settings, **change))  # type: ignore[arg-type]
    found.begin()
    for thread in threading.enumerate():
        if thread.name == kernels_ahead.THREAD:
            thread.join(60)
    assert found._connection is None and served.stats().submitted == 0


def test_process_waits_for_a_worker_as_long_as_its_own_compile_took(ahead: KernelsAhead) -> None:
    assert ahead.patience_s(KEY) == 0.0, "nothing is listed yet"
    ahead._listed = {KEY: ITEM, OTHER: replace(ITEM, key=OTHER, compile_s=5.0)}
    assert (ahead.patience_s(KEY), ahead.patience_s(OTHER), ahead.patience_s("c" * 64)) == (2.0, 5.0, 5.0)


@pytest.mark.reason("user-kernel")
def test_kernel_without_a_recipe_is_described_and_counted_once(ahead: KernelsAhead, served: Host) -> None:
    described = []

    def refuse() -> dict[str, Any]:
        described.append(1)
        raise Bypass("the kernel has a closure", code="user-kernel")

    for _ in range(2):
        ahead.note(OTHER, "closure", refuse, 1.0)
    assert len(described) == 1
    wait_until(lambda: served.stats().bypassed == {"user-kernel": 1})


def test_process_without_a_gpu_lists_nothing(ahead: KernelsAhead, listed: RecipeList) -> None:
    ahead.note(OTHER, "added", lambda: RECIPE, 1.0)
    assert listed.read() == [ITEM]
