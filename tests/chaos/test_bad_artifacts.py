"""Tests of damaged artifacts and stores: each gives a reason and a correct result."""

from __future__ import annotations

import os
import queue
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from support_host import TIMEOUT_S, Host

from precompiled import wire
from precompiled.client import connection
from precompiled.graph.environment import interpreter_of_a_worker
from precompiled.store import eviction

pytestmark = pytest.mark.integration

MLP = {"model": "mlp", "training": True}


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def make_writable(path: Path) -> None:
    path.chmod(0o666)


def replace_by_a_link(path: Path) -> None:
    target = path.with_suffix(".elsewhere")
    path.rename(target)
    path.symlink_to(target)


@pytest.fixture(scope="module")
def spoiled(shared_host: Host) -> Callable[[str, Callable[[Path], None]], None]:
    """Return ``spoil(pattern, how)``, which damages one file of the MLP's artifact. The file's name matches the
    pattern.
    """
    shared_host.run(MLP)

    def spoil(pattern: str, how: Callable[[Path], None]) -> None:
        how(next(shared_host.store.artifacts.glob(f"*.0/{pattern}")))

    return spoil


@pytest.mark.parametrize("how", [flip_a_bit, truncate], ids=lambda how: how.__name__)
@pytest.mark.parametrize("pattern", ["entry.bin", "manifest.json", "native/*.so"])
def test_damaged_artifact_is_quarantined_and_recompiled(
    shared_host: Host, spoiled: Callable[..., None], pattern: str, how: Callable[[Path], None]
) -> None:
    spoiled(pattern, how)
    before = len(list(shared_host.store.quarantined.iterdir()))
    result = shared_host.run(MLP)
    (graph,) = result["reports"]
    assert (graph["state"], graph["source"]) == ("compiled", "swap")
    assert len(list(shared_host.store.quarantined.glob("*.reason"))) > before // 2
    assert shared_host.run(MLP)["reports"][0]["source"] == "hit"


@pytest.mark.parametrize("how", [make_writable, replace_by_a_link], ids=lambda how: how.__name__)
def test_artifact_that_others_could_have_written_is_not_loaded(
    shared_host: Host, spoiled: Callable[..., None], how: Callable[[Path], None]
) -> None:
    spoiled("entry.bin", how)
    result = shared_host.run(MLP)
    (graph,) = result["reports"]
    assert graph["source"] != "hit"
    eviction.clear(shared_host.store)
    assert shared_host.run(MLP)["reports"][0]["state"] == "compiled"


def test_store_that_others_can_write_is_not_used(shared_host: Host, spoiled: Callable[..., None]) -> None:
    artifacts = shared_host.store.artifacts
    mode = stat.S_IMODE(artifacts.stat().st_mode)
    artifacts.chmod(0o777)
    try:
        result = shared_host.run(MLP)
    finally:
        artifacts.chmod(mode)
    (graph,) = result["reports"]
    assert (graph["source"], graph["reason"]) == ("inline", "store-untrusted")
    assert "can be written by others" in graph["message"]


NO_CALLABLE_OF_TORCH = (
    b'{"graph":[["f",["fn","os","system"],["true"],[]]],"inputs":{"args":[],"ranges":[]},"modes":{},"configs":{},'
    b'"environment":{},"hints":[]}'
)


@pytest.mark.parametrize(
    "blob", [b"", b"\x80\x04junk", b"{}", NO_CALLABLE_OF_TORCH], ids=["empty", "junk", "no-program", "not-torch"]
)
def test_undecodable_graph_is_refused_with_a_reason(shared_host: Host, blob: bytes) -> None:
    key = os.urandom(32).hex()
    refused: queue.SimpleQueue[wire.Rejected] = queue.SimpleQueue()
    link = connection.DaemonConnection(shared_host.settings)
    try:
        message = wire.Submit(
            id=key[:8], key=key, store=str(shared_host.store.root), environment=interpreter_of_a_worker(), device="cpu"
        )
        link.submit(message, blob, lambda reply: refused.put(reply) if isinstance(reply, wire.Rejected) else None)
        assert refused.get(timeout=TIMEOUT_S).code in ("bad-message", "compile-failed")
    finally:
        link.close()
    failure = shared_host.store.failure(key)
    if blob:
        assert failure is not None
        assert failure.reason in ("undecodable-graph", "environment-differs")
    assert shared_host.run({"model": "mlp"})["reports"][0]["state"] == "compiled"
