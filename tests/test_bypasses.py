"""Tests of each reason to bypass a graph. A program provokes the bypass, which must be reported and counted, and the
result must equal eager's.

Some reasons depend only on the graph. test_call_targets.py, test_graph_codec.py, test_input_metadata.py and test_key.py
test all forms of these reasons.
"""

from __future__ import annotations

import functools
import importlib
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support_session import ThisProcess, this_process
from torch._inductor import config_comms
from torch.autograd.graph import saved_tensors_hooks
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from precompiled import backend
from precompiled.torch_internals.graph import compiler_config, fixed_floats

X = torch.randn(4, 6)


@pytest.fixture
def here() -> Iterator[ThisProcess]:
    with this_process() as found:
        yield found


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.reason("lookup-only")
def test_miss_in_lookup_mode_is_bypassed(here: ThisProcess) -> None:
    here.refuses("lookup-only", double, X)
    assert len(here.in_process) == 1


# ---------------------------------------------------------------- mode= and options=, and configuration

OPTIONS: dict[str, dict[str, Any]] = {
    "fx-wrapper": {"fx_wrapper": True},
    "custom-pass": {"post_grad_custom_post_pass": lambda graph: None},
    "unpicklable-option": {"pre_grad_fusion_options": {"a pass": {1: 2}}},
}


@pytest.mark.reason("fx-wrapper", "custom-pass", "unpicklable-option")
@pytest.mark.parametrize("code", OPTIONS)
def test_unsupported_option_is_bypassed(here: ThisProcess, code: str) -> None:
    here.refuses(code, double, X, options=OPTIONS[code])


@pytest.mark.reason("freezing")
def test_freezing_that_discards_weights_is_bypassed(here: ThisProcess) -> None:
    with torch.no_grad():
        here.refuses("freezing", double, X, options={"freezing": True, "freezing_discard_parameters": True})
        here.refuses("lookup-only", double, X, options={"freezing": True})
    here.refuses("lookup-only", double, X, options={"freezing": True, "freezing_discard_parameters": True})


@pytest.mark.reason("freezing")
def test_frozen_weight_with_overlapping_memory_is_bypassed(here: ThisProcess) -> None:
    model = torch.nn.Linear(6, 6)
    model.weight = torch.nn.Parameter(torch.randn(6).expand(6, 6))
    with torch._inductor.config.patch(freezing=True), torch.no_grad():
        here.refuses("freezing", model, X)


@pytest.mark.reason("cpp-wrapper", "freezing")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the graph would run on the GPU of this host")
@pytest.mark.parametrize(("option", "code"), [("cpp_wrapper", "cpp-wrapper"), ("freezing", "freezing")])
def test_setting_served_only_on_the_cpu_is_bypassed_on_a_gpu(here: ThisProcess, option: str, code: str) -> None:
    with torch.no_grad():
        message = here.refuses(code, lambda x: x.to("cuda:0") * 2, X, options={option: True}, compare=False)
    assert "cuda:0" in message


@pytest.mark.reason("caches-disabled")
def test_disabled_inductor_caches_are_bypassed(here: ThisProcess) -> None:
    with torch._inductor.config.patch(force_disable_caches=True):
        here.refuses("caches-disabled", double, X)


# ---------------------------------------------------------------- inputs


@pytest.mark.reason("unsupported-input")
def test_lazy_conjugate_is_bypassed(here: ThisProcess) -> None:
    here.refuses("unsupported-input", double, torch.randn(4, dtype=torch.complex64).conj())


@pytest.mark.reason("unsupported-input")
def test_jagged_nested_tensor_is_bypassed(here: ThisProcess) -> None:
    """A special case, because the first input is not the tensor: Dynamo passes the tensor's number of rows first."""
    rows = torch.nested.nested_tensor([torch.ones(2, 6), torch.ones(3, 6)], layout=torch.jagged)
    message = here.refuses("unsupported-input", lambda x: (x * 2).values(), rows)
    assert "nested tensor" in message


@pytest.mark.reason("unsupported-input")
def test_tensor_subclass_without_complete_source_is_bypassed(here: ThisProcess) -> None:
    class Seen(TwoTensor):
        seen: list[Any] = []  # noqa: RUF012 - precompiled refuses a subclass that holds a list

        @staticmethod
        def __tensor_unflatten__(inner: dict[str, torch.Tensor], *_: Any) -> Any:
            return Seen(inner["a"], inner["b"])

    assert "Seen.seen is a list" in here.refuses("unsupported-input", double, Seen(X, X.clone()))


