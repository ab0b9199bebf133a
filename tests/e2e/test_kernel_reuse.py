"""Tests that a worker builds only kernels that the store lacks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support_host import Host

from precompiled.store.reading import Artifact

PROGRAM = str(Path(__file__).parent.parent / "programs" / "kernel_sharing_program.py")

pytestmark = pytest.mark.integration


def compiled(host: Host, *arguments: str, **variables: str) -> tuple[Artifact, str, str]:
    """Run the program. Returns the program's artifact, and the numbers of kernels that the worker built and reused."""
    before = {artifact.path for artifact in host.store.every()}
    host.program(PROGRAM, *arguments, env={"PRECOMPILED_MODE": "wait", **variables}).ended()
    (artifact,) = (artifact for artifact in host.store.every() if artifact.path not in before)
    about = artifact.manifest.compiled_by
    return artifact, about["kernels built"], about["kernels reused"]


def test_second_graph_with_the_kernels_of_the_first_builds_none(served: Host) -> None:
    first, built, reused = compiled(served, "once")
    assert (built, reused) == ("2", "0")
    second, built, reused = compiled(served, "twice")
    assert (built, reused) == ("0", "2")
    assert second.manifest.kernels == first.manifest.kernels
    # The second artifact contains its files itself, so a later process needs no other artifact.
    served.command("cache", "clear", first.manifest.key, "--yes")
    served.program(PROGRAM, "twice", env={"PRECOMPILED_REQUIRE": "1"}).ended()


def test_kernels_are_built_again_with_other_flags_or_another_compiler(served: Host) -> None:
    first, *_ = compiled(served, "once")
    flags, built, _ = compiled(served, "twice", "unsafe")
    assert flags.manifest.kernels.keys() == first.manifest.kernels.keys(), "the sources are equal"
    assert built == "2"
    compiler = served.root / "g++"
    compiler.write_text('#!/bin/sh\nexec g++ "$@"\n')
    compiler.chmod(0o700)
    other, built, _ = compiled(served, "twice", CXX=str(compiler))
    assert other.manifest.kernels.keys() == first.manifest.kernels.keys(), "the sources are equal"
    assert built == "2"


@pytest.mark.parametrize("fault", ["damaged", "writable by others"])
def test_kernels_that_cannot_be_read_are_built_again(served: Host, fault: str) -> None:
    first, *_ = compiled(served, "once")
    for file in (first.path / "native").iterdir():
        if fault == "damaged":
            file.write_bytes(file.read_bytes()[:-1] + b"?")
        else:
            os.chmod(file, 0o722)
    _, built, reused = compiled(served, "twice")
    assert (built, reused) == ("2", "0")
