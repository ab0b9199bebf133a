"""Support: makes a published artifact wrong, as a fault of the compiler would: all its digests are valid."""

from __future__ import annotations

import re

from precompiled.store import artifact_format as fmt
from precompiled.store import eviction
from precompiled.store.artifacts import Artifact, Store
from precompiled.torch_internals.inductor import frozen_weights
from precompiled.torch_internals.user_code import program_classes

_RETURN = re.compile(r"^( +)return \((?:reinterpret_tensor\()?(buf\d+)", re.MULTILINE)


def wrong_payload(store: Store, artifact: Artifact, part: str) -> fmt.Payload:
    """Returns the artifact with code that multiplies its first result by 1.01.

    ``part``: "compiled_fw" (the first output), or "compiled_bw" (the gradient of the first input that has one).
    """
    contents = store.read_some(artifact, list(artifact.manifest.files))
    bundle = program_classes.loads(contents[fmt.BUNDLE], {})
    code = frozen_weights.code_of(getattr(bundle, part))
    code.source_code, count = _RETURN.subn(r"\1\2.mul_(1.01)\n\g<0>", code.source_code)
    assert count == 1, code.source_code
    return fmt.Payload(artifact.manifest, {**contents, fmt.BUNDLE: program_classes.dumps(bundle, {})})


def make_wrong(store: Store, part: str = "compiled_fw") -> Artifact:
    """Replace the store's only artifact by a wrong one."""
    (artifact,) = store.all_artifacts()
    payload = wrong_payload(store, artifact, part)
    eviction.remove(store, artifact.manifest.key)
    return store.publish(payload)
