"""Tests of Triton kernels in a bucket of a real server: the second host compiles no kernel.

The programs run on a made-up GPU, in an environment with a CUDA build of torch. That environment lacks the server's
client, so the test starts the helpers of both hosts in its own environment.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import environments
import pytest
from support_host import TIMEOUT_S, Host, new_host
from support_places import Place
from support_triton import FEW, Machine, once, tools

from precompiled.core import config
from precompiled.made_up_cuda import host as made_up
from precompiled.remote import helper_link, helper_process, lease
from precompiled.remote.bucket import Bucket

pytestmark = [pytest.mark.buckets, pytest.mark.timeout(1200)]
VERSION = "2.11.0"
DEVICES = "h100"


def start_helper(host: Host, url: str) -> None:
    found = config.load({"cache_dir": host.store.root, "remote": url, "remote_ahead_s": TIMEOUT_S})
    helper_process.ensure(found)
    assert helper_link.ask(host.store.root, {"do": "flush"}, wait_s=TIMEOUT_S) == {}, "the helper has started"


def test_second_host_compiles_no_kernel_that_s3_has(
    places: Callable[[str], Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        python = environments.python_of(VERSION, may_install=False)
    except environments.Unavailable as error:
        pytest.skip(f"NOT TESTED: {error} (make test-gpu installs it)")
    place = places("s3")
    url = f"{place.url}/kernels"
    given = {
        "PRECOMPILED_REMOTE": url,
        "PRECOMPILED_REMOTE_AHEAD_S": str(TIMEOUT_S),
        "XDG_CONFIG_HOME": str(tmp_path / "keys"),
        **place.variables,
    }
    for name, value in given.items():
        if not name.startswith("PRECOMPILED"):
            monkeypatch.setenv(name, value)
    variables = {**tools(tmp_path, python), **made_up.variables(python, DEVICES, tmp_path)}
    with new_host() as first, new_host() as second:
        machines = [Machine(host, variables) for host in (first, second)]
        for host in (first, second):
            host.python = python
        first.answer(given, "remote", "keys", "new")
        start_helper(first, url)
        found = machines[0].run("own", *FEW, **given)
        assert (found["compiled"], found["ptxas"]) == (once(*FEW), len(FEW))
        assert helper_link.ask(first.store.root, {"do": "flush"}, wait_s=TIMEOUT_S) == {}

        start_helper(second, url)
        found = machines[1].run("own", *FEW, **given)
        assert (found["compiled"], found["ptxas"], found["cc"]) == ({}, 0, 0)
        assert "precompiled: " not in found["said"], "nothing fell back"
        left = [path for path in Bucket(url, TIMEOUT_S).everything() if lease.is_lease(path.rpartition("/")[2])]
        assert left == [], "the leases are removed"
