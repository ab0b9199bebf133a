"""Tests of decisions for which a compile normally measures times.

The made-up device has no times. On this device a decision by time has a fixed outcome, or the compile is refused. The
test process compiles as a worker does. ``tests/gpu/test_cuda.py`` tests ``max-autotune`` with a daemon.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import support_compiles
import torch
from support_graphs import captured
from torch._inductor.fx_passes import pad_mm

from precompiled.core.errors import CompileFailed
from precompiled.graph import capture
from precompiled.made_up_cuda import activate
from precompiled.torch_internals.inductor import frozen_weights
from precompiled.torch_internals.user_code import program_classes
from precompiled.torch_internals.worker import no_measurements

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not os.environ.get("CUDA_MADE_UP"), reason="NOT TESTED: this host has no made-up device"),
]

should_pad = pad_mm.should_pad


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Creates separate caches for each test, because Inductor stores its choices in them."""
    for name in ("triton", "inductor"):
        monkeypatch.setenv(f"{'TRITON' if name == 'triton' else 'TORCHINDUCTOR'}_CACHE_DIR", str(tmp_path / name))
    return tmp_path


def compiled(function: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> str:
    """Compile the function's graph as a worker does, and return the generated code."""
    program = capture.parse(captured(function, *inputs, options=options).program.to_bytes())
    bundle = program_classes.loads(support_compiles.compiled(program).bundle, {})
    return frozen_weights.code_of(bundle.compiled_fw).source_code


def asked_for(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> str:
    """Compile without the fixed outcomes. Returns what the compile first requests from the device, such as a time."""
    from contextlib import contextmanager

    found = []

    @contextmanager
    def as_it_is() -> Any:
        with activate.compiling() as refused:
            try:
                yield no_measurements.UndecidedChoices()
            finally:
                found.append(refused())

    with monkeypatch.context() as patched:
        patched.setattr(no_measurements, "choices", as_it_is)
        try:
            compiled(*arguments, **options)
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
    return found[0]


def mm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


def test_matrix_product_is_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = torch.randn(512, 511, device="cuda"), torch.randn(511, 512, device="cuda")
    assert asked_for(monkeypatch, mm, *odd) == "a measured time"
    code = compiled(mm, *odd)
    assert "extern_kernels.mm(" in code and "triton" not in code.partition("def call")[2], code


def test_untimed_decisions_are_counted() -> None:
    """`tune` must skip an artifact without decisions by time, because a compile on a GPU would make an equal
    artifact.
    """

    def undecided(size: int, **options: Any) -> int:
        inputs = torch.randn(512, size, device="cuda"), torch.randn(size, 512, device="cuda")
        program = captured(mm, *inputs, options=options).program
        return support_compiles.compiled(capture.parse(program.to_bytes())).undecided

    assert undecided(511) == 1  # whether to pad the product
    assert undecided(511, force_shape_pad=True) == 0
    assert undecided(512) == 0
    assert undecided(512, max_autotune=True) == 1  # which kernel to use
    assert undecided(512, max_autotune=True, max_autotune_gemm_backends="ATEN", max_autotune_conv_backends="ATEN") == 0


def test_forced_padding_is_applied() -> None:
    odd = torch.randn(512, 511, device="cuda"), torch.randn(511, 512, device="cuda")
    assert "(512, 512)" in compiled(mm, *odd, force_shape_pad=True).partition("def call")[2].replace("1, ", "")


def test_max_autotune_uses_the_library_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    even = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    # One of Triton's forty configurations is enough for the test.
    few = {"max_autotune": True, "test_configs.max_mm_configs": 1}
    asked = asked_for(monkeypatch, mm, *even, **few)
    assert asked == "a measured time" or asked.startswith("a run of the kernel"), asked
    code = compiled(mm, *even, **few)
    assert "extern_kernels.mm(" in code and "triton_tem" not in code


def rows_and_columns(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sum(-1), x.sum(0)


def test_mixed_reduction_keeps_inductors_initial_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under max-autotune and coordinate descent, Inductor would measure how to split a mixed reduction.

    The backward of a norm has a mixed reduction.
    """
    x = torch.ones(32768, 256, device="cuda")
    asked = asked_for(monkeypatch, rows_and_columns, x, coordinate_descent_tuning=True)
    assert asked == "a measured time" or asked.startswith("a run of the kernel"), asked
    program = captured(rows_and_columns, x, options={"coordinate_descent_tuning": True}).program
    assert support_compiles.compiled(capture.parse(program.to_bytes())).undecided == 1


def test_deterministic_choice_equals_the_choice_on_a_gpu() -> None:
    even = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    options = {"deterministic": True, "max_autotune": True, "max_autotune_gemm_backends": "TRITON"}
    program = captured(mm, *even, options=options).program
    result = support_compiles.compiled(capture.parse(program.to_bytes()))
    assert result.undecided == 0
    assert "triton_tem" in frozen_weights.code_of(program_classes.loads(result.bundle, {}).compiled_fw).source_code


def test_clock_rate_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch uses the clock rate to decide whether padding pays. nvidia-smi would report the clock of another GPU."""
    monkeypatch.setenv("PATH", "")
    with no_measurements.choices():
        assert torch._utils_internal.max_clock_rate() == torch.cuda.get_device_properties().clock_rate / 1000


def test_coordinate_descent_is_left_to_the_client(caches: Path) -> None:
    code = compiled(lambda x: x.softmax(-1), torch.randn(64, 512, device="cuda"), coordinate_descent_tuning=True)
    assert "'coordinate_descent_tuning': True" in code
    assert not list(caches.rglob("*.best_config"))


def convolution(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.conv2d(x, weight, padding=1)


@pytest.mark.parametrize(
    ("function", "sizes", "options", "kernel"),
    [
        (torch.bmm, [(4, 512, 511), (4, 511, 512)], {}, "bmm"),
        (torch.addmm, [(512,), (512, 511), (511, 512)], {}, "addmm"),
        (torch.bmm, [(4, 64, 64), (4, 64, 64)], {"max_autotune": True}, "bmm"),
        (torch.addmm, [(64,), (64, 64), (64, 64)], {"max_autotune": True}, "addmm"),
        (torch.bmm, [(4, 64, 64), (4, 64, 64)], {"max_autotune": True, "pipeline_max_autotune_gemm": True}, "bmm"),
        (mm, [(64, 64), (64, 64)], {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}, "mm"),
        (convolution, [(4, 32, 16, 16), (32, 32, 3, 3)], {"max_autotune": True}, "convolution"),
    ],
    ids=["bmm-padded", "addmm-padded", "bmm", "addmm", "bmm-pipelined", "triton-alone", "convolution"],
)
def test_library_kernel_is_used_and_the_choice_counted(
    function: Callable[..., Any], sizes: list[tuple[int, ...]], options: dict[str, Any], kernel: str
) -> None:
    program = captured(function, *(torch.randn(size, device="cuda") for size in sizes), options=options).program
    result = support_compiles.compiled(capture.parse(program.to_bytes()))
    code = frozen_weights.code_of(program_classes.loads(result.bundle, {}).compiled_fw).source_code
    assert result.undecided == 1
    assert f"extern_kernels.{kernel}(" in code and "triton_tem" not in code, code


def softmax_fused(x: torch.Tensor) -> torch.Tensor:
    return (x.sin().sum(-1, keepdim=True) * x).cos()


def combined(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sin().sum(-1), x[:96].cos(), x[:2048, :32].exp().sum(0)


def flexible(x: torch.Tensor) -> torch.Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    x = x.reshape(1, 2, -1, 64)
    return flex_attention(x, x, x)


@pytest.mark.reason("made-up-device")
@pytest.mark.parametrize(
    ("function", "options"),
    [
        (softmax_fused, {"benchmark_fusion": True}),
        (combined, {"combo_kernels": True, "benchmark_combo_kernel": True}),
        pytest.param(
            combined,
            {f"combo_kernel{name}": True for name in ("s", "_per_subkernel_blocks", "_compile_time_autotune")},
            marks=pytest.mark.skipif(
                not hasattr(torch._inductor.config, "combo_kernel_compile_time_autotune"),
                reason="NOT TESTED: this torch does not measure the parts of a combined kernel while it compiles",
            ),
        ),
        (flexible, {"max_autotune": True}),
        (flexible, {"max_autotune": True, "autotune_in_subproc": True}),
    ],
    ids=["fusion", "combo", "combo-parts", "flex", "flex-in-subprocesses"],
)
def test_other_decisions_by_time_are_refused(
    function: Callable[..., Any], options: dict[str, Any], caches: Path
) -> None:
    """Inductor must not store a refused time in its cache, because a later compile would treat it as measured.

    So a second attempt must be refused as well.
    """
    x = torch.randn(4096, 64, device="cuda")
    for _time in range(2):
        with pytest.raises(CompileFailed) as refused:
            compiled(function, x, **options)
        assert refused.value.code == "made-up-device", refused.value
        assert not list(caches.rglob("*.kernel_perf"))
        assert not [path for path in caches.rglob("*") if path.is_file() and b'"cache"' in path.read_bytes()[:200]]


def test_cpu_graphs_are_still_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker for CPU graphs has no made-up device, so it can measure, and its artifacts must be as usual."""
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_available", lambda: False)
        with no_measurements.choices():
            assert pad_mm.should_pad is should_pad
    with no_measurements.choices():
        assert pad_mm.should_pad is not should_pad
