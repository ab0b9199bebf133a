"""Tests of the setting ``check``: a wrong artifact is caught before its result is used, and a check leaves no trace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest
from support_host import Host
from support_wrong_artifacts import make_wrong, wrong_payload

from precompiled.store import eviction

PROGRAM = str(Path(__file__).parent.parent / "programs" / "checked_program.py")
ALWAYS, NEVER = {"PRECOMPILED_CHECK": "always"}, {"PRECOMPILED_CHECK": "never"}

pytestmark = pytest.mark.integration


def test_wrong_artifact_is_used_if_nothing_is_checked(served: Host) -> None:
    """If the wrong artifact were not used even without a check, the other tests would prove nothing."""
    served.program(PROGRAM, "training").result()
    make_wrong(served.store)
    found = served.program(PROGRAM, "training", env=NEVER).result()
    assert found["right"] == [False] * 4


@pytest.mark.reason("wrong-result")
@pytest.mark.parametrize("packages", ["off", "program"])
def test_wrong_artifact_is_caught_after_a_hit(served: Host, packages: str) -> None:
    env = {"PRECOMPILED_PACKAGES": packages}
    served.program(PROGRAM, "training", env=env).result()
    artifact = make_wrong(served.store)
    found = served.program(PROGRAM, "training", env={**ALWAYS, **env}).result()
    _check_refused(served, found, "output 0 differs from eager code by up to ")
    assert found["reports"][0]["checked"]
    assert served.store.lookup(artifact.manifest.key) == []
    (kept,) = served.store.quarantined.glob("*/entry.bin")
    assert "output 0" in kept.parent.with_name(f"{kept.parent.name}.reason").read_text()

    # The daemon does not compile the graph again, and later processes run it eager.
    before = served.stats()
    found = served.program(PROGRAM, "training", env=env).result()
    _check_refused(served, found, "output 0 differs from eager code by up to ")
    assert not found["reports"][0]["checked"]
    assert served.stats().compiled == before.compiled
    assert served.stats().fallbacks.get("wrong-result", 0) == before.fallbacks.get("wrong-result", 0) + 1


@pytest.mark.parametrize(
    ("part", "what"),
    [
        ("compiled_fw", "output 0 differs from eager code by up to "),
        ("compiled_bw", "the gradient of "),
    ],
    ids=["output", "gradient"],
)
def test_wrong_artifact_is_caught_after_a_swap(host: Host, part: str, what: str) -> None:
    host.start_daemon()
    host.program(PROGRAM, "training").result()
    (artifact,) = host.store.all_artifacts()
    payload = wrong_payload(host.store, artifact, part)
    eviction.remove(host.store, artifact.manifest.key)

    # While the daemon is stopped, only the wrong artifact can arrive.
    daemon = psutil.Process(host.status().pid)
    daemon.suspend()
    try:
        client = host.program(PROGRAM, "training", env=ALWAYS)
        client.wait_for("pending")
        host.store.publish(payload)
        found = client.result()
    finally:
        daemon.resume()
    _check_refused(host, found, what)
    assert found["reports"][0]["checked"]
    assert host.store.lookup(artifact.manifest.key) == []


def _check_refused(host: Host, found: dict[str, Any], what: str) -> None:
    """Check that the program got eager code's results only, and that the report names the difference."""
    assert found["right"] == [True] * 4
    (report,) = found["reports"]
    assert (report["state"], report["source"], report["reason"]) == ("failed", None, "wrong-result")
    assert report["calls_compiled"] == 0
    assert report["message"].startswith(what), report["message"]
    assert f"precompiled cache show --repro {report['key'][:12]}" in report["message"]
    failure = host.store.failure(report["key"])
    assert failure is not None and failure.reason == "wrong-result" and failure.message == report["message"]


@pytest.mark.parametrize(
    "case", ["training", "changed_input", "changed_differentiable_input", "changed_buffer", "views", "bfloat16"]
)
def test_check_of_a_right_artifact_leaves_no_trace(shared_host: Host, case: str) -> None:
    swapped = shared_host.program(PROGRAM, case, env=ALWAYS).result()
    checked = shared_host.program(PROGRAM, case, env=ALWAYS).result()
    unchecked = shared_host.program(PROGRAM, case, env=NEVER).result()
    for found, source in ((swapped, "swap"), (checked, "hit"), (unchecked, "hit")):
        assert found["right"] == [True] * 4
        assert [(r["state"], r["source"], r["reason"]) for r in found["reports"]] == [("compiled", source, "")]
    assert [found["reports"][0]["checked"] for found in (swapped, checked, unchecked)] == [True, True, False]
    assert checked["seen"] == unchecked["seen"]
    # The first step ran eager, so the values differ by rounding.
    assert _counts(swapped)[1:] == _counts(unchecked)[1:]


def _counts(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What the steps observed, except the values of tensors."""
    values = ("outputs", "inputs", "buffers", "gradients")
    return [{name: seen for name, seen in step.items() if name not in values} for step in found["seen"]]


def test_reproduction_compares_a_fresh_compile_and_a_quarantined_artifact(served: Host) -> None:
    served.program(PROGRAM, "training").result()
    make_wrong(served.store)
    (report,) = served.program(PROGRAM, "training", env=ALWAYS).result()["reports"]
    script = served.root / "repro.py"
    script.write_text(served.command("cache", "show", "--repro", report["key"][:12]))
    assert "all results are equal up to rounding" in served.program(str(script), forked=False).ended()
    (kept,) = served.store.quarantined.glob("*/entry.bin")
    said = served.program(str(script), os.fspath(kept.parent), forked=False).ended(status=1)
    assert "output 0 differs from eager code by up to " in said
