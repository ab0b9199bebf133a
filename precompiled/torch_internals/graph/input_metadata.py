"""Describes a graph's inputs: reads their metadata in the client and rebuilds fake inputs in the worker.

A backend's ``example_inputs`` contain real tensors for parameters. The fake tensors of the placeholders
(``node.meta["example_value"]``) have the same metadata, so no weight is read or sent.

Dynamo writes the metadata in torch/_dynamo/output_graph.py. If an input has a ``grad_fn``, the worker's fake tensor
gets the autograd node DelayedError, as in torch/_subclasses/meta_utils.py.

Private names: torch.fx.Node.meta["example_value"], torch.fx.Node.meta["tensor_dict"],
torch.Tensor.{_dynamo_static_input_type, _is_param}, torch.UntypedStorage._cdata,
torch._subclasses.fake_tensor.{FakeTensor.item_memo, FakeTensorMode},
torch.fx.experimental.symbolic_shapes.ShapeEnv.suppress_guards,
torch.utils._python_dispatch.is_traceable_wrapper_subclass, torch._C._functions.DelayedError.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from precompiled.core.errors import Bypass
from precompiled.torch_internals.graph import fixed_floats, opaque_inputs, subclass_context
from precompiled.torch_internals.graph.symbolic_sizes import SizeMaker, Symbols
from precompiled.torch_internals.ranks import device_meshes, dtensor_state, dtensors
from precompiled.torch_internals.user_code import program_classes, program_source, user_modules

if TYPE_CHECKING:
    from precompiled.core import program_data

# Flags that Dynamo sets in an input's tensor_dict, and that AOTAutograd or Inductor read. AOTAutograd and Inductor do
# not read Dynamo's other entry ("tag", torch/_dynamo/utils.py, _extract_tensor_dict).
_TENSOR_FLAGS = ("_dynamo_static_input_type",)


@dataclass(frozen=True)
class Inputs:
    """A graph's inputs as plain data. ``hints`` and ``floats`` are the values of the graph's symbols, and are not part
    of the key.
    """

    args: list[program_data.InputData]
    ranges: list[list[int | None]]
    hints: list[int]
    floats: list[float]
    # maps the name of each module or class that a worker needs for subclasses and opaque objects to its digest
    modules: dict[str, str]
    described: program_classes.Described  # tensor subclasses that the program itself defines
    unbacked: list[list[object]]  # symbolic_sizes.Symbols.unbacked
    meshes: device_meshes.Meshes

    def to_plain(self, groups: Mapping[str, str] = MappingProxyType({})) -> dict[str, object]:
        """The ``inputs`` section of a program. ``groups``: the names of the meshes' process groups in the key."""
        classes = {"classes": self.described.units} if self.described.units else {}
        unbacked = {"unbacked": self.unbacked} if self.unbacked else {}
        found = {}
        if self.meshes.found:
            found = {"meshes": self.meshes.to_plain(groups), "dtensors": dtensor_state.read()}
        return {"args": self.args, "ranges": self.ranges, **classes, **unbacked, **found}


def describe_inputs(placeholders: list[torch.fx.Node]) -> Inputs:
    """Describe each placeholder as a plain dict.

    Raises Bypass for an input that has no canonical form, and FixedFloats if Dynamo must retrace. If several inputs
    share memory, each of them gets the position of the first (``"shares"``), because AOTAutograd treats such inputs
    differently.
    """
    described: list[program_data.InputData] = []
    storages: dict[int, int] = {}
    symbols = Symbols()
    floats: list[float] = []
    modules: dict[str, str] = {}
    classes = program_classes.Described()
    fixed: list[str] = []
    found_meshes = device_meshes.Meshes()
    for position, node in enumerate(placeholders):
        value = node.meta.get("example_value")
        if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
            described.append({"size": symbols.size(value)})
            continue
        if isinstance(value, (torch.SymFloat, torch.SymBool)):
            raise Bypass(f"input {position} is a symbolic {value.node.pytype.__name__}", code="symbolic-scalar")
        if device_meshes.is_mesh(value):
            described.append({"mesh": found_meshes.number(value)})
            continue
        if opaque_inputs.is_opaque(value):
            described.append({"opaque": opaque_inputs.encode(value, position, modules)})
            continue
        flags = node.meta.get("tensor_dict") or {}
        if is_traceable_wrapper_subclass(value):
            described.append(_describe_subclass(value, flags, position, symbols, modules, classes, found_meshes))
            for held in (getattr(value, name) for name in value.__tensor_flatten__()[0]):
                if not isinstance(held, torch.Tensor):
                    continue
                storage = held.untyped_storage()._cdata
                if storage in storages:
                    _refuse_shared(storages[storage], position)
                storages[storage] = position
            continue
        if not isinstance(value, FakeTensor) or type(value) not in (FakeTensor, torch.nn.Parameter):
            raise Bypass(f"input {position} is a {type(value).__name__}, not a plain tensor", code="unsupported-input")
        described.append(_describe(value, flags, position, symbols))
        if reads := [user for user in node.users if _reads_a_scalar(user)]:
            names = [fixed_floats.ignored_symbol(read) for read in reads]
            if all(names):
                fixed += names
                continue
            if isinstance(memo := value.item_memo, torch.SymFloat) and (name := fixed_floats.fixed_symbol(memo)):
                fixed.append(name)
                continue
            described[-1]["float"] = len(floats)
            floats.append(_float_of(value, position))
        storage = value.untyped_storage()._cdata
        first = storages.setdefault(storage, position)
        if first != position:
            if "subclass" in described[first]:
                _refuse_shared(first, position)
            described[-1]["shares"] = described[first]["shares"] = first
    if fixed:  # request all retraces at once, because each takes as long as the first trace
        raise fixed_floats.FixedFloats(fixed)
    return Inputs(described, symbols.ranges, symbols.hints, floats, modules, classes, symbols.unbacked, found_meshes)


