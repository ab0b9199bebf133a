"""Tests of the wheel and the sdist: builds are reproducible and contain all required files."""

from __future__ import annotations

import runpy
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from support_installed import is_installed

ROOT = Path(__file__).resolve().parents[1]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_installed("build"), reason="the extra `dist` is not here (make dist)"),
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the build needs a git checkout, and there is none"),
]


def test_two_builds_are_identical(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "dist.py"), "--check", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        umask=0o077,
    )
    assert done.returncode == 0 and done.stdout.endswith("a second build is the same\n"), done
    sdist, wheel = sorted(tmp_path.iterdir(), key=lambda path: path.suffix)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        texts = {name: archive.read(name).decode() for name in names if name.endswith("entry_points.txt")}
    packaged = {name for name in names if name.startswith("precompiled/")}
    here = subprocess.check_output(["git", "ls-tree", "-r", "--name-only", "HEAD", "precompiled"], cwd=ROOT, text=True)
    assert set(here.split()) <= packaged, "all files of the package are in the wheel"
    mapped = {"precompiled/service/daemon.py", "precompiled/systemd/precompiled.service"}
    assert {"precompiled/py.typed", "precompiled/core/reasons.tsv", *mapped} <= packaged
    assert any(name.endswith("share/man/man1/precompiled.1") for name in names)
    assert "[pytest11]" in next(iter(texts.values()))
    assert not [name for name in names if name.startswith(("tests", "service", "benchmarks"))]
    with tarfile.open(sdist) as tar:
        members = tar.getmembers()
    assert {(item.uid, item.gid, item.uname) for item in members} == {(0, 0, "")}
    assert len({item.mtime for item in members}) == 1


def test_times_order_and_owners_do_not_affect_an_sdist(tmp_path: Path) -> None:
    settled = runpy.run_path(str(ROOT / "tools" / "dist.py"))["settled"]
    made = []
    for times, names in ((1, "ab"), (2, "ba")):
        path = tmp_path / f"{times}.tar.gz"
        with tarfile.open(path, "w:gz") as tar:
            for name in names:
                file = tmp_path / name
                file.write_text(name)
                item = tar.gettarinfo(str(file), name)
                item.mtime, item.uid = times, times
                with file.open("rb") as data:
                    tar.addfile(item, data)
        made.append(settled(path.read_bytes(), 1_700_000_000))
    assert made[0] == made[1]
