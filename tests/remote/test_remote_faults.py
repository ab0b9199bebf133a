"""Tests of each fault of a remote: a program computes the same as without a remote, and the reason is reported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import support_line
from support_daemon import wait_until
from support_host import TIMEOUT_S, Host, new_host

from benchmarks.fleet import bucket
from precompiled.remote import helper_link

PROGRAM = Path(__file__).parent.parent / "programs" / "baked_program.py"
pytestmark = [pytest.mark.fault("remote"), pytest.mark.buckets, pytest.mark.timeout(1200)]


class Filled:
    """A bucket that one host filled: the port of its server, and the losses of the program."""

    def __init__(self, port: int, folder: Path) -> None:
        self.port, self.folder = port, folder
        self.losses: list[float] = []

    def env(self, name: str, port: int, **more: str) -> dict[str, str]:
        return {
            "PRECOMPILED_REMOTE": f"s3://{bucket.NAME}/prefix",
            "PRECOMPILED_PACKAGES": "off",
            "PRECOMPILED_REMOTE_TIMEOUT_S": "3",
            "PRECOMPILED_PROGRESS": "0",
            "OMP_NUM_THREADS": "1",
            "XDG_CONFIG_HOME": str(self.folder / name),
            **bucket.variables(port),
            **more,
        }


def command(host: Host, env: dict[str, str], *arguments: str) -> str:
    return host.program("-m", "precompiled", *arguments, env=env, forked=False).ended()


def trained(host: Host, env: dict[str, str]) -> Any:
    command = ("-m", "precompiled", "run", "--", sys.executable, str(PROGRAM), "until-compiled")
    return host.program(*command, env=env, forked=False).result()


@pytest.fixture(scope="module")
def filled(with_daemon: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    pytest.importorskip("moto.server", reason="make test-buckets installs moto")
    pytest.importorskip("s3fs", reason="make test-buckets installs s3fs")
    with bucket.served() as port, new_host(with_daemon) as a:
        found = Filled(port, tmp_path_factory.mktemp("config"))
        env = found.env("a", port)
        command(a, env, "remote", "keys", "new")
        found.losses = trained(a, env)["losses"]
        assert helper_link.ask(a.store.root, {"do": "flush"}, wait_s=TIMEOUT_S) == {}
        yield found


@contextmanager
def other_host(filled: Filled, with_daemon: Host, tmp_path: Path) -> Iterator[Host]:
    """An empty host with the same key as the host that filled the bucket, as in a cluster."""
    keys = filled.folder / "a" / "precompiled" / "keys"
    mine = tmp_path / "precompiled" / "keys"
    mine.mkdir(parents=True, mode=0o700)
    for file in keys.iterdir():
        (mine / file.name).write_bytes(file.read_bytes())
        (mine / file.name).chmod(0o600)
    with new_host(with_daemon) as found:
        yield found


def state(host: Host) -> dict[str, Any]:
    return helper_link.state(host.store.root) or {}


def codes(host: Host) -> set[str]:
    report = state(host)
    return {*report.get("failed", {}), *report.get("refused", {})}


@pytest.mark.parametrize(
    ("fault", "reasons"),
    [
        pytest.param(support_line.slow(5.0), {"remote-timeout"}, id="5 s of latency"),
        pytest.param(
            support_line.truncated, {"remote-corrupt", "remote-unreachable", "remote-timeout"}, id="truncated body"
        ),
        pytest.param(support_line.altered, {"remote-corrupt"}, id="altered byte"),
        pytest.param(support_line.another_clock, {"remote-unreachable"}, id="clock off by an hour"),
        pytest.param(support_line.revoked_after(1), {"remote-unreachable"}, id="credentials revoked"),
    ],
)
def test_fault_of_a_remote_has_no_effect_except_its_reason(
    fault: support_line.Fault, reasons: set[str], filled: Filled, with_daemon: Host, tmp_path: Path
) -> None:
    """This host must compile the graphs although they are in the bucket. The losses must equal those without
    a fault.
    """
    with support_line.to(filled.port, fault) as port, other_host(filled, with_daemon, tmp_path) as b:
        env = {**filled.env("b", port), "XDG_CONFIG_HOME": str(tmp_path)}
        found = trained(b, env)
        assert {(graph, source) for graph, source, _ in found["graphs"]} == {("compiled", "swap")}
        assert found["losses"] == pytest.approx(filled.losses) and found["compiles"] == 0
        assert b.stats().fallbacks == {}
        assert b.stats().compiled == 2
        wait_until(lambda: codes(b) & reasons, f"{reasons}: {state(b)}")
        assert state(b)["last"]


def test_remote_is_used_again_after_an_outage(filled: Filled, with_daemon: Host, tmp_path: Path) -> None:
    """The server answers 503 for 30 s. The host must compile the graphs of the outage itself, and use the remote again
    afterwards.
    """
    fault = support_line.unavailable_for(30.0)
    with support_line.to(filled.port, fault) as port, other_host(filled, with_daemon, tmp_path) as b:
        env = {**filled.env("b", port), "XDG_CONFIG_HOME": str(tmp_path)}
        found = trained(b, env)
        assert found["losses"] == pytest.approx(filled.losses)
        assert (b.stats().fallbacks, found["compiles"]) == ({}, 0)
        assert codes(b) <= {"remote-unreachable", "remote-timeout"} and codes(b), state(b)
        # The breaker pauses the remote for half a minute. A later request then finds the remote usable.
        other = "0" * 64
        wait_until(lambda: not _asked(b, other) and state(b)["state"] == "ok", str(state(b)), timeout_s=120.0)


def _asked(host: Host, key: str) -> bool:
    with helper_link.turn(host.store.root, key) as turn:
        return turn.again_s > 0


def test_objects_of_an_untrusted_signer_are_not_used(filled: Filled, with_daemon: Host, tmp_path: Path) -> None:
    with new_host(with_daemon) as b:
        env = {**filled.env("b", filled.port), "XDG_CONFIG_HOME": str(tmp_path)}
        command(b, env, "remote", "keys", "new")
        found = trained(b, env)
        assert found["losses"] == pytest.approx(filled.losses)
        assert (b.stats().compiled, b.stats().fallbacks) == (2, {})
        wait_until(lambda: codes(b) == {"remote-untrusted"}, str(state(b)))
        assert "not signed by a key that this host trusts" in state(b)["last"]


def test_replayed_older_object_computes_the_same(filled: Filled, with_daemon: Host, tmp_path: Path) -> None:
    """A writer to the bucket can put back an older object, which a trusted host signed for the same key."""
    with other_host(filled, with_daemon, tmp_path) as b:
        env = {**filled.env("b", filled.port), "XDG_CONFIG_HOME": str(tmp_path)}
        replay = tmp_path / "replay.py"
        replay.write_text(REPLAY)
        # Hosts of other tests refused the first two objects and put their own, so there may be more than two objects.
        assert int(b.program(str(replay), env=env, forked=False).ended().split()[-1]) >= 2
        found = trained(b, env)
        assert found["losses"] == pytest.approx(filled.losses)
        assert (b.stats().compiled, b.stats().fallbacks, codes(b)) == (0, {}, set())


# This program replaces each artifact's object by a signed object whose creation time is a year earlier.
REPLAY = """
import dataclasses, sys
from pathlib import Path
from precompiled.core import config
from precompiled.remote import envelope as form, transfer, trusting
from precompiled.store import artifact_format as fmt, packed

settings = config.load()
there = transfer.open_transfer(Path(settings.cache_dir), settings.remote, 30.0, trusting.trust(False))
replayed = 0
for item in there.everything():
    if item.kind == form.ARTIFACT and there.trust.believes(item.by):
        payload = packed.unpack(there.body(item), item.group)
        older = dataclasses.replace(payload.manifest, created=payload.manifest.created - 365 * 86400)
        there.write(item.kind, item.group, item.label, packed.pack(older, payload.files))
        there.bucket.remove(item.path)
        replayed += 1
print(replayed)
"""