def _refuse_shared(first: int, position: int) -> None:
    raise Bypass(f"inputs {first} and {position} share memory, and wrap tensors", code="unsupported-input")


def _reads_a_scalar(user: torch.fx.Node) -> bool:
    read = user.meta.get("example_value")
    return isinstance(read, (torch.SymFloat, torch.SymBool)) and read.node.has_hint()


def _float_of(value: FakeTensor, position: int) -> float:
    """The value of a float that Dynamo passes as a tensor and that the graph reads as a symbol.

    The worker refuses the graph unless the compiled code is valid for every value of the float (compile_graph.py).
    """
    memo = value.item_memo
    if not isinstance(memo, torch.SymFloat) or not memo.node.expr.is_Symbol:
        raise Bypass(f"the graph reads a symbolic scalar from input {position}", code="symbolic-scalar")
    return float(memo.node.hint)


def _describe_subclass(
    value: torch.Tensor,
    flags: Mapping[str, object],
    position: int,
    symbols: Symbols,
    modules: dict[str, str],
    classes: program_classes.Described,
    found_meshes: device_meshes.Meshes,
) -> program_data.InputData:
    """Describe a wrapper of other tensors (torch.utils._python_dispatch): its inner tensors and its own context."""
    attributes, context = value.__tensor_flatten__()
    kind = type(value)
    inner: list[list[object]] = []
    for name in attributes:
        held = getattr(value, name)
        if device_meshes.is_mesh(held):
            inner.append([name, {"mesh": found_meshes.number(held)}])
            continue
        if type(held) is not FakeTensor:
            raise Bypass(
                f"input {position} is a {type(value).__name__} of {type(held).__name__}s", code="unsupported-input"
            )
        inner.append([name, _describe(held, {}, position, symbols)])
    return {
        "subclass": classes.name(kind, modules)
        if program_source.is_nowhere(kind)
        else user_modules.name_with_module(kind, modules, code="unsupported-input"),
        "inner": inner,
        "context": dtensors.encode_context(value, position)
        if dtensors.is_dtensor(value)
        else subclass_context.encode(context, modules),
        "shape": [symbols.size(size) for size in value.shape],
        "stride": [symbols.size(size) for size in value.stride()],
        "device": str(value.device),
        "requires_grad": value.requires_grad,
        "leaf": value.is_leaf,
        "parameter": isinstance(value, torch.nn.Parameter),
        "flags": _flags(flags),
    }


def _describe(
    value: FakeTensor, flags: Mapping[str, object], position: int, symbols: Symbols
) -> program_data.InputData:
    if value.layout is not torch.strided or value.is_quantized or value.is_conj() or value.is_neg() or value.is_nested:
        raise Bypass(
            f"input {position} is sparse, quantized, nested, or a lazy conjugate or negative", code="unsupported-input"
        )
    return {
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": [symbols.size(size) for size in value.shape],
        "stride": [symbols.size(size) for size in value.stride()],
        "offset": symbols.size(value.storage_offset()),
        "storage": symbols.size(value.untyped_storage().nbytes()),
        "device": str(value.device),
        "requires_grad": value.requires_grad,
        "leaf": value.is_leaf,
        "inference": value.is_inference(),
        "parameter": isinstance(value, torch.nn.Parameter),
        "flags": _flags(flags),
    }


def _flags(found: Mapping[str, object]) -> dict[str, object]:
    return {name: found[name] for name in _TENSOR_FLAGS if found.get(name) is not None}


def modules(inputs: program_data.InputsData) -> dict[str, str]:
    """Return the modules that define the classes of described inputs, as a map from name to digest."""
    named = [item[kind] for item in inputs["args"] for kind in ("subclass", "opaque") if kind in item]
    return {module: digest for module, _qualname, digest in named if module and digest}


