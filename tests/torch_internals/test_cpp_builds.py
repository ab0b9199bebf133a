"""Tests of a worker's C++ builds.

A file under its final name is complete, even if its compiler was killed. A failure of the host, such as a full disk,
does not make a worker conclude that the CPU lacks a vector unit.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_host import prepare
from torch._inductor import codecache, cpp_builder, cpu_vec_isa
from torch._inductor.exc import CppCompileError

from precompiled.compiler import failures
from precompiled.store import scratch
from precompiled.torch_internals.worker import cpp_builds, kernel_units, vector_units

LONG_AGO = 1_000_000_000
HALF = 'for a; do shift; [ "$a" = -o ] && break; done; echo half > "$1"; '  # writes a part of the output


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Creates a scratch directory and uses it as a worker does.

    Afterwards restores settings that a worker changes for the rest of its life.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    for module, name in (
        (codecache, "_HEADER_DIR"),
        (codecache, "_HEADER_LOCK_DIR"),
        (codecache, "_precompile_header"),
        (cpp_builder, "run_compile_cmd"),
        (cpu_vec_isa.VecISA, "check_build"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))
    cpp_builds.use(tmp_path / "scratch")
    (tmp_path / "scratch").mkdir()
    yield tmp_path / "scratch"
    cpp_builds._original_header.cache_clear()


def run(script: str, target: Path, *more: str) -> None:
    command = ["sh", "-c", script, "compiler", "in put.cpp", "-o", str(target), *more]
    cpp_builder.run_compile_cmd(shlex.join(command), str(target.parent))


def test_successful_build_has_its_final_name(place: Path) -> None:
    run(HALF + 'echo whole > "$1"; cat > /dev/null', place / "kernel.so", "-l gomp")
    assert os.listdir(place) == ["kernel.so"] and (place / "kernel.so").read_text() == "whole\n"


def test_output_path_may_be_relative_to_the_compilers_directory(place: Path) -> None:
    cpp_builder.run_compile_cmd(shlex.join(["sh", "-c", HALF, "compiler", "-o", "kernel.so"]), str(place))
    assert os.listdir(place) == ["kernel.so"]


@pytest.mark.parametrize("end", ["exit 1", "kill -KILL $$", "echo No space left on device; exit 1"])
def test_failed_compiler_leaves_no_file(place: Path, end: str) -> None:
    with pytest.raises(CppCompileError):
        run(HALF + end, place / "kernel.so")
    assert os.listdir(place) == []
    assert isinstance(cpp_builds.last_error(), CppCompileError) and cpp_builds.last_error() is None


KILLED = """
import sys
from pathlib import Path
from precompiled.torch_internals.worker import cpp_builds
from torch._inductor import cpp_builder
cpp_builds.use(Path(sys.argv[1]))
cpp_builder.run_compile_cmd(sys.argv[2], sys.argv[1])
"""


@pytest.mark.integration
def test_killed_compile_leaves_no_file_with_the_final_name(place: Path, tmp_path: Path) -> None:
    event = tmp_path / "event"
    os.mkfifo(event)
    target = place / "kernel.so"
    command = ["sh", "-c", f"{HALF} echo > {event}; exec sleep 1000", "compiler", "-o", str(target)]
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(place), shlex.join(command)], start_new_session=True)
    event.read_text()  # returns once the compiler has written a part of its output
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (left,) = place.iterdir()
    assert left.name.startswith("kernel.so.") and left.name.endswith(cpp_builds.BUILDING)
    run(HALF, target)
    assert target.read_text() == "half\n"


@pytest.fixture
def header(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Creates a precompiled header that torch has already looked up, so that only a new lookup can build it again."""
    path, found = place / "x.h", True

    def find(*_: str) -> str:
        nonlocal found
        if not found:
            for name in ("x.h", "x.h.gch"):
                (place / name).touch()
                os.utime(place / name, (LONG_AGO, LONG_AGO))
        found = True
        return str(path)

    def forget() -> None:
        nonlocal found
        found = False

    find.cache_clear = forget  # type: ignore[attr-defined]
    monkeypatch.setattr(cpp_builds, "_original_header", find)
    assert codecache._precompile_header("h") == str(path)
    return path


def test_precompiled_header_in_use_gets_a_new_access_time_only(header: Path) -> None:
    codecache._precompile_header("h")
    for path in (header, header.with_suffix(".h.gch")):
        assert path.stat().st_atime > LONG_AGO + 1, "old files are removed"
        assert path.stat().st_mtime == LONG_AGO, "Clang believes it to be changed"