@pytest.mark.reason("symbolic-scalar")
def test_fixed_float_that_dynamo_keeps_is_bypassed(here: ThisProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_floats, "fixed_symbol", lambda value: "")
    here.refuses("symbolic-scalar", torch.nn.LayerNorm(6), X, dynamic=True)


def test_fixed_floats_are_retraced_once(here: ThisProcess) -> None:
    """Three layers have three values of eps. One retrace must handle all three values.

    No graph is compiled before the retrace, and the report does not list the discarded graph.
    """
    model = torch.nn.Sequential(*(torch.nn.LayerNorm(6, eps=10.0**-digits) for digits in (4, 5, 6)))
    before = torch._dynamo.utils.counters["frames"]["total"]
    here.refuses("lookup-only", model, X, dynamic=True)
    assert torch._dynamo.utils.counters["frames"]["total"] == before + 1
    assert len(here.in_process) == 1


# ---------------------------------------------------------------- devices; Dynamo traces them without the hardware


@pytest.mark.reason("several-devices")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the graph would run on the GPU of this host")
def test_graph_on_two_accelerators_is_bypassed(here: ThisProcess) -> None:
    message = here.refuses("several-devices", lambda x: (x.to("cuda:0") * 2).to("xpu:0"), X, compare=False)
    assert "cuda:0, xpu:0" in message


@pytest.mark.reason("unsupported-device")
def test_unsupported_accelerator_is_bypassed(here: ThisProcess) -> None:
    here.refuses("unsupported-device", lambda x: x.to("xpu:0") * 2, X, compare=False)


# ---------------------------------------------------------------- operators and arguments


