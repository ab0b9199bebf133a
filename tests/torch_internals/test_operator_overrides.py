"""Tests that a graph is refused if the program has overridden an operator of torch that the compile may use."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch._inductor.compile_fx
from support_graphs import captured
from torch._inductor import decomposition, lowering

from precompiled.core.errors import Bypass
from precompiled.packages import requirements
from precompiled.packages.describe.errors import Mismatch
from precompiled.torch_internals.graph import operator_overrides
from precompiled.torch_internals.user_code import dispatcher_overrides

X = torch.randn(4, 6)
aten = torch.ops.aten
# Inductor has a decomposition for DECOMPOSED, and only a lowering for LOWERED.
DECOMPOSED, LOWERED = aten.silu.default, aten.convolution.default


def refusal() -> str:
    with pytest.raises(Bypass) as refused:
        captured(torch.sin, X)  # the compile of any graph may use the operator
    assert refused.value.code == "operator-override"
    return str(refused.value)


@contextmanager
def kept(table: dict[Any, Any], op: Any) -> Iterator[None]:
    before = dict(table)
    try:
        yield
    finally:
        table.clear()
        table.update(before)  # restores the order of the table, too
        lowering.fallbacks.discard(op)
        operator_overrides.refuse([])


@pytest.fixture
def aten_library() -> Iterator[torch.library.Library]:
    library = torch.library.Library("aten", "IMPL")
    yield library
    library._destroy()
    operator_overrides.refuse([])


def of_mine(x: torch.Tensor) -> torch.Tensor:
    return x + 100


# ---------------------------------------------------------------- overrides in torch's dispatcher


@pytest.mark.reason("operator-override")
@pytest.mark.parametrize("key", ["AutogradCPU", "CompositeImplicitAutograd", "Meta"])
def test_override_that_aotautograd_traces_is_refused(aten_library: torch.library.Library, key: str) -> None:
    captured(torch.sin, X)
    # torch itself registers erfinv's Meta kernel from Python. The program's override of erfinv must still be refused.
    aten_library.impl("erfinv" if key == "Meta" else "silu", of_mine, key, allow_override=True)
    message = refusal()
    assert key in message and __file__ in message


def test_override_of_one_operator_does_not_accuse_the_other_operators_of_its_library(
    aten_library: torch.library.Library,
) -> None:
    aten_library.impl("silu", of_mine, "CompositeImplicitAutograd")
    names = ["aten/silu/Meta", "aten/gelu/Meta"]  # torch's Library has both; the order in its set is random
    assert list(dispatcher_overrides._of(names, ["aten"])) == ["aten::silu"]


@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel")
def test_override_of_an_eager_kernel_does_not_affect_compiles(aten_library: torch.library.Library) -> None:
    aten_library.impl("erfinv", of_mine, "CPU")
    captured(torch.sin, X)


@pytest.mark.reason("operator-override")
def test_override_through_torch_library_impl_is_refused() -> None:
    before = len(torch.library._keep_alive)
    torch.library.impl("aten::silu", "AutogradCPU", of_mine)
    try:
        assert "aten::silu" in refusal()
    finally:
        for library in torch.library._keep_alive[before:]:
            library._destroy()
        del torch.library._keep_alive[before:]
    captured(torch.sin, X)


@pytest.mark.reason("operator-override")
def test_override_by_a_library_that_replaces_another_of_its_size_is_refused() -> None:
    captured(torch.sin, X)  # the first compile lets torch create its own Libraries
    harmless = torch.library.Library("precompiled_overrides", "DEF")
    harmless.define("of_one_kernel(Tensor x) -> Tensor")
    harmless.impl("of_one_kernel", of_mine, "AutogradCPU")
    captured(torch.sin, X)
    harmless._destroy()
    del harmless
    gc.collect()
    library = torch.library.Library("aten", "IMPL")
    library.impl("silu", of_mine, "AutogradCPU")
    try:
        assert "aten::silu" in refusal()
    finally:
        library._destroy()


@pytest.mark.reason("operator-override")
def test_override_is_refused_after_another_library_with_the_same_override_is_destroyed(
    aten_library: torch.library.Library,
) -> None:
    aten_library.impl("silu", of_mine, "AutogradCPU")
    other = torch.library.Library("aten", "IMPL")
    other.impl("silu", of_mine, "AutogradCPU", allow_override=True)
    other._destroy()
    assert "aten::silu" in refusal()


def test_operator_with_a_new_name_is_not_an_override() -> None:
    library = torch.library.Library("precompiled_overrides", "DEF")
    library.define("mine(Tensor x) -> Tensor")
    library.impl("mine", of_mine, "CompositeImplicitAutograd")
    captured(torch.sin, X)
    library._destroy()


def test_override_of_a_library_operator_affects_only_its_callers() -> None:
    """A lowering of an operator outside of aten affects only graphs that call the operator. Other graphs are served.

    For example, quantized_decomposed registers lowerings of operators outside of aten.
    """
    op = torch.ops.quantized.linear_dynamic.default
    with kept(lowering.lowerings, op):
        lowering.register_lowering(op)(lambda *args: None)
        captured(torch.sin, X)
        with pytest.raises(Bypass, match="quantized::linear_dynamic"):
            operator_overrides.refuse([[["f", ["op", "quantized", "linear_dynamic", "default"], [], []]]])


# ---------------------------------------------------------------- overrides in Inductor's tables


def popped() -> None:
    del decomposition.decompositions[DECOMPOSED]


def decomposed() -> None:
    popped()
    decomposition.register_decomposition([DECOMPOSED])(of_mine)


def lowered() -> None:
    lowering.register_lowering(LOWERED)(lambda *args: args[0])


def lowered_by_a_pointwise() -> None:
    lowering.register_lowering(LOWERED)(lowering.make_pointwise(lambda *args: args[0]))


def made_a_fallback() -> None:
    lowering.make_fallback(LOWERED)


CHANGES: dict[Callable[[], None], tuple[dict[Any, Any], Any, str]] = {
    popped: (decomposition.decompositions, DECOMPOSED, "taken out"),
    decomposed: (decomposition.decompositions, DECOMPOSED, "not torch's"),
    lowered: (lowering.lowerings, LOWERED, "not torch's"),
    lowered_by_a_pointwise: (lowering.lowerings, LOWERED, "not torch's"),
    made_a_fallback: (lowering.lowerings, LOWERED, "make_fallback"),
}


@pytest.mark.reason("operator-override")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changed_entry_of_inductors_tables_is_refused(change: Callable[[], None]) -> None:
    table, op, expected = CHANGES[change]
    captured(torch.sin, X)
    with kept(table, op):
        change()
        message = refusal()
    assert expected in message and op._schema.name in message
    captured(torch.sin, X)


@contextmanager
def autotuned(op: Any) -> Iterator[None]:
    custom_op = pytest.importorskip("torch._inductor.kernel.custom_op", reason="this torch cannot autotune operators")
    if not hasattr(lowering, "user_lowerings"):
        pytest.skip(f"torch {torch.__version__} has no table of autotuned operators")
    with kept(lowering.user_lowerings, op):
        custom_op.register_custom_op_autotuning(op, configs=[custom_op.CustomOpConfig(of_mine)])
        yield


@pytest.mark.reason("operator-override")
def test_autotuned_torch_operator_is_refused() -> None:
    with autotuned(aten.mm.default):
        assert "aten::mm" in refusal()


@pytest.mark.reason("custom-op")
def test_autotuned_custom_operator_is_refused() -> None:
    @torch.library.custom_op("precompiled_overrides::tuned", mutates_args=())
    def tuned(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    tuned.register_fake(torch.empty_like)
    with autotuned(torch.ops.precompiled_overrides.tuned.default), pytest.raises(Bypass, match="autotuned") as refused:
        captured(lambda x: tuned(x) * 2, X)
    assert refused.value.code == "custom-op"


# ---------------------------------------------------------------- overrides and packages


def test_overridden_operator_prevents_packages(
    monkeypatch: pytest.MonkeyPatch, aten_library: torch.library.Library
) -> None:
    """Dynamo has no guard on overrides, and a package hit captures no graph. So the package must check overrides."""
    usual = requirements.requirements({})
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "__matmul__", of_mine)
        with pytest.raises(Mismatch, match="replaced different functions of torch"):
            requirements.check(usual, requirements.requirements({}))
    aten_library.impl("silu", of_mine, "AutogradCPU")
    with pytest.raises(Bypass, match="aten::silu"):
        requirements.requirements({})


TORCHS_OWN = """
import contextlib, importlib
import torch
from precompiled.torch_internals.graph import operator_overrides
from precompiled.torch_internals.graph import replaced_functions
for name in ("torch._dynamo", "torch._inductor.compile_fx", "torch.distributed", "torch.distributed.tensor",
             "torch.export", "functorch", "torch.nn.attention.flex_attention", "torch.ao.quantization",
             "torch._refs", "torch._prims", "torch._inductor.kernel.custom_op", "torch.testing._internal.common_utils"):
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(name)
    operator_overrides.refuse([])
    assert not replaced_functions.replaced_functions(), name
"""


@pytest.mark.integration
def test_torchs_own_modules_override_nothing() -> None:
    subprocess.run([sys.executable, "-c", TORCHS_OWN], check=True)