@pytest.mark.parametrize("suffix", [".h", ".h.gch"])
def test_removed_precompiled_header_is_built_again(header: Path, suffix: str) -> None:
    """Headers in scratch may be removed during the life of a worker. torch itself looks for headers once per
    process.
    """
    header.with_suffix(suffix).unlink()
    codecache._precompile_header("h")
    assert header.exists() and header.with_suffix(".h.gch").exists()


@pytest.mark.integration
def test_extra_flags_of_a_build_use_the_common_header(place: Path) -> None:
    """torch puts these flags into a header's name but does not use them to build the header.

    A second header would be equal, and would cost several seconds of CPU and 150 MB.
    """
    prepare(place)
    for number, flags in enumerate(((), kernel_units._NO_LIMIT)):
        text = f"#include <torch/csrc/inductor/cpp_prefix.h>\nint number{number};\n"
        assert os.path.exists(kernel_units._Build.load_async(text, "cpu", extra_flags=flags)().path)
    assert len([name for name in os.listdir(place / "precompiled_headers") if name.endswith(".gch")]) == 1


def test_each_store_has_its_own_headers(place: Path, tmp_path: Path) -> None:
    before = codecache._HEADER_DIR
    assert Path(before).parent == place and Path(codecache._HEADER_LOCK_DIR).parent == Path(before)
    cpp_builds.use(tmp_path / "another")
    assert before != codecache._HEADER_DIR and os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "another")


@pytest.mark.parametrize(("says", "known"), [("No space left on device", False), ("no such flag -mavx", True)])
def test_host_failure_does_not_mark_a_vector_unit_as_missing(
    place: Path, monkeypatch: pytest.MonkeyPatch, says: str, known: bool
) -> None:
    def failing(cmd_line: str, cwd: str) -> None:
        try:
            raise subprocess.CalledProcessError(1, ["g++"], output=says.encode())
        except subprocess.CalledProcessError as error:
            raise CppCompileError(["g++"], says) from error

    monkeypatch.setattr(cpp_builds, "_original", failing)
    vector_units.settled_unless(failures.is_of_the_host)
    unit = cpu_vec_isa.VecAVX2()
    if known:
        assert unit.check_build("int x;") is False
    else:
        with pytest.raises(CppCompileError, match=says):
            unit.check_build("int x;")


def test_each_boot_has_its_own_scratch_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power loss may leave incomplete files under their final names. Workers must ignore files of an earlier boot."""
    here = scratch.directory(tmp_path)
    assert here == scratch.directory(tmp_path) and here.parent == tmp_path / scratch.SCRATCH
    monkeypatch.setattr(scratch, "_boot", lambda: "another")
    assert scratch.directory(tmp_path) != here


@pytest.fixture
def torchs_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Creates one precompiled header in the directory that torch uses for such headers without precompiled."""
    directory = tmp_path / "torchinductor_me" / "precompiled_headers"
    directory.mkdir(parents=True)
    (directory / "header.h.gch").write_text("built by another program")
    monkeypatch.setattr(cpp_builds, "_TORCHS_HEADERS", directory)
    monkeypatch.setattr(cpp_builds, "_damaged", set())
    return directory


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_header_is_copied_only_from_a_directory_others_cannot_write(
    place: Path, torchs_headers: Path, mode: int
) -> None:
    torchs_headers.chmod(mode)
    run(HALF + 'echo built here > "$1"', place / "header.h.gch")
    trusted = mode == 0o755
    assert (place / "header.h.gch").read_text() == ("built by another program" if trusted else "built here\n")


def test_build_that_fails_with_a_header_is_repeated_without_it(place: Path, torchs_headers: Path) -> None:
    header = place / "header.h"
    run(HALF, Path(f"{header}.gch"))
    run(f'[ ! -e {header}.gch ] || exit 1; {HALF} echo whole > "$1"', place / "kernel.so", "-include", str(header))
    assert (place / "kernel.so").read_text() == "whole\n"
    run(HALF + 'echo built here > "$1"', Path(f"{header}.gch"))
    assert Path(f"{header}.gch").read_text() == "built here\n"


def test_error_in_the_source_is_raised_although_a_header_was_used(place: Path, torchs_headers: Path) -> None:
    run(HALF, place / "header.h.gch")
    with pytest.raises(CppCompileError):
        run("exit 1", place / "kernel.so", "-include", str(place / "header.h"))
