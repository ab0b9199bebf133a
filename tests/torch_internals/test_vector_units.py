"""Tests that a worker detects the CPU's vector units as Inductor does."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

PROGRAM = """
import sys
from torch._inductor import config, cpu_vec_isa
from precompiled.torch_internals.worker import vector_units
if sys.argv[1] == "ours":
    with vector_units.beside(False):
        assert vector_units._found is None
    with vector_units.beside(), vector_units.beside():
        pass
    assert vector_units._found.done(), "it goes on in a store that no job uses"
picked = str(cpu_vec_isa.pick_vec_isa())
narrow = min(unit.bit_width() for unit in cpu_vec_isa.valid_vec_isa_list()) if cpu_vec_isa.valid_vec_isa_list() else 0
with config.patch({"cpp.simdlen": 256}):
    print(picked, "/", cpu_vec_isa.pick_vec_isa(), "/", narrow)
"""

# The program does what a worker does with two jobs. The search for vector units builds and loads test programs in the
# first job's store. Meanwhile that store is removed.
REMOVED = """
import pathlib, shutil, sys
from torch._inductor import cpu_vec_isa
from precompiled.compiler import failures
from precompiled.torch_internals.worker import cpp_builds
from precompiled.torch_internals.worker import vector_units
removed = []
def before(module, name, **instead):
    original = getattr(module, name)
    def function(*arguments):
        if not removed:
            removed.append(shutil.rmtree(sys.argv[1]))
            if instead:
                return original(arguments[0], **instead)
        return original(*arguments)
    setattr(module, name, function)
if sys.argv[2] == "built":
    before(cpp_builds, "_original")
elif sys.argv[2] == "being built":  # the compiler runs, and does not find where to write
    before(cpp_builds, "_original", cwd="/")
else:
    before(cpu_vec_isa.VecISA, "_probe_load")
cpp_builds.use(pathlib.Path(sys.argv[1]))
vector_units.settled_unless(failures.is_of_the_host)
with vector_units.beside():
    pass
assert removed
has = cpu_vec_isa.x86_isa_checker()
best = next(unit for unit in cpu_vec_isa.supported_vec_isa_list if all(flag in has for flag in str(unit).split()))
print(cpu_vec_isa.pick_vec_isa() == best)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="NOT TESTED: VECTOR UNITS OF OTHER CPUS THAN X86-64")
@pytest.mark.parametrize("when", ["built", "being built", "loaded"])
def test_search_that_began_in_a_removed_store_is_repeated(tmp_path: Path, when: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", REMOVED, str(tmp_path / "scratch"), when],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert answer.stdout.splitlines()[-1:] == ["True"], answer.stderr


@pytest.mark.slow  # compiles the test program of each vector unit twice
@pytest.mark.skipif(platform.machine() != "x86_64", reason="NOT TESTED: VECTOR UNITS OF OTHER CPUS THAN X86-64")
def test_worker_picks_the_vector_unit_that_torch_picks(tmp_path: Path) -> None:
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
