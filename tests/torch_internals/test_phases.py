"""Tests of the progress reports of a running compile."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import torch._inductor.config
from torch._inductor.async_compile import AsyncCompile

from precompiled.torch_internals.worker import compile_phases


class RecordedProgress(compile_phases.IgnoredProgress):
    def __init__(self) -> None:
        super().__init__()
        self.built: list[tuple[int, int]] = []

    def kernels(self, built: int, of: int) -> None:
        self.built.append((built, of))


@pytest.mark.parametrize("verbose", [False, True])
def test_kernels_that_torch_waits_for_are_counted(verbose: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """While torch waits for Triton kernels, the worker reports how many are complete.

    torch's own progress bar must not appear in a worker's log.
    """
    scope: dict[str, object] = {name: Future() for name in ("a", "b")}
    for future in scope.values():
        future.set_result("a kernel")  # type: ignore[attr-defined]
    progress = RecordedProgress()
    settings = torch._inductor.config.patch(compile_threads=2, verbose_progress=verbose, disable_progress=not verbose)
    with settings, compile_phases.noted(progress):
        AsyncCompile().wait({**scope, "number": 1})
        AsyncCompile().wait({"number": 1})  # a call without kernels, which must report nothing
    assert progress.built == [(0, 2), (1, 2), (2, 2)]
    assert capfd.readouterr().err == ""
    with settings:
        AsyncCompile().wait({**scope})
    assert len(progress.built) == 3 and bool(capfd.readouterr().err) is verbose
