"""Reads, publishes and removes Triton kernels in a user's store and its bases, under the trust rules of artifacts.

Grammar::

    store   = root "/kernels/" kernel*      beside "artifacts/"
    kernel  = file "<key>.kernel"           key: torch_internals/client/triton_cache.py computes it
    content = header "\\n" body              header: one line of JSON (Header)
    body    = the contents of the header's files, in the header's order

A kernel is one file, which appears by rename and never changes. The header's digest covers the header and the body.
Files are not synced. So a power loss can leave a truncated file, which a reader detects with the digest.

Version history: 1, first version.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from precompiled.core import durable, interruptions
from precompiled.core.errors import STORE_UNWRITABLE, CorruptArtifact, StoreError
from precompiled.core.json_text import parse_json
from precompiled.store import trust
from precompiled.store.artifact_format import canonical, check_key, digest, is_key
from precompiled.store.bases import OnProblem, is_there
from precompiled.store.last_use import mark_used
from precompiled.store.reading import reading
from precompiled.store.trees import quarantine, temporary_name

FORMAT = 1
KERNELS = "kernels"
SUFFIX = ".kernel"
MAX_BYTES = 256 << 20
CORRUPT = "kernel-corrupt"


@dataclass(frozen=True)
class Header:
    """The description of a kernel. ``files``: the name and size of each file. The description has no times, so that
    equal kernels have equal bytes.
    """

    key: str
    name: str
    files: list[tuple[str, int]]
    digest: str = ""
    format: int = FORMAT


def seal(key: str, name: str, files: Mapping[str, bytes]) -> bytes:
    """The content of a kernel's file."""
    body = b"".join(files.values())
    bare = Header(key, name, [(file, len(data)) for file, data in files.items()])
    return canonical(dataclasses.replace(bare, digest=_digest(bare, body))) + b"\n" + body


def open_kernel(key: str, content: bytes) -> tuple[Header, dict[str, bytes]]:
    """The header and the files of a kernel. Raises CorruptArtifact unless the content is intact and belongs to
    ``key``.
    """
    line, _, body = content.partition(b"\n")
    try:
        raw = parse_json(line)
        if raw["format"] != FORMAT:
            raise CorruptArtifact(
                f"a kernel of format {raw['format']}, this is format {FORMAT}", code="artifact-format"
            )
        header = Header(**{**raw, "files": [(str(name), int(size)) for name, size in raw["files"]]})
        bare = dataclasses.replace(header, digest="")
        intact = header.digest == _digest(bare, body) and canonical(header) == line
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptArtifact(
            f"the header of the Triton kernel {key[:12]} is invalid: {error}", code=CORRUPT
        ) from error
    files, at = {}, 0
    for name, size in header.files:
        files[name], at = body[at : at + size], at + size
    if not intact or header.key != key or at != len(body) or not all(map(_is_plain, files)):
        raise CorruptArtifact(f"the Triton kernel {key[:12]} does not match its digest", code=CORRUPT)
    return header, files


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def _digest(bare: Header, body: bytes) -> str:
    return digest(canonical(bare) + b"\n" + body)


class _Reader:
    """Reads the kernels in ``root``, the directory of a store or a base."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self.kernels = self.root / KERNELS

    def path(self, key: str) -> Path:
        check_key(key)
        return self.kernels / f"{key}{SUFFIX}"

    def content(self, key: str) -> bytes:
        """The content of a kernel's file, with checked owner and mode. Raises FileNotFoundError, StoreError."""
        path = self.path(key)
        with (
            reading(self.root),
            trust.open_directory(self.root) as root_fd,
            trust.open_directory(KERNELS, root_fd, shown=str(self.kernels)) as fd,
        ):
            return trust.read_file(path.name, fd, MAX_BYTES, shown=str(path))

    def all_keys(self) -> list[str]:
        """The keys of all kernels, readable or not. Raises StoreError."""
        with suppress(FileNotFoundError), reading(self.root), suppress(NotADirectoryError, PermissionError):
            names = os.listdir(self.kernels)
            return [key for name in names if is_key(key := name.removesuffix(SUFFIX)) and key != name]
        return []


