"""Tests of the plugin that vLLM calls at its start, without vLLM: the plugin never raises, and warns only if
precompiled is enabled. tests/e2e/test_vllm.py uses a real vLLM.
"""

from __future__ import annotations

import importlib.metadata
import sys
from types import ModuleType

import pytest

from precompiled import hook
from precompiled.vllm import plugin


@pytest.mark.parametrize("state", ["off", "on"])
def test_register_never_raises_and_warns_only_if_enabled(
    state: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hook, "state", lambda: state)
    monkeypatch.delitem(sys.modules, "precompiled.vllm.adaptor", raising=False)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))  # a module without the required attributes
    plugin.register()
    assert [record.levelname for record in caplog.records] == (["WARNING"] if state == "on" else [])


def test_vllm_finds_the_plugin_entry_point() -> None:
    (found,) = (
        point for point in importlib.metadata.entry_points(group="vllm.general_plugins") if point.name == "precompiled"
    )
    assert found.load() is plugin.register
