"""Tests that after `precompiled bake`, the first process of a user with an empty store compiles and traces nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support_host import TIMEOUT_S

PROGRAM = Path(__file__).parent.parent / "programs" / "baked_program.py"
NOBODY = 65534


def environment(home: Path, **extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PRECOMPILED", "XDG"))}
    return {
        **kept,
        "HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "PRECOMPILED_PACKAGE_AUDIT": "0",
        "PRECOMPILED_CHECK": "never",
        **extra,
    }


def bake(home: Path, *arguments: str, status: int = 0, more: Mapping[str, str] | None = None) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "precompiled", "bake", "--json", *arguments],
        env=environment(home, **(more or {})),
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == status, done.stdout + done.stderr[-3000:]
    return json.loads(done.stdout)


def as_a_user() -> list[str]:
    """Returns the first words of a command that runs the rest of the command as an unprivileged user.

    For root, the unprivileged user is ``nobody``, with the capability to read all files. For other users, the result is
    empty.
    """
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return []
    # The interpreter may be in /root, which ``nobody`` cannot read without this capability.
    read = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    return ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", *read]


@pytest.fixture
def place() -> Iterator[Path]:
    """Creates a directory that other users can enter."""
    with tempfile.TemporaryDirectory(prefix="pc-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)
        subprocess.run(["chmod", "-R", "u+w", name], check=True)


def listing(root: Path) -> dict[str, tuple[int, int, int]]:
    return {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_ctime_ns, path.lstat().st_size)
        for path in sorted(root.rglob("*"))
    }


@pytest.mark.slow  # starts a daemon and a worker, and compiles into an empty store
def test_first_process_of_another_user_compiles_and_traces_nothing(place: Path) -> None:
    base, home = place / "opt", place / "home"
    home.mkdir()
    report = bake(home, "--steps", "3", "-o", str(base), "--", sys.executable, str(PROGRAM), "0")
    assert report["ended"] == "steps" and report["artifacts"] >= 2 and report["packages"] >= 2, report
    assert report["bytes"] < 2 << 20 and sorted(os.listdir(place)) == ["home", "opt"]
    assert not list(home.rglob("*precompiled*")), "it has written into its user's own store"
    subprocess.run(["chmod", "-R", "a-w", str(base)], check=True)
    before = listing(base)

    theirs = place / "theirs"
    theirs.mkdir(mode=0o700)
    user = as_a_user()
    if user:
        os.chown(theirs, NOBODY, NOBODY)
    done = subprocess.run(
        [*user, sys.executable, "-m", "precompiled", "run", "--", sys.executable, str(PROGRAM), "3"],
        # Without a daemon, a graph that has no artifact would be compiled in this process, and the test would fail.
        env=environment(theirs, PRECOMPILED_BASE=str(base), PRECOMPILED_AUTOSTART="0", TMPDIR=str(theirs)),
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["uid"] == (NOBODY if user else os.geteuid())
    assert found["graphs"] and {tuple(graph) for graph in found["graphs"]} == {("compiled", "package", "")}, found
    assert {state for state, *_ in found["frames"]} <= {"used", "skipped"}, found
    assert (found["traced"], found["compiles"]) == ({}, 0)
    assert "precompiled" not in done.stderr, done.stderr
    assert listing(base) == before
    own = theirs / ".cache" / "precompiled"
    assert not (own / "artifacts").exists() and not (own / "packages").exists()


@pytest.mark.integration
def test_deep_model_is_baked_as_a_whole(place: Path) -> None:
    command = [sys.executable, str(PROGRAM.with_name("layered_program.py")), "6"]
    assert bake(place, "-o", str(place / "base"), "--", *command)["artifacts"] == 1


@pytest.mark.reason("bake-empty", "bake-command-failed")
@pytest.mark.parametrize(
    ("text", "code"), [("print('no graph')", "bake-empty"), ("raise SystemExit(3)", "bake-command-failed")]
)
def test_bake_without_a_result_is_an_error_and_leaves_no_files(place: Path, text: str, code: str) -> None:
    said = bake(place, "-o", str(place / "base"), "--", sys.executable, "-c", text, status=1)
    assert said["error"]["code"] == code and os.listdir(place) == []


LIBRARY = """
import os, subprocess
from pathlib import Path
import torch

torch.compile(lambda x: x + 1)(torch.ones(2))
folder = Path(os.environ["DG_JIT_CACHE_DIR"])
kernel = folder / "kernel.so"
if is_cold := not kernel.exists():
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.c").write_text("int kernel(void) { return 42; }")
    subprocess.run(["cc", "-shared", "-o", str(kernel), str(folder / "kernel.c")], check=True)
import ctypes, json
print(json.dumps({"compiled": is_cold, "value": ctypes.CDLL(str(kernel)).kernel()}))
"""


@pytest.mark.slow  # starts a daemon and a worker, and compiles into an empty store
def test_folder_of_another_compiler_is_filled_by_bake_and_used_at_run_time(place: Path) -> None:
    """The test follows docs/guides/triton.md. The test's library compiles into the folder that a variable names, as
    DeepGEMM does.
    """
    program, kernels, home = place / "program.py", place / "kernels", place / "home"
    program.write_text(LIBRARY)
    home.mkdir()
    given = {"DG_JIT_CACHE_DIR": str(kernels)}
    bake(home, "-o", str(place / "base"), "--", sys.executable, str(program), more=given)
    subprocess.run(["chmod", "-R", "a-w", str(kernels)], check=True)
    before = listing(kernels)
    done = subprocess.run(
        [sys.executable, "-m", "precompiled", "run", "--", sys.executable, str(program)],
        env=environment(home, PRECOMPILED_BASE=str(place / "base"), PRECOMPILED_AUTOSTART="0", **given),
        check=True,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == {"compiled": False, "value": 42}
    assert listing(kernels) == before
