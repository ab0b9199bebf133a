"""Tests that no entry is lost if eight processes record the same function at the same time, each for its own shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support_host import Client, Host

from precompiled.store.packages import PackageStore

PROGRAM = Path(__file__).parent.parent / "programs" / "packages_program.py"
SOURCE = """
import json, os
import torch
OPTIONS = {"dynamic": False}
def f(x):
    return torch.addmm(x, x, x, alpha=2.0)
def build():
    return f, [(torch.randn(size, size),) for size in json.loads(os.environ["SIZES"])]
"""
WRITERS = 8


def start(host: Host, folder: Path, sizes: list[int]) -> Client:
    extra = {"PRECOMPILED_PACKAGES": "function", "PRECOMPILED_MODE": "wait", "OMP_NUM_THREADS": "1"}
    spec = {"folder": str(folder), "cases": ["writers"]}
    return host.start(spec, {**extra, "SIZES": json.dumps(sizes)}, program=PROGRAM)


@pytest.mark.slow  # nine processes
def test_eight_processes_store_usable_entries_of_one_function(shared_host: Host) -> None:
    folder = shared_host.root / "writers"
    folder.mkdir()
    (folder / "writers.py").write_text(SOURCE)
    sizes = [4 + 2 * number for number in range(WRITERS)]
    writers = [start(shared_host, folder, [size]) for size in sizes]
    assert all(writer.result()["writers"]["equal"] for writer in writers)
    entries = [entry for entry in PackageStore(shared_host.store.root).entries() if entry.header.module == "writers"]
    assert len(entries) == WRITERS
    found = start(shared_host, folder, sizes[:6]).result()["writers"]
    assert found["equal"]
    assert (found["states"], found["frames"]) == (["used"] * 6, {}), found
