"""ls, show, clear, gc: what lies in the store."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from precompiled.cli import code, functions, graph
from precompiled.cli.app import command
from precompiled.cli.output import SHOWN_DIGITS, Output, human_age, pairs, table
from precompiled.core.config import Settings
from precompiled.core.errors import StoreError
from precompiled.core.words import counted, human_bytes, human_seconds
from precompiled.store import artifact_format as fmt
from precompiled.store import scratch, trust
from precompiled.store.artifacts import FAILED_SUFFIX, Artifact, Store


@command("ls")
def ls_command(out: Output, settings: Settings) -> None:
    """List what is in the store: artifacts, graphs that could not be compiled, and packages."""
    store = open_store(settings)
    artifacts = list(store.all_artifacts())
    rows = [_artifact_row(artifact) for artifact in artifacts]
    rows += [_failure_row(store, item) for item in store.failures()]
    rows.sort(key=lambda row: row["created"], reverse=True)
    names = [name for reader in (store, *store.bases) for name in reader.names()]
    unreadable = sum(not name.endswith(FAILED_SUFFIX) for name in names) - len(artifacts)
    if unreadable > 0:
        what = counted(unreadable, "artifact")
        out.note(f"precompiled: {what} cannot be read or trusted; `precompiled doctor` says more.")

    packages, refused = functions.rows(store), functions.refusals(store)
    disk_bytes, scratch_bytes = scratch.weigh(store.root)
    whole = f"The store takes {human_bytes(disk_bytes)}, of which the workers' own cache {human_bytes(scratch_bytes)}"

    def show() -> None:
        if not rows and not packages and not refused:
            click.echo(f"Nothing in {store.root}.")
            if disk_bytes:
                click.echo(whole)
            return
        # Where there is no base store, all rows would say the same.
        further = ("STORE",) if store.bases else ()
        table(
            ("KEY", "NAME", "DEVICE", "SIZE", "AGE", "COMPILE", "STATE", *further),
            [
                (
                    row["key"][:SHOWN_DIGITS] + (f".{row['slot']}" if row["slot"] else ""), row["name"] or "-",
                    row["device"] or "-", human_bytes(row["bytes"]), human_age(row["created"]),
                    human_seconds(row["compile_s"]), row["state"] + (f": {row['reason']}" if row["reason"] else ""),
                    *([row["store"]] if further else []),
                )
                for row in rows
            ],
            right=("SIZE", "AGE", "COMPILE"),
        )  # fmt: skip
        total = sum(row["bytes"] for row in rows)
        failures = counted(len(rows) - len(artifacts), "failure", zero="no")
        click.echo(f"{counted(len(artifacts), 'artifact', zero='no')}, {failures}, {human_bytes(total)}")
        functions.show_rows(packages, refused)
        click.echo(whole)

    document = {"cache_dir": str(store.root), "entries": rows, "packages": packages, "refused": refused}
    out.result({**document, "disk_bytes": disk_bytes, "scratch_bytes": scratch_bytes}, show)


@command("show")
@click.argument("key")
@click.option("--code", "with_code", is_flag=True, help="Also the code that Inductor has generated.")
def show_command(out: Output, settings: Settings, key: str, with_code: bool) -> None:
    """Show one graph: its operations with their source lines, its artifacts' manifests, and its failure record.

    A unique beginning of KEY is enough. Of a function's name (`model.Net.forward`): the entries of its package.
    """
    store = open_store(settings)
    if functions.is_function(key):
        found = functions.show_document(store, key)
        out.result(found, lambda: functions.show(found))
        return
    whole = resolve(store, [key])[0]
    artifacts = store.lookup(whole)
    failure = store.failure(whole)
    if not artifacts and failure is None:
        raise StoreError(
            f"{whole[:SHOWN_DIGITS]} has nothing that can be read (what was corrupt was put into {store.quarantined})",
            "The graph is compiled again when it is met",
            code="unreadable",
        )
    operations = graph.operations(graph.first_program(store, artifacts, failure))
    packages = _packages(store, whole)
    texts = {artifact.slot: code.of_artifact(store, artifact) for artifact in artifacts if with_code}
    document = {
        "key": whole,
        "variants": [
            {
                **dataclasses.asdict(artifact.manifest), **_used(artifact),
                "slot": artifact.slot, "path": str(artifact.path), "store": str(artifact.root),
                **({"code": texts[artifact.slot]} if with_code else {}),
            }
            for artifact in artifacts
        ],
        "failure": _failure_document(failure) if failure else None,
        "graph": graph.document(operations),
        "packages": packages,
    }

    def show() -> None:
        _show(whole, artifacts, failure)
        for name in packages:
            click.echo(f"in the package of {name}")
        graph.show(operations)
        for slot, found in texts.items():
            code.show(slot, found)

    out.result(document, show)


def _packages(store: Store, key: str) -> list[str]:
    """Functions whose packages use this graph, by the names that ``explain`` takes."""
    return sorted({functions.function_of(entry) for entry in store.packages.entries() if key in entry.header.artifacts})


@command("clear")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def clear_command(out: Output, settings: Settings, keys: tuple[str, ...], yes: bool) -> None:
    """Remove artifacts and failure records of the KEYs (unique beginnings are enough), or everything, packages too.

    Programs that run go on with what they have loaded. Asks first, but for --yes and --json.
    """
    store = open_store(settings)
    wholes = resolve(store, keys, own=True)
    what = counted(len(wholes), "graph") if keys else "everything"
    if not yes and not out.as_json:
        if not sys.stdin.isatty():
            raise click.UsageError("there is nobody to ask for confirmation: add --yes")
        click.confirm(f"Remove {what} from {store.root}?", abort=True, err=True)
    removed = [store.remove(key) for key in wholes] if keys else [store.clear()]
    artifacts, size = sum(item.artifacts for item in removed), sum(item.bytes for item in removed)
    packages = sum(item.packages for item in removed)
    for folder in (store.artifacts,) if keys else (store.artifacts, store.packages.packages):
        left = [name for name in _names(folder) if not keys or name.partition(".")[0] in wholes]
        if left:
            what = counted(len(left), "file or folder", "files or folders")
            raise StoreError(
                f"{what} in {folder} could not be removed", "Check its owner and mode",
                code="not-removed",
            )  # fmt: skip
    also = f" and {counted(packages, 'entry of packages', 'entries of packages')}" if packages else ""
    out.result(
        {"removed": artifacts, "packages": packages, "bytes": size},
        f"Removed {counted(artifacts, 'artifact', zero='no')}{also}, {human_bytes(size)}.",
    )


@command("gc", overrides=True)
def gc_command(out: Output, settings: Settings) -> None:
    """Evict what was not used for longest until the store's budgets hold; sweep what dead writers left."""
    store = open_store(settings)
    removed = store.evict(settings.cache_max_bytes, settings.cache_max_inodes)
    document = {
        "removed": removed.artifacts, "bytes": removed.bytes,
        "max_bytes": settings.cache_max_bytes, "max_inodes": settings.cache_max_inodes,
    }  # fmt: skip
    budget = f"{human_bytes(settings.cache_max_bytes)} and {counted(settings.cache_max_inodes, 'inode')}"
    what = f"{counted(removed.artifacts, 'artifact', zero='no')}, {human_bytes(removed.bytes)}"
    out.result(document, f"Removed {what} (budget: {budget}).")


