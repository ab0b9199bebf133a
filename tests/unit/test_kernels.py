"""Loading an artifact's kernels: only in the thread that loads, and without torch's pool of compile processes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from torch._inductor.async_compile import AsyncCompile

from precompiled.errors import CorruptArtifact
from precompiled.torch_internals import kernels


def test_a_kernel_that_the_artifact_lacks_is_an_error_and_never_built() -> None:
    with kernels.mapped({}), pytest.raises(CorruptArtifact, match="lacks the native code"):
        AsyncCompile().cpp_pybinding(["float*"], "int kernel() {}")


def test_a_file_that_is_no_extension_module_is_an_error(tmp_path: Path) -> None:
    name = kernels.kernel_name(["float*"], "int kernel() {}")
    file = tmp_path / f"{name}.so"
    file.write_bytes(b"not an ELF file")
    with kernels.mapped({name: file}), pytest.raises(CorruptArtifact, match="cannot be loaded"):
        AsyncCompile().cpp_pybinding(["float*"], "int kernel() {}")


def test_the_name_of_a_kernel_is_that_of_what_it_is_built_from() -> None:
    name = kernels.kernel_name(["float*"], "a")
    assert len(name) == 64
    assert name == kernels.kernel_name(["float*"], "a")
    assert len({name, kernels.kernel_name(["float*"], "b"), kernels.kernel_name(["int*"], "a")}) == 3


def test_no_pool_of_processes_is_asked_for_while_an_artifact_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def original() -> bool:
        asked.append(threading.current_thread().name)
        return True

    monkeypatch.setattr(kernels, "_original_use_process_pool", original)
    with kernels.mapped({}):
        # AsyncCompile.triton asks first, and asking is what starts the pool.
        assert AsyncCompile.use_process_pool() is False
        assert AsyncCompile().use_process_pool() is False
        # The user's own compile in another thread is not touched.
        other = threading.Thread(target=AsyncCompile.use_process_pool, name="other")
        other.start()
        other.join()
    assert asked == ["other"]
    with kernels.recorded():
        assert AsyncCompile.use_process_pool() is True  # in a worker it is what makes compiles parallel
    assert AsyncCompile.use_process_pool() is True