class TritonKernels(_Reader):
    """The kernels of the store in ``root``. Opening it creates no directory.

    ``base``, ``on_problem``: as in Store. Writes and removals affect only the store's own kernels.
    """

    def __init__(self, root: Path, base: Sequence[Path] = (), on_problem: OnProblem = lambda reason: None) -> None:
        super().__init__(root)
        self.tmp, self.quarantined = self.root / "tmp", self.root / "quarantine"
        self._bases = [_Reader(path) for path in base]
        self._on_problem = on_problem

    def read(self, key: str) -> dict[str, bytes] | None:
        """The checked files of a kernel, or None if store and bases lack it. Raises StoreError.

        A corrupt kernel of the user's store is quarantined. A problem of a base is reported, and counts as a miss.
        """
        try:
            files = open_kernel(key, self.content(key))[1]
        except FileNotFoundError:
            return self._of_bases(key)
        except CorruptArtifact as error:
            if error.code == CORRUPT:
                quarantine(self.path(key), self.quarantined, str(error))
            raise
        mark_used(self.path(key))
        return files

    def _of_bases(self, key: str) -> dict[str, bytes] | None:
        for base in self._bases:
            if not is_there(base.path(key), self._on_problem):
                continue
            try:
                return open_kernel(key, base.content(key))[1]
            except FileNotFoundError:
                continue
            except StoreError as error:
                interruptions.pass_on(error)
                self._on_problem(error.message)
        return None

    def publish(self, key: str, content: bytes) -> None:
        """Publish a kernel's file (``seal``). Replaces a file of the same key. Raises StoreError."""
        if len(content) > MAX_BYTES:
            raise StoreError(f"the Triton kernel {key[:12]} has {len(content)} bytes", code="too-large")
        self.prepare()
        path = self.path(key)
        try:
            with durable.replacing(path, 0o600, temporary=self.tmp / temporary_name(), sync=False) as file:
                file.write(content)
        except OSError as error:
            raise self._unwritable(error) from error

    def prepare(self) -> None:
        """Create the directories, for this user only. Raises StoreError if a directory cannot be written or trusted."""
        try:
            for directory in (self.root, self.kernels, self.tmp):
                directory.mkdir(mode=0o700, parents=directory is self.root, exist_ok=True)
                trust.check_stat(os.lstat(directory), str(directory), directory=True)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> StoreError:
        return StoreError(
            f"Triton kernels cannot be written to {self.kernels}: {error}",
            "Free some space, or run `precompiled cache gc`",
            code=STORE_UNWRITABLE,
        )

    def uses(self) -> Iterator[tuple[str, float]]:
        """The key of each of the store's own kernels, and the time of its last use."""
        for used, _size, path in self._files():
            yield path.name.removesuffix(SUFFIX), used

    def has(self, key: str) -> bool:
        """Whether the store or a base has a file of the kernel, readable or not."""
        return any(os.path.lexists(place.path(key)) for place in (self, *self._bases))

    def clear(self) -> int:
        """Remove all kernels. Returns their number."""
        return self._remove(-1)[0]

    def shrink(self, max_bytes: int) -> int:
        """Remove least recently used kernels until ``max_bytes`` holds. Returns the bytes of the remaining kernels."""
        return self._remove(max_bytes)[1]

    def _remove(self, max_bytes: int) -> tuple[int, int]:
        files = sorted(self._files())
        total, removed = sum(size for _used, size, _path in files), 0
        for _used, size, path in files:
            if total <= max_bytes:
                break
            with suppress(OSError):
                path.unlink()
                total, removed = total - size, removed + 1
        return removed, total

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """The time of the last use, the bytes and the path of each kernel."""
        with suppress(StoreError):
            for key in self.all_keys():
                with suppress(OSError):  # removed meanwhile
                    status = os.lstat(self.path(key))
                    yield status.st_mtime, status.st_size, self.path(key)
