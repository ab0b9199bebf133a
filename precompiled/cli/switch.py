"""run, enable, disable: switch the hook on for a command, or for every run of an interpreter."""

from __future__ import annotations

import os
import shlex
import signal
import sys

import click

from precompiled import parts
from precompiled.cli.app import command
from precompiled.cli.output import Output
from precompiled.cli.target_option import target_option
from precompiled.core import python_path
from precompiled.core.config import ENV_PREFIX, Settings
from precompiled.core.errors import PrecompiledError
from precompiled.core.setting_values import MODES
from precompiled.store import scratch
from precompiled.version import SWITCH, switched_off

# Exit statuses for a command that cannot be started, as in env(1), nohup(1) and shells.
NOT_EXECUTABLE = 126
NOT_FOUND = 127


# With an invalid setting, the command runs without precompiled.
@command(
    "run",
    needs_valid_settings=False,  # a program that imports torch reports invalid settings
    json_help="Print an error of this command as one JSON document.",
    context_settings={"allow_interspersed_args": False},
    examples=[
        "precompiled run -- python train.py",
        "precompiled run --mode wait -- torchrun --nproc-per-node 8 train.py",
    ],
)
@click.option("--mode", type=click.Choice(MODES), help="Set PRECOMPILED_MODE for the command.")
@click.option("--triton", is_flag=True, help="Set PRECOMPILED_TRITON=on for the command.")
@target_option
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD...")
def run_command(
    out: Output,
    settings: Settings,
    mode: str | None,
    triton: bool,
    cmd: tuple[str, ...],
    target: parts.WantedDevicesProtocol | None = None,
) -> int:
    """Run a command, and its Python children, with precompiled on.

    CMD replaces this process: CMD gets all signals and sets the exit status (127 if CMD is not found, 126 if CMD cannot
    be executed).
    """

    if not cmd:
        raise click.UsageError("Give a command after `--`: `precompiled run -- python train.py`")
    if any(name.startswith(SWITCH) for name in os.environ):
        from precompiled.cli import checks_hook

        for mistake in checks_hook.find_mistakes(os.environ):
            out.note(f"precompiled: {mistake}")
    variables = hook_environment(settings)
    if mode is not None:
        variables[ENV_PREFIX + "MODE"] = mode
    if triton:
        variables[ENV_PREFIX + "TRITON"] = "on"
    if switched_off(variables):
        if target is not None:
            raise click.UsageError(f"PRECOMPILED={variables[SWITCH]} is set, but --target needs precompiled on")
        out.note(f"precompiled: PRECOMPILED={variables[SWITCH]} is set, so the command runs without precompiled.")
    if target is not None:
        # The caches for a target are in the scratch folder, so that eviction limits their size. The user's caches do
        # not change.
        caches = scratch.directory(settings.cache_dir) / "targets" / target.kind.code
        targets = parts.TARGETS.require()
        variables.update(targets.variables(target, cmd, caches))
        out.note(targets.warning(target))
    for name in ("SIGPIPE", "SIGXFSZ"):
        # Python ignores these signals. The command would inherit this, and `run -- yes | head` would never end.
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(cmd[0], list(cmd), variables)
    except OSError as error:
        return print_start_error(out, "precompiled run", cmd[0], error)


def hook_environment(settings: Settings) -> dict[str, str]:
    """Environment variables that switch the hook on for a command, and pass on the directories given as flags."""
    variables = python_path.with_hook(os.environ)
    for name in ("cache_dir", "runtime_dir"):
        if settings.origins[name] == "flag":
            variables[ENV_PREFIX + name.upper()] = str(getattr(settings, name))
    return variables


def print_start_error(out: Output, line: str, program: str, error: OSError) -> int:
    """Print why a command did not start. Returns the exit status."""
    found = start_error(line, program, error)
    out.error(found.code, found.message, found.action)
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def start_error(line: str, program: str, error: OSError) -> PrecompiledError:
    """Return the error for a command that does not start. ``line``: the part of the command line before ``--``."""
    missing = isinstance(error, FileNotFoundError)
    message, advice = f"{program} cannot be run: {error.strerror or error}", "Check that it is an executable file"
    if os.path.isfile(program) and program.endswith(".py"):
        message = f"{program} is a Python program, not a command"
        advice = f"Run `{line} -- python {shlex.quote(program)}`"
    elif os.path.isfile(program) and "/" not in program and missing:
        message = f"{program} is a file in this directory, but PATH has no command of this name"
        advice = f"Run `{line} -- {shlex.quote(f'./{program}')}`"
    elif missing and not os.path.exists(program):
        message, advice = f"there is no command {program!r}", "Check the spelling and PATH"
    return PrecompiledError(message, advice, code="command-not-found" if missing else "command-not-executable")


@command("enable", examples=["precompiled enable"])
@click.option("--user", is_flag=True, help="Write to your own site-packages, not the interpreter's.")
def enable_command(out: Output, settings: Settings, user: bool) -> int:
    """Turn precompiled on for every run of this Python.

    Writes a file with one readable line to the interpreter's site-packages. `precompiled disable` removes the file.
    """
    from precompiled.cli import distributions, probe, pth

    if (found_other := distributions.conflict()) is not None:
        raise PrecompiledError(*found_other, code="two-distributions")
    directory = pth.user_site() if user else pth.site_packages()
    if directory is None:
        raise PrecompiledError(
            f"{sys.executable} does not use your own site-packages, as in most virtual environments",
            "Leave out --user",
            code="no-user-site",
        )
    changed = pth.write(directory)
    path = directory / pth.NAME
    # Check the hook in a new interpreter, because the hook may be off there. With --user, for example, the file runs
    # before the interpreter's own .pth files, but precompiled may be importable only after one of these has run. Check
    # without PYTHONPATH, because other shells lack it.
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PRECOMPILED")}
    found = probe.ask(variables)
    if found.state != "waiting":
        if changed:
            pth.remove(path)
        raise PrecompiledError(
            f"precompiled is still off in {sys.executable} with {path} ({found.state}; {found.problem}). The file is "
            "removed again",
            "Install precompiled into that interpreter, where its start-up code can import it",
            code="hook",
        )
    if switched_off(os.environ):
        out.note(f"precompiled: PRECOMPILED={os.environ[SWITCH]} is set in this shell, so precompiled stays off.")
    verb = "Wrote" if changed else "Already enabled by"
    out.result(
        {"enabled": True, "changed": changed, "path": str(path), "python": sys.executable},
        f"{verb} {path}\nEvery new process of {sys.executable} runs with precompiled on.",
    )
    return 0


@command("disable", examples=["precompiled disable"])
def disable_command(out: Output, settings: Settings) -> int:
    """Undo `enable`.

    Removes the file of `enable` from the interpreter's and from your own site-packages.
    """
    from precompiled.cli import pth

    removed = [str(path) for path in pth.candidates() if pth.remove(path)]
    text = (
        "\n".join(f"Removed {path}" for path in removed)
        or "Nothing to remove: precompiled was not enabled for this Python."
    )
    out.result({"enabled": False, "changed": bool(removed), "removed": removed, "python": sys.executable}, text)
    return 0
