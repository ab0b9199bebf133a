"""Tests of measurements of kernels.

A later process must find the choices that a client measured for an artifact's kernels. An artifact must contain all
kernels, even if the worker has measured some.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import support_compiles
import torch
import torch.utils.cpp_extension
from support_graphs import captured

from precompiled.graph import capture, environment
from precompiled.torch_internals.client import autotune_results, triton_futures
from precompiled.torch_internals.inductor import frozen_weights
from precompiled.torch_internals.user_code import program_classes
from precompiled.torch_internals.worker import libdevice, static_launchers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED ON A GPU: torch.cuda.is_available() is False"),
]


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))


def code_of(function: Any, *inputs: torch.Tensor) -> Any:
    """Compile the function's graph as a worker does, and return the code that a client loads."""
    program = capture.parse(captured(function, *inputs).program.to_bytes())
    bundle = program_classes.loads(support_compiles.compiled(program).bundle, {})
    return frozen_weights.code_of(bundle.compiled_fw)


def test_choice_of_a_configuration_is_found_by_the_next_process() -> None:
    """For the graph's reduction, the worker adds a configuration. A later process must still find the saved choice."""
    from torch._inductor.runtime.triton_heuristics import check_autotune_cache

    def reduction(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x * x.sin(), (x.shape[1],)) * (x * x.cos()).var(1, keepdim=True)

    code = code_of(reduction, torch.randn(4096, 2048, device="cuda"))
    autotune_results.keep_here(code)
    (kernel,) = [launched.kernel for launched in code._triton_bundle.static_autotuners]
    configs = [result.config for result in kernel.compile_results]
    assert len(configs) > 1, "nothing to choose from"
    kernel.save_cache_hook(configs[-1], 0)
    found, _cache, _info = check_autotune_cache(configs, kernel.filename, kernel.inductor_meta)
    assert [(config.kwargs, config.num_warps) for config in found] == [(configs[-1].kwargs, configs[-1].num_warps)]


def test_unmeasured_kernels_are_kept_beside_measured_ones() -> None:
    from torch._inductor.triton_bundler import TritonBundler

    if not hasattr(TritonBundler, "put_winner"):
        pytest.skip("NOT TESTED: this torch keeps all kernels (2.11)")
    with static_launchers.kept(), torch._inductor.config.patch(bundle_triton_into_fx_graph_cache=True):
        TritonBundler.begin_compile()
        try:
            TritonBundler.put_winner("measured")
            assert not TritonBundler._winners
        finally:
            TritonBundler.end_compile()


def test_choice_of_libdevice_ends_with_its_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a program requests eager's rounding, torch lets Triton use CUDA's libdevice for the whole process.

    This choice must not affect later graphs of the process.
    """
    from triton import knobs

    monkeypatch.setattr(torch.utils.cpp_extension, "CUDA_HOME", "/usr/local/cuda")
    monkeypatch.delenv(libdevice.VARIABLE, raising=False)
    before = environment.facts("cuda:0")
    with libdevice.taken_back():
        path = os.environ[libdevice.VARIABLE] = "/usr/local/cuda/nvvm/libdevice/libdevice.10.bc"
        knobs.nvidia.libdevice_path = path
        assert environment.facts("cuda:0") == before
        # If the variable had been set at the start of the process, it would be part of the key.
        with monkeypatch.context() as started_with_it:
            started_with_it.setattr(environment, "_began_with", lambda: {libdevice.VARIABLE: path})
            assert environment.facts("cuda:0") != before
    assert knobs.nvidia.libdevice_path is None and libdevice.VARIABLE not in os.environ
    monkeypatch.setenv(libdevice.VARIABLE, "/opt/libdevice.10.bc")  # the user's choice, which must be part of the key
    assert environment.facts("cuda:0") != before


def test_kernels_of_a_load_are_separate_from_those_of_a_compile() -> None:
    """torch has one table of kernels per process. The end of a compile in another thread clears the table."""
    from torch._inductor.async_compile import CompiledTritonKernels

    CompiledTritonKernels.save("of the compile", "compiling")
    with triton_futures.of_this_thread():
        CompiledTritonKernels.save("of the load", "loading")
        assert CompiledTritonKernels.get("of the compile") is None
        other = threading.Thread(target=CompiledTritonKernels.cache_clear)
        other.start()
        other.join()
        assert CompiledTritonKernels.get("of the load") == "loading"
        CompiledTritonKernels.remove_future("of the load")
        assert CompiledTritonKernels.get("of the load") is None
    assert CompiledTritonKernels.get("of the compile") is None  # the other thread has cleared the table
    assert CompiledTritonKernels.get("of the load") is None
