"""Finds, publishes and removes the packages in the store.

A package is all entries of one function. The trust rules are those of artifacts.

Neither locks nor merges are needed: each entry is a separate file, named by its digest, and appears by rename.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from precompiled.core import durable, interruptions
from precompiled.core.errors import CorruptArtifact, StoreError, UntrustedStore
from precompiled.store import package_format as fmt
from precompiled.store import trust
from precompiled.store.bases import OnProblem, is_there
from precompiled.store.last_use import mark_used
from precompiled.store.reading import reading
from precompiled.store.trees import is_directory, temporary_name

PACKAGES = "packages"
REFUSED = "refused"  # the name of the file that disables all entries of a function and gives the reason
_MAX_REFUSAL_BYTES = 1 << 16
# seconds; evictions keep a younger empty directory, because a process may be about to write into it
EMPTY_MAX_AGE_S = 3600.0


@dataclass(frozen=True)
class Entry:
    """One entry with a verified digest. ``about`` (package_format.About) and ``body`` are not decoded yet."""

    path: Path
    header: fmt.Header
    about: bytes
    body: bytes

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def root(self) -> Path:
        """The root of the store or base that contains the entry."""
        return self.path.parent.parent.parent


class _Reader:
    """Reads the packages in ``root``, the directory of a store or a base."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self.packages = self.root / PACKAGES

    def listed(self, function: str) -> list[str]:
        """The names of a function's entries, newest first. Raises FileNotFoundError, StoreError."""
        with self.function_fd(function) as fd:
            found = []
            for name in filter(fmt.is_name, os.listdir(fd)):
                with suppress(FileNotFoundError):  # the entry was evicted since the listing
                    found.append((-os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime, name))
            return [name for _newest, name in sorted(found)]

    def opened(self, function: str, name: str) -> Entry:
        """An entry with checked owner, mode, size and digest. Raises FileNotFoundError, StoreError."""
        path = self.packages / function / name
        with self.function_fd(function) as fd:
            content = trust.read_file(name, fd, fmt.MAX_ENTRY_BYTES, shown=str(path))
        return Entry(path, *fmt.open_entry(name, content, function))

    def functions(self) -> list[str]:
        """The names of the functions' directories. Raises StoreError."""
        with suppress(FileNotFoundError), reading(self.root), suppress(NotADirectoryError, PermissionError):
            return os.listdir(self.packages)
        return []

    @contextmanager
    def function_fd(self, function: str) -> Iterator[int]:
        """A descriptor of a function's directory. Raises FileNotFoundError, and StoreError for other errors of the
        file system.
        """
        with (
            reading(self.root),
            trust.open_directory(self.root) as root_fd,
            trust.open_directory(PACKAGES, root_fd, shown=str(self.packages)) as packages_fd,
            trust.open_directory(function, packages_fd, shown=str(self.packages / function)) as fd,
        ):
            yield fd


