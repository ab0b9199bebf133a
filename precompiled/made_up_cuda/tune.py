"""tools tune: recompile, on this host's GPU, artifacts that were built without a GPU (docs/guides/targets.md)."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from precompiled import parts
from precompiled.cli.app import command
from precompiled.cli.key_prefixes import KEY, resolve
from precompiled.cli.output import SHOWN_DIGITS, Output
from precompiled.core.config import Settings
from precompiled.core.errors import PrecompiledError, StoreError
from precompiled.core.words import format_count
from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Artifact, Store

if TYPE_CHECKING:
    from precompiled import wire
    from precompiled.client.connection import DaemonConnection
    from precompiled.core.program_data import ProgramData

IDLE_PERCENT = 5
LOOKS, LOOK_S = 3, 1.0  # a GPU counts as idle after this many idle samples in a row, this far apart
BUSY_S = 10.0  # wait after a sample that was not idle


@command("tune", examples=["precompiled tools tune --when-idle"])
@click.option("--when-idle", is_flag=True, help="Wait before each compile until nothing uses the GPU.")
@click.argument("keys", nargs=-1, metavar="[KEY]...", type=KEY)
def tune_command(out: Output, settings: Settings, when_idle: bool, keys: tuple[str, ...]) -> int:
    """Recompile on this GPU artifacts that were built without one.

    A compile without a GPU (`--target`, `compile_without_gpu`, a farm) cannot measure which kernel is faster. This
    command recompiles such artifacts of the store and its bases, or those of the KEYs that you name; the first four
    digits are enough.

    Run it in the program's environment, with the program's PYTHONPATH, while the GPU is idle. Processes that start
    later use the new artifacts. The artifacts also go to the remote, if one is set. The exit status is 1 if an artifact
    could not be recompiled.
    """
    store = Store(settings.cache_dir, settings.base)
    found = untuned_artifacts(store, resolve(store, keys))
    tuned: list[str] = []
    left: dict[str, str] = {}
    if found:
        connection = _connected(settings)
        try:
            for number, artifact in enumerate(found, 1):
                manifest = artifact.manifest
                out.note(f"{number}/{len(found)} {manifest.name} {manifest.key[:SHOWN_DIGITS]}")
                began = time.monotonic()
                why = _tune(out, settings, store, artifact, connection, when_idle)
                if why:
                    left[manifest.key] = why
                    out.note(f"    not recompiled: {why}")
                else:
                    tuned.append(manifest.key)
                    out.note(f"    compiled in {time.monotonic() - began:.1f} s")
        finally:
            connection.close()
    text = f"Recompiled {format_count(len(tuned), 'artifact')}" + (f"; {len(left)} could not be." if left else ".")
    out.result({"tuned": tuned, "left": left}, text if found else "Nothing to recompile.")
    return 1 if left else 0


def untuned_artifacts(store: Store, beginnings: Sequence[str] = ()) -> list[Artifact]:
    """The artifacts that are not tuned yet, sorted by name. ``beginnings``: prefixes of their keys."""
    every = [item for item in store.all_artifacts() if item.manifest.key.startswith(tuple(beginnings) or "")]
    done = {(item.manifest.key, item.manifest.guards) for item in every if item.manifest.tier != fmt.UNTIMED}
    found: dict[tuple[str, str], Artifact] = {}
    for item in every:
        what = item.manifest.key, item.manifest.guards
        if item.manifest.tier == fmt.UNTIMED and what not in done:
            found.setdefault(what, item)
    return sorted(found.values(), key=lambda item: (item.manifest.name, item.manifest.key))


def _connected(settings: Settings) -> DaemonConnection:
    from precompiled.client.connection import DaemonConnection
    from precompiled.client.daemon_link import daemon_reachable
    from precompiled.client.start import start_daemon

    if settings.has_helper and (remote := parts.REMOTE.get()) is not None:
        remote.ensure_helper(settings)  # the helper copies the new artifacts to the remote
    if not daemon_reachable(settings):
        outcome = start_daemon(settings)
        if not outcome.runs:
            raise outcome.error()
    return DaemonConnection(settings)


def _tune(
    out: Output, settings: Settings, store: Store, artifact: Artifact, connection: DaemonConnection, when_idle: bool
) -> str:
    """Recompile one artifact; returns why that failed, or ""."""
    from precompiled import wire
    from precompiled.graph import capture, environment

    manifest = artifact.manifest
    try:
        data = store.read_program(artifact)
    except (StoreError, FileNotFoundError) as error:
        return str(error)
    if data is None:
        return "its graph was not kept"
    program = capture.parse(data)
    if any("content" in item for item in program["inputs"]["args"]):
        return "its weights are constants of its code, and were not kept"
    device, differing = environment.device_with(program["environment"])
    if differing:
        return f"this environment differs from its own ({differing})"
    if _is_tuned(store, manifest.key, program):
        return ""  # a tuned artifact with differently written guards serves the same sizes
    interpreter, place = environment.worker_for(device, capture.modules(program))
    if when_idle and device != "cpu":
        wait_until_idle(place.partition(":")[2], out)
    message = wire.Submit(
        id=uuid.uuid4().hex,
        key=manifest.key,
        store=str(store.root),
        environment=interpreter,
        device=place,
        name=manifest.name,
        waiting=True,
        base=[str(path) for path in settings.base],
        tune=True,
    )
    why = _submitted(connection, message, data, settings.job_timeout_s)
    if not why and not _is_tuned(store, manifest.key, program):
        return "the new artifact could not be measured either"
    return why


def _is_tuned(store: Store, key: str, program: ProgramData) -> bool:
    """Whether the store has a tuned artifact for the sizes of a program."""
    from precompiled.graph import capture

    tuned = (item.manifest.guards for item in store.lookup(key) if item.manifest.tier != fmt.UNTIMED)
    return capture.is_served(program, tuned)


def _submitted(connection: DaemonConnection, message: wire.Submit, graph: bytes, limit_s: float) -> str:
    """Submit a job and wait for its end; returns why it failed, or ""."""
    from precompiled import wire

    ended = threading.Event()
    said = [f"it did not end within {limit_s:g} s"]

    def on_reply(reply: wire.DaemonMessage) -> None:
        if isinstance(reply, wire.Rejected):
            said[0] = f"{reply.message} ({reply.code})"
            ended.set()
        elif isinstance(reply, wire.Accepted) and reply.state == "published":
            said[0] = ""
            ended.set()

    connection.submit(message, graph, on_reply)
    try:
        ended.wait(limit_s)
    finally:
        connection.forget(message.id)
    return said[0]


def wait_until_idle(uuid: str, out: Output) -> None:
    """Wait until a GPU is idle. Raises PrecompiledError if nvidia-smi cannot report the GPU's use."""
    is_reported = False
    while True:
        for _look in range(LOOKS):
            if (used := _used_percent(uuid)) > IDLE_PERCENT:
                break
            time.sleep(LOOK_S)
        else:
            return
        if not is_reported:
            out.note(f"    waiting for the GPU, which is in use ({used} %)")
            is_reported = True
        time.sleep(BUSY_S)


def _used_percent(uuid: str) -> int:
    tool = shutil.which("nvidia-smi")
    said = "it is not on PATH"
    if tool is not None:
        asked = [tool, f"--id={uuid}", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        done = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        said = (done.stdout or done.stderr).strip()
        if done.returncode == 0 and said.isdigit():
            return int(said)
    raise PrecompiledError(
        f"nvidia-smi does not report how much the GPU is used: {said}",
        "Run this without --when-idle while nothing uses the GPU",
        code="gpu-use-unknown",
    )
