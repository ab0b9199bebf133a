"""Reads and writes object storage through fsspec, within a time limit.

After MAX_FAILURES failed reads in a row, the remote *rests*: for REST_S seconds, each read fails at once. The same
applies to writes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from precompiled.core import durable, words
from precompiled.remote.errors import RemoteError
from precompiled.store.requests import RemoteRequest

_T = TypeVar("_T")

# Maps a URL scheme to the extra in pyproject.toml that installs the library for the scheme.
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "abfs", "abfss": "abfs", "az": "abfs"}

MAX_FAILURES = 3  # after this many failures in a row the remote rests
REST_S = 30.0  # how long the remote rests; after that, one request tries again
BYTES_PER_S = 1 << 20  # the time limit of a large object grows with its size, for a connection of this speed


class Breaker:
    """A circuit breaker for requests. The circuit breaker needs no lock: a race between threads causes at most one
    extra request.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._until = 0.0
        self.reason: RemoteError | None = None  # the last failure; None after a success

    @property
    def rests(self) -> bool:
        return self._failures >= MAX_FAILURES and self._clock() < self._until

    def check(self) -> None:
        """While the remote rests, raise the last failure again."""
        if self.rests and self.reason is not None:
            raise self.reason

    def failed(self, reason: RemoteError) -> None:
        self._failures += 1
        self._until = self._clock() + REST_S
        self.reason = reason

    def worked(self) -> None:
        self._failures, self.reason = 0, None


