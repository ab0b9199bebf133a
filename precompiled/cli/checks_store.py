"""doctor's checks of the store and its bases: whether artifacts can be written, trusted, read and mapped."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from precompiled.cli.checks_daemon import existing_parent, why_not_made
from precompiled.core import filesystems, paths
from precompiled.core.check import Check
from precompiled.core.config import Settings
from precompiled.core.errors import UntrustedStore
from precompiled.core.words import format_count, human_bytes
from precompiled.store import trust
from precompiled.store.artifacts import Store
from precompiled.store.bases import NOTE_SUFFIX, Base

LITTLE_SPACE = 2 << 30
NO_SPACE = 128 << 20
FEW_INODES = 10_000


def run(settings: Settings) -> Iterator[Check]:
    store = Store(settings.cache_dir, settings.base)
    found = place(settings)
    yield found
    if found.state == "fail" and not os.path.isdir(store.root):
        return  # the other checks would report the same problem again
    yield ancestors(store.root)
    yield entries(store)
    yield quarantine(store)
    disk = store.root if os.path.exists(store.root) else existing_parent(store.root)
    free = os.statvfs(disk)
    yield space(store.root, shutil.disk_usage(disk).free, free.f_favail if free.f_files else None)
    yield mappable(store.root, bool(free.f_flag & os.ST_NOEXEC))
    if filesystems.is_shared(store.root):
        yield Check(
            "store shared",
            "warn",
            f"{store.root} is on {filesystems.kind_of(store.root)}: other hosts' artifacts arrive without an event, "
            "and scratch files are slow there",
            "Set PRECOMPILED_CACHE_DIR to a local disk; share output of `precompiled bake` with PRECOMPILED_BASE",
        )
    yield from run_bases(store)
    build = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.gettempdir())
    noexec = os.statvfs(build if os.path.exists(build) else existing_parent(build)).f_flag & os.ST_NOEXEC
    yield buildable(build, bool(noexec))


def run_bases(store: Store) -> Iterator[Check]:
    for found in store.bases:
        yield base(found)
        if os.path.exists(found.root):
            yield ancestors(found.root)
            yield mappable(found.root, bool(os.statvfs(found.root).f_flag & os.ST_NOEXEC))
    if store.bases:
        yield left_out(store)


def place(settings: Settings) -> Check:
    """Whether a store exists or can be created."""
    if why := settings.why_no_store:
        return Check("store", "fail", why, paths.NO_PLACE_ACTION)
    return directories(Store(settings.cache_dir))


def directories(store: Store) -> Check:
    """Check the owner and mode of the store's directories, as readers do."""
    if not os.path.lexists(store.root):
        if not (why := why_not_made(store.root)):
            return Check("store", "ok", f"{store.root}: the first compile will create it")
        return Check(
            "store",
            "fail",
            f"{store.root} does not exist, and cannot be created: {why}",
            "Set PRECOMPILED_CACHE_DIR to a directory that you can write to",
        )
    for directory in (store.root, store.artifacts, store.tmp, store.quarantined):
        try:
            setting = "cache_dir" if directory is store.root else ""
            trust.check_stat(os.lstat(directory), str(directory), directory=True, setting=setting)
        except FileNotFoundError:
            continue
        except UntrustedStore as error:
            return Check("store", "fail", error.message, error.action)
        except OSError as error:
            return Check("store", "fail", f"{directory}: {error.strerror}", "Set PRECOMPILED_CACHE_DIR")
        if not os.access(directory, os.W_OK | os.X_OK):
            return Check(
                "store",
                "warn",
                f"{directory} cannot be written: workers cannot add artifacts",
                f"Make {directory} writable, or set PRECOMPILED_CACHE_DIR",
            )
    return Check("store", "ok", str(store.root))


def ancestors(root: Path) -> Check:
    """Whether other users could replace the store's directory.

    A problem is only a warning, because readers check the store itself.
    """
    for parent in root.parents:
        try:
            status = os.stat(parent)
        except OSError:
            continue
        if status.st_uid not in (os.geteuid(), 0):
            return Check("store path", "warn", f"{parent} is owned by uid {status.st_uid}", "Move the store elsewhere")
        others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if others and not status.st_mode & stat.S_ISVTX:
            action = f"`chmod go-w {shlex.quote(str(parent))}`"
            return Check("store path", "warn", f"{parent} can be written by others", action)
    return Check("store path", "ok", "no other user can replace it")


