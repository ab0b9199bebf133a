"""Tests of two hosts with one remote: the second host uses everything that the first compiled, and compiles and traces
nothing.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support_host import TIMEOUT_S, Host, new_host
from support_places import KINDS, Place

from benchmarks.fleet import bucket
from precompiled.remote import helper_link

PROGRAM = Path(__file__).parent.parent / "programs" / "baked_program.py"
MLP = {"model": "mlp"}


def settings(url: str, config: Path, **more: str) -> dict[str, str]:
    return {
        "PRECOMPILED_REMOTE": url,
        "PRECOMPILED_PACKAGES": "program",
        "PRECOMPILED_MODE": "wait",
        "XDG_CONFIG_HOME": str(config),
        "OMP_NUM_THREADS": "1",
        **more,
    }


def train(host: Host, env: dict[str, str]) -> Any:
    return host.program(
        "-m", "precompiled", "run", "--", sys.executable, str(PROGRAM), "3", env=env, forked=False
    ).result()


def one_fills_another_uses(a: Host, with_daemon: Host, url: str, tmp_path: Path, **more: str) -> None:
    """Train on one host, which signs its objects, and then on two empty hosts that trust the first host's key."""
    mine, theirs = settings(url, tmp_path / "a", **more), settings(url, tmp_path / "b", **more)
    public = a.answer(mine, "remote", "keys", "new")["public"]
    traced = train(a, mine)
    assert traced["traced"] and {source for _, source, _ in traced["graphs"]} == {"swap"}
    assert helper_link.ask(a.store.root, {"do": "flush"}, wait_s=TIMEOUT_S) == {}
    state = a.answer(mine, "status")["remote"]
    assert (state["state"], state["refused"], state["running"]) == ("ok", {}, True) and state["put"] >= 4, state

    with new_host(with_daemon) as b:  # b has an empty store and no key of its own
        b.answer(theirs, "remote", "keys", "trust", f"{public} a")
        # Host b compiles nothing, whether objects arrive before the first trace or at the request of a worker.
        found = train(b, {**theirs, "PRECOMPILED_REMOTE_AHEAD_S": "0"})
        assert {graph for graph, _source, _ in found["graphs"]} == {"compiled"}
        assert (b.stats().compiled, b.stats().fallbacks, found["compiles"]) == (0, {}, 0)
    with new_host(with_daemon) as c:
        assert c.answer(theirs, "remote", "pull")["refused"] == {}
        found = train(c, theirs)
        assert {source for _, source, _ in found["graphs"]} == {"package"} and found["losses"] == traced["losses"]
        assert (found["traced"], found["compiles"], c.stats().compiled, c.stats().submitted) == ({}, 0, 0, 0)
        assert {state for state, *_ in found["frames"]} <= {"used", "skipped"}
        assert c.answer(theirs, "cache", "stats")["remote"]["remote"] == url


@pytest.mark.slow  # compiles into an empty store, and runs four programs
def test_second_host_uses_a_shared_directory(served: Host, with_daemon: Host, tmp_path: Path) -> None:
    one_fills_another_uses(served, with_daemon, f"file://{tmp_path / 'bucket'}", tmp_path)


@pytest.mark.slow  # starts two daemons, and compiles into an empty store
def test_two_hosts_that_start_at_once_compile_each_graph_once(tmp_path: Path) -> None:
    """Each of the two hosts has its own daemon, and gets the artifacts that the other host compiled."""
    env = settings(
        f"file://{tmp_path / 'bucket'}",
        tmp_path / "config",
        PRECOMPILED_REMOTE_UNSIGNED="1",
        PRECOMPILED_MODE="eager",
        PRECOMPILED_PACKAGES="off",
    )
    with new_host() as a, new_host() as b:
        command = ("-m", "precompiled", "run", "--", sys.executable, str(PROGRAM), "until-compiled")
        programs = [host.program(*command, env=env, forked=False) for host in (a, b)]
        for found in [program.result() for program in programs]:
            assert {(graph, source) for graph, source, _ in found["graphs"]} == {("compiled", "swap")}
            assert found["compiles"] == 0
        assert a.stats().compiled + b.stats().compiled == 2, (a.stats(), b.stats())
        assert (a.stats().fallbacks, b.stats().fallbacks) == ({}, {})


# ---------------------------------------------------------------- buckets


@pytest.mark.buckets
@pytest.mark.parametrize("kind", KINDS)
def test_second_host_uses_a_bucket(
    kind: str, places: Callable[[str], Place], served: Host, with_daemon: Host, tmp_path: Path
) -> None:
    place = places(kind)
    one_fills_another_uses(served, with_daemon, f"{place.url}/a/prefix", tmp_path, **place.variables)


class _Unavailable(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_PUT = do_HEAD = do_POST = _answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def unavailable() -> Iterator[int]:
    """Yield the port of a server that always answers 503."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Unavailable)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.mark.buckets
@pytest.mark.fault("remote")
@pytest.mark.parametrize("fault", ["refused", "503", "no such bucket"])
def test_failing_remote_has_no_effect_except_its_reason(
    fault: str, places: Callable[[str], Place], unavailable: int, served: Host, tmp_path: Path
) -> None:
    """With a failing remote, a program must use artifacts that its own host compiles, as without a remote."""
    pytest.importorskip("s3fs", reason="make test-buckets installs s3fs")
    if fault == "no such bucket":
        variables, url = places("s3").variables, "s3://nowhere/prefix"
    else:
        variables, url = bucket.variables(unavailable if fault == "503" else 9), "s3://bucket/prefix"
    env = settings(
        url,
        tmp_path / "config",
        PRECOMPILED_REMOTE_UNSIGNED="1",
        PRECOMPILED_REMOTE_TIMEOUT_S="2",
        PRECOMPILED_PACKAGES="off",
        **variables,
    )
    result = served.run(MLP, env)
    (graph,) = result["reports"]
    assert (graph["state"], graph["source"], graph["reason"]) == ("compiled", "swap", "")
    assert (served.stats().compiled, served.stats().fallbacks) == (1, {})
    helper_link.ask(served.store.root, {"do": "flush"}, wait_s=TIMEOUT_S)
    state = served.answer(env, "status")["remote"]
    assert state["code"] in ("remote-unreachable", "remote-timeout") and state["reason"], state
    checks = {check["check"]: check for check in served.answer(env, "doctor", status=served_status(served, env))}
    assert checks["remote"]["state"] == ("ok" if fault == "no such bucket" else "warn"), checks["remote"]
    assert checks["remote helper"]["state"] == "warn"


def served_status(host: Host, env: dict[str, str]) -> int:
    """Return the exit status of `doctor`, which also depends on checks of the machine that runs the test."""
    done = subprocess.run(
        [sys.executable, "-m", "precompiled", "doctor", "--json"],
        env=host.environment(env),
        check=False,
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    return done.returncode