class Bucket:
    """The remote at ``url``, which is any URL that fsspec supports. Methods raise RemoteError, and FileNotFoundError
    for a missing object.
    """

    def __init__(
        self, url: str, timeout_s: float, note: Callable[[RemoteRequest], None] = lambda request: None
    ) -> None:
        """``note`` is called with each request, in the thread that makes it."""
        self.url = url
        self._note = note
        self.reading, self.writing = Breaker(), Breaker()  # separate, since credentials may allow only one of the two
        self._timeout_s = timeout_s
        try:
            from fsspec.core import url_to_fs  # type: ignore[import-untyped, unused-ignore]

            # A cached listing would hide objects that other hosts have put since.
            self._fs, root = url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            extra = EXTRAS.get(url.partition(":")[0], "remote")
            raise RemoteError(
                f"the remote {url} cannot be opened: {error}",
                f"Install what fsspec needs ({words.install(extra)}), or correct the setting `remote`",
                code="remote-unusable",
            ) from error
        except Exception as error:  # libraries for object stores may raise any exception
            raise self._error(error) from error
        self._root = root.rstrip("/")
        self._is_local = "file" in ((self._fs.protocol,) if isinstance(self._fs.protocol, str) else self._fs.protocol)

    def listed(self, folder: str) -> dict[str, int]:
        """Map the name of each object in a folder to its size."""

        def call() -> dict[str, int]:
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(f"{self._root}/{folder}", detail=True)
            except FileNotFoundError:
                return {}
            return {item["name"].rpartition("/")[2]: int(item["size"] or 0) for item in found if item["type"] == "file"}

        return self._within(self.reading, ("list", folder), call)

    def everything(self) -> dict[str, tuple[int, float | None]]:
        """Map each object's path below the URL to the object's size and time of writing.

        The time is in seconds since the epoch, by the remote's clock, or None if it is unknown.
        """

        def call() -> dict[str, tuple[int, float | None]]:
            self._fs.invalidate_cache()
            found = self._fs.find(self._root, detail=True)
            # The root in the file system's own form, because a local path is absolute.
            start = self._fs._strip_protocol(self._root).rstrip("/") + "/"
            return {
                name[len(start) :]: (int(item["size"] or 0), _written(item))
                for name, item in found.items()
                if name.startswith(start)
            }

        return self._within(self.reading, ("list", ""), call, 10 * self._timeout_s)

    def read(self, path: str, start: int, end: int) -> bytes:
        """The bytes ``start`` to ``end`` of an object."""
        return self._within(
            self.reading,
            ("read", path),
            lambda: bytes(self._fs.cat_file(f"{self._root}/{path}", start=start, end=end)),
            self._timeout_s + (end - start) / BYTES_PER_S,
        )

    def write(self, path: str, data: bytes) -> None:
        """Write an object, atomically if the remote can. Readers verify objects in any case."""
        target = f"{self._root}/{path}"

        def call() -> None:
            if self._is_local:
                Path(target).parent.mkdir(parents=True, exist_ok=True)
                with durable.replacing(Path(target), 0o644) as file:
                    file.write(data)
            else:
                self._fs.pipe_file(target, data)

        self._within(self.writing, ("write", path), call, self._timeout_s + len(data) / BYTES_PER_S, len(data))

    def create(self, path: str, data: bytes) -> bool:
        """Write a small object unless its path exists. Returns whether it was written.

        If several hosts write at once, exactly one gets True on S3, GCS, Azure and file systems with links. On other
        remotes, several hosts may get True.
        """
        target = f"{self._root}/{path}"

        def call() -> bool:
            try:
                if self._is_local:
                    _link_new(Path(target), data)
                else:
                    self._fs.pipe_file(target, data, mode="create")
            except FileExistsError:
                return False
            return True

        return self._within(self.writing, ("create", path), call, written=len(data))

    def remove(self, path: str) -> None:
        """Remove an object if it exists."""

        def call() -> None:
            try:
                self._fs.rm_file(f"{self._root}/{path}")
            except FileNotFoundError:
                pass

        self._within(self.writing, ("remove", path), call)

    def _within(
        self, breaker: Breaker, what: tuple[str, str], call: Callable[[], _T], timeout_s: float = 0.0, written: int = 0
    ) -> _T:
        """Return the result of a call, within a time limit. If the call hangs, its thread is abandoned.

        ``what``: the fields ``what`` and ``path`` of a RemoteRequest.
        """
        breaker.check()
        began, clock = time.time(), time.monotonic()
        size, problem = 0, ""
        try:
            result = self._in_time(breaker, call, timeout_s)
            size = len(result) if isinstance(result, bytes) else written
            return result
        except RemoteError as error:
            problem = error.code
            raise
        finally:
            self._note(RemoteRequest(*what, began, time.monotonic() - clock, size, problem))

    def _in_time(self, breaker: Breaker, call: Callable[[], _T], timeout_s: float) -> _T:
        timeout_s = timeout_s or self._timeout_s
        done = threading.Event()
        answer: list[Any] = []
        failure: list[Exception] = []

        def run() -> None:
            try:
                answer.append(call())
            except Exception as error:  # noqa: BLE001 - raised by the caller's thread
                failure.append(error)
            done.set()

        threading.Thread(target=run, name="precompiled-remote", daemon=True).start()
        if not done.wait(timeout_s):
            late = RemoteError(
                f"the remote {self.url} did not answer within {timeout_s:g} s",
                "Raise `remote_timeout_s`",
                code="remote-timeout",
            )
            breaker.failed(late)
            raise late
        # For a write, FileNotFoundError means that the bucket does not exist. For a read, it is a valid answer.
        if failure and (breaker is self.writing or not isinstance(failure[0], FileNotFoundError)):
            reason = self._error(failure[0])
            breaker.failed(reason)
            raise reason from failure[0]
        breaker.worked()
        if failure:
            raise failure[0]
        result: _T = answer[0]
        return result

    def _error(self, error: Exception) -> RemoteError:
        return RemoteError(
            f"the remote {self.url} cannot be used: {type(error).__name__}: {str(error)[:300]}",
            "Check its address and credentials; until then, this host works alone",
            code="remote-unreachable",
        )


def _written(item: Mapping[str, object]) -> float | None:
    """The time at which an object was written. S3, file systems, Azure, Google and memory:// use different fields for
    this time.
    """
    for name in ("LastModified", "mtime", "last_modified", "updated", "created"):
        value = item.get(name)
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value.replace("Z", "+00:00"))
            except ValueError:
                continue
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return None


def _link_new(target: Path, data: bytes) -> None:
    """Create a file atomically. Raises FileExistsError if the file exists."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.urandom(8).hex()}")
    durable.write(temporary, data, 0o644)
    try:
        os.link(temporary, target)
    finally:
        temporary.unlink()
