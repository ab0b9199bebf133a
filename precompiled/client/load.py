"""Verifies and loads an artifact from the store. Loading runs the artifact's code."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING

from precompiled.client import first_calls, native
from precompiled.core import interruptions
from precompiled.core.errors import Bypass, CorruptArtifact, StoreError
from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Artifact, Store

if TYPE_CHECKING:
    from precompiled.core.program_data import CaptureState

# If this torch cannot read the artifact, unpickling, imports or execution raise one of these errors.
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


def load_for_graph(store: Store, artifact: Artifact, program: CaptureState) -> Callable[..., object]:
    """Verify every file of ``artifact``, then load it in the state of the graph's capture.

    Raises StoreError (UntrustedStore, CorruptArtifact) or FileNotFoundError, but no errors of torch. An artifact that
    torch cannot load counts as corrupt, and goes into quarantine. Raises Bypass if the artifact cannot be adapted to
    the program's device or process groups, or if the GPU has no room for its code.
    """
    contents = store.read_files(artifact)
    from precompiled.torch_internals import gpu_room
    from precompiled.torch_internals.client import profiler_ranges
    from precompiled.torch_internals.client.load_artifact import load_bundle

    manifest = artifact.manifest
    name = f"{manifest.key[:12]}.{artifact.slot}"
    try:
        with profiler_ranges.load(f"{manifest.name} {name}"), native.files(artifact, contents) as mapped:
            there = program.context.copy()

            def load() -> Callable[..., object]:
                return there.run(load_bundle, contents[fmt.BUNDLE], mapped, program, name)

            def load_with_room() -> Callable[..., object]:
                return gpu_room.with_room(load, program.device)

            # Do not note calls with collectives. If another rank fails, such a call waits until a launcher ends the
            # process, and the note would blame the artifact.
            noted = not program.groups
            function = first_calls.load(store, artifact, load_with_room) if noted else load_with_room()
    except Bypass:
        raise
    except StoreError as error:
        interruptions.pass_on(error)
        store.set_aside(artifact, str(error))
        raise
    except Exception as error:
        interruptions.pass_on(error)
        message = f"torch cannot load {artifact.path}: {type(error).__name__}: {error}"
        if isinstance(error, _ARTIFACTS_FAULT):
            store.set_aside(artifact, message)
            raise CorruptArtifact(message, code="artifact-unloadable") from error
        if gpu_room.is_full(error):
            raise Bypass(message, code="gpu-unavailable") from error
        # A problem of this process only (memory, descriptors, a GPU that a fork's child cannot use), so the artifact
        # stays.
        raise StoreError(message, code="artifact-unloadable") from error
    store.touch(artifact)
    return function
