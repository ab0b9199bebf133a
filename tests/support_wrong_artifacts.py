"""Support: makes a published artifact wrong, slow or crashing, as a faulty compiler would. Its digests are valid."""

from __future__ import annotations

import re
from collections.abc import Callable

from precompiled.store import artifact_format as fmt
from precompiled.store import eviction
from precompiled.store.artifacts import Artifact, Store
from precompiled.torch_internals.inductor import frozen_weights
from precompiled.torch_internals.user_code import program_classes

_RETURN = re.compile(r"^( +)return \((?:reinterpret_tensor\()?(buf\d+)", re.MULTILINE)


def altered(store: Store, artifact: Artifact, part: str, alter: Callable[[str], str]) -> fmt.Payload:
    """Returns the artifact with altered code. ``part``: "compiled_fw" or "compiled_bw"."""
    contents = store.read_some(artifact, list(artifact.manifest.files))
    bundle = program_classes.loads(contents[fmt.BUNDLE], {})
    code = frozen_weights.code_of(getattr(bundle, part))
    code.source_code = alter(code.source_code)
    return fmt.Payload(artifact.manifest, {**contents, fmt.BUNDLE: program_classes.dumps(bundle, {})})


def wrong_payload(store: Store, artifact: Artifact, part: str) -> fmt.Payload:
    """Returns the artifact with code that multiplies its first result by 1.01.

    ``part``: "compiled_fw" (the first output), or "compiled_bw" (the gradient of the first input that has one).
    """

    def alter(source: str) -> str:
        found, count = _RETURN.subn(r"\1\2.mul_(1.01)\n\g<0>", source)
        assert count == 1, source
        return found

    return altered(store, artifact, part, alter)


def take_slow_or_crashing(store: Store, statement: str) -> fmt.Payload:
    """Remove and return the store's only artifact, with a forward that begins each call with ``statement``."""

    def alter(source: str) -> str:
        begin = "def call(self, args):\n" if "def call(self, args):\n" in source else "def call(args):\n"
        assert source.count(begin) == 1
        rest = source.partition(begin)[2]
        spaces = " " * (len(rest) - len(rest.lstrip(" ")))
        return source.replace(begin, f"{begin}{spaces}{statement}\n")

    (artifact,) = store.all_artifacts()
    payload = altered(store, artifact, "compiled_fw", alter)
    eviction.clear(store)
    return payload


def make_wrong(store: Store, part: str = "compiled_fw") -> Artifact:
    """Replace the store's only artifact by a wrong one."""
    (artifact,) = store.all_artifacts()
    payload = wrong_payload(store, artifact, part)
    eviction.remove(store, artifact.manifest.key)
    return store.publish(payload)
