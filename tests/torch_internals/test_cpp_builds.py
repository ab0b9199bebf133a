"""Whatever ends a compiler, what has its name is whole; and what the host ended says nothing about the CPU."""

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

from precompiled import compiler
from precompiled.store import scratch
from precompiled.torch_internals.worker import cpp_builds, kernel_units, vector_units

LONG_AGO = 1_000_000_000
HALF = 'for a; do shift; [ "$a" = -o ] && break; done; echo half > "$1"; '  # sh: the output is begun


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A scratch directory in use. What a worker sets for good is set back."""
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


def test_a_build_that_succeeds_has_its_name(place: Path) -> None:
    run(HALF + 'echo whole > "$1"; cat > /dev/null', place / "kernel.so", "-l gomp")
    assert os.listdir(place) == ["kernel.so"] and (place / "kernel.so").read_text() == "whole\n"


def test_an_output_relative_to_where_the_compiler_runs(place: Path) -> None:
    cpp_builder.run_compile_cmd(shlex.join(["sh", "-c", HALF, "compiler", "-o", "kernel.so"]), str(place))
    assert os.listdir(place) == ["kernel.so"]


@pytest.mark.parametrize("end", ["exit 1", "kill -KILL $$", "echo No space left on device; exit 1"])
def test_a_compiler_that_fails_leaves_nothing(place: Path, end: str) -> None:
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


def test_a_process_that_is_killed_with_its_compiler_leaves_no_name(place: Path, tmp_path: Path) -> None:
    event = tmp_path / "event"
    os.mkfifo(event)
    target = place / "kernel.so"
    command = ["sh", "-c", f"{HALF} echo > {event}; exec sleep 1000", "compiler", "-o", str(target)]
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(place), shlex.join(command)], start_new_session=True)
    event.read_text()  # until the compiler is in the middle of its output
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (left,) = place.iterdir()
    assert left.name.startswith("kernel.so.") and left.name.endswith(cpp_builds.BUILDING)
    run(HALF, target)
    assert target.read_text() == "half\n"


@pytest.fixture
def header(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A precompiled header that torch has found long ago. Only another look makes it again."""
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


def test_a_precompiled_header_in_use_is_young_and_the_same(header: Path) -> None:
    codecache._precompile_header("h")
    for path in (header, header.with_suffix(".h.gch")):
        assert path.stat().st_atime > LONG_AGO + 1, "old files are removed"
        assert path.stat().st_mtime == LONG_AGO, "Clang believes it to be changed"


@pytest.mark.parametrize("suffix", [".h", ".h.gch"])
def test_a_precompiled_header_that_was_removed_is_made_again(header: Path, suffix: str) -> None:
    """A worker lives longer than the files in scratch, and torch looks for the header once in a process."""
    header.with_suffix(suffix).unlink()
    codecache._precompile_header("h")
    assert header.exists() and header.with_suffix(".h.gch").exists()


def test_flags_of_one_build_ask_for_no_header_of_their_own(place: Path) -> None:
    """Torch names a header by them and builds it without them: seconds of a core and 150 MB for the same again."""
    prepare(place)
    for number, flags in enumerate(((), kernel_units._NO_LIMIT)):
        text = f"#include <torch/csrc/inductor/cpp_prefix.h>\nint number{number};\n"
        assert os.path.exists(kernel_units._Build.load_async(text, "cpu", extra_flags=flags)().path)
    assert len([name for name in os.listdir(place / "precompiled_headers") if name.endswith(".gch")]) == 1


def test_each_store_has_headers_of_its_own(place: Path, tmp_path: Path) -> None:
    before = codecache._HEADER_DIR
    assert Path(before).parent == place and Path(codecache._HEADER_LOCK_DIR).parent == Path(before)
    cpp_builds.use(tmp_path / "another")
    assert before != codecache._HEADER_DIR and os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "another")


@pytest.mark.parametrize(("says", "known"), [("No space left on device", False), ("no such flag -mavx", True)])
def test_a_unit_is_not_missing_because_its_test_program_could_not_be_built(
    place: Path, monkeypatch: pytest.MonkeyPatch, says: str, known: bool
) -> None:
    def failing(cmd_line: str, cwd: str) -> None:
        try:
            raise subprocess.CalledProcessError(1, ["g++"], output=says.encode())
        except subprocess.CalledProcessError as error:
            raise CppCompileError(["g++"], says) from error

    monkeypatch.setattr(cpp_builds, "_original", failing)
    vector_units.settled_unless(compiler._is_of_the_host)
    unit = cpu_vec_isa.VecAVX2()
    if known:
        assert unit.check_build("int x;") is False
    else:
        with pytest.raises(CppCompileError, match=says):
            unit.check_build("int x;")


def test_a_start_of_the_machine_has_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what versions that let compilers write under the final names have left in scratch/ is looked at by nobody."""
    here = scratch.directory(tmp_path)
    assert here == scratch.directory(tmp_path) and here.parent == tmp_path / scratch.SCRATCH
    monkeypatch.setattr(scratch, "_boot", lambda: "another")
    assert scratch.directory(tmp_path) != here


@pytest.fixture
def torchs_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Torch's own directory of precompiled headers, with one."""
    directory = tmp_path / "torchinductor_me" / "precompiled_headers"
    directory.mkdir(parents=True)
    (directory / "header.h.gch").write_text("built by another program")
    monkeypatch.setattr(cpp_builds, "_TORCHS_HEADERS", directory)
    monkeypatch.setattr(cpp_builds, "_damaged", set())
    return directory


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_header_that_this_user_has_built_is_copied_and_no_other(place: Path, torchs_headers: Path, mode: int) -> None:
    torchs_headers.chmod(mode)
    run(HALF + 'echo built here > "$1"', place / "header.h.gch")
    trusted = mode == 0o755
    assert (place / "header.h.gch").read_text() == ("built by another program" if trusted else "built here\n")


def test_a_build_that_fails_with_a_header_is_tried_without_and_the_header_is_built_anew(
    place: Path, torchs_headers: Path
) -> None:
    header = place / "header.h"
    run(HALF, Path(f"{header}.gch"))
    run(f'[ ! -e {header}.gch ] || exit 1; {HALF} echo whole > "$1"', place / "kernel.so", "-include", str(header))
    assert (place / "kernel.so").read_text() == "whole\n"
    run(HALF + 'echo built here > "$1"', Path(f"{header}.gch"))
    assert Path(f"{header}.gch").read_text() == "built here\n"


def test_an_error_of_the_source_is_told_though_a_header_was_used(place: Path, torchs_headers: Path) -> None:
    run(HALF, place / "header.h.gch")
    with pytest.raises(CppCompileError):
        run("exit 1", place / "kernel.so", "-include", str(place / "header.h"))
