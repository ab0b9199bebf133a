"""Provides the files from which a process maps an artifact's native code."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from precompiled.core import filesystems, interruptions
from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Artifact

log = logging.getLogger("precompiled")


@contextmanager
def files(artifact: Artifact, contents: Mapping[str, bytes]) -> Iterator[dict[str, tuple[Path, str]]]:
    """Map each kernel's name to its file and the file's SHA-256. The caller maps the files within the block.

    ``contents``: the verified contents of the artifact's files. On a file system that several hosts share, another host
    may remove a file of an artifact at any time. SIGBUS would then end a process that has the file mapped, so the
    caller gets a copy in memory.
    """
    kernels = artifact.manifest.kernels
    with ExitStack() as held:
        paths = {digest: artifact.path / fmt.native(digest) for digest in kernels.values()}
        if filesystems.is_shared(artifact.root):
            for digest in paths:
                try:
                    paths[digest] = held.enter_context(_in_memory(digest, contents[fmt.native(digest)]))
                except OSError as error:  # memfd_create is missing, or forbidden (vm.memfd_noexec)
                    interruptions.pass_on(error)
                    log.info("native code is mapped from %s, which other hosts share: %s", artifact.root, error)
                    break
        yield {kernel: (paths[digest], digest) for kernel, digest in kernels.items()}


@contextmanager
def _in_memory(name: str, content: bytes) -> Iterator[Path]:
    fd = os.memfd_create(f"precompiled-{name[:12]}", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)  # mappings stay valid