def entries(store: Store) -> Check:
    """Check the owner and mode of artifacts and failure records. Readers refuse files that other users could write."""
    count = 0
    try:
        found = list(os.scandir(store.artifacts))
    except OSError:
        found = []
    for entry in found:
        try:
            trust.check_stat(
                entry.stat(follow_symlinks=False), entry.path, directory=not entry.name.endswith(".failed")
            )
        except FileNotFoundError:
            continue  # evicted
        except UntrustedStore as error:
            return Check("entries", "fail", error.message, error.action)
        count += 1
    what = format_count(count, "artifact or failure record", "artifacts and failure records", zero="no")
    return Check("entries", "ok", f"{what} in the store")


def quarantine(store: Store) -> Check:
    try:
        names = [name for name in os.listdir(store.quarantined) if not name.endswith((".reason", NOTE_SUFFIX))]
    except OSError:
        names = []
    if names:
        what = format_count(len(names), "corrupt file or folder is", "corrupt files or folders are")
        return Check(
            "quarantine",
            "warn",
            f"{what} in {store.quarantined}",
            "Their .reason files say why. Check the disk; `precompiled cache clear` removes the files",
        )
    return Check("quarantine", "ok", "empty")


def base(found: Base) -> Check:
    """Whether a base store exists, and this version can trust, read and use all of it."""
    what = f"base {found.root}"
    if not os.path.lexists(found.root):
        return Check(
            what,
            "warn",
            "it does not exist",
            "Correct `base` (`precompiled config base` shows its origin), or bake it",
        )
    count, others = 0, 0
    make_readable = f"`chmod -R a+rX {shlex.quote(str(found.root))}`"
    try:
        with trust.open_directory(found.root, setting="base"):
            pass
        for parent, folders, files in os.walk(found.root, onerror=_raise):
            for name in (*folders, *files):
                path = os.path.join(parent, name)
                trust.check_stat(os.lstat(path), path, directory=name in folders)
                if name in files and not os.access(path, os.R_OK):
                    return Check(what, "warn", f"{path} cannot be read", make_readable)
        for name in found.names():
            readable = any(artifact.path.name == name for artifact in found.lookup(name.partition(".")[0], _ignore))
            count, others = count + readable, others + (not readable)
    except (UntrustedStore, OSError) as error:
        action = error.action if isinstance(error, UntrustedStore) else make_readable
        return Check(what, "warn", f"{error} (its contents are ignored)", action)
    if others:
        text = f"{format_count(others, 'artifact')} of {others + count} are damaged, or of another version"
        return Check(what, "warn", text, "Bake it again with this version: `precompiled bake`")
    return Check(what, "ok", format_count(count, "artifact"))


def left_out(store: Store) -> Check:
    """Whether loads have found unusable artifacts in base stores."""
    try:
        notes = [name for name in os.listdir(store.quarantined) if name.endswith(NOTE_SUFFIX)]
    except OSError:
        notes = []
    if notes:
        unfit = format_count(len(notes), "artifact")
        text = f"{unfit} of base stores cannot be used: {store.quarantined} has notes"
        return Check("bases", "warn", text, "Bake the base again; `precompiled cache clear` removes the notes")
    return Check("bases", "ok", "all their artifacts were usable")


def _raise(error: OSError) -> None:
    raise error


def _ignore(reason: str) -> None:
    pass


def space(root: Path, free_bytes: int, free_inodes: int | None) -> Check:
    """Check the free space on the store's file system. `free_inodes`: None if the file system does not count inodes."""
    text = f"{human_bytes(free_bytes)} free for {root}"
    if free_bytes < NO_SPACE:
        return Check("space", "fail", text, "Free some space, or set PRECOMPILED_CACHE_DIR to another disk")
    if free_bytes < LITTLE_SPACE:
        return Check("space", "warn", text, "Free some space, or run `precompiled cache gc --set cache_max_bytes=...`")
    if free_inodes is not None and free_inodes < FEW_INODES:
        left = format_count(free_inodes, "inode", zero="no")
        return Check("space", "warn", f"{left} free for {root}", "Remove small files from that disk")
    return Check("space", "ok", text)


def mappable(root: Path, noexec: bool) -> Check:
    if noexec:
        return Check("store noexec", "fail", f"{root} is mounted noexec", "Move the store to another disk")
    return Check("store noexec", "ok", "native code can be mapped from the store")


def buildable(directory: Path, noexec: bool) -> Check:
    """Whether Inductor can load native code from its own cache directory."""
    if noexec:
        return Check(
            "build noexec",
            "warn",
            f"{directory} is mounted noexec: code that Inductor builds there cannot be loaded",
            "Set TMPDIR or TORCHINDUCTOR_CACHE_DIR to a directory on another disk",
        )
    return Check("build noexec", "ok", f"native code can be built in {directory}")
