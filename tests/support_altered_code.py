"""Support: an artifact whose forward has altered code, and valid digests."""

from __future__ import annotations

import pickle
from collections.abc import Callable

from support_host import Host

from precompiled.store import artifact_format as fmt
from precompiled.store import eviction


def take_altered(host: Host, alter: Callable[[str], str]) -> fmt.Payload:
    """Remove the only artifact of the store, and return a copy of it whose forward has altered code."""
    (artifact,) = host.store.all_artifacts()
    files = host.store.read_some(artifact, list(artifact.manifest.files))
    bundle = pickle.loads(files[fmt.BUNDLE])
    forward = bundle.compiled_fw.result
    forward.source_code = alter(forward.source_code)
    eviction.clear(host.store)
    return fmt.Payload(artifact.manifest, {**files, fmt.BUNDLE: pickle.dumps(bundle)})


def beginning_with(statement: str) -> Callable[[str], str]:
    """Alter a wrapper's code such that each call begins with ``statement``."""

    def alter(source: str) -> str:
        begin = "def call(self, args):\n" if "def call(self, args):\n" in source else "def call(args):\n"
        assert source.count(begin) == 1
        rest = source.partition(begin)[2]
        spaces = " " * (len(rest) - len(rest.lstrip(" ")))
        return source.replace(begin, f"{begin}{spaces}{statement}\n")

    return alter
