"""Eight processes that compile one function at different shapes at once: every entry is there, and is used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support_host import TIMEOUT_S, Host

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


def command(folder: Path) -> list[str]:
    return [sys.executable, str(PROGRAM), json.dumps({"folder": str(folder), "cases": ["writers"]})]


def environment(host: Host, sizes: list[int]) -> dict[str, str]:
    extra = {"PRECOMPILED_PACKAGES": "function", "PRECOMPILED_MODE": "wait", "OMP_NUM_THREADS": "1"}
    return host.environment({**extra, "SIZES": json.dumps(sizes)})


def answer(text: str) -> Any:
    return json.loads(text.splitlines()[-1])["writers"]


@pytest.mark.slow  # nine processes
def test_eight_processes(shared_host: Host) -> None:
    folder = shared_host.root / "writers"
    folder.mkdir()
    (folder / "writers.py").write_text(SOURCE)
    sizes = [4 + 2 * number for number in range(WRITERS)]
    writers = [
        subprocess.Popen(
            command(folder), env=environment(shared_host, [size]), cwd=shared_host.root,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for size in sizes
    ]  # fmt: skip
    for writer in writers:
        out, errors = writer.communicate(timeout=TIMEOUT_S)
        assert writer.returncode == 0, errors[-2000:]
        assert answer(out)["equal"]
    entries = [entry for entry in PackageStore(shared_host.store.root).entries() if entry.header.module == "writers"]
    assert len(entries) == WRITERS
    reader = subprocess.run(
        command(folder), env=environment(shared_host, sizes[:6]), cwd=shared_host.root,
        capture_output=True, text=True, timeout=TIMEOUT_S, check=True,
    )  # fmt: skip
    found = answer(reader.stdout)
    assert found["equal"]
    assert (found["states"], found["frames"]) == (["used"] * 6, {}), found
