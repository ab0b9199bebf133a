"""Tests of how a client loads the kernels of an artifact.

The load changes torch's behaviour only in the loading thread, and does not start torch's pool of compile processes.
"""

from __future__ import annotations

import hashlib
import subprocess
import sysconfig
import threading
from pathlib import Path

import pytest
from torch._inductor.async_compile import AsyncCompile

from precompiled.core.errors import CorruptArtifact
from precompiled.torch_internals.inductor import cpp_kernels
from precompiled.torch_internals.worker import kernel_units


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_kernel_missing_from_the_artifact_is_an_error_and_never_built() -> None:
    with cpp_kernels.mapped({}), pytest.raises(CorruptArtifact, match="lacks the native code"):
        AsyncCompile().cpp_pybinding(["float*"], "int kernel() {}")


def test_file_that_is_not_an_extension_module_is_an_error(tmp_path: Path) -> None:
    name = cpp_kernels.kernel_name(["float*"], "int kernel() {}")
    file = tmp_path / f"{name}.so"
    file.write_bytes(b"not an ELF file")
    with cpp_kernels.mapped({name: (file, digest(file))}), pytest.raises(CorruptArtifact, match="cannot be loaded"):
        AsyncCompile().cpp_pybinding(["float*"], "int kernel() {}")


def test_kernel_name_depends_on_source_and_argument_types() -> None:
    name = cpp_kernels.kernel_name(["float*"], "a")
    assert len(name) == 64
    assert name == cpp_kernels.kernel_name(["float*"], "a")
    assert len({name, cpp_kernels.kernel_name(["float*"], "b"), cpp_kernels.kernel_name(["int*"], "a")}) == 3


def test_loading_an_artifact_starts_no_process_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def original() -> bool:
        asked.append(threading.current_thread().name)
        return True

    monkeypatch.setattr(cpp_kernels, "_original_use_process_pool", original)
    with cpp_kernels.mapped({}):
        # AsyncCompile.triton calls this function first. torch's own function would start the pool.
        assert AsyncCompile.use_process_pool() is False
        assert AsyncCompile().use_process_pool() is False
        # Meanwhile a compile in another thread of the program may use the pool.
        other = threading.Thread(target=AsyncCompile.use_process_pool, name="other")
        other.start()
        other.join()
    assert asked == ["other"]
    with kernel_units.collected(lambda built, of: None):
        assert AsyncCompile.use_process_pool() is True  # a worker uses the pool to compile in parallel
    assert AsyncCompile.use_process_pool() is True


SOURCE = """
#include <Python.h>
static PyObject* kernel(PyObject* self, PyObject* args) { return PyLong_FromLong(VALUE); }
static PyMethodDef methods[] = {{"kernel", kernel, METH_VARARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "kernel", NULL, -1, methods};
PyMODINIT_FUNC NAME(void) { return PyModule_Create(&module); }
"""


def test_equal_source_with_other_flags_is_a_separate_kernel(tmp_path: Path) -> None:
    """The compiler's flags depend on options such as ``cpp.enable_unsafe_math_opt_flag``, but the source does not.

    A function must not get the kernel of a function with different flags.
    """
    found = []
    name = cpp_kernels.kernel_name(["float*"], SOURCE)
    (tmp_path / "kernel.c").write_text(SOURCE.replace("NAME", f"PyInit_{cpp_kernels.module_name(name)}"))
    for value in (1, 2):
        file = tmp_path / f"{value}.so"
        subprocess.run(
            [
                "gcc",
                "-shared",
                "-fPIC",
                f"-DVALUE={value}",
                "-I",
                sysconfig.get_path("include"),
                str(tmp_path / "kernel.c"),
                "-o",
                str(file),
            ],
            check=True,
        )
        with cpp_kernels.mapped({name: (file, digest(file))}):
            found.append(AsyncCompile().cpp_pybinding(["float*"], SOURCE)())
    assert found == [1, 2]
