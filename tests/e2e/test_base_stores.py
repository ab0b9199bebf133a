"""Tests of base stores with real programs: a program runs a base's artifacts, and damage costs only a compile."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_host import Host, new_host

from precompiled import compiler, wire
from precompiled.store.artifacts import Store

pytestmark = pytest.mark.integration

MLP = {"model": "mlp"}


@pytest.fixture(scope="module")
def filled(shared_host: Host) -> Host:
    """A host that has compiled the graphs. This host's store is the base store of ``above``."""
    shared_host.run(MLP)
    return shared_host


@pytest.fixture
def above(filled: Host, with_daemon: Host) -> Iterator[Host]:
    """A host whose own store is empty and whose base is the store of ``filled``."""
    with new_host(with_daemon) as found:
        yield found


def listing(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in sorted(root.rglob("*"))}


@pytest.mark.reason("base-unusable")
def test_program_runs_artifacts_of_a_base_and_compiles_nothing(filled: Host, above: Host) -> None:
    base = {"PRECOMPILED_BASE": f"{above.root}/absent:{filled.store.root}"}
    before = listing(filled.store.root)
    (graph,) = above.run(MLP, base)["reports"]
    assert (graph["state"], graph["source"]) == ("compiled", "hit")
    stats = above.stats()
    assert (stats.hits, stats.compiled, stats.fallbacks) == (1, 0, {"base-unusable": 1})  # "absent" does not exist
    assert stats.from_base == {str(filled.store.root)[:80]: 1}
    assert not above.store.artifacts.exists() and listing(filled.store.root) == before
    # A client may submit a graph although the base has its artifact. The worker must find the artifact and not compile.
    job = wire.Job(
        id="1",
        key=graph["key"],
        store=str(above.store.root),
        device="cpu",
        graph=b"{}",
        compile_threads=1,
        failure_ttl_s=1.0,
        base=[str(filled.store.root)],
    )
    assert compiler.run_job(job).outcome == "exists"


@pytest.mark.parametrize("part", ["entry.bin", "manifest.json"])
@pytest.mark.reason("base-unusable")
def test_damaged_artifact_of_a_base_is_compiled_into_the_users_store(
    filled: Host, above: Host, part: str, tmp_path: Path
) -> None:
    base = Store(tmp_path / "base")
    shutil.copytree(filled.store.artifacts, base.artifacts)
    for artifact in filled.store.all_artifacts():
        with open(base.artifacts / artifact.path.name / part, "r+b") as file:
            file.seek(20)
            file.write(b"spoiled")
    before = listing(base.root)
    (graph,) = above.run(MLP, {"PRECOMPILED_BASE": str(base.root)})["reports"]
    assert (graph["state"], graph["source"]) == ("compiled", "swap")
    code = "base-unusable" if part == "manifest.json" else "artifact-corrupt"
    assert above.stats().fallbacks.get(code, 0) >= 1 and above.stats().compiled == 1
    assert listing(base.root) == before and len(list(above.store.all_artifacts())) == 1
    assert above.run(MLP, {"PRECOMPILED_BASE": str(base.root)})["reports"][0]["source"] == "hit"
