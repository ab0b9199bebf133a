# !/usr/bin/env python3
"""Make the sdist and the wheel of the last commit, reproducibly: `PYTHON tools/dist.py [--check] [FOLDER]`.

Sources and file modes come from git, and all times from the commit. The wheel is made from the sdist. Compare builds
with the same setuptools (the extra "dist"), because a wheel contains its version. ``--check`` builds twice, in folders
of different names, and fails on a difference.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def build(output: Path, commit: str = "HEAD") -> list[Path]:
    """Write the sdist and the wheel of a commit to ``output`` and return their paths. Raises CalledProcessError."""
    epoch = int(subprocess.check_output(["git", "log", "-1", "--format=%ct", commit], cwd=ROOT, text=True))
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "source"
        # Use git's file modes under any umask.
        archive = subprocess.check_output(["git", "-c", "tar.umask=0022", "archive", commit], cwd=ROOT)
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(source, filter="tar")
        variables = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
        made = Path(directory) / "made"
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(made), str(source)]
        subprocess.run(command, env=variables, check=True, stdout=subprocess.DEVNULL, umask=0o022)
        found = []
        for path in sorted(made.iterdir()):
            data = path.read_bytes()
            if path.name.endswith(".tar.gz"):
                data = settled(data, epoch)
            (output / path.name).write_bytes(data)
            found.append(output / path.name)
        return found


def settled(sdist: bytes, epoch: int) -> bytes:
    """Return the sdist with a fixed time, owner and order, because setuptools writes those of this host."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist)) as old,
        gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=epoch) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for item in sorted(old.getmembers(), key=lambda member: member.name):
            item.mtime, item.uid, item.gid, item.uname, item.gname, item.pax_headers = epoch, 0, 0, "", "", {}
            new.addfile(item, old.extractfile(item) if item.isfile() else None)
    return packed.getvalue()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    parser.add_argument("--check", action="store_true", help="build twice, and fail on a difference")
    arguments = parser.parse_args()
    made = build(arguments.folder)
    for path in made:
        print(f"{digest(path)}  {path}")
    if not arguments.check:
        return 0
    with tempfile.TemporaryDirectory() as directory:
        again = {path.name: digest(path) for path in build(Path(directory))}
    differing = [path.name for path in made if again.get(path.name) != digest(path)]
    print(f"a second build differs in {', '.join(differing)}" if differing else "a second build is the same")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