class PackageStore(_Reader):
    """The packages in a store's directory ``root``. Opening it creates no directory.

    ``base``, ``on_problem``: as in Store. Writes and removals affect only the store's own packages.
    """

    def __init__(self, root: Path, base: Sequence[Path] = (), on_problem: OnProblem = lambda reason: None) -> None:
        super().__init__(root)
        self.tmp = self.root / "tmp"
        self._bases = [_Reader(path) for path in base]
        self._on_problem = on_problem

    def names(self, function: str) -> list[str]:
        """The names of a function's entries: first the entries of the store, then those of the bases. Empty if there
        are none.

        Within the store or a base, the newest entries come first.

        Raises StoreError.
        """
        found = self._own_names(function)
        for base in self._bases:
            # A miss costs only the stat of is_there. A base has a REFUSED file if it was a user's store in which an
            # audit disabled the function's package.
            folder = base.packages / function
            if is_there(folder, self._on_problem) and not os.path.lexists(folder / REFUSED):
                try:
                    found += [name for name in base.listed(function) if name not in found]
                except FileNotFoundError:
                    continue  # the base's entries were removed meanwhile
                except (StoreError, OSError) as error:
                    interruptions.pass_on(error)
                    self._on_problem(f"the base store {base.root} cannot be used: {error}")
        return found

    def _own_names(self, function: str) -> list[str]:
        try:
            return self.listed(function)
        except FileNotFoundError:
            return []

    def read(self, function: str, name: str) -> Entry:
        """An entry with checked owner, mode, size and digest. Raises FileNotFoundError, StoreError."""
        try:
            return self.opened(function, name)
        except CorruptArtifact as error:
            interruptions.pass_on(error)
            if error.code == "package-corrupt":
                self._quarantine(self.packages / function / name)
            raise
        except FileNotFoundError:
            for base in self._bases:
                try:
                    return base.opened(function, name)
                except FileNotFoundError:
                    continue
                except StoreError as error:
                    self._on_problem(error.message)
                    raise
            raise

    def header(self, function: str, name: str) -> fmt.Header | None:
        """An entry's header, unverified, or None if the file has no header. Raises OSError."""
        for place in (self, *self._bases):
            with suppress(FileNotFoundError):
                return _header(place.packages / function / name)
        raise FileNotFoundError(name)

    def refused(self, function: str) -> str | None:
        """Return the reason why a function's package is disabled, or None if it is enabled. Raises StoreError."""
        try:
            return self._refusal(function)["reason"]
        except FileNotFoundError:
            return None

    def refuse(self, header: fmt.Header, reason: str) -> None:
        """Disable a function's package until the store is cleared. Raises StoreError."""
        self._write(header.function, REFUSED, fmt.seal_refusal(header, reason))
        for name in self._own_names(header.function):
            with suppress(OSError):
                (self.packages / header.function / name).unlink()

    def refusals(self) -> Iterator[dict[str, str]]:
        """Yield the ``function`` and ``reason`` of each disabled package."""
        for function in self.functions():
            with suppress(StoreError, OSError):
                yield self._refusal(function)

    def publish(self, header: fmt.Header, about: bytes, body: bytes) -> str:
        """Publish an entry, completely and durably, and return its file's name. Idempotent."""
        name, content = fmt.seal(header, about, body)
        if len(content) > fmt.MAX_ENTRY_BYTES:
            raise StoreError(
                f"the package entry of {header.qualname} has {len(content)} bytes", code="package-too-large"
            )
        with suppress(OSError):
            os.utime(self.packages / header.function / name, follow_symlinks=False)
            return name  # the store has this entry already
        self._write(header.function, name, content)
        self._keep_newest(header, name)
        return name

    def touch(self, entry: Entry) -> None:
        """Mark an entry as used now. An entry of a base stays unchanged."""
        if entry.root == self.root:
            mark_used(entry.path)

    def entries(self) -> Iterator[Entry]:
        """Every readable entry of the store and its bases, in no particular order."""
        for function in {name for place in (self, *self._bases) for name in place.functions()}:
            with suppress(StoreError, OSError):
                for name in self.names(function):
                    with suppress(StoreError, OSError):
                        yield self.read(function, name)

    def remove(self, function: str) -> int:
        """Remove a function's entries. Returns their number."""
        removed = 0
        directory = self.packages / function
        names: list[str] = []
        with suppress(OSError):  # another process has removed the directory, or it cannot be read
            names = os.listdir(directory) if is_directory(directory) else []
        for name in names:
            with suppress(OSError):
                (directory / name).unlink()
                removed += name != REFUSED
        with suppress(OSError):
            directory.rmdir()
        return removed

    def clear(self) -> int:
        """Remove all entries. Returns their number."""
        return sum(self.remove(function) for function in self.functions())

    def shrink(self, max_bytes: int) -> int:
        """Remove least recently used entries until ``max_bytes`` holds. Returns the bytes of the remaining entries."""
        files = sorted(self._files(), key=lambda item: item[0])
        total = sum(size for _used, size, _path in files)
        for _used, size, path in files:
            if total <= max_bytes:
                break
            with suppress(OSError):
                path.unlink()
                total -= size
        for function in self.functions():
            with suppress(OSError):  # the directory is not empty
                if time.time() - os.lstat(self.packages / function).st_mtime > EMPTY_MAX_AGE_S:
                    (self.packages / function).rmdir()
        return total

    def _files(self) -> list[tuple[float, int, Path]]:
        """The time of the last use, the bytes and the path of each entry."""
        found = []
        for function in self.functions():
            with suppress(OSError):
                if not is_directory(self.packages / function):
                    continue  # a link may lead to files of the user
                for item in os.scandir(self.packages / function):
                    if item.name == REFUSED:
                        continue  # an eviction keeps the REFUSED files
                    with suppress(OSError):
                        status = item.stat(follow_symlinks=False)
                        found.append((status.st_mtime, status.st_size, Path(item.path)))
        return found

    # ------------------------------------------------------------------ inside

    def _refusal(self, function: str) -> dict[str, str]:
        path = self.packages / function / REFUSED
        with self.function_fd(function) as fd:
            return fmt.open_refusal(trust.read_file(REFUSED, fd, _MAX_REFUSAL_BYTES, shown=str(path)))

    def _write(self, function: str, name: str, content: bytes) -> None:
        """Write a file into a function's directory, durably, completely or not at all. Raises StoreError,
        UntrustedStore.
        """
        directory = self.packages / function
        for again in (True, False):
            try:
                for place in (self.root, self.tmp, self.packages, directory):
                    place.mkdir(mode=0o700, parents=place is self.root, exist_ok=True)
                    trust.check_stat(os.lstat(place), str(place), directory=True)
                with durable.replacing(directory / name, 0o600, temporary=self.tmp / temporary_name()) as file:
                    file.write(content)
                return durable.sync_directory(directory)
            except OSError as error:
                # An eviction removed the empty directory, or the store was cleared. Try again: evictions keep a young
                # directory.
                if again and isinstance(error, (FileNotFoundError, FileExistsError)):
                    continue
                raise StoreError(
                    f"a package entry cannot be written to {directory}: {error}",
                    "Free some space, or run `precompiled cache gc`",
                    code="package-unwritable",
                ) from error

    def _keep_newest(self, header: fmt.Header, written: str) -> None:
        """Remove entries that the newly published entry ``written`` supersedes.

        Of the entries with the same meaning, the newest entry of each program stays, for at most MAX_PROGRAMS programs.
        Of all entries of the function, the newest MAX_ENTRIES stay. An entry with the same meaning is removed only if
        it is older than ``written``. Otherwise two writers could remove each other's entries.
        """
        alike = _of_any_program(header)
        programs = {header.sources}
        folder = self.packages / header.function
        with suppress(StoreError, OSError):
            begun = os.lstat(folder / written).st_mtime
            for number, name in enumerate((name for name in self._own_names(header.function) if name != written), 1):
                with suppress(OSError):  # another process has removed it
                    if number >= fmt.MAX_ENTRIES:
                        (folder / name).unlink()
                    elif header.meaning and (found := _header(folder / name)) and _of_any_program(found) == alike:
                        known = found.sources in programs or len(programs) >= fmt.MAX_PROGRAMS
                        programs.add(found.sources)
                        if known and os.lstat(folder / name).st_mtime < begun:
                            (folder / name).unlink()

    def _quarantine(self, path: Path) -> None:
        with suppress(OSError):
            quarantine = self.root / "quarantine"
            quarantine.mkdir(mode=0o700, exist_ok=True)
            os.rename(path, quarantine / f"{path.name}.{os.urandom(4).hex()}")


def _of_any_program(header: fmt.Header) -> fmt.Header:
    return replace(header, sources="", sources_code="")


def _header(path: Path) -> fmt.Header | None:
    """The header in an entry's first line, unverified. None if the line is not a header. Raises OSError."""
    with suppress(CorruptArtifact, UntrustedStore), trust.open_file(path) as file:
        return fmt.parse_header(file.readline(fmt.MAX_HEADER_BYTES))
    return None
