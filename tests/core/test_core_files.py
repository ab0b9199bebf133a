"""Tests that a source file is attributed to its owner: this project, the standard library, or the user."""

from __future__ import annotations

import json
import os

import precompiled
from precompiled import backend
from precompiled.client import start
from precompiled.core import files


def test_files_of_precompiled_are_recognised() -> None:
    for module in (precompiled, backend, start, files):
        assert files.is_ours(str(module.__file__)) and not files.is_users(str(module.__file__))
    assert os.path.dirname(str(precompiled.__file__)) == files.PACKAGE


def test_standard_library_is_not_a_users_file() -> None:
    assert files.is_standard(json.__file__) and not files.is_users(json.__file__)
    assert files.is_users("/home/me/model.py") and not files.is_standard("/home/me/model.py")
