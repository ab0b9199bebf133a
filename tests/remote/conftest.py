"""Provides places for a remote, and helpers for this folder and for the store's tests."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import fsspec
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "versions"))
sys.path.insert(0, str(Path(__file__).parent.parent / "gpu"))
sys.path.insert(0, str(Path(__file__).parent.parent / "store"))

import support_places
from support_places import KINDS, Place
from support_remote import memory


@pytest.fixture(scope="session")
def places() -> Iterator[Callable[[str], Place]]:
    """Yield a function that returns the place on a real server, given its kind ("s3", for example).

    The first call for a kind starts the server, which runs until the end of the session.
    """
    with ExitStack() as servers:
        found: dict[str, Place] = {}

        def place(kind: str) -> Place:
            if kind not in found:
                found[kind] = servers.enter_context(support_places.served(kind))
            return found[kind]

        yield place


@pytest.fixture(params=["file", "memory", *(pytest.param(kind, marks=pytest.mark.buckets) for kind in KINDS)])
def url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: Callable[[str], Place]
) -> Iterator[str]:
    """Yield the URL of an empty place, for each kind of place."""
    if request.param == "memory":
        yield memory()
    elif request.param == "file":
        yield f"file://{tmp_path / 'bucket'}"
    else:
        place = places(request.param)
        for name, value in place.variables.items():
            monkeypatch.setenv(name, value)
        file_system = fsspec.get_filesystem_class(request.param)
        file_system.clear_instance_cache()  # a cached instance would refer to the server of an earlier test
        yield f"{place.url}/{uuid.uuid4().hex}"
        file_system.clear_instance_cache()
