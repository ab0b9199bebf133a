"""Moves objects between a store and a remote.

A fetch verifies trusted objects of the remote, and publishes them in the store. A put copies objects of the store into
the remote.

Methods raise RemoteError if the remote does not answer. The methods refuse an untrusted or corrupt object, count it in
``counts.refused``, and transfer the other objects.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from precompiled.core import words
from precompiled.core.errors import CorruptArtifact, StoreError
from precompiled.remote import envelope as form
from precompiled.remote.bucket import Bucket
from precompiled.remote.envelope import ARTIFACT, ENTRY, KERNEL, LIST, Envelope, Object
from precompiled.remote.errors import ObjectRejected, RemoteError
from precompiled.remote.trusting import Trust
from precompiled.store import artifact_format as fmt
from precompiled.store import package_format, packed, triton_kernels, unfit
from precompiled.store.artifacts import Store
from precompiled.store.packages import Entry
from precompiled.store.reading import Artifact
from precompiled.store.requests import RequestRecord
from precompiled.store.triton_kernels import TritonKernels

MAX_TRIED = 4  # how many objects are tried for one variant
KERNEL_LABEL = f"{triton_kernels.FORMAT:016x}"
PARALLEL = 16  # simultaneous requests for many objects


@dataclass
class TransferCounts:
    """Counts of a transfer.

    - ``refused``: refused objects, by code
    - ``failed``: failed requests, by code
    - ``given_up``: objects that were not put, and are not tried again
    - ``last``: the latest refusal or failure, in a sentence
    """

    fetched: int = 0
    put: int = 0
    absent: int = 0  # keys that the remote lacked and that this host had to compile
    bytes_fetched: int = 0
    bytes_put: int = 0
    given_up: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    last: str = ""


class Transfer:
    def __init__(self, store: Store, bucket: Bucket, trust: Trust) -> None:
        self.store, self.bucket, self.trust = store, bucket, trust
        self.kernels = TritonKernels(store.root, [item.root for item in store.bases])
        self.counts = TransferCounts()
        self._lock = threading.Lock()  # guards the counts, because objects are fetched in parallel threads
        self._bad: set[str] = set()  # paths of refused objects

    def use(self, trust: Trust) -> None:
        """Use the keys of ``trust`` from now on."""
        self.trust = trust
        self._bad = set()  # objects that the earlier keys refused

    # ------------------------------------------------ from the remote to the store

    def fetch(self, key: str, objects: list[Object] | None = None) -> int:
        """Fetch those variants of a key that this store lacks, and publish them in the store. Returns their number.

        ``objects``: the key's objects, if already listed.
        """
        there = self.objects(ARTIFACT, key) if objects is None else objects
        here = {fmt.variant_label(artifact.manifest) for artifact in self.store.lookup(key)} if there else set()
        return self._take([item for item in there if item.label not in here], self._publish_artifact)

    def pull(self, keys: Collection[str] = (), since: float = 0.0) -> int:
        """Fetch all objects that were written since ``since`` (seconds since the epoch).

        ``keys``: prefixes of keys. If there are any, fetch only artifacts whose keys begin with one of them. Returns
        the number of fetched objects.
        """
        return self.bring(
            item
            for item in self.everything()
            if item.kind != LIST
            and (item.written is None or item.written >= since)
            and (not keys or (item.kind == ARTIFACT and item.group.startswith(tuple(keys))))
        )

    def bring(self, objects: Iterable[Object]) -> int:
        """Fetch and publish, in parallel, the given objects that the store lacks. Returns their number.

        If an object cannot be read or published, the other objects are fetched nevertheless. The first error
        (RemoteError, StoreError) is raised at the end.
        """
        wanted: dict[tuple[str, str, str], list[Object]] = {}
        for item in objects:
            wanted.setdefault((item.kind, item.group, item.label), []).append(item)
        failures: list[RemoteError | StoreError] = []

        def one(items: list[Object]) -> int:
            try:
                return self._bring(items)
            except (RemoteError, StoreError) as error:
                failures.append(error)
                return 0

        with ThreadPoolExecutor(PARALLEL) as pool:
            found = sum(pool.map(one, wanted.values()))
        if failures:
            raise failures[0]
        return found

    def _bring(self, objects: list[Object]) -> int:
        """Fetch one of ``objects``, which all have the same label, unless the store has an object with this label."""
        kind, group, label = objects[0].kind, objects[0].group, objects[0].label
        if kind == KERNEL:
            return 0 if self.kernels.has(group) else self._take_kernel(objects)
        if kind == ENTRY:
            here = f"{label}{package_format.SUFFIX}" in self.store.packages.names(group)
            return 0 if here else self._take(objects, self._publish_entry)
        here = label in {fmt.variant_label(artifact.manifest) for artifact in self.store.lookup(group)}
        return 0 if here else self._take(objects, self._publish_artifact)

    def fetch_kernel(self, key: str, objects: list[Object] | None = None) -> bool:
        """Fetch and publish a Triton kernel, unless the store has it. Returns whether the store then has the kernel.

        ``objects``: as in ``fetch``.
        """
        if self.kernels.has(key):
            return True
        return self._take_kernel(self.objects(KERNEL, key) if objects is None else objects) > 0

    def _take_kernel(self, objects: list[Object]) -> int:
        return self._take([item for item in objects if item.label == KERNEL_LABEL], self._publish_kernel)

    def everything(self) -> list[Object]:
        """All objects in the remote, sorted by name."""
        found = (form.object_at(path, *about) for path, about in sorted(self.bucket.everything().items()))
        return [item for item in found if item is not None]

    def objects(self, kind: str, group: str) -> list[Object]:
        folder = f"{form.FOLDERS[kind]}/{group}"
        found = (form.object_at(f"{folder}/{name}", size) for name, size in self.bucket.listed(folder).items())
        return [item for item in found if item is not None]

    def _take(self, objects: list[Object], publish: Callable[[Object, bytes], None]) -> int:
        """Publish one object per label. Skips objects that were refused or that this host could not use."""
        taken, tried = set(), Counter[str]()
        # Of the objects with one label, try only a few, because perhaps no host can load the artifact. Objects of
        # untrusted signers come last and do not count towards this limit: otherwise five teams with one bucket could
        # block each other's objects.
        ours = [item for item in objects if self.trust.believes(item.by)]
        unfit_here = Counter(item.label for item in ours if self._is_unfit(item))
        for item in [*ours, *(item for item in objects if not self.trust.believes(item.by))]:
            if item.label in taken or tried[item.label] + unfit_here[item.label] >= MAX_TRIED or self._is_unfit(item):
                continue
            tried[item.label] += 1
            try:
                publish(item, self.body(item))
            except (ObjectRejected, CorruptArtifact) as error:
                self.refuse(item, error)
            except FileNotFoundError:
                continue  # the object was removed meanwhile
            else:
                taken.add(item.label)
                with self._lock:
                    self.counts.fetched += 1
                    self.counts.bytes_fetched += item.size
        return len(taken)

    def body(self, item: Object) -> bytes:
        """Return the body of an object, if its envelope is trusted and its digest is right.

        Raises ObjectRejected, RemoteError, FileNotFoundError.
        """
        if not self.trust.believes(item.by):
            code = "remote-unsigned" if item.by == form.UNSIGNED else "remote-untrusted"
            raise ObjectRejected(f"{item.path} is not signed by a key that this host trusts", code=code)
        if not 0 < item.size <= form.MAX_OBJECT_BYTES:
            raise ObjectRejected(f"{item.path} has {item.size} bytes", code="remote-corrupt")
        head = self.bucket.read(item.path, 0, min(item.size, form.HEAD_BYTES))
        envelope, at = form.open_envelope(head)
        self.trust.check(envelope)
        if (envelope.kind, envelope.name, envelope.digest) != (item.kind, item.name, item.digest):
            raise ObjectRejected(f"{item.path} is the object of {envelope.name[:80]}", code="remote-corrupt")
        if at + envelope.size != item.size:
            raise ObjectRejected(
                f"{item.path} has {item.size} bytes, and {at + envelope.size} were written", code="remote-corrupt"
            )
        body = head[at:]
        if len(head) < item.size:
            body += self.bucket.read(item.path, len(head), item.size)
        if len(body) != envelope.size or fmt.digest(body) != envelope.digest:
            raise ObjectRejected(f"{item.path} does not match its digest", code="remote-corrupt")
        return body

    def missed(self) -> None:
        with self._lock:
            self.counts.absent += 1

    def is_refused(self, item: Object) -> bool:
        return item.path in self._bad

    def _is_unfit(self, item: Object) -> bool:
        """Whether the object was refused, or was unusable after an earlier fetch."""
        return self.is_refused(item) or (
            item.kind == ARTIFACT and unfit.is_noted(self.store.quarantined, item.group, item.digest)
        )

    def failed(self, error: RemoteError) -> None:
        """Count a failed request. ``counts.last`` keeps the failure's reason even after the remote answers again."""
        with self._lock:
            self.counts.failed[error.code] += 1
            self.counts.last = error.message

    def gave_up(self, number: int, why: str) -> None:
        """Count objects that will not be put."""
        with self._lock:
            self.counts.given_up += number
            self.counts.last = f"{words.format_count(number, 'object')} not put: {why}"

    def refuse(self, item: Object, error: ObjectRejected | CorruptArtifact) -> None:
        """Count an object that is untrusted or corrupt. Later calls do not read this object again."""
        code = error.code if isinstance(error, ObjectRejected) else "remote-corrupt"
        with self._lock:
            self._bad.add(item.path)
            self.counts.refused[code] += 1
            self.counts.last = error.message

    def _publish_artifact(self, item: Object, body: bytes) -> None:
        payload = packed.unpack(body, item.group)
        if fmt.variant_label(payload.manifest) != item.label:
            raise ObjectRejected(f"{item.path} has a different variant", code="remote-corrupt")
        self.store.publish(payload)

    def _publish_entry(self, item: Object, body: bytes) -> None:
        header, about, content = package_format.open_entry(f"{item.label}{package_format.SUFFIX}", body, item.group)
        # If an audit on this host has found the function's package wrong, its entries are not published.
        if self.store.packages.refused(item.group) is None:
            self.store.packages.publish(header, about, content)

    def _publish_kernel(self, item: Object, body: bytes) -> None:
        triton_kernels.open_kernel(item.group, body)
        self.kernels.publish(item.group, body)

    # ------------------------------------------------ from the store to the remote

    def put_artifact(self, artifact: Artifact) -> bool:
        """Put an artifact, unless the remote has its variant. Returns whether it was put.

        Raises StoreError, FileNotFoundError.
        """
        files = self.store.read_for_others(artifact)
        key, label = artifact.manifest.key, fmt.variant_label(artifact.manifest)
        return self.put(ARTIFACT, key, label, lambda: packed.pack(artifact.manifest, files))

    def withdraw(self, key: str, label: str) -> None:
        """Remove all objects of an artifact's variant, because this host has refused the artifact."""
        for item in self.objects(ARTIFACT, key):
            if item.label == label:
                self.bucket.remove(item.path)

    def put_entry(self, function: str, name: str) -> bool:
        """Like ``put_artifact``, for a package's entry."""
        entry = self.store.packages.read(function, name)
        label = name.removesuffix(package_format.SUFFIX)
        return self.put(ENTRY, function, label, lambda: package_format.seal(entry.header, entry.about, entry.body)[1])

    def put_kernel(self, key: str) -> bool:
        """Like ``put_artifact``, for a Triton kernel of this store."""
        content = self.kernels.content(key)
        triton_kernels.open_kernel(key, content)
        return self.put(KERNEL, key, KERNEL_LABEL, lambda: content)

    def push(self, keys: Collection[str] = (), since: float = 0.0, *, packages: bool | None = None) -> int:
        """Put into the remote all artifacts that were compiled since ``since`` (seconds since the epoch), and all
        entries and kernels that were used since then.

        - ``keys``: prefixes of keys. If there are any, put only artifacts whose keys begin with one of them, and
          package entries that need only such artifacts.
        - ``packages``: whether to put package entries (default: only if ``keys`` is empty).

        Returns the number of new objects.
        """
        found, chosen = 0, tuple(keys)
        for artifact in list(self.store.every()):
            manifest = artifact.manifest
            if (not chosen or manifest.key.startswith(chosen)) and manifest.created >= since:
                found += self._kept(lambda artifact=artifact: self.put_artifact(artifact))  # type: ignore[misc]
        for entry in self.entries(chosen) if (not chosen if packages is None else packages) else []:
            with suppress(FileNotFoundError):
                if entry.path.stat().st_mtime >= since:
                    name = (entry.header.function, entry.name)
                    found += self._kept(lambda name=name: self.put_entry(*name))  # type: ignore[misc]
        if not chosen:
            for key, used in self.kernels.uses():
                if used >= since:
                    found += self._kept(lambda key=key: self.put_kernel(key))  # type: ignore[misc]
        return found

    def _kept(self, put: Callable[[], bool]) -> bool:
        try:
            return put()
        except (StoreError, FileNotFoundError) as error:  # the object was evicted or damaged in the store
            self.counts.last = str(error)
            return False

    def entries(self, keys: Collection[str] = ()) -> list[Entry]:
        """The store's own package entries that may be put.

        If ``keys`` (prefixes of keys) are given, only entries whose artifacts all have keys with one of these prefixes.
        """
        found, chosen = [], tuple(keys)
        for entry in self.store.packages.entries():
            needs = entry.header.artifacts
            of_keys = not chosen or (needs and all(key.startswith(chosen) for key in needs))
            is_own = entry.root == self.store.root
            if of_keys and is_own and self.store.packages.refused(entry.header.function) is None:
                found.append(entry)
        return found

    def put(self, kind: str, group: str, label: str, body: Callable[[], bytes]) -> bool:
        """Put an object, unless the remote has a trusted one with its label. Returns whether it was put."""
        if not self.trust.by:
            return False  # a host without its own key only reads
        there = [item for item in self.objects(kind, group) if item.label == label and self.trust.believes(item.by)]
        # If this host could use none of these objects, it puts its own object beside them, up to a limit.
        if len(there) >= MAX_TRIED or not all(self._is_unfit(item) for item in there):
            return False
        self.write(kind, group, label, body())
        return True

    def write(self, kind: str, group: str, label: str, data: bytes) -> str:
        """Sign and put an object. Returns its path."""
        name = f"{group}/{label}{package_format.SUFFIX}" if kind == ENTRY else group
        plain = Envelope(kind, name, len(data), fmt.digest(data), by=self.trust.by)
        content = fmt.canonical(self.trust.signed(plain)) + b"\n" + data
        path = Object(kind, group, label, plain.by, plain.digest, len(content)).path
        self.bucket.write(path, content)
        with self._lock:
            self.counts.put += 1
            self.counts.bytes_put += len(content)
        return path

    # ------------------------------------------------ reports

    def document(self) -> dict[str, object]:
        """The state that ``status``, ``stats`` and ``doctor`` show. Field names are public."""
        with self._lock:
            counts = dataclasses.asdict(self.counts)
            counts["refused"], counts["failed"] = dict(self.counts.refused), dict(self.counts.failed)
        reasons = [breaker.reason for breaker in (self.bucket.reading, self.bucket.writing) if breaker.reason]
        state = "rests" if self.bucket.reading.rests else "failing" if reasons else "ok"
        return {
            "remote": self.bucket.url,
            "state": state,
            "code": reasons[0].code if reasons else "",
            "reason": reasons[0].message if reasons else "",
            **counts,
        }


def open_transfer(root: Path, url: str, timeout_s: float, trust: Trust, base: Sequence[Path] = ()) -> Transfer:
    """Return a Transfer between the remote and the store at ``root`` with base stores ``base``. Raises RemoteError."""
    return Transfer(Store(root, base), Bucket(url, timeout_s, RequestRecord(root).note), trust)
