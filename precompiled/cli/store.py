"""cache ls, show, size, dir, clear, gc: show or remove the contents of the store."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from precompiled.cli import code, functions, graph, reproduction
from precompiled.cli.app import INTERRUPTED, command
from precompiled.cli.key_prefixes import KEY, KEY_OR_OTHER, check, resolve
from precompiled.cli.output import (
    ALL_SHOWS,
    SHOWN_DIGITS,
    Output,
    all_option,
    fits_screen,
    human_age,
    pairs,
    say_left_out,
    table,
)
from precompiled.core.config import Settings
from precompiled.core.errors import StoreError
from precompiled.core.words import format_count, human_bytes, human_seconds
from precompiled.store import artifact_format as fmt
from precompiled.store import eviction, scratch
from precompiled.store.artifacts import Artifact, Store
from precompiled.store.job_phases import under_way
from precompiled.store.triton_kernels import TritonKernels

MAX_ROWS, MAX_FUNCTIONS = 9, 5  # rows that `cache ls` prints on a terminal without --all
MAX_OPERATIONS = 12  # operations that `cache show` prints without --all


@command("ls", examples=["precompiled cache ls", "precompiled cache ls --all"])
@all_option("Show all rows on a terminal, too.")
def ls_command(out: Output, settings: Settings, show_all: bool) -> None:
    """List compiled graphs, failed graphs and functions with packages.

    The newest comes first. On a terminal, shows as many rows as fit a screen. The disk space includes the files that
    workers keep to compile faster (scratch).
    """
    store = open_store(settings)
    artifacts = list(store.all_artifacts())
    rows = [_artifact_row(artifact) for artifact in artifacts]
    rows += [_failure_row(store, item) for item in store.failures()]
    rows.sort(key=lambda row: row["created"], reverse=True)
    names = [name for reader in (store, *store.bases) for name in reader.names()]
    unreadable = sum(not name.endswith(fmt.FAILED_SUFFIX) for name in names) - len(artifacts)
    if unreadable > 0:
        what = format_count(unreadable, "artifact")
        out.note(f"precompiled: {what} cannot be read or trusted. `precompiled doctor` shows why.")

    packages, refused = functions.rows(store), functions.refusals(store)
    sizes = scratch.weigh(store.root)
    disk_bytes, scratch_bytes = sum(sizes.values()), sizes["scratch"]
    whole = f"On disk: {human_bytes(disk_bytes)}, including {human_bytes(scratch_bytes)} of scratch files"

    most, most_functions = (MAX_ROWS, MAX_FUNCTIONS) if fits_screen(show_all) else (None, None)

    def show() -> None:
        if not rows and not packages and not refused:
            if store.root.exists():  # otherwise a note has said that the store does not exist
                click.echo(f"The store {store.root} is empty.")
            if disk_bytes:
                click.echo(whole)
            return
        # Without base stores, the column STORE would be the same in all rows.
        further = ("STORE",) if store.bases else ()
        table(
            ("KEY", "NAME", "DEVICE", "SIZE", "AGE", "COMPILE", "STATE", *further),
            [
                (
                    row["key"][:SHOWN_DIGITS] + (f".{row['slot']}" if row["slot"] else ""),
                    row["name"] or "-",
                    row["device"] or "-",
                    human_bytes(row["bytes"]),
                    human_age(row["created"]),
                    human_seconds(row["compile_s"]),
                    row["state"] + (f": {row['reason']}" if row["reason"] else ""),
                    *([row["store"]] if further else []),
                )
                for row in rows[:most]
            ],
            right=("SIZE", "AGE", "COMPILE"),
        )
        say_left_out(rows, most, f"older: {ALL_SHOWS}")
        total = sum(row["bytes"] for row in rows)
        failures = format_count(len(rows) - len(artifacts), "failure", zero="no")
        click.echo(f"{format_count(len(artifacts), 'artifact', zero='no')}, {failures}, {human_bytes(total)}")
        functions.show_rows(packages, refused, most_functions)
        click.echo(whole)

    document = {"cache_dir": str(store.root), "entries": rows, "packages": packages, "refused": refused}
    out.result({**document, "disk_bytes": disk_bytes, "scratch_bytes": scratch_bytes}, show)


@command("show", examples=["precompiled cache show 3f9c0d1e", "precompiled cache show model.Net.forward"])
@click.argument("key", metavar="KEY|FUNCTION", type=KEY_OR_OTHER)
@all_option("Print all operations, files and facts.")
@click.option("--code", "with_code", is_flag=True, help="Also print the code that Inductor generated.")
@click.option("--repro", is_flag=True, help="Print a Python script that compares eager and compiled results instead.")
def show_command(out: Output, settings: Settings, key: str, show_all: bool, with_code: bool, repro: bool) -> None:
    """Show one graph, or the package of one function.

    For a KEY, shows the artifacts, the failure record, and the first operations below their source lines. Four digits
    are enough. For a FUNCTION such as `model.Net.forward`, shows the entries of its package.
    """
    store = open_store(settings)
    rest = "" if show_all or with_code else f"{ALL_SHOWS}, and --code shows what Inductor generated"
    if functions.means_function(store, key, store.keys()):
        found = functions.show_document(store, key)
        out.result(found, lambda: functions.show(found, show_all=show_all), "" if show_all else ALL_SHOWS)
        return
    whole = resolve(store, [check(key)])[0]
    artifacts = store.lookup(whole)
    failure = store.failure(whole)
    if not artifacts and failure is None:
        raise StoreError(
            f"no file of {whole[:SHOWN_DIGITS]} can be read (corrupt files were moved to {store.quarantined})",
            "The graph is compiled again when a program needs it",
            code="unreadable",
        )
    if repro:
        text = reproduction.script(store, whole, artifacts, failure)
        out.result({"key": whole, "script": text}, text)
        return
    operations = graph.operations(graph.first_program(store, artifacts, failure))
    packages = _packages(store, whole)
    texts = {artifact.slot: code.of_artifact(store, artifact) for artifact in artifacts if with_code}
    document = {
        "key": whole,
        "variants": [
            {
                **dataclasses.asdict(artifact.manifest),
                **_used(artifact),
                "slot": artifact.slot,
                "path": str(artifact.path),
                "store": str(artifact.root),
                **({"code": texts[artifact.slot]} if with_code else {}),
            }
            for artifact in artifacts
        ],
        "failure": _failure_document(failure) if failure else None,
        "graph": graph.document(operations),
        "packages": packages,
    }

    def show() -> None:
        click.echo(whole)
        for name in packages:
            click.echo(f"used by the package of {name}")
        _show(artifacts, failure, show_all)
        graph.show(operations, None if show_all else MAX_OPERATIONS)
        for slot, found in texts.items():
            code.show(slot, found)

    out.result(document, show, rest)


def _packages(store: Store, key: str) -> list[str]:
    """Functions whose packages use this graph, by the names that ``explain`` takes."""
    return sorted({functions.function_of(entry) for entry in store.packages.entries() if key in entry.header.artifacts})


@command("size", examples=["precompiled cache size"])
def size_command(out: Output, settings: Settings) -> None:
    """Show how much disk space the store takes."""
    store = open_store(settings)
    sizes = scratch.weigh(store.root)
    counts = {
        "artifacts": sum(1 for _ in store.every()),
        "packages": sum(1 for _ in Store(store.root).packages.entries()),
        "kernels": len(TritonKernels(store.root).all_keys()),
        "failure records": sum(1 for _ in store.failures()),
    }
    parts = [{"name": name, "count": counts.get(name), "bytes": size} for name, size in sizes.items()]
    total = sum(sizes.values())

    def show() -> None:
        rows = [(name, str(counts.get(name, "")), human_bytes(size)) for name, size in sizes.items()]
        table(("", "COUNT", "SIZE"), [*rows, ("total", "", human_bytes(total))], right=("COUNT", "SIZE"))
        if sizes[scratch.SCRATCH]:
            click.echo("scratch: precompiled C++ headers and other files that workers keep to compile faster")

    out.result({"cache_dir": str(store.root), "parts": parts, "bytes": total}, show)


@command("dir", examples=["du -sh $(precompiled cache dir)"])
def dir_command(out: Output, settings: Settings) -> None:
    """Print the path of the store."""
    out.result({"cache_dir": str(settings.cache_dir)}, str(settings.cache_dir))


@command("clear", examples=["precompiled cache clear", "precompiled cache clear 3f9c0d1e"])
@click.argument("keys", nargs=-1, metavar="[KEY]...", type=KEY)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def clear_command(out: Output, settings: Settings, keys: tuple[str, ...], yes: bool) -> int:
    """Remove everything from the store, or the graphs that you name.

    Without a KEY, removes artifacts, packages, failure records and scratch files. With KEYs, removes their artifacts
    and failure records; four digits of a KEY are enough. Running programs keep the code that they have loaded.

    Asks for confirmation, unless you give --yes or --json.
    """
    store = open_store(settings)
    wholes = resolve(store, keys, own=True)
    before = sum(scratch.weigh(store.root).values())
    if not yes and not out.as_json:
        if not sys.stdin.isatty():
            raise click.UsageError("No terminal for the confirmation. Add --yes")
        what = format_count(len(wholes), "graph") if keys else f"everything ({human_bytes(before)})"
        if not click.confirm(f"Remove {what} from {store.root}?", err=True):
            out.note("Nothing removed.")
            return INTERRUPTED
    busy = 0 if keys else len(under_way(store.root))  # running compiles would fail without their scratch files
    if keys:
        removed = [eviction.remove(store, key) for key in wholes]
    else:
        removed = [eviction.clear(store, with_scratch=not busy)]
    _check_removed(store, wholes)
    artifacts, packages = sum(item.artifacts for item in removed), sum(item.packages for item in removed)
    left = scratch.weigh(store.root)
    size, size_left = max(0, before - sum(left.values())), sum(left.values())
    also = f" and {format_count(packages, 'entry of packages', 'entries of packages')}" if packages else ""
    text = f"Removed {format_count(artifacts, 'artifact', zero='no')}{also}, {human_bytes(size)}."
    if size_left and not keys:
        why = "records of runs, and logs"
        if busy:
            why = f"scratch files of {format_count(busy, 'compile')} under way, {why}"
        text += f"\n{human_bytes(size_left)} left: {why}."
    out.result({"removed": artifacts, "packages": packages, "bytes": size, "bytes_left": size_left}, text)
    return 0


def _check_removed(store: Store, keys: Sequence[str]) -> None:
    """Raise StoreError if files of these keys remain in the store. Without keys, raise if any file remains."""
    for folder in (store.artifacts,) if keys else (store.artifacts, store.packages.packages):
        left = [name for name in _names(folder) if not keys or name.partition(".")[0] in keys]
        if left:
            what = format_count(len(left), "file or folder", "files or folders")
            raise StoreError(
                f"{what} in {folder} could not be removed", "Check their owner and mode", code="not-removed"
            )


@command("gc", overrides=True, examples=["precompiled cache gc --set cache_max_bytes=2000000000"])
def gc_command(out: Output, settings: Settings) -> None:
    """Remove the least recently used graphs until the store fits its budget.

    The settings `cache_max_bytes` and `cache_max_inodes` are the budget. The daemon does the same from time to time.
    """
    store = open_store(settings)
    removed = eviction.evict(store, settings.cache_max_bytes, settings.cache_max_inodes)
    document = {
        "removed": removed.artifacts,
        "bytes": removed.bytes,
        "max_bytes": settings.cache_max_bytes,
        "max_inodes": settings.cache_max_inodes,
    }
    budget = f"{human_bytes(settings.cache_max_bytes)} and {format_count(settings.cache_max_inodes, 'inode')}"
    what = f"{format_count(removed.artifacts, 'artifact', zero='no')}, {human_bytes(removed.bytes)}"
    out.result(document, f"Removed {what} (budget: {budget}).")


# ---------------------------------------------------------------- inside


def open_store(settings: Settings) -> Store:
    """Open the store. A store that does not exist counts as empty, and a note names its path. Raises StoreError if the
    store cannot be read or trusted.
    """
    store = Store(settings.cache_dir, settings.base)
    try:
        with store.artifacts_fd():
            pass
    except FileNotFoundError:
        if not store.root.exists():
            click.echo(f"precompiled: the store {store.root} does not exist yet.", err=True)
    except PermissionError as error:
        raise StoreError(
            f"{store.root} cannot be read: {error.strerror}",
            "Make it readable, or set PRECOMPILED_CACHE_DIR to your own directory",
            code="store-unreadable",
        ) from error
    return store


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _artifact_row(artifact: Artifact) -> dict[str, Any]:
    manifest = artifact.manifest
    return {
        "key": manifest.key,
        "slot": artifact.slot,
        "name": manifest.name,
        "device": manifest.device,
        "bytes": manifest.bytes,
        "created": manifest.created,
        **_used(artifact),
        "compile_s": manifest.compile_s,
        "state": "artifact",
        "reason": "",
        "store": str(artifact.root),
    }


def _failure_row(store: Store, failure: fmt.Failure) -> dict[str, object]:
    return {
        "key": failure.key,
        "slot": 0,
        "name": failure.name,
        "device": "",
        "bytes": 0,
        "created": failure.created,
        "used": failure.created,
        "compile_s": failure.compile_s,
        "state": "failed",
        "reason": failure.reason,
        "store": str(store.root),
    }


def _failure_document(failure: fmt.Failure) -> dict[str, object]:
    found = dataclasses.asdict(failure)
    del found["program"]  # the document contains the program under the name "graph"
    return found


def _in_short(artifact: Artifact) -> str:
    manifest = artifact.manifest
    parts = [
        manifest.name,
        manifest.device,
        "forward and backward" if manifest.has_backward else "forward only",
        f"compiled in {human_seconds(manifest.compile_s)}, {human_age(manifest.created)} ago",
        human_bytes(manifest.bytes),
        *(f"torch {version}" for version in filter(None, [manifest.environment.get("torch")])),
    ]
    return ", ".join(filter(None, parts))


def _used(artifact: Artifact) -> dict[str, float]:
    """The time of an artifact's last use, which eviction also uses."""
    try:
        return {"used": artifact.path.stat().st_mtime}
    except OSError:  # evicted
        return {"used": artifact.manifest.created}


def _show(artifacts: Sequence[Artifact], failure: fmt.Failure | None, show_all: bool) -> None:
    for artifact in artifacts:
        manifest = artifact.manifest
        click.echo(f"\nartifact {artifact.slot}: {_in_short(artifact)}")
        if not show_all:
            rows = [("  guards", manifest.guards), ("  path", str(artifact.path))]
            pairs([(name, value) for name, value in rows if value])
            continue
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
        click.echo("  environment")
        pairs([(f"    {name}", str(value)) for name, value in sorted(manifest.environment.items())])
        click.echo("  files")
        pairs([(f"    {name}", human_bytes(record.bytes)) for name, record in sorted(manifest.files.items())])
    if failure is not None:
        click.echo("\nfailure")
        pairs(
            [
                ("  name", failure.name),
                ("  reason", failure.reason),
                ("  message", failure.message),
                ("  retried after", human_seconds(max(0.0, failure.created + failure.ttl_s - time.time()))),
            ]
        )
