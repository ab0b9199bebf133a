"""Tests of the recipes in examples/deploy (docs/guides/deploying.md).

The tests run a recipe if a test machine can run it. Otherwise they check the recipe against its schema.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support_host import TIMEOUT_S, Host, new_host

from precompiled.remote import helper_link

RECIPES = Path(__file__).parents[2] / "examples" / "deploy"
PROGRAM = Path(__file__).parent.parent / "programs" / "baked_program.py"


@pytest.mark.parametrize(
    "command",
    [
        ["kubernetes-validate", "--strict", "kubernetes/deployment.yaml"],
        ["check-jsonschema", "--builtin-schema", "vendor.github-workflows", "github-actions/test.yml"],
    ],
    ids=lambda command: command[0],
)
def test_manifests_match_their_schemas(command: list[str]) -> None:
    tool = Path(sys.executable).with_name(command[0])
    done = subprocess.run([tool, *command[1:]], cwd=RECIPES, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def settings_of(task: dict[str, str]) -> dict[str, str]:
    """Run the task prolog. Returns the environment variables that Slurm would export to the task."""
    done = subprocess.run(
        ["sh", RECIPES / "slurm" / "task_prolog.sh"],
        env={**os.environ, **task},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = [line.removeprefix("export ").partition("=") for line in done.stdout.splitlines()]
    return {name: value for name, _, value in lines}


def run(host: Host, env: dict[str, str], *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "precompiled", *arguments],
        env=host.environment(env),
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout if arguments[-1] == "--json" else done.stdout.splitlines()[-1])


@contextmanager
def node(host: Host, env: dict[str, str]) -> Iterator[dict[str, str]]:
    """Yields the environment of a node's tasks. The tasks start a daemon, which is stopped at the end."""
    env = {
        **env,
        "PRECOMPILED_AUTOSTART": "1",
        "PRECOMPILED_MODE": "wait",
        "PRECOMPILED_PACKAGES": "program",
        "OMP_NUM_THREADS": "1",
    }
    try:
        yield env
    finally:
        run(host, env, "daemon", "stop", "--json")


@pytest.mark.slow
def test_slurm_nodes_share_compiled_graphs_through_a_remote(tmp_path: Path) -> None:
    (tmp_path / "shared" / "remote").mkdir(parents=True)
    home = {"PRECOMPILED_SHARED": str(tmp_path / "shared"), "XDG_CONFIG_HOME": str(tmp_path / "home")}
    train = ["run", "--", sys.executable, str(PROGRAM), "3"]
    with new_host() as host:
        for name in ("first", "second"):
            task = {**home, "PRECOMPILED_LOCAL": str(tmp_path / name), "SLURM_JOB_USER": "ann"}
            exported = settings_of(task)
            store = tmp_path / name / "precompiled-ann"
            assert exported == {
                "PRECOMPILED_CACHE_DIR": str(store),
                "PRECOMPILED_RUNTIME_DIR": str(store / "run"),
                "PRECOMPILED_REMOTE": f"file://{tmp_path}/shared/remote",
            }
            assert store.stat().st_mode & 0o777 == 0o700
            with node(host, {**exported, **home, "PRECOMPILED_REMOTE_AHEAD_S": "60"}) as env:
                if name == "first":
                    run(host, env, "remote", "keys", "new", "--json")
                found = run(host, env, *train)
                assert {graph for graph, _source, _ in found["graphs"]} == {"compiled"}
                if name == "first":
                    assert helper_link.ask(store, {"do": "flush"}, wait_s=TIMEOUT_S) == {}
                else:
                    assert (found["traced"], found["compiles"]) == ({}, 0)
                    # The job may have ended before its daemon listens.
                    run(host, env, "daemon", "start", "--json")
                    assert run(host, env, "cache", "stats", "--json")["compiled"] == 0


def test_local_directory_of_another_user_is_not_used(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory to another user")
    store = tmp_path / "precompiled-ann"
    store.mkdir()
    os.chown(store, 12345, 12345)
    assert settings_of({"PRECOMPILED_LOCAL": str(tmp_path), "SLURM_JOB_USER": "ann"}) == {}


@pytest.mark.slow
def test_store_cached_by_ci_serves_a_new_host(served: Host, tmp_path: Path) -> None:
    env = {"PRECOMPILED_PACKAGES": "program", "PRECOMPILED_MODE": "wait", "OMP_NUM_THREADS": "1"}
    train = ["-m", "precompiled", "run", "--", sys.executable, str(PROGRAM), "3"]
    served.program(*train, env=env, forked=False).result()
    archive = tmp_path / "cache.tar"
    with tarfile.open(archive, "w") as file:
        for kept in ("artifacts", "packages"):  # the paths that github-actions/test.yml caches
            file.add(served.store.root / kept, kept)
    with new_host(served) as other, tarfile.open(archive) as file:
        file.extractall(other.store.root, filter="fully_trusted")
        found = other.program(*train, env=env, forked=False).result()
        assert {source for _graph, source, _ in found["graphs"]} == {"package"}
        assert (found["traced"], found["compiles"]) == ({}, 0)
