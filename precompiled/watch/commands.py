"""watch: register entry points or commands whose graphs the daemon recompiles after each save, and show their state."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from precompiled.cli.app import Command, command
from precompiled.cli.output import JSON_HAS, Output, human_age, table
from precompiled.cli.switch import start_error
from precompiled.client.daemon_link import daemon_reachable
from precompiled.core.config import Settings
from precompiled.core.errors import ConfigError, DaemonError, PrecompiledError
from precompiled.core.words import format_count, human_seconds

if TYPE_CHECKING:
    from precompiled import wire

ANSWER_S = 10.0
START_S = 30.0
LOOK_S = 0.2
AT_REST = ("ready", "failed")
ERROR_LINES = 30  # lines of a traceback that the live view shows


class _WithCommand(Command):
    """Takes the arguments after ``--`` as the command to run, not as entry points."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta["precompiled.command"] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


@command(
    "watch",
    cls=_WithCommand,
    examples=[
        "precompiled watch -- python train.py",
        "precompiled watch model:make_model",
    ],
)
@click.option("--last", is_flag=True, help="Watch your last run.")
@click.option("--list", "listing", is_flag=True, help="Print what is watched and exit.")
@click.option("--remove", is_flag=True, help="Stop watching the targets (or ids) that you name.")
@click.option("--all", "everything", is_flag=True, help="With --remove: stop watching everything.")
@click.option("--wait", is_flag=True, help="Accept a module that does not exist yet.")
@click.option("--detach", is_flag=True, help="Watch in the background, without the live view.")
@click.option("--once", is_flag=True, help="Exit when all targets are ready (status 0) or one failed (status 1).")
@click.option("--file", "files", multiple=True, metavar="PATH", help="Also recompile when PATH changes. Repeatable.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=1.0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Limit the time of one capture.",
)
@click.option(
    "--memory-limit",
    type=click.FloatRange(min=0.1),
    metavar="GIB",
    help="Limit the memory of one capture. Default: half of the machine's.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="End a watched command after N optimizer steps without a new graph.",
    metavar="N",
)
@click.argument("targets", nargs=-1, metavar="[PKG.MODULE[:FACTORY]]... [-- CMD...]")
@click.pass_context
def watch_command(
    ctx: click.Context,
    out: Output,
    settings: Settings,
    targets: tuple[str, ...],
    last: bool,
    listing: bool,
    remove: bool,
    everything: bool,
    detach: bool,
    once: bool,
    **how: object,
) -> int:
    """Compile each save in the background, before your next run.

    \b
    PKG.MODULE:FACTORY  call this factory after each save, and compile its graphs
    PKG.MODULE          the same for each function with @precompiled.entry_point
    -- CMD...           run this command after each save, up to its first steps

    Without a target, the command reads the list `watch` of [tool.precompiled] in pyproject.toml.

    The daemon watches until you run this command with --remove.
    """
    argv: list[str] = ctx.meta.get("precompiled.command", [])
    chosen = sum([bool(targets), bool(argv), last])
    if chosen > 1 and not remove:
        raise click.UsageError("Give only one of: modules, `-- CMD...`, --last")
    if listing or remove:
        if remove:
            _remove(out, settings, [*targets, *([" ".join(argv)] if argv else [])], everything)
        else:
            _list(out, settings)
        return 0
    registrations = list(_registrations(settings, targets, argv, last, how))
    if not how["wait"]:
        for registration in registrations:
            if registration.kind == "entry":
                _check_module(registration.command[0].partition(":")[0], registration.directory)
    from precompiled.service.watch import registry

    if not registrations and not registry.any_registered(settings.cache_dir) and not daemon_reachable(settings):
        raise _nothing_to_watch()  # without starting a daemon
    _ensure_daemon(settings)
    ids = [id for registration in registrations for id in _register(settings, registration)]
    if not ids and not _watches(settings).watches:
        raise _nothing_to_watch()
    if detach:
        them = "it" if len(ids) == 1 else "them"
        text = f"Watching {format_count(len(ids), 'target')}. `precompiled watch` shows {them}."
        out.result({"watching": ids}, text)
        return 0
    return _look_on(out, settings, set(ids), once)


