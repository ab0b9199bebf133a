"""Tests that a failed load on a full GPU is repeated once, after torch's allocator has released its unused memory."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from precompiled.torch_internals import gpu_room

FULL = RuntimeError("CUDA driver error: out of memory")


def test_load_is_retried_after_memory_was_released(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("emptied"))
    # The thread that swaps may have a different current device. The release of memory must not create a CUDA context on
    # that device.
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(done.append(device)))

    def load() -> str:
        done.append("load")
        if "emptied" not in done:
            raise FULL
        return "loaded"

    assert gpu_room.with_room(load, "cuda:0") == "loaded"
    assert done == ["load", "cuda:0", "emptied", "load"]


@pytest.mark.parametrize("error", [FULL, RuntimeError("invalid device function"), ValueError("no artifact")])
def test_other_errors_and_a_second_failure_are_raised(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    tried: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())

    def load() -> None:
        tried.append(1)
        raise error

    with pytest.raises(type(error), match=str(error)):
        gpu_room.with_room(load, "cuda:0")
    assert len(tried) == (2 if error is FULL else 1)
