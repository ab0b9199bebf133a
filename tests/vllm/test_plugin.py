"""What vLLM calls at its start, without a vLLM: harmless wherever it cannot help (tests/e2e/test_vllm.py has one)."""

from __future__ import annotations

import importlib.metadata
import sys
from types import ModuleType

import pytest

from precompiled import hook
from precompiled.vllm import plugin


@pytest.mark.parametrize("state", ["off", "on"])
def test_it_raises_nothing_and_says_what_is_wrong(
    state: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hook, "state", lambda: state)
    monkeypatch.delitem(sys.modules, "precompiled.vllm.adaptor", raising=False)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))  # one that has nothing of what is needed
    plugin.register()
    assert [record.levelname for record in caplog.records] == (["WARNING"] if state == "on" else [])


def test_vllm_finds_it() -> None:
    (found,) = (
        point for point in importlib.metadata.entry_points(group="vllm.general_plugins") if point.name == "precompiled"
    )
    assert found.load() is plugin.register