def _nothing_to_watch() -> PrecompiledError:
    return PrecompiledError(
        "there is nothing to watch",
        "Give a module (pkg.module:factory) or a command (-- python train.py)",
        code="nothing-to-watch",
    )


# ---------------------------------------------------------------- targets


def _check_module(name: str, directory: str) -> None:
    """Raise PrecompiledError if ``directory`` has no module of this name. Imports nothing."""
    before, path = list(sys.path), None
    sys.path[:0] = [directory]
    try:
        for depth, _ in enumerate(parts := name.split("."), 1):
            part = ".".join(parts[:depth])
            finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
            spec = next((found for finder in finders if (found := finder.find_spec(part, path))), None)
            if spec is None:
                action = "Check the spelling, or give --wait to watch a module that does not exist yet"
                if name.endswith(".py"):
                    action = f"Watch a program by its command: `precompiled watch -- python {name}`"
                raise PrecompiledError(
                    f"there is no module {part!r} in {directory} or on the path of {sys.executable}",
                    action,
                    code="no-such-module",
                )
            path = list(spec.submodule_search_locations or [])
    finally:
        sys.path[:] = before


def _registrations(
    settings: Settings, targets: Sequence[str], argv: list[str], last: bool, how: dict[str, Any]
) -> Iterator[wire.Registration]:
    from precompiled import wire

    directory = os.getcwd()
    files = list(how["files"])
    if last:
        from precompiled.store import run_records

        process = run_records.last_command(settings.cache_dir)
        common = {"executable": process.executable, "directory": process.directory, "variables": dict(os.environ)}
        kind, commands = "run", [[process.executable, *process.argv[1:]]]
    elif argv:
        found = shutil.which(argv[0])
        if found is None:
            raise start_error("precompiled watch", argv[0], FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
        common = {"executable": sys.executable, "directory": directory, "variables": dict(os.environ)}
        kind, commands = "run", [argv]
    else:
        if not targets:
            targets, more, directory = _of_project(Path(directory))
            files += more
        common = {"executable": sys.executable, "directory": directory, "variables": dict(os.environ)}
        kind, commands = "entry", [[target] for target in targets]
    paths = [os.path.abspath(os.path.join(str(common["directory"]), path)) for path in files]
    for path in paths:
        if not os.path.isfile(path):
            raise click.UsageError(f"--file: there is no file {path!r}")
    memory = int((how["memory_limit"] or 0) * (1 << 30))
    for words in commands:
        yield wire.Registration(
            kind=kind,  # type: ignore[arg-type]
            command=list(words),
            store=str(settings.cache_dir),
            files=paths,
            time_limit_s=how["time_limit"],
            memory_limit_bytes=memory,
            steps=how["steps"],
            **common,  # type: ignore[arg-type]
        )


def _of_project(start: Path) -> tuple[list[str], list[str], str]:
    """``watch`` and ``watch-files`` of [tool.precompiled] in the nearest pyproject.toml, and the file's directory."""
    from precompiled.core.config import _read_toml

    for directory in (start, *start.parents):
        path = directory / "pyproject.toml"
        if not path.is_file():
            continue
        section = _read_toml(path).get("tool", {}).get("precompiled", {})
        lists = [section.get(name, []) for name in ("watch", "watch-files")]
        for found in lists:
            if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
                raise ConfigError(
                    f"[tool.precompiled] in {path} needs lists of strings", 'Write watch = ["pkg.module:factory"]'
                )
        return lists[0], lists[1], str(directory)
    return [], [], str(start)


def _ensure_daemon(settings: Settings) -> None:
    from precompiled.client.start import start_daemon

    if daemon_reachable(settings) or not settings.starts_daemon:
        return
    outcome = start_daemon(settings, START_S)
    if not outcome.runs:
        raise outcome.error()


def _register(settings: Settings, registration: wire.Registration) -> list[str]:
    from precompiled import wire
    from precompiled.client import ask

    ids: list[str] = ask.request(settings, wire.Watch(registration), ANSWER_S).ids
    return ids


def _watches(settings: Settings) -> wire.WatchesReply:
    from precompiled import wire
    from precompiled.client import ask

    reply: wire.WatchesReply = ask.request(settings, wire.Watches(), ANSWER_S)
    return reply


def _remove(out: Output, settings: Settings, names: list[str], everything: bool) -> None:
    from precompiled import wire
    from precompiled.client import ask

    if not names and not everything:
        raise click.UsageError("--remove needs targets or ids, or --all")
    known = _watches(settings).watches
    ids = [w.id for w in known if everything or w.id in names or (w.name in names and w.directory == os.getcwd())]
    ids += [w.id for w in known if w.name in names and w.id not in ids and sum(o.name == w.name for o in known) == 1]
    missing = [name for name in names if not any(name in (w.id, w.name) for w in known)]
    if missing:
        raise PrecompiledError(
            f"{', '.join(map(repr, missing))} is not watched",
            "`precompiled watch --list` shows what is",
            code="no-such-watch",
        )
    removed = ask.request(settings, wire.Unwatch(ids), ANSWER_S).ids
    out.result({"removed": removed}, f"Stopped watching {format_count(len(removed), 'target', zero='no')}.")


def _list(out: Output, settings: Settings) -> None:
    reply = _watches(settings)

    def show() -> None:
        if not reply.watches:
            click.echo("Nothing is watched.")
            return
        show_watches([_fields(watch) for watch in reply.watches])
        for text in reply.degraded:
            click.echo(f"degraded: {text}", err=True)

    out.result({"watches": [_fields(w) for w in reply.watches], "degraded": reply.degraded}, show, JSON_HAS)


# ---------------------------------------------------------------- the live view


def _look_on(out: Output, settings: Settings, ids: set[str], once: bool) -> int:
    """Show every change until Ctrl-C. With ``once``, stop when each target is ready or failed."""
    view: Callable[[wire.WatchesReply, str], None]
    close: Callable[[], None]
    view, close = _json_lines() if out.as_json else _live() if sys.stdout.isatty() else _plain_lines()
    try:
        while True:
            problem, reply = "", None
            try:
                reply = _watches(settings)
            except DaemonError as error:
                if error.code not in ("no-daemon", "no-reply"):
                    raise
                problem = f"{error.message}. The view continues when the daemon is back"
            if reply is not None or problem:
                from precompiled import wire

                shown = reply or wire.WatchesReply([])
                mine = [watch for watch in shown.watches if not ids or watch.id in ids]
                view(wire.WatchesReply(mine, shown.degraded), problem)
                known = {watch.id for watch in shown.watches}
                if once and reply is not None and ids <= known and all(watch.state in AT_REST for watch in mine):
                    return 0 if all(watch.state == "ready" for watch in mine) else 1
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        close()
        if not out.as_json:
            out.note("The daemon watches in the background. `precompiled watch --remove --all` stops it.")
        return 0
    finally:
        close()


def _fields(watch: wire.WatchStatus) -> dict[str, object]:
    import msgspec

    fields: dict[str, object] = msgspec.to_builtins(watch)
    return fields


def _json_lines() -> tuple[Callable[[Any, str], None], Callable[[], None]]:
    """A view that prints a line of JSON for each change: {"event": "watch", ...} or {"event": "daemon", "problem"}."""
    import json

    printed: dict[str, object] = {}

    def say(name: str, document: Mapping[str, object]) -> None:
        if printed.get(name) != document:
            printed[name] = document
            click.echo(json.dumps(document))
            sys.stdout.flush()

    def view(reply: wire.WatchesReply, problem: str) -> None:
        for watch in reply.watches:
            say(watch.id, {"event": "watch", **_fields(watch)})
        if problem or "" in printed:
            say("", {"event": "daemon", "problem": problem})
        if reply.degraded or "degraded" in printed:
            say("degraded", {"event": "degraded", "degraded": reply.degraded})

    return view, lambda: None


def _plain_lines() -> tuple[Callable[[Any, str], None], Callable[[], None]]:
    """A view without a terminal: one line for each change."""
    printed: dict[str, str] = {}

    def view(reply: wire.WatchesReply, problem: str) -> None:
        for watch in reply.watches:
            cells = _cells(_fields(watch), with_ages=False)
            text = "  ".join(cell for cell in cells if cell)
            if watch.error:
                text += "\n" + _indented(watch.error)
            if printed.get(watch.id) != text:
                printed[watch.id] = text
                click.echo(text)
        for text in ([problem] if problem else []) + reply.degraded:
            if printed.get(text) is None:
                printed[text] = text
                click.echo(text)
        sys.stdout.flush()

    return view, lambda: None


COLUMNS = ("ID", "WATCH", "LAST EDIT", "STATE", "GRAPHS", "SAVE TO READY")


def _cells(watch: dict[str, Any], *, with_ages: bool = True) -> tuple[str, ...]:
    edit = ""
    if watch["edited"]:
        edit = os.path.relpath(watch["edited"], watch["directory"])
        if with_ages:
            edit += f", {human_age(watch['edited_at'])} ago"
    counts = ", ".join(
        f"{watch[name]} {name}"
        for name in ("captured", "reused", "compiling", "ready", "failed", "bypassed")
        if watch[name]
    )
    if watch["packages"]:
        counts += f"{', ' if counts else ''}{format_count(watch['packages'], 'package')}"
    took = human_seconds(watch["ready_s"]) if watch["ready_s"] and watch["state"] == "ready" else ""
    return watch["id"], watch["name"], edit, watch["state"], counts, took


def show_watches(watches: list[dict[str, Any]]) -> None:
    """Print a table and the tracebacks, for `status` and `--list`."""
    table(COLUMNS, [_cells(watch) for watch in watches])
    for watch in watches:
        if watch["error"]:
            click.echo(f"\n{watch['name']} failed. Earlier artifacts stay.\n{_indented(watch['error'])}")


def _indented(text: str) -> str:
    lines = text.splitlines()
    return "\n".join(f"    {line}" for line in lines[-ERROR_LINES:])


STYLES = {"ready": "green", "failed": "bold red", "compiling": "yellow", "capturing": "cyan", "waiting": "bright_black"}


def _live() -> tuple[Callable[[Any, str], None], Callable[[], None]]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    live = Live(console=Console(highlight=False), refresh_per_second=4, transient=False)
    live.start()

    def view(reply: wire.WatchesReply, problem: str) -> None:
        shown = Table(box=None, pad_edge=False, header_style="bold")
        for column in COLUMNS:
            shown.add_column(column, overflow="fold")
        parts: list[Any] = [shown]
        for watch in reply.watches:
            cells = _cells(_fields(watch))
            shown.add_row(*(Text(cell, style=STYLES.get(cell, "") if at == 3 else "") for at, cell in enumerate(cells)))
            if watch.error:
                parts.append(Text(f"\n{watch.name} failed. Earlier artifacts stay.", style="red"))
                parts.append(Text(_indented(watch.error)))
            elif watch.note:
                parts.append(Text(f"\n{watch.name}: {watch.note}", style="bright_black"))
        parts += [Text(f"\n{text}", style="yellow") for text in (problem, *reply.degraded) if text]
        parts.append(Text("\nCtrl-C ends this view, not the watching.", style="bright_black"))
        live.update(Group(*parts))

    return view, live.stop
