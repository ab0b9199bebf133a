"""Tests how a trace notices calls of the program's functions (native_calls.py), on Python before 3.12."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch.utils._pytree as pytree

from precompiled.packages.dynamo import native_calls

pytestmark = pytest.mark.skipif(native_calls.FROM_THE_BEGINNING, reason="Python 3.12 watches the whole trace")

REGISTERED = """
import functools
import torch.utils._pytree as pytree

FACTOR = 2.0
class Output(dict): pass
def flatten(output):
    return [value * FACTOR for value in output.values()], list(output)
def unflatten(values, names, kind):
    return kind(zip(names, values))
pytree.register_pytree_node(Output, flatten, functools.partial(unflatten, kind=Output))
"""


@pytest.mark.parametrize("place", ["site-packages", "program"])
def test_class_that_a_library_flattens_starts_no_profiler(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"registered_in_{place.replace('-', '_')}"
    (tmp_path / place).mkdir()
    (tmp_path / place / f"{name}.py").write_text(REGISTERED)
    monkeypatch.syspath_prepend(tmp_path / place)
    monkeypatch.setattr(native_calls, "_files", {})
    module = importlib.import_module(name)
    before = sys.getprofile()
    sys.setprofile(None)
    try:
        with native_calls.watching() as noticed:
            native_calls.meets(module.Output)
            of_the_class = sys.getprofile()
            native_calls.meets(module.Output(a=1.0))
            of_a_value = sys.getprofile()
    finally:
        sys.setprofile(before)
        pytree.SUPPORTED_NODES.pop(module.Output)
        del sys.modules[name]
    names = {call.code.co_name for call in noticed.calls}
    assert ({"flatten", "unflatten"} <= names) == (place == "site-packages")
    assert (of_the_class is None) == (place == "site-packages")
    assert of_a_value is not None


def test_no_class_property_of_the_program_is_read() -> None:
    class Asked:
        @property
        def __class__(self) -> type:
            raise AssertionError("a note of ours ran code of the program")

    before = sys.getprofile()
    sys.setprofile(None)
    try:
        with native_calls.watching():
            native_calls.meets(Asked())
    finally:
        sys.setprofile(before)
