"""Tests of a process whose uid has no account. Kubernetes and OpenShift run containers with such uids.

precompiled serves the process if a setting names a writable directory. Otherwise the process runs plain torch.compile
and prints one warning.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from precompiled.core import paths

UID = 12345
PROGRAM = """
import torch
import precompiled
compiled = torch.compile(lambda x: (x * 2 + 1).relu())
print(*(compiled(torch.ones(3)).tolist()), *((graph.source, graph.reason) for graph in precompiled.report()))
"""
COMMANDS = (
    ["status"],
    ["status", "--watch", "--once"],
    ["explain"],
    ["doctor"],
    ["config", "cache_dir"],
    ["config", "set", "mode", "wait"],
    ["daemon", "start"],
    ["daemon", "restart"],
    ["daemon", "stop"],
    ["daemon", "serve"],
    ["daemon", "logs"],
    ["daemon", "cancel", "abcdef"],
    ["cache", "stats"],
    ["cache", "ls"],
    ["cache", "size"],
    ["cache", "dir"],
    ["cache", "clear", "--yes"],
    ["cache", "gc"],
    ["remote", "sync"],
    ["remote", "keys", "new"],
    ["remote", "keys", "list"],
    ["watch", "json:loads"],
    ["watch", "--list"],
    ["bake", "-o", "/nonexistent/base", "--", "true"],
    ["tools", "tune"],
    ["tools", "metrics"],
)

pytestmark = [
    pytest.mark.fault("file-systems"),
    pytest.mark.integration,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv, to become another user"
    ),
]


class Container:
    """Runs commands as the uid UID, in a working directory that this uid can write to."""

    def __init__(self, root: Path) -> None:
        self.cwd, self.volume = root / "cwd", root / "volume"
        for folder in (self.cwd, self.volume):
            folder.mkdir(mode=0o700)
            os.chown(folder, UID, UID)
        for folder in (root, *root.parents):  # pytest's directories let only root in
            if folder.stat().st_mode & 0o055 != 0o055 and folder.is_relative_to("/tmp"):
                folder.chmod(folder.stat().st_mode | 0o055)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        become = [
            "setpriv",
            f"--reuid={UID}",
            f"--regid={UID}",
            "--clear-groups",
            "--inh-caps=+dac_read_search",
            # The interpreter may be in /root. With this capability, the process can read the interpreter.
            "--ambient-caps=+dac_read_search",
        ]
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        return subprocess.run(
            [*become, sys.executable, "-m", *arguments],
            env={"PATH": path, **variables},
            cwd=self.cwd,
            text=True,
            capture_output=True,
            timeout=240,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def program(self, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run("precompiled", "run", "--", sys.executable, "-c", PROGRAM, **variables)


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    made = Container(tmp_path)
    yield made
    made.run("precompiled", "daemon", "stop", PRECOMPILED_CACHE_DIR=str(made.volume))


@pytest.mark.reason("no-place")
@pytest.mark.parametrize("home", [{}, {"HOME": "/"}], ids=["unset", "root"])
def test_program_without_a_directory_runs_as_plain(container: Container, home: dict[str, str]) -> None:
    done = container.program(**home)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["3.0", "3.0", "3.0", "('inline',", "'no-place')"]
    warnings = [line for line in done.stderr.splitlines() if "precompiled" in line]
    assert len(warnings) == 1 and "no-place" in warnings[0] and paths.NO_PLACE_ACTION in warnings[0], done.stderr
    assert os.listdir(container.cwd) == []


def test_commands_without_a_directory_end_without_a_traceback(container: Container) -> None:
    for command in COMMANDS:
        done = container.run("precompiled", *command)
        assert "Traceback" not in done.stderr and done.returncode in (0, 1, 2), (command, done.stderr)
    for text in ("daemon start", "daemon serve", "remote keys new", "config set mode wait"):
        command = text.split()
        done = container.run("precompiled", *command)
        assert done.returncode != 0 and "Set " in done.stderr, (command, done)
    assert os.listdir(container.cwd) == []


def test_writable_volume_is_enough_to_be_served(container: Container) -> None:
    """The worker has the same uid. The worker must compile although its libraries do not find a home directory."""
    given = {"HOME": "/", "PRECOMPILED_CACHE_DIR": str(container.volume), "XDG_RUNTIME_DIR": "/root"}
    for source in ("swap", "hit"):
        done = container.program(PRECOMPILED_MODE="wait", PRECOMPILED_PACKAGES="off", **given)
        assert done.stdout.split() == ["3.0", "3.0", "3.0", f"('{source}',", "'')"], done
    assert os.listdir(container.cwd) == [] and not os.path.lexists("/~")