# ---------------------------------------------------------------- inside


def open_store(settings: Settings) -> Store:
    """The store, if it can be trusted; a store that does not exist yet is empty."""
    store = Store(settings.cache_dir, settings.base)
    try:
        with trust.open_directory(store.root) as root_fd, trust.open_directory("artifacts", root_fd):
            pass
    except FileNotFoundError:
        pass
    except PermissionError as error:
        raise StoreError(
            f"{store.root} cannot be read: {error.strerror}",
            "It belongs to another user; set PRECOMPILED_CACHE_DIR to a directory of yours",
            code="store-unreadable",
        ) from error
    return store


def _names(folder: Path) -> list[str]:
    """Names in a folder of the store, readable or not."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def resolve(store: Store, prefixes: Sequence[str], *, own: bool = False) -> list[str]:
    """The whole keys that begin with these prefixes; raises StoreError for one that is unknown or not unique.

    ``own``: only of what is in the store itself, and not in a base.
    """
    known = {name.partition(".")[0] for name in store.names()} if own else store.keys()
    found = []
    for prefix in prefixes:
        matches = [key for key in known if fmt.is_key(key) and key.startswith(prefix.lower())]
        if not matches:
            message = f"there is no graph {prefix!r} in {store.root}"
            raise StoreError(message, "See `precompiled ls`", code="no-such-key")
        if len(matches) > 1:
            raise StoreError(
                f"{prefix!r} is the beginning of {len(matches)} keys", "Give more digits", code="ambiguous-key"
            )
        found.append(matches[0])
    return found


def _artifact_row(artifact: Artifact) -> dict[str, Any]:
    manifest = artifact.manifest
    return {
        "key": manifest.key, "slot": artifact.slot, "name": manifest.name, "device": manifest.device,
        "bytes": manifest.bytes, "created": manifest.created, **_used(artifact), "compile_s": manifest.compile_s,
        "state": "artifact", "reason": "", "store": str(artifact.root),
    }  # fmt: skip


def _failure_row(store: Store, failure: fmt.Failure) -> dict[str, Any]:
    return {
        "key": failure.key, "slot": 0, "name": failure.name, "device": "",
        "bytes": 0, "created": failure.created, "used": failure.created, "compile_s": failure.compile_s,
        "state": "failed", "reason": failure.reason, "store": str(store.root),
    }  # fmt: skip


def _failure_document(failure: fmt.Failure) -> dict[str, Any]:
    found = dataclasses.asdict(failure)
    del found["program"]  # shown as the graph
    return found


def _used(artifact: Artifact) -> dict[str, float]:
    """The time of an artifact's last use, as eviction takes it."""
    try:
        return {"used": artifact.path.stat().st_mtime}
    except OSError:  # evicted meanwhile
        return {"used": artifact.manifest.created}


def _show(key: str, artifacts: Sequence[Artifact], failure: fmt.Failure | None) -> None:
    click.echo(key)
    for artifact in artifacts:
        manifest = artifact.manifest
        click.echo(f"\nartifact {artifact.slot}")
        pairs(
            [
                ("  name", manifest.name),
                ("  device", manifest.device),
                ("  path", str(artifact.path)),
                ("  tier", manifest.tier),
                ("  backward", "yes" if manifest.has_backward else "no"),
                ("  guards", manifest.guards or "none"),
                ("  created", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.created))),
                ("  compile", human_seconds(manifest.compile_s)),
                *((f"  {name}", value) for name, value in sorted(manifest.compiled_by.items())),
            ]
        )
        for title, mapping in (("environment", manifest.environment), ("components", manifest.components)):
            click.echo(f"  {title}")
            pairs([(f"    {name}", str(value)) for name, value in sorted(mapping.items())])
        click.echo("  files")
        pairs([(f"    {name}", human_bytes(record.bytes)) for name, record in sorted(manifest.files.items())])
    if failure is not None:
        click.echo("\nfailure")
        pairs(
            [
                ("  name", failure.name),
                ("  reason", failure.reason),
                ("  message", failure.message),
                ("  counts for", human_seconds(max(0.0, failure.created + failure.ttl_s - time.time())) + " more"),
            ]
        )
