"""What a worker finds out about the CPU's vector units is what Inductor would have."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from torch._inductor import config, cpu_vec_isa
from precompiled.torch_internals import vector_units
if sys.argv[1] == "ours":
    vector_units.begin()
    vector_units.begin()
picked = str(cpu_vec_isa.pick_vec_isa())
narrow = min(unit.bit_width() for unit in cpu_vec_isa.valid_vec_isa_list()) if cpu_vec_isa.valid_vec_isa_list() else 0
with config.patch({"cpp.simdlen": 256}):
    print(picked, "/", cpu_vec_isa.pick_vec_isa(), "/", narrow)
"""


@pytest.mark.slow  # each unit's test program is compiled twice
@pytest.mark.skipif(platform.machine() != "x86_64", reason="NOT TESTED: VECTOR UNITS OF OTHER CPUS THAN X86-64")
def test_the_same_unit_is_picked_and_a_width_that_is_asked_for_is_found(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    answers = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, side],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout.splitlines()[-1]
        for side in ("ours", "torch's")
    ]
    assert answers[0] == answers[1]
    assert "INVALID" not in answers[0], answers
