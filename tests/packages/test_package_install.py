"""Tests that packages replace all functions of Dynamo that they have to replace, or none if one of these is missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch._dynamo import convert_frame
from torch._dynamo.variables.base import VariableTracker

from precompiled.packages.dynamo import dynamo_frames, ordered, set_order


class Nobody:
    def find(self, frame: Any) -> None: ...
    def ended(self) -> None: ...
    def traced(self, frame: Any, traced: Any) -> None: ...


def functions() -> dict[tuple[type, str], Any]:
    kinds = [*ordered.kinds(VariableTracker), convert_frame.ConvertFrame, convert_frame.ConvertFrameAssert]
    return {(kind, name): value for kind in kinds for name, value in vars(kind).items() if callable(value)}


def test_install_replaces_nothing_if_torch_lacks_one_of_the_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> Iterator[tuple[Any, str, Any]]:
        yield VariableTracker, "a_function_that_was_renamed", lambda original, now: original

    before, recording = functions(), convert_frame.CheckFunctionManager
    monkeypatch.setattr(set_order, "replacements", gone)
    with pytest.raises(AttributeError):
        dynamo_frames.install(Nobody())
    assert functions() == before and convert_frame.CheckFunctionManager is recording
    assert dynamo_frames._packages is None


def test_remove_restores_every_function_of_dynamo() -> None:
    before = functions()
    dynamo_frames.install(Nobody())
    assert functions() != before
    dynamo_frames.remove()
    assert functions() == before
