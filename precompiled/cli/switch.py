"""run, enable, disable: where the hook is on."""

from __future__ import annotations

import os
import shlex
import signal
import sys

import click

from precompiled.cli import targets
from precompiled.cli.app import command
from precompiled.cli.output import Output
from precompiled.core import python_path
from precompiled.core.config import ENV_PREFIX, MODES, Settings
from precompiled.core.errors import PrecompiledError
from precompiled.store import scratch
from precompiled.version import SWITCH, switched_off

# The statuses of env(1), nohup(1) and shells for a command that cannot be started.
NOT_EXECUTABLE = 126
NOT_FOUND = 127


# A setting that cannot be used keeps no command from running: without us, as the hook in it says.
@command("run", raises=False, context_settings={"allow_interspersed_args": False})
@click.option("--mode", type=click.Choice(MODES), help="PRECOMPILED_MODE for the command.")
@targets.option
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD...")
def run_command(
    out: Output, settings: Settings, mode: str | None, target: targets.Devices | None, cmd: tuple[str, ...]
) -> int:
    """Run a command with the hook on, in it and in all Python processes below it.

    The command takes this process's place, so its exit status and its signals are its own. Status 127: there is no
    such command; 126: it cannot be executed.
    """

    if not cmd:
        raise click.UsageError("there is no command to run; put it behind `--`, as in `precompiled run -- python x.py`")
    variables = hooked(settings)
    if mode is not None:
        variables[ENV_PREFIX + "MODE"] = mode
    if switched_off(variables):
        if target is not None:
            raise click.UsageError(f"PRECOMPILED={variables[SWITCH]} is set: without the hook there is no made-up GPU")
        out.note(f"precompiled: PRECOMPILED={variables[SWITCH]} is set, so the command runs without the hook.")
    if target is not None:
        # Where workers keep theirs: it is taken away in time, and the user's own caches see nothing of it.
        caches = scratch.directory(settings.cache_dir) / "targets" / target.kind.code
        variables.update(targets.variables(target, cmd, caches))
        out.note(targets.warning(target))
    for name in ("SIGPIPE", "SIGXFSZ"):
        # Python ignores these signals, and exec keeps that: `run -- yes | head` would never end.
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(cmd[0], list(cmd), variables)
    except OSError as error:
        cannot_run(out, cmd[0], error)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def hooked(settings: Settings) -> dict[str, str]:
    """The variables of a command that runs with the hook on, and with the directories that were given as flags."""
    variables = python_path.with_hook(os.environ)
    for name in ("cache_dir", "runtime_dir"):
        if settings.origins[name] == "flag":
            variables[ENV_PREFIX + name.upper()] = str(getattr(settings, name))
    return variables


def cannot_run(out: Output, program: str, error: OSError) -> None:
    missing = isinstance(error, FileNotFoundError)
    advice = "Check its spelling and PATH" if missing else "Check that it is an executable file"
    if program.endswith(".py") and os.path.isfile(program):
        name = click.get_current_context().info_name
        advice = f"It is a Python program: `precompiled {name} -- python {shlex.quote(program)}`"
    out.error(
        "command-not-found" if missing else "command-not-executable",
        f"{program} cannot be run: {error.strerror or error}",
        advice,
    )


@command("enable")
@click.option("--user", is_flag=True, help="Write into your own site-packages, not the interpreter's.")
def enable_command(out: Output, settings: Settings, user: bool) -> int:
    """Switch the hook on for this interpreter for good: one readable line in its site-packages."""
    from precompiled.cli import probe, pth

    directory = pth.user_site() if user else pth.site_packages()
    if directory is None:
        raise PrecompiledError(
            f"{sys.executable} does not look into a user's own site-packages (a virtual environment does not)",
            "Leave out --user",
            code="no-user-site",
        )
    changed = pth.write(directory)
    path = directory / pth.NAME
    # Ask a fresh interpreter: a user's site-packages, for one, comes before the directory that precompiled may be
    # installed in. Without PYTHONPATH, which other shells will not have.
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PRECOMPILED")}
    found = probe.ask(variables)
    if found.state != "waiting":
        if changed:
            pth.remove(path)
        raise PrecompiledError(
            f"with {path} written, the hook is still not on in {sys.executable} ({found.state}; {found.problem})",
            "Install precompiled into that interpreter where its start-up code can import it; nothing was left behind",
            code="hook",
        )
    if switched_off(os.environ):
        out.note(f"precompiled: PRECOMPILED={os.environ[SWITCH]} is set in this shell: the hook stays off where it is.")
    verb = "Wrote" if changed else "Already there:"
    out.result(
        {"enabled": True, "changed": changed, "path": str(path), "python": sys.executable},
        f"{verb} {path}\nThe hook is on in every process of {sys.executable} from now on.",
    )
    return 0


@command("disable")
def disable_command(out: Output, settings: Settings) -> int:
    """Remove what `enable` wrote, from this interpreter's and from your own site-packages."""
    from precompiled.cli import pth

    removed = [str(path) for path in pth.candidates() if pth.remove(path)]
    text = "\n".join(f"Removed {path}" for path in removed) or "Nothing to remove: the hook was not enabled for good."
    out.result({"enabled": False, "changed": bool(removed), "removed": removed, "python": sys.executable}, text)
    return 0
