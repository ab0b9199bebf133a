"""Tests of operators that only write into their arguments. A worker defines such an operator from its schema alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.fx import node as fx_node

from precompiled.core.errors import Bypass
from precompiled.torch_internals.graph import call_targets
from precompiled.torch_internals.user_code import custom_ops, schema_ops

OPS = torch.ops.pc_schema
SCHEMA = "filled(Tensor! out, Tensor x, *, int by=2, Tensor[]? more=None) -> ()"


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    made = torch.library.Library("pc_schema", "FRAGMENT")
    made.define(SCHEMA)
    made.impl("filled", lambda out, x: out.copy_(x), "CPU")
    yield made
    made._destroy()


def test_operator_that_only_writes_is_described_by_its_schema(library: torch.library.Library) -> None:
    encoded = call_targets.encode(OPS.filled.default)
    modules, digest, kernels, units = encoded[4:]
    assert (modules, digest, kernels) == ("", "", "CPU")
    assert call_targets.decode(encoded) is OPS.filled.default
    assert call_targets.modules_of(encoded) == custom_ops.digests(units)
    custom_ops.compare(call_targets.modules_of(encoded))
    library._destroy()
    with pytest.raises(ValueError, match="differs from that of the process"):
        custom_ops.compare(call_targets.modules_of(encoded))
    try:  # as in a worker, where the operator is not defined
        made = call_targets.decode(encoded)
        assert call_targets.encode(made) == encoded
        with pytest.raises(RuntimeError, match="has no kernel in a worker"):
            made(torch.zeros(2), torch.ones(2))
    finally:
        schema_ops._DEFINED.pop("pc_schema::filled")._destroy()


def test_class_of_an_opaque_argument_does_not_matter(library: torch.library.Library) -> None:
    for name in ("pc_schema_one.Class", "pc_schema_two.Class"):
        torch._C._register_opaque_type(name)
    library.define("first(Tensor! out, pc_schema_one.Class name) -> ()")
    library.define("second(Tensor! out, pc_schema_two.Class name) -> ()")
    first, second = (schema_ops.describe(op.default) for op in (OPS.first, OPS.second))
    assert first is not None and second is not None
    assert first.replace("first", "second") == second


def test_other_operator_with_the_same_name_is_detected(library: torch.library.Library) -> None:
    units = call_targets.encode(OPS.filled.default)[7]
    other = json.loads(units)
    other[0]["schema"] = other[0]["schema"].replace("by=2", "by=3")
    with pytest.raises(ValueError, match="differs from that of the process"):
        custom_ops.define(json.dumps(other))


def fake(library: torch.library.Library) -> None:
    library._register_fake("filled", torch.empty_like)


MORE: dict[str, Callable[[torch.library.Library], object]] = {
    "a kernel that a compile runs": lambda library: library.impl("filled", lambda out, x: None, "Autograd"),
    "a fake kernel": fake,
    "an effect": lambda library: torch.library._register_effectful_op(
        "pc_schema::filled", torch._library.effects.EffectType.ORDERED, lib=library
    ),
    "a rule for a mode": lambda library: library._register_torch_dispatch_rule("filled", torch.Tensor, print),
}


@pytest.mark.parametrize("more", MORE)
def test_operator_with_other_registrations_has_no_schema_description(library: torch.library.Library, more: str) -> None:
    MORE[more](library)
    assert schema_ops.describe(OPS.filled.default) is None


@pytest.mark.usefixtures("library")
def test_operator_marked_as_side_effectful_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fx_node, "_side_effectful_functions", {OPS.filled.default})
    with pytest.raises(Bypass):
        call_targets.encode(OPS.filled.default)


@pytest.mark.parametrize("schema", ["given(Tensor x) -> Tensor", "given(Tensor! x) -> Tensor", "given(Tensor x) -> ()"])
def test_operator_that_returns_a_value_has_no_schema_description(schema: str) -> None:
    with torch.library._scoped_library("pc_schema", "FRAGMENT") as library:
        library.define(schema)
        library.impl("given", lambda x: x, "CPU")
        assert schema_ops.describe(OPS.given.default) is None
