"""Test of examples/deploy/container/Dockerfile, built by podman: a process of its image compiles and traces nothing.

The test makes the base image from Debian's packages and gives it the name of Docker Hub's image. The wheels come from
this checkout and from this environment's pip.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

pytestmark = [pytest.mark.container, pytest.mark.timeout(1800)]

REPO = Path(__file__).parents[2]
RECIPE = REPO / "examples" / "deploy" / "container" / "Dockerfile"
PROGRAM = REPO / "tests" / "programs" / "baked_program.py"
DEBIAN = {(3, 11): "bookworm", (3, 13): "trixie"}  # the Debian release whose Python can use this environment's wheels
MIRROR = "http://deb.debian.org/debian"
# Like Docker Hub's image, this image has Python's headers and the command `python`.
BASE = """\
FROM localhost/debian
RUN ln -s python3 /usr/bin/python && rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels
"""
NAME = "docker.io/library/python:3.11-slim"  # the name in the recipe, whatever the Python version of the image is
# podman's default limits may exceed those of this machine.
LIMITS = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]


class Podman:
    """podman with its own images and containers below ``folder``."""

    def __init__(self, folder: Path, runtime: str) -> None:
        self._command = [
            "podman",
            "--root",
            str(folder / "images"),
            "--runroot",
            str(folder / "run"),
            "--runtime",
            runtime,
        ]

    def __call__(self, *arguments: str | Path) -> str:
        done = subprocess.run(
            [*self._command, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=1200
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def close(self) -> None:
        subprocess.run([*self._command, "rmi", "--all", "--force"], capture_output=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root can make a Debian system")
    for program in ("podman", "debootstrap"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} (Debian's package of that name)")
    if sys.version_info[:2] not in DEBIAN:
        pytest.skip(f"no Debian has Python {sys.version_info[0]}.{sys.version_info[1]}")
    folder = tmp_path_factory.mktemp("container")
    yield folder
    subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)


@pytest.fixture(scope="module")
def podman(folder: Path) -> Iterator[Podman]:
    """Yield podman with the image ``localhost/debian``."""
    packages = "python3,python3-pip,python3-dev,ca-certificates"
    system = DEBIAN[sys.version_info[:2]]
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={packages}", system, folder / "debian", MIRROR],
        check=True,
        timeout=900,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run(["tar", "-C", folder / "debian", "-cf", folder / "debian.tar", "."], check=True, timeout=300)
    found = next(filter(None, (_with(folder, runtime) for runtime in ("crun", "runc"))), None)
    if found is None:
        pytest.skip("no container can run here: neither crun nor runc starts one (Debian's packages of these names)")
    yield found
    found.close()


def _with(folder: Path, runtime: str) -> Podman | None:
    """Return podman with a runtime, or None if the runtime cannot start a container here (crun fails with hybrid
    cgroups).
    """
    if shutil.which(runtime) is None:
        return None
    podman = Podman(folder / runtime, runtime)
    try:
        podman("import", folder / "debian.tar", "localhost/debian")
        podman("run", "--rm", *LIMITS, "--network", "none", "localhost/debian", "true")
    except AssertionError:
        podman.close()
        return None
    return podman


def test_first_process_of_an_image_compiles_and_traces_nothing(podman: Podman, folder: Path) -> None:
    wheels, context, source = folder / "wheels", folder / "context", folder / "source"
    # Build from a copy, because the build of a wheel writes beside its source.
    shutil.copytree(REPO, source, ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__"))
    wanted = [source, f"torch=={version('torch')}", "setuptools"]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", wheels, *wanted], check=True, timeout=900
    )
    context.mkdir()
    shutil.copy(PROGRAM, context / "train.py")
    (folder / "base").write_text(BASE)
    build = ["build", *LIMITS, "--network", "host", "--pull=never", "--volume", f"{wheels}:/wheels:ro"]
    podman(*build, "--tag", NAME, "--file", folder / "base", context)
    podman(*build, "--tag", "train", "--file", RECIPE, context)

    # The container runs as the image's user, read-only and without a network. The audit of packages is off, because it
    # makes one process in fifty trace despite a package (packages/audit.py).
    out = podman(
        "run",
        "--rm",
        *LIMITS,
        "--network",
        "none",
        "--read-only",
        "--tmpfs",
        "/tmp",
        "--tmpfs",
        "/home/app",
        "--env",
        "PRECOMPILED_PACKAGE_AUDIT=0",
        "--env",
        "PRECOMPILED_CHECK=never",
        "train",
    )
    found = json.loads(out.splitlines()[-1])
    assert found["uid"] != 0
    assert {(state, source) for state, source, _ in found["graphs"]} == {("compiled", "package")}, found
    assert (found["traced"], found["compiles"]) == ({}, 0)
    assert {state for state, *_ in found["frames"]} <= {"used", "skipped"}
