"""Tests that torch's own tools show precompiled's events: tlparse, TORCH_LOGS and the profiler."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support_host import Host, edit, new_host
from torch.profiler import profile

from precompiled.torch_internals.client import profiler_ranges

PROGRAM = """\
import json
import torch
import torch._inductor.config
import precompiled
from torch.profiler import profile

def scaled(x):
    return (x * 2.0).relu() + 1

def shifted(x):
    return (x + 2.0).relu() * 3

with profile() as seen, torch.no_grad():
    x = torch.ones(8, 16)
    compiled = torch.compile(scaled)
    for _ in range(3):
        assert torch.equal(compiled(x), scaled(x))
        assert precompiled.wait(300)
    torch._inductor.config.freezing_discard_parameters = torch._inductor.config.freezing = True
    assert torch.equal(torch.compile(shifted)(x), shifted(x))
ours = sorted(event.key for event in seen.key_averages() if event.key.startswith("precompiled"))
print(json.dumps([[graph.source, graph.key[:12]] for graph in precompiled.report()] + [ours]))
"""


@dataclass
class Seen:
    host: Host
    sources: list[str]
    key: str
    ranges: list[str]
    log: str
    report: Path  # the folder that tlparse has written

    def artifacts(self, name: str) -> list[dict[str, Any]]:
        files = sorted(self.report.glob(f"*/precompiled_{name}_*.json"))
        return [{"folder": file.parent.name, **json.loads(file.read_text())} for file in files]


def run(host: Host, number: int, file: Path, packages: str) -> Seen:
    traces, report = host.root / f"traces-{number}", host.root / f"report-{number}"
    env = {"TORCH_TRACE": str(traces), "TORCH_LOGS": "precompiled", "PRECOMPILED_PACKAGES": packages}
    client = host.program("-m", "precompiled", "run", "--", sys.executable, str(file), env=env, forked=False)
    (first, key), (second, _), ranges = client.result()
    (trace,) = traces.iterdir()
    tlparse = Path(sys.executable).with_name("tlparse")
    subprocess.run([tlparse, trace, "-o", report, "--no-browser", "--strict"], capture_output=True, check=True)
    return Seen(host, [first, second], key, ranges, "\n".join(client.errors), report)


@pytest.fixture(scope="module")
def seen() -> Iterator[list[Seen]]:
    """Runs a program four times under torch's tools: a miss, a hit, a package hit, and a miss after an edit."""
    with new_host() as host:
        file = host.project(train=PROGRAM) / "train.py"
        found = [run(host, number, file, packages) for number, packages in enumerate(("off", "program", "program"))]
        edit(file, "x * 2.0", "x * 5.0")
        found.append(run(host, 3, file, "program"))
        assert [item.sources for item in found] == [[way, "inline"] for way in ("swap", "hit", "package", "swap")]
        yield found


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_tlparse_shows_misses_swaps_hits_and_packages(seen: list[Seen]) -> None:
    cold, hit, package, _ = seen
    (miss,), (swap,) = cold.artifacts("miss"), cold.artifacts("swap")
    # Although another thread swaps the graph later, tlparse must show the swap in the folder of the miss.
    assert miss["folder"] == swap["folder"] and miss["id"] == swap["id"] and swap["compile_s"] > 0
    assert hit.artifacts("hit")[0]["key"] == package.artifacts("package")[0]["key"] == miss["key"]
    assert not hit.artifacts("miss") and not package.artifacts("miss") and not package.artifacts("hit")
    for item in seen:
        (left,) = item.artifacts("in_process")
        assert left["reason"] == "freezing" and left["message"]
        assert "precompiled_in_process" in (item.report / "index.html").read_text()


@pytest.mark.slow
def test_tlparse_shows_frames_and_why_a_package_was_not_recorded(seen: list[Seen]) -> None:
    _, hit, package, edited = seen
    frames = [{frame["name"].rpartition(".")[2]: frame for frame in item.artifacts("frame")} for item in seen]
    assert frames[1]["scaled"]["state"] == "recorded" and frames[2]["scaled"]["state"] == "used"
    assert frames[2]["scaled"]["folder"] == package.artifacts("package")[0]["folder"]
    assert frames[1]["scaled"]["folder"] == hit.artifacts("hit")[0]["folder"]
    assert frames[3]["scaled"]["state"] == "recorded" and edited.artifacts("miss")
    # The graph of the other function was compiled in process, so the function has no package.
    assert frames[2]["shifted"]["reason"] == "package-graph"


@pytest.mark.slow
def test_torch_logs_accepts_precompiled(seen: list[Seen]) -> None:
    for item, way in zip(seen, ("swap", "hit", "package", "swap"), strict=True):
        assert re.search(rf"graph [0-9a-f]{{32}} scaled \[0/0\]: {way} .*key {item.key}", item.log), item.log
        assert "inline (freezing)" in item.log


@pytest.mark.slow
def test_profile_has_ranges_for_loads_and_swaps(seen: list[Seen]) -> None:
    cold, hit, package, _ = seen
    # The profile has no range for the load, because another thread loads the artifact.
    assert cold.ranges == ["precompiled: swap scaled [0/0]"]
    assert hit.ranges == package.ranges == [f"precompiled: load scaled [0/0] {cold.key}.0"]


def test_swapped_function_is_wrapped_only_under_a_profiler() -> None:
    def function(x: int) -> int:
        return x + 1

    assert profiler_ranges.wrap_swapped(function, "f", print) is function
    with profile() as running:
        settled: list[Any] = []
        first = profiler_ranges.wrap_swapped(function, "f", settled.append)
        assert first is not function and first(3) == 4 and settled == [function]
    assert [event.key for event in running.key_averages()] == ["precompiled: swap f"]
