"""Tests of the setting `compile_without_gpu`.

Workers compile for the client's GPU on a made-up GPU of the same kind, so that they use none of the real GPU's memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from support_host import Host

from precompiled.made_up_cuda.kinds import FIRST_UUID

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED ON A GPU: torch.cuda.is_available() is False"),
]
MADE_UP = bool(os.environ.get("CUDA_MADE_UP"))
LOOK = """
import json, torch
from precompiled.graph import environment
from precompiled.made_up_cuda import kinds
count = torch.cuda.device_count()
like = [kinds.like(torch.cuda.get_device_properties(index)) for index in range(count)]
print(json.dumps([like, [environment.facts(f"cuda:{index}") for index in range(count)]]))
"""


def look(devices: str) -> Any:
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        env={**environment, "CUDA_MADE_UP": devices},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.skipif(not MADE_UP, reason="NOT TESTED: needs devices of several kinds")
def test_device_like_another_has_equal_facts() -> None:
    like, facts = look("t4,a100,b200")
    assert look(",".join(like)) == [like, facts]


def test_client_with_the_gpu_hits_artifacts_compiled_without_it(host: Host, tmp_path: Path) -> None:
    host.start_daemon()
    spec = {"model": "mlp", "training": True, "device": "cuda"}
    # A worker's made-up device is always the first one. If there are two devices, the client uses the second.
    place = {"CUDA_VISIBLE_DEVICES": "1"} if torch.cuda.device_count() > 1 else {}
    first = host.run(spec, env={**place, "PRECOMPILED_COMPILE_WITHOUT_GPU": "1"})
    assert {(graph["state"], graph["source"]) for graph in first["reports"]} == {("compiled", "swap")}, first["reports"]
    (worker,) = host.status().workers
    assert worker.device == f"cuda:{FIRST_UUID}"
    environment = psutil.Process(worker.pid).environ()
    assert environment["CUDA_VISIBLE_DEVICES"] == FIRST_UUID
    assert environment["CUDA_MADE_UP"].split("|")[0] == torch.cuda.get_device_name(0)
    second = host.run(spec, env={**place, "PRECOMPILED_AUTOSTART": "0"})
    assert {(graph["state"], graph["source"]) for graph in second["reports"]} == {("compiled", "hit")}
    assert {artifact.manifest.compiled_by["device"] for artifact in host.store.all_artifacts()} == {"made up"}
