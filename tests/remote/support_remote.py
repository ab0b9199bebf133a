"""Provides two stores that act as two hosts, and a place for a remote between them."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

from precompiled.remote import helper_link
from precompiled.remote.bucket import Bucket
from precompiled.remote.transfer import Transfer
from precompiled.remote.trusting import Anybody, Trust
from precompiled.store import package_format
from precompiled.store.artifacts import Store

FUNCTION = package_format.function_key("program", "f", "0" * 64, one_graph=False)
HEADER = package_format.Header(FUNCTION, "program", "f", "0" * 64, False, "compiled")


def fetched(root: Path, key: str) -> bool:
    """Return whether a store's helper fetches a key from the remote. Repeat the request until the helper has decided,
    as a worker does.
    """
    while True:
        with helper_link.turn(root, key) as turn:
            if not turn.again_s:
                return turn.found
        time.sleep(0.02)  # a worker would park its job for this time


def memory() -> str:
    """Return the URL of a new place in this process's memory."""
    return f"memory://{uuid.uuid4().hex}/a/prefix"


def host(root: Path, url: str, trust: Trust | None = None, timeout_s: float = 10.0) -> Transfer:
    return Transfer(Store(root), Bucket(url, timeout_s), trust or Anybody())
