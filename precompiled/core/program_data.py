"""The types of a *program*, a captured graph as plain data (graph/capture.py), and the state of its capture.

The types of a program describe parsed JSON, so nothing checks them at run time. The key hashes the JSON text of the
first five sections, where the order of fields counts. An encoded size is an int, or an expression of symbols as a
dict: ``{"s": 0}``.
"""

from __future__ import annotations

import contextvars
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

# The sections that the key hashes.
Section = Literal["graph", "inputs", "modes", "configs", "environment"]


class InputData(TypedDict, total=False):
    """One input of a graph. Its fields depend on its kind (torch_internals/graph/input_metadata.py)."""

    # A size, an opaque object or a mesh has only one of these fields.
    size: Any
    opaque: list[str]
    mesh: int
    # A tensor subclass that wraps other tensors has these fields: its class, and its inner tensors.
    subclass: list[str]
    inner: list[list[Any]]  # [attribute, InputData]
    context: Any
    # All tensors have these fields.
    shape: list[Any]
    stride: list[Any]
    device: str
    requires_grad: bool
    leaf: bool
    parameter: bool
    flags: dict[str, object]
    # Only the other tensors have these fields. The last three exist only if they apply.
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
    """The section ``about``, for reports only (graph/about.py)."""

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
    """All that loading a graph's artifacts requires from the capture of the graph."""

    modes: dict[str, Any]
    device: str  # "cpu" or "cuda:N"; the sections call it "cuda:0" (graph/devices.py)
    cudagraphs: bool  # the settings enable CUDA graphs, and the graph is on a GPU
    size_inputs: list[int]  # positions of the inputs that are sizes, fixed or symbolic, but not unbacked
    modules: dict[str, str]  # maps the modules that a worker imports, and the program's own ops and classes, to digests
    # maps a digest to a class of inputs that the program defines
    classes: Mapping[str, type] = field(default_factory=dict)
    # Names of the graph's process groups in this process; the sections have numbers instead (group_names.py)
    groups: tuple[str, ...] = ()
    # Torch's settings, as a context in which any thread can load the graph's artifacts.
    context: contextvars.Context = field(default_factory=contextvars.copy_context, compare=False, repr=False)

    @property
    def frozen(self) -> Sequence[Any]:
        """The graph's last inputs, if the compiled code contains their values as constants (frozen weights)."""
        return ()
