"""Whose file a source is."""

from __future__ import annotations

import json
import os

import precompiled
from precompiled import backend
from precompiled.client import start
from precompiled.core import files


def test_what_is_ours_is_nobody_elses() -> None:
    for module in (precompiled, backend, start, files):
        assert files.is_ours(str(module.__file__)) and not files.is_users(str(module.__file__))
    assert os.path.dirname(str(precompiled.__file__)) == files.PACKAGE


def test_the_standard_library_is_of_the_installation() -> None:
    assert files.is_standard(json.__file__) and not files.is_users(json.__file__)
    assert files.is_users("/home/me/model.py") and not files.is_standard("/home/me/model.py")
