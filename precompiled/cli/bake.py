"""bake: run a command once, and save its compiled graphs as a base store for images and shared directories."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from precompiled import parts
from precompiled.cli.app import command
from precompiled.cli.daemon import ask_daemon, stop_daemon
from precompiled.cli.output import Output
from precompiled.cli.switch import start_error
from precompiled.cli.target_option import target_option
from precompiled.core import python_path
from precompiled.core.config import ENV_PREFIX, Settings
from precompiled.core.errors import PrecompiledError
from precompiled.core.words import format_count, human_bytes
from precompiled.store import baking
from precompiled.store.artifacts import Store
from precompiled.store.triton_kernels import TritonKernels

LOOK_S = 0.1
# GRACE_S: seconds that the other processes may still run after one process has done its steps. Also the seconds between
# SIGTERM and SIGKILL. STOP_S: the timeout for requesting the daemon's counts, and for stopping the daemon.
GRACE_S = 10.0
STOP_S = 30.0


@command(
    "bake",
    context_settings={"allow_interspersed_args": False},
    examples=[
        "precompiled bake --steps 3 -o /opt/compiled -- python train.py",
        "PRECOMPILED_BASE=/opt/compiled precompiled run -- python train.py",
    ],
)
@click.option(
    "--output",
    "-o",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write to this new directory. It must not exist yet.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="End the command after N calls of its most used graph. 0 waits until the command ends.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.0),
    default=0.0,
    metavar="SECONDS",
    help="End the command after this time and save the compiled graphs. 0 means no limit.",
)
@target_option
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD...")
def bake_command(
    out: Output,
    settings: Settings,
    output: Path,
    steps: int,
    timeout: float,
    cmd: tuple[str, ...],
    target: parts.WantedDevicesProtocol | None = None,
) -> None:
    """Run a command and save its compiled graphs in a directory.

    Put the directory into an image or on a shared disk. With PRECOMPILED_BASE=DIR, later runs of the same program
    compile and trace nothing.

    CMD runs in mode `wait`, with an empty store and a daemon of its own. Your own store is neither read nor written.
    """
    if not cmd:
        raise click.UsageError("Give a command after `--`: `precompiled bake -o DIR -- python train.py`")
    place = output.absolute()
    baking.check_target(place)
    # The store is next to the target, where native code can be mapped; /tmp may be noexec. The runtime directory is in
    # /tmp, because a socket's path must be short.
    try:
        runtime = Path(tempfile.mkdtemp(prefix="precompiled-"))
    except OSError as error:
        raise PrecompiledError(
            f"a temporary directory cannot be created: {error.strerror}",
            "Set TMPDIR to a directory that this user can write to",
            code="no-place",
        ) from error
    store = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        own = {}
        if target is not None:
            targets = parts.TARGETS.require()
            own = targets.variables(target, cmd, runtime / "caches")
            out.note(targets.warning(target))
        document = _bake(out, place, store, runtime, steps, timeout, cmd, own)
    finally:
        for directory in (store, runtime):
            shutil.rmtree(directory, ignore_errors=True)
    left = {**document["bypassed"], **document["fallbacks"], **document["not_kept"]}
    text = (
        f"{place}: {format_count(document['artifacts'], 'artifact')}, "
        f"{format_count(document['packages'], 'entry of a package', 'entries of packages')}, "
        + (f"{format_count(document['kernels'], 'Triton kernel')}, " if document["kernels"] else "")
        + f"{human_bytes(document['bytes'])}."
    )
    document["target"] = None if target is None else target.kind.name
    if target is not None:
        text += f"\nIt is for {target.kind.name}. No kernel in it was chosen by measured time (docs/guides/targets.md)."
    if left:
        text += "\nNot included: " + ", ".join(f"{code} {count}" for code, count in sorted(left.items()))
        text += " (`precompiled explain CODE` explains each reason)."
    out.result(document, text)


def _bake(
    out: Output,
    place: Path,
    root: Path,
    runtime: Path,
    steps: int,
    timeout: float,
    cmd: Sequence[str],
    given: Mapping[str, str],
) -> dict[str, Any]:
    from precompiled import wire
    from precompiled.client.baking import VARIABLE
    from precompiled.client.start import start_daemon
    from precompiled.core import config

    here = config.load({"cache_dir": root, "runtime_dir": runtime / "run", "base": ()})
    outcome = start_daemon(here)
    if not outcome.runs:
        raise outcome.error()
    try:
        progress = runtime / "progress"
        progress.mkdir()
        own = {
            "MODE": "wait",
            "TIERS": "default",  # the command must not end before the artifact of the whole graph is in the store
            "CACHE_DIR": str(root),
            "RUNTIME_DIR": str(here.runtime_dir),
            "BASE": os.pathsep,
            "REMOTE": "none",
            "PACKAGE_AUDIT": "0",
            **({"PACKAGES": "program"} if here.packages == "off" else {}),
        }
        variables = {**python_path.with_hook(os.environ), **{ENV_PREFIX + name: value for name, value in own.items()}}
        variables.update(given)
        variables.pop("PRECOMPILED", None)
        if here.triton != "off":  # kernels in Triton's own cache would not be compiled, and so not published
            variables["TRITON_CACHE_DIR"] = str(runtime / "triton")
        if steps:
            variables[VARIABLE] = f"{steps}:{progress}"
        ended = _run(cmd, variables, progress, timeout, out.as_json)
        stats: wire.StatsReply = ask_daemon(here, wire.Stats(), STOP_S)
    finally:
        stop_daemon(here, STOP_S)
    store = Store(root)
    if store.is_empty() and not TritonKernels(root).all_keys():
        raise PrecompiledError(
            f"the command compiled nothing (end: {ended})",
            "Install precompiled in its Python, and call torch.compile; or allow more time or steps",
            code="bake-empty",
        )
    baked = baking.bake(store, place)
    return {
        "output": str(place),
        "ended": ended,
        "artifacts": baked.artifacts,
        "packages": baked.packages,
        "kernels": baked.kernels,
        "bytes": baked.bytes,
        "bypassed": stats.bypassed,
        "fallbacks": stats.fallbacks,
        "not_kept": stats.not_kept,
    }


def _run(cmd: Sequence[str], variables: dict[str, str], progress: Path, timeout: float, as_json: bool) -> str:
    """Run the command. Returns why it ended: "itself", "steps" or "timeout". Raises PrecompiledError."""
    began = time.monotonic()
    try:
        # With --json, stdout is for the JSON document.
        process = subprocess.Popen(list(cmd), env=variables, stdout=2 if as_json else None, start_new_session=True)
    except OSError as error:
        raise start_error("precompiled bake -o DIR", cmd[0], error) from error
    first_done: float | None = None
    try:
        while True:
            try:
                status = process.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                status = None
            if status is not None:
                break
            now = time.monotonic()
            done = {path.stem for path in progress.glob("*.done")}
            if done and first_done is None:
                first_done = now
            if done and ({path.name for path in progress.iterdir() if not path.suffix} <= done):
                return "steps"
            if first_done is not None and now - first_done > GRACE_S:
                return "steps"
            if timeout and now - began > timeout:
                return "timeout"
    finally:
        _end(process)
    if status != 0:
        raise PrecompiledError(
            f"the command ended with status {status}, so nothing was saved",
            "Read the command's own message",
            code="bake-command-failed",
        )
    return "itself"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and its session. SIGTERM comes first, so that `with` blocks can clean up. SIGKILL follows."""
    for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(wait_s)
            break
        except subprocess.TimeoutExpired:
            continue
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # for children that survived SIGTERM