def new_fake_mode() -> FakeTensorMode:
    """A fake mode as Dynamo creates it for a frame: it has a shape environment and refuses real tensors."""
    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=False)


def size_maker(
    inputs: program_data.InputsData, hints: list[int], floats: list[float], mode: FakeTensorMode
) -> SizeMaker:
    """Make the symbols of described inputs in the shape environment of ``mode``. Call this once per compile."""
    assert mode.shape_env is not None
    return SizeMaker(mode.shape_env, inputs["ranges"], hints, floats, inputs.get("unbacked", []))


def make_inputs(
    inputs: program_data.InputsData,
    sizes: SizeMaker,
    mode: FakeTensorMode,
    classes: program_classes.Classes = program_classes.NONE,
    found_meshes: Sequence[object] = (),
) -> list[object]:
    """Create fake tensors, sizes and opaque objects in ``mode`` with the described metadata.

    ``classes`` are the classes of ``Inputs.described``. ``found_meshes`` are the meshes of ``Inputs.meshes``, or
    the worker's substitutes for them.
    """
    shared: dict[int, torch.UntypedStorage] = {}
    return [_make_input(item, sizes, mode, shared, classes, found_meshes) for item in inputs["args"]]


def _make_input(
    item: program_data.InputData,
    sizes: SizeMaker,
    mode: FakeTensorMode,
    shared: dict[int, torch.UntypedStorage],
    classes: program_classes.Classes,
    found_meshes: Sequence[object],
) -> object:
    if "size" in item:
        return sizes.size_input(item["size"])
    if "mesh" in item:
        return device_meshes.as_input(found_meshes[item["mesh"]], mode)
    if "opaque" in item:
        return opaque_inputs.make(item["opaque"], mode)
    if "subclass" in item:
        module, _name, digest = item["subclass"]
        kind = user_modules.find(item["subclass"]) if module else classes[digest]
        return _make_subclass(kind, item, sizes, mode, found_meshes)
    made = _make(item, sizes, mode, shared)
    if "float" in item:
        made.item_memo = sizes.floats[item["float"]]
    return made


def _make_subclass(
    kind: Any, item: program_data.InputData, sizes: SizeMaker, mode: FakeTensorMode, found_meshes: Sequence[object]
) -> torch.Tensor:
    shape, stride = (tuple(sizes.size(size) for size in item[name]) for name in ("shape", "stride"))
    inner = {
        name: found_meshes[held["mesh"]] if "mesh" in held else _make(held, sizes, mode, {})
        for name, held in item["inner"]
    }
    context = (
        dtensors.decode_context(item["context"], torch.Size(shape), stride)
        if "placements" in item["context"]
        else subclass_context.decode(item["context"])
    )
    with mode, torch.no_grad():
        made: torch.Tensor = kind.__tensor_unflatten__(inner, context, torch.Size(shape), stride)
        if item["requires_grad"]:
            made.requires_grad_(True)
    if item["parameter"]:
        made._is_param = True  # torch.nn.Parameter and torch/_subclasses/meta_utils.py mark a subclass in this way
    return _with_history(made, item)


def _make(
    item: program_data.InputData, sizes: SizeMaker, mode: FakeTensorMode, shared: dict[int, torch.UntypedStorage]
) -> torch.Tensor:
    dtype = getattr(torch, item["dtype"])
    shape = [sizes.size(size) for size in item["shape"]]
    stride = [sizes.size(size) for size in item["stride"]]
    with mode, torch.inference_mode(item["inference"]), torch.no_grad():
        # Create the whole storage: the compiled code may depend on the offset (alignment) and on other inputs in this
        # storage.
        storage = shared.get(item.get("shares", -1))
        if storage is None:
            nbytes = sizes.size(item["storage"])
            storage = torch.empty(nbytes, dtype=torch.uint8, device=item["device"]).untyped_storage()
            if "shares" in item:
                shared[item["shares"]] = storage
        made = torch.empty(0, dtype=dtype, device=item["device"])
        offset = sizes.size(item["offset"])
        assert mode.shape_env is not None
        # An input always lies within its storage, so torch's check of this fact must not become a guard of the graph.
        with mode.shape_env.suppress_guards():
            made.set_(storage, offset, shape, stride)
        if item["parameter"]:
            made = torch.nn.Parameter(made, requires_grad=item["requires_grad"])
        elif item["requires_grad"]:
            made.requires_grad_(True)
    return _with_history(made, item)


def _with_history(made: torch.Tensor, item: Mapping[str, object]) -> torch.Tensor:
    if item["requires_grad"] and not item["leaf"]:
        with torch.enable_grad():
            made = torch._C._functions.DelayedError("backward through an example input", 1)(made)
    return made
