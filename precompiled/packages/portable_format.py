"""Reads and writes package files: uncompressed tars for other hosts of the same kind.

Grammar::

    file      = "package.json" member*              package.json is first: Index, as JSON, sealed like a manifest
    member    = "entries/<function>/<digest>.entry"    as in the store (store/package_format.py)
              | "artifacts/<key>.<slot>/<file>"        as in the store (store/artifact_format.py), with manifest.json

``read`` checks the index's own digest, then the size and digest of every member. ``read`` returns bytes, and decodes
only JSON.

Version history: 1, first version.
"""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precompiled.core import durable
from precompiled.core.errors import PackageError, StoreError
from precompiled.core.json_text import parse_json
from precompiled.store import trust
from precompiled.store.artifact_format import canonical
from precompiled.store.artifact_format import digest as digest_of

FORMAT = 1
INDEX = "package.json"
MAX_BYTES = 16 << 30
_SAVED = "Pass a file that save_package wrote"


@dataclass(frozen=True)
class Index:
    """A package file's index. ``code``: the digest of the function. ``functions``: the frames, for display."""

    module: str
    qualname: str
    code: str
    requires: dict[str, str]
    functions: list[dict[str, Any]]
    files: dict[str, list[object]] = field(default_factory=dict)  # maps a member's name to [bytes, SHA-256]
    made_by: str = ""
    format: int = FORMAT
    digest: str = ""


def write(path: Path, index: Index, members: dict[str, bytes]) -> None:
    """Write a package file atomically and durably, readable by this user only. Raises PackageError."""
    files = {name: [len(data), digest_of(data)] for name, data in members.items()}
    index = dataclasses.replace(index, files=files, digest="")
    index = dataclasses.replace(index, digest=digest_of(canonical(index)))
    try:
        with (
            durable.replacing(path, 0o600) as file,
            tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name, data in {INDEX: canonical(index), **members}.items():
                item = tarfile.TarInfo(name)
                item.size, item.mode = len(data), 0o600
                tar.addfile(item, io.BytesIO(data))
    except OSError as error:
        action = "Free some space" if error.errno == errno.ENOSPC else "Save it in a folder that you can write to"
        if not path.absolute().parent.is_dir():
            action = f"Create the folder {path.absolute().parent}"
        raise PackageError(f"{path} cannot be written: {error.strerror}", action, code="package-unwritable") from error


def read(path: Path) -> tuple[Index, dict[str, bytes]]:
    """Read the index and the members, and verify all digests. Raises PackageError."""
    try:
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
        members = _members(_opened(path), path)
    except FileNotFoundError as error:
        raise PackageError(f"{path} does not exist", _SAVED, code="package-missing") from error
    except (tarfile.TarError, EOFError, OSError) as error:
        raise PackageError(f"{path} is not a package file: {error}", _SAVED, code="package-corrupt") from error
    raw = members.pop(INDEX, None)
    if raw is None:
        raise PackageError(f"{path} is not a package file: it has no {INDEX}", "Save it again", code="package-corrupt")
    index = _open_index(raw, path)
    if set(index.files) != set(members):
        raise PackageError(f"{path} has members that are not in its index", "Save it again", code="package-corrupt")
    for name, (size, digest) in index.files.items():
        if len(members[name]) != size or digest_of(members[name]) != digest:
            raise PackageError(f"{name} in {path} does not match its digest", "Save it again", code="package-corrupt")
    return index, members


def _opened(path: Path) -> io.BytesIO:
    fd = os.open(path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return io.BytesIO(trust.read_file(path.name, fd, MAX_BYTES, shown=str(path)))
    except StoreError as error:
        raise PackageError(
            f"{error.message}: a package file is code", error.action, code="package-untrusted"
        ) from error
    finally:
        os.close(fd)


def _members(data: io.BytesIO, path: Path) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    with tarfile.open(fileobj=data, mode="r:") as tar:
        for item in tar:
            if not item.isfile() or item.name in members:
                raise PackageError(
                    f"{path} contains {item.name}, which is not a file or occurs twice",
                    "Save it again",
                    code="package-corrupt",
                )
            file = tar.extractfile(item)
            assert file is not None
            members[item.name] = file.read()
    return members


def _open_index(raw: bytes, path: Path) -> Index:
    try:
        fields = parse_json(raw)
        if fields.get("format") != FORMAT:
            raise PackageError(
                f"{path} has format {fields.get('format')}, this is format {FORMAT}",
                "Save it again with this version",
                code="package-format",
            )
        index = Index(**fields)
        bare = dataclasses.replace(index, digest="")
        if digest_of(canonical(bare)) != index.digest:
            raise ValueError("its index does not match its own digest")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise PackageError(f"{path} is not a package file: {error}", "Save it again", code="package-corrupt") from error
    return index