@torch._dynamo.allow_in_graph
def of_the_user(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@pytest.mark.reason("user-function")
def test_user_function_in_the_graph_is_bypassed(here: ThisProcess) -> None:
    assert "of_the_user" in here.refuses("user-function", lambda x: of_the_user(x) + 1, X)


@pytest.mark.reason("higher-order-operator")
def test_unknown_higher_order_operator_is_bypassed(here: ThisProcess) -> None:
    from torch._higher_order_ops.strict_mode import strict_mode

    message = here.refuses("higher-order-operator", lambda x: strict_mode(lambda y: y * 2, (x,)), X)
    assert "strict_mode" in message


@pytest.mark.reason("unsupported-argument")
def test_argument_without_a_canonical_form_is_bypassed(here: ThisProcess) -> None:
    product = functools.partial(torch.ops.higher_order.out_dtype, torch.ops.aten.mm.default, torch.int32)
    ones = torch.ones(4, 4, dtype=torch.int8)
    here.refuses("unsupported-argument", lambda x: product(x, x), ones)


@pytest.mark.reason("marked-node")
def test_operation_on_another_stream_is_bypassed(here: ThisProcess) -> None:
    def on_stream(x: torch.Tensor) -> torch.Tensor:
        with torch.fx.traceback.annotate({"stream": 1}):  # Dynamo writes the same annotation for torch.cuda.stream
            return x * 2

    assert "streams" in here.refuses("marked-node", on_stream, X)


@pytest.mark.reason("marked-node")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the graph would run on the GPU of this host")
def test_override_of_cudagraphs_is_bypassed(here: ThisProcess) -> None:
    override = getattr(torch._dynamo, "override_cudagraphs", None)
    if override is None:
        pytest.skip(f"torch {torch.__version__} has no override_cudagraphs")

    def overridden(device: str, **cudagraphs: bool) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            with override(**cudagraphs):
                return x.to(device) * 2

        return run

    asked = {"triton.cudagraphs": True}
    for cudagraphs, options in (({"fwd": True}, {}), ({"fwd": False}, asked), ({"bwd": False}, asked)):
        message = here.refuses("marked-node", overridden("cuda:0", **cudagraphs), X, options=options, compare=False)
        assert "override_cudagraphs" in message
    here.refuses("lookup-only", overridden("cpu", fwd=True), X)  # the override has no effect on the CPU
    annotation = here.in_process[-1].meta["cudagraph_annotation"]
    # An override that equals the settings is served, so this call does not raise.
    compiler_config.refuse_other_cudagraphs({"inductor": asked}, annotation)


@pytest.mark.reason("checkpoint-context")
def test_local_checkpoint_policy_is_bypassed(here: ThisProcess) -> None:
    def contexts() -> Any:
        return create_selective_checkpoint_contexts([torch.ops.aten.mm.default])

    def checkpointed(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(torch.sin, x, use_reentrant=False, context_fn=contexts)

    message = here.refuses("checkpoint-context", checkpointed, X)
    assert "top level of a module" in message


@pytest.mark.reason("saved-tensors-hooks")
def test_compiled_saved_tensor_hooks_are_bypassed(here: ThisProcess) -> None:
    pack = torch.fx.symbolic_trace(lambda x: x.to(torch.float64))
    unpack = torch.fx.symbolic_trace(lambda x: x.to(torch.float32))
    with saved_tensors_hooks(pack, unpack):
        here.refuses("saved-tensors-hooks", lambda x: x.sin().sum(), X.clone().requires_grad_())


@pytest.mark.reason("double-backward")
def test_double_backward_is_bypassed(here: ThisProcess) -> None:
    def gradient_of_a_gradient(around: Callable[[], AbstractContextManager[Any]]) -> Any:
        x, w = (tensor.clone().requires_grad_() for tensor in (X[0], X[1]))
        with around():
            (gradient,) = torch.autograd.grad((x.sin() * w).sum(), x, create_graph=True)
            gradient.sum().backward()
        return w.grad

    expected = gradient_of_a_gradient(torch.enable_grad)
    torch._dynamo.reset()
    compiler = torch.compile(backend="precompiled")
    got = gradient_of_a_gradient(lambda: torch._dynamo.compiled_autograd._enable(compiler))
    torch.testing.assert_close(got, expected)
    here.was_refused("double-backward")


# ---------------------------------------------------------------- custom ops


@pytest.mark.reason("custom-op")
def test_custom_op_without_a_python_definition_is_bypassed(here: ThisProcess) -> None:
    library = torch.library.Library("precompiled_bypasses", "DEF")
    library.define("opaque(Tensor x) -> Tensor")
    library.impl("opaque", lambda x: x * 2, "CPU")
    library.impl("opaque", torch.empty_like, "Meta")
    assert "opaque" in here.refuses("custom-op", torch.ops.precompiled_bypasses.opaque, X)


def _doubled(name: str) -> Callable[..., Any]:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    doubled.__module__ = "__main__"
    defined = torch.library.custom_op(f"precompiled_bypasses::{name}", doubled, mutates_args=())
    defined.register_fake(torch.empty_like)
    return defined


@pytest.mark.reason("custom-op-in-main")
def test_custom_op_of_the_main_program_is_bypassed(here: ThisProcess) -> None:
    doubled = _doubled("in_main")
    assert "Move it to a module" in here.refuses("custom-op-in-main", doubled, X)


EDITED = """\
import torch

@torch.library.custom_op("precompiled_bypasses::edited", mutates_args=())
def edited(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@edited.register_fake
def _(x):
    return torch.empty_like(x)
"""


@pytest.mark.reason("custom-op-edited")
def test_custom_op_with_source_newer_than_the_process_is_bypassed(
    here: ThisProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"edited_{uuid.uuid4().hex[:8]}"
    (tmp_path / f"{name}.py").write_text(EDITED)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module(name)
    try:
        assert name in here.refuses("custom-op-edited", module.edited, X)
    finally:
        del sys.modules[name]


# ---------------------------------------------------------------- collectives


@pytest.mark.reason("collective")
@pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.usefixtures("one_rank")
def test_non_functional_collective_is_bypassed(here: ThisProcess) -> None:
    def reduced(x: torch.Tensor) -> torch.Tensor:
        pending = torch.ops.c10d_functional.all_reduce(x, "sum", "", [0], 1)
        return torch.ops.c10d_functional.wait_tensor(pending)

    assert "c10d_functional::all_reduce" in here.refuses("collective", reduced, X)


BY_RANK: list[tuple[Any, str, Any]] = [
    (torch._inductor.config, "_micro_pipeline_tp", True),
    (torch._inductor.config, "distributed_max_autotune_gemm", True),
    (torch._inductor.config, "aten_distributed_optimizations.enable_overlap_scheduling", True),
    (torch._functorch.config, "_sync_decision_cross_ranks", True),
    (config_comms, "runtime_estimations_align_across_all_distributed_ranks", True),
]


@pytest.mark.reason("rank-dependent")
@pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize(("module", "name", "value"), BY_RANK, ids=[name for _, name, _ in BY_RANK])
@pytest.mark.usefixtures("one_rank")
def test_collectives_with_a_rank_dependent_setting_are_bypassed(
    here: ThisProcess, module: Any, name: str, value: Any
) -> None:
    if name not in module._config:
        pytest.skip("this torch has no such setting")

    def reduced(x: torch.Tensor) -> torch.Tensor:
        return torch.distributed._functional_collectives.all_reduce(x, "sum", dist.group.WORLD)

    # Inductor reads config_comms only in this pass, so the pass must be on.
    with module.patch({name: value}), torch._inductor.config.patch(reorder_for_compute_comm_overlap=True):
        assert name in here.refuses("rank-dependent", reduced, X)
        here.refuses("lookup-only", double, X)  # a graph without collectives does not depend on the rank


@pytest.mark.reason("cpp-wrapper")
@pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.usefixtures("one_rank")
def test_collectives_with_cpp_wrapper_are_bypassed(here: ThisProcess) -> None:
    def reduced(x: torch.Tensor) -> torch.Tensor:
        return torch.distributed._functional_collectives.all_reduce(x, "sum", dist.group.WORLD)

    with torch._inductor.config.patch(cpp_wrapper=True):
        assert "groups" in here.refuses("cpp-wrapper", reduced, X)
        here.refuses("lookup-only", double, X)


@pytest.mark.reason("rank-dependent")
def test_setting_that_synchronises_ranks_is_bypassed(here: ThisProcess) -> None:
    name = "_sync_cache_decision_cross_ranks"
    if name not in torch._functorch.config._config:
        pytest.skip("this torch has no such setting")
    with torch._functorch.config.patch({name: True}):
        here.refuses("rank-dependent", double, X)


# ---------------------------------------------------------------- graphs that only a user's own backend can pass
# A user's backend may change Dynamo's graph and call the backend "precompiled" with the result.


def through(change: Callable[[torch.fx.GraphModule, list[Any]], torch.fx.GraphModule]) -> Callable[..., Any]:
    def of_the_users(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return backend.precompiled(change(module, inputs), inputs)

    return of_the_users


def _with_its_own(held: Any, op: str) -> Callable[..., Any]:
    def change(module: torch.fx.GraphModule, _: list[Any]) -> torch.fx.GraphModule:
        """Replace the graph's factor 2 by a tensor or a module that the graph holds."""
        if isinstance(held, torch.Tensor) and not isinstance(held, torch.nn.Parameter):
            module.register_buffer("held", held)
        else:
            module.held = held
        graph = module.graph
        (node,) = (node for node in graph.nodes if node.op == "call_function")
        with graph.inserting_before(node):
            made = graph.get_attr("held") if op == "get_attr" else graph.call_module("held", (node.args[0],))
        if op == "get_attr":
            node.args = (node.args[0], made)
        else:
            node.replace_all_uses_with(made)
        module.recompile()
        return module

    return change


class Doubling(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@pytest.mark.reason("graph-attribute")
@pytest.mark.parametrize("kind", ["tensor", "parameter"])
def test_graph_that_holds_a_tensor_is_bypassed(here: ThisProcess, kind: str) -> None:
    held = torch.tensor(2.0) if kind == "tensor" else torch.nn.Parameter(torch.tensor(2.0))
    here.refuses("graph-attribute", double, X, backend=through(_with_its_own(held, "get_attr")))


@pytest.mark.reason("unsupported-node")
def test_graph_that_calls_a_module_is_bypassed(here: ThisProcess) -> None:
    message = here.refuses("unsupported-node", double, X, backend=through(_with_its_own(Doubling(), "call_module")))
    assert "call_module" in message


@pytest.mark.reason("exported-graph")
def test_graph_of_torch_export_is_bypassed(here: ThisProcess) -> None:
    class Exported(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (x * 2,)

    def exported(_: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return torch.export.export(Exported(), tuple(inputs)).module()

    here.refuses("exported-graph", double, X, backend=through(exported))


@pytest.mark.reason("unsupported-size")
def test_split_graph_with_an_unsupported_size_is_bypassed(here: ThisProcess) -> None:
    """As with DDPOptimizer's splits, an input of the second part is a result of the first part."""

    def second_half(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        cut = next(node for node in module.graph.nodes if node.name.startswith("half"))
        graph = torch.fx.Graph()
        taken = graph.placeholder("half")
        taken.meta = {"example_value": cut.meta["example_value"]}
        graph.output((graph.call_function(torch.mul, (taken, 2)),))
        piece = backend.precompiled(torch.fx.GraphModule({}, graph), [taken.meta["example_value"]])

        def run(*args: Any) -> Any:
            return piece(torch.fx.Interpreter(_until(module, cut)).run(*args))

        return run

    def halved(x: torch.Tensor) -> torch.Tensor:
        half = x[: int(x.shape[0] * 0.5)]
        return half * 2

    x = torch.randn(9, 6)
    torch._dynamo.mark_dynamic(x, 0)
    here.refuses("unsupported-size", halved, x, backend=second_half)


def _until(module: torch.fx.GraphModule, last: torch.fx.Node) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node is last:
            break
    graph.output(copies[last])
    return torch.fx.GraphModule(module, graph)
