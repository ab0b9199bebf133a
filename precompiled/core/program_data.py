"""The types of a *program* (a captured graph as plain data, see graph/capture.py) and of the state of its capture.

The types of a program describe parsed JSON, and are not checked at run time. The key hashes the JSON text of the first
five sections, so the order of fields matters. An encoded size is an int, or a dict that represents an expression of
symbols, such as ``{"s": 0}``.
"""

from __future__ import annotations

import contextvars
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

# The sections that the key hashes.
Section = Literal["graph", "inputs", "modes", "configs", "environment"]


class InputData(TypedDict, total=False):
    """One input of a graph. An input's fields depend on its kind (torch_internals/graph/input_metadata.py)."""

    # An input that is a size, an opaque object or a mesh has one of these three fields, and no other field.
    size: Any
    opaque: list[str]
    mesh: int
    # The fields of a tensor subclass that wraps other tensors.
    subclass: list[str]
    inner: list[list[Any]]  # [attribute, InputData]
    context: Any
    # The fields of all tensors.
    shape: list[Any]
    stride: list[Any]
    device: str
    requires_grad: bool
    leaf: bool
    parameter: bool
    flags: dict[str, object]
    # Further fields of tensors that do not wrap other tensors. The last three are optional.
    dtype: str
    offset: Any
    storage: Any
    inference: bool
    float: int  # the number of the symbolic float that the tensor holds
    content: str  # a digest of a frozen weight's data (graph/weights.py)
    shares: int  # the position of the first input with the same memory


class MeshData(TypedDict):
    """A device mesh of DTensors (torch_internals/ranks/device_meshes.py)."""

    device: str
    shape: list[int]
    names: list[str] | None
    ranks: list[int]
    rank: int  # the label of this rank
    groups: list[str]


class _InputsData(TypedDict):
    args: list[InputData]
    ranges: list[list[int | None]]  # the bounds of the symbolic sizes


class InputsData(_InputsData, total=False):
    """The section ``inputs``."""

    classes: list[Any]  # the sources of tensor subclasses that the program defines
    unbacked: list[list[Any]]
    meshes: list[MeshData]
    dtensors: dict[str, object]  # torch_internals/ranks/dtensor_state.py


class AboutData(TypedDict, total=False):
    """The section ``about``, which only reports use (graph/about.py)."""

    places: list[list[Any]]  # [file, line, function, code]
    nodes: list[list[int]]
    inputs: list[str]
    calls: list[list[Any]]  # like ``places``
    set: dict[str, str]
    cpu: dict[str, str]


class _ProgramData(TypedDict):
    graph: list[list[list[Any]]]  # a list of operations for each graph (torch_internals/graph/graph_codec.py)
    inputs: InputsData
    modes: dict[str, Any]  # torch_internals/graph/ambient_modes.py
    configs: dict[str, dict[str, object]]  # torch_internals/graph/compiler_config.py
    environment: dict[str, Any]  # graph/environment.py
    hints: list[int]  # the values of the symbolic sizes
    floats: list[float]  # the values of the symbolic floats


class ProgramData(_ProgramData, total=False):
    """A captured graph. The key hashes the sections up to ``environment``."""

    about: AboutData


@dataclass(frozen=True, kw_only=True)
class CaptureState:
    """The results of a graph's capture. A load of the graph's artifacts needs them."""

    modes: dict[str, Any]
    device: str  # "cpu" or "cuda:N"; the sections call it "cuda:0" (graph/devices.py)
    cudagraphs: bool  # whether the settings enable CUDA graphs and the graph is on a GPU
    size_inputs: list[int]  # positions of the inputs that are fixed or backed symbolic sizes
    modules: dict[str, str]  # digests of the modules that a worker imports, and of the program's own ops and classes
    # maps a digest to a class of inputs that the program defines
    classes: Mapping[str, type] = field(default_factory=dict)
    # Names of the graph's process groups in this process. The sections have numbers instead (group_names.py).
    groups: tuple[str, ...] = ()
    # A context with torch's settings at the capture. In this context, any thread can load the graph's artifacts.
    context: contextvars.Context = field(default_factory=contextvars.copy_context, compare=False, repr=False)

    @property
    def frozen(self) -> Sequence[Any]:
        """The graph's last inputs, if the compiled code contains their values as constants (frozen weights)."""
        return ()
