"""From the store to a callable: verify, then load. The order matters: loading runs the artifact's code."""

from __future__ import annotations

import contextvars
import pickle
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from precompiled.client import native
from precompiled.core.errors import Bypass, CorruptArtifact, StoreError
from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Artifact, Store

# What unpickling, importing and executing raise for an artifact that is not what this torch takes.
_ARTIFACTS_FAULT = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    NameError,
    SyntaxError,
    TypeError,
    ValueError,
)


def load(
    store: Store, artifact: Artifact, modes: Mapping[str, Any], *, cudagraphs: bool,
    classes: Mapping[str, type] = MappingProxyType({}), frozen: Sequence[Any] = (), device: str = "cpu",
    groups: Sequence[str] = (), context: contextvars.Context | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """Verify every file of ``artifact`` and load it. ``classes``: those of the program that it needs, by their digests.
    ``frozen``: the graph's last inputs, where they are constants. ``device``: what the graph runs on.
    ``groups``: the names of its process groups. ``context``: with the settings of its compile, which torch reads.

    Raises StoreError (UntrustedStore, CorruptArtifact) or FileNotFoundError, and no error of torch's: an artifact that
    torch cannot load is corrupt, and goes into quarantine. Raises Bypass where it cannot be moved to these, and where
    the GPU has no room for its code.
    """
    contents = store.read_files(artifact)
    from precompiled.torch_internals import gpu_room
    from precompiled.torch_internals.client import profiler_ranges
    from precompiled.torch_internals.client.load_artifact import load_bundle

    manifest = artifact.manifest
    name = f"{manifest.key[:12]}.{artifact.slot}"
    try:
        with profiler_ranges.load(f"{manifest.name} {name}"), native.files(artifact, contents) as mapped:
            there = contextvars.copy_context() if context is None else context.copy()
            function = gpu_room.with_room(lambda: there.run(
                load_bundle, contents[fmt.BUNDLE], mapped, modes, cudagraphs=cudagraphs, name=name, classes=classes,
                frozen=frozen, device=device, groups=groups,
            ), device)  # fmt: skip
    except Bypass:
        raise
    except StoreError as error:
        store.set_aside(artifact, str(error))
        raise
    except Exception as error:
        message = f"torch cannot load {artifact.path}: {type(error).__name__}: {error}"
        if isinstance(error, _ARTIFACTS_FAULT):
            store.set_aside(artifact, message)
            raise CorruptArtifact(message, code="artifact-unloadable") from error
        if gpu_room.is_full(error):
            raise Bypass(message, code="gpu-unavailable") from error
        # A problem of this process (no memory, no descriptors, a GPU that a fork's child may not use): others can load.
        raise StoreError(message, code="artifact-unloadable") from error
    store.touch(artifact)
    return function
