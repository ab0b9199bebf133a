"""Tests of how settings that are code become plain data. tests/e2e/test_code_settings.py tests such settings with a
worker.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from precompiled.core.errors import Bypass
from precompiled.torch_internals.graph import compiler_config
from precompiled.torch_internals.user_code import code_settings


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    import importlib

    (tmp_path / "held_by_a_pass.py").write_text("NAME = 'tan'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("precompiled.torch_internals.user_code.user_modules.earliest_load", lambda *_: float("inf"))
    found = importlib.import_module("held_by_a_pass")
    monkeypatch.delitem(sys.modules, "held_by_a_pass")
    monkeypatch.setitem(sys.modules, "held_by_a_pass", found)
    return found


def encoded(value: Any) -> Any:
    return compiler_config._plain_value("a setting", value)


def test_module_is_encoded_with_the_digest_of_its_content(module: ModuleType) -> None:
    plain = encoded([module])
    ((name, digest),) = code_settings.modules(plain)
    assert name == "held_by_a_pass" and compiler_config._value(plain) == [module]
    module.NAME = "exp"
    assert dict(code_settings.modules(encoded([module]))) != {name: digest}
    with pytest.raises(ValueError, match="differ from the capture"):
        compiler_config._value(plain)


def test_module_of_precompiled_has_no_digest_and_main_is_refused() -> None:
    assert encoded(code_settings) == {"module": [code_settings.__name__, ""]}
    assert compiler_config._value(encoded(code_settings)) is code_settings
    for nameless in (ModuleType("__main__"), ModuleType("nowhere")):
        with pytest.raises(Bypass) as refused:
            encoded(nameless)
        assert refused.value.code == "custom-pass"
    with pytest.raises(ValueError, match="without a digest"):
        code_settings.decode({"module": [math.__name__, ""]}, compiler_config._value)


def test_refusal_of_a_local_function_names_asserts_that_pytest_rewrote() -> None:
    def checked(graph: object) -> None:
        assert graph is not None

    with pytest.raises(Bypass, match=r"pytest has rewritten the assert statements of .*checked") as refused:
        encoded(checked)
    assert refused.value.code == "custom-pass"
