"""doctor's checks of the hook: whether it routes torch.compile to precompiled in the user's next processes."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from precompiled.cli import distributions, probe, pth
from precompiled.core import python_path
from precompiled.core.check import Check
from precompiled.core.config import ENV_PREFIX, NAMES, Settings
from precompiled.core.words import closest
from precompiled.torch_internals import NEWEST, OLDEST, is_supported
from precompiled.version import ON, SWITCH, VERSION, switched_off

# Names after PRECOMPILED_ that are not settings. Such variables are internal, or belong to examples/deploy, the tests
# or the benchmarks.
NO_SETTINGS = tuple(
    """
    BAKING CAPTURE LOCAL SHARED STARTS SYSTEMD_TESTS SYSTEMD_TEST_VENV TARGET TESTS_FAULTS TESTS_LEAVE TESTS_PART
    TESTS_SHARED TESTS_UNTIL TEST_SEEDS TEST_VENVS TEST_VENV_CACHE TIMELINE TORCH_TESTS VERSION_TESTS
    """.split()
)
_REPORT_THIS = "report this bug, with the output of `precompiled doctor --json`"


def run(settings: Settings, *, is_valid: bool, with_packages: bool) -> Iterator[Check]:
    """``is_valid``: whether all settings of files and variables are valid."""
    variables = dict(os.environ)
    yield switch(variables, settings.mode, settings.require)
    yield check_variable_names(variables)
    yield installation()
    yield pth_file(pth.write_files())
    yield here(variables, probe.ask(variables))
    yield below_run(probe.ask(python_path.with_hook({**variables, "PRECOMPILED": "1"})))
    version = _torch_version()
    yield torch_version(version)
    if version is not None and is_valid:  # with an invalid setting, torch.compile is not routed
        switched_on = {**variables, "PRECOMPILED": "1", "PRECOMPILED_MODE": "eager"}
        with_torch = probe.ask_with_torch(python_path.with_hook(switched_on), packages=with_packages)
        yield route(with_torch)
        if with_packages and with_torch.packages:
            yield packages(with_torch)


def switch(variables: Mapping[str, str], mode: str, require: bool) -> Check:
    """Whether the user has disabled precompiled."""
    too = ", and `require` with it" if require else ""
    if switched_off(variables):
        text = f"PRECOMPILED={variables[SWITCH]} is set: precompiled is off{too}"
        return Check("switch", "warn", text, "Unset PRECOMPILED")
    if value := _invalid_switch(variables):
        return Check(
            "switch",
            "warn",
            f"PRECOMPILED={value} is invalid and has no effect: on, mode {mode}",
            "Set PRECOMPILED=0 to switch precompiled off, or unset it",
        )
    if mode == "off":
        return Check(
            "switch",
            "warn",
            f"the mode is off: precompiled serves no graph{too}",
            "See `precompiled config` for its origin",
        )
    return Check("switch", "ok", f"on, mode {mode}{', artifacts are required' if require else ''}")


def find_mistakes(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence if PRECOMPILED has an invalid value, and for each unknown variable that resembles a setting."""
    if value := _invalid_switch(variables):
        yield f"PRECOMPILED={value} is invalid and has no effect. PRECOMPILED=0 switches precompiled off."
    for name, near in _unknown_names(variables):
        if near:
            yield f"no setting is named {name}. Did you mean {near}?"


def _invalid_switch(variables: Mapping[str, str]) -> str:
    """The value of PRECOMPILED if it switches precompiled neither on nor off, else ""."""
    value = variables.get(SWITCH, "").strip()
    return "" if switched_off(variables) or value.lower() in ON else value


def _unknown_names(variables: Mapping[str, str]) -> list[tuple[str, str]]:
    """Each variable that begins with PRECOMPILED_ and names no setting, with the name of a similar setting or ""."""
    settings = [name.upper() for name in NAMES]
    ours = sorted(name.removeprefix(ENV_PREFIX) for name in variables if name.startswith(ENV_PREFIX))
    unknown = [name for name in ours if name not in settings and name not in NO_SETTINGS]
    near = [closest(name, settings) for name in unknown]
    return [(ENV_PREFIX + name, ENV_PREFIX + found if found else "") for name, found in zip(unknown, near, strict=True)]


def check_variable_names(variables: Mapping[str, str]) -> Check:
    """Whether each variable that begins with PRECOMPILED_ is a setting. A misspelt variable would be ignored
    silently.
    """
    said = [name + (f" (did you mean {near}?)" if near else "") for name, near in _unknown_names(variables)]
    if not said:
        return Check("variables", "ok", f"all variables that begin with {ENV_PREFIX} are settings")
    return Check(
        "variables",
        "warn",
        f"no {'setting is' if len(said) == 1 else 'settings are'} named {', '.join(said)}",
        "Correct or unset them; `precompiled config` lists the settings",
    )


def installation() -> Check:
    """Whether another distribution overwrites files of this package."""
    if (found := distributions.conflict()) is not None:
        return Check("installation", "fail", *found)
    return Check("installation", "ok", f"{distributions.NAME} {VERSION}")


def pth_file(paths: list[Path]) -> Check:
    if not paths:
        return Check("pth", "ok", "not enabled (`precompiled enable` enables the hook for every run)")
    for path in paths:
        try:
            altered = path.read_text() != pth.LINE
        except (OSError, UnicodeDecodeError) as error:
            return Check("pth", "fail", f"{path} cannot be read: {error}", "Run `precompiled enable` again")
        if altered:
            return Check("pth", "warn", f"{path} has the text of a different version", "Run `precompiled enable` again")
    return Check("pth", "ok", f"enabled: {', '.join(map(str, paths))}")


def here(variables: Mapping[str, str], found: probe.Probe) -> Check:
    """Whether the hook is on in a program that this shell starts without `precompiled run`."""
    if found.state == "waiting" or (found.state == "fired" and found.torch):
        return Check("hook", "ok", f"a new process of {sys.executable} has the hook")
    if switched_off(variables):
        return Check("hook", "warn", f"off, as PRECOMPILED={variables[SWITCH]} is set", "Unset PRECOMPILED")
    if found.state in ("failed", "error"):
        return Check("hook", "fail", f"the hook fails at start-up: {found.problem}", "Reinstall precompiled")
    entries = [entry for entry in variables.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if str(python_path.hook_folder()) in entries:
        other = found.sitecustomize or "another sitecustomize"
        return Check(
            "hook",
            "fail",
            f"{other} shadows the folder of precompiled on PYTHONPATH",
            f"Put {python_path.hook_folder()} first on PYTHONPATH, as `precompiled run` does, "
            "or run `precompiled enable`",
        )
    return Check(
        "hook",
        "info",
        f"precompiled is off in a new process of {sys.executable}",
        "Start programs with `precompiled run -- CMD`, or run `precompiled enable` once",
    )


def below_run(found: probe.Probe) -> Check:
    """Whether `precompiled run` works with this interpreter."""
    if found.state == "waiting" or (found.state == "fired" and found.torch):
        ours = str(python_path.hook_folder())
        chained = found.sitecustomize and not found.sitecustomize.startswith(ours)
        return Check("run", "ok", f"works, and also runs {found.sitecustomize}" if chained else "works")
    problem = found.problem or f"the hook is {found.state}"
    return Check("run", "fail", f"`precompiled run` has no effect: {problem}", "Reinstall precompiled")


def torch_version(version: str | None) -> Check:
    wanted = f"Install a torch from {_dotted(OLDEST)} to {_dotted(NEWEST)}"
    if version is None:
        return Check("torch", "fail", f"{sys.executable} has no torch", f"{wanted} there")
    try:
        known = is_supported(version)
    except ValueError:
        return Check("torch", "fail", f"torch's version {version!r} cannot be read", wanted)
    if not known:
        return Check(
            "torch", "fail", f"torch {version} is not supported: torch.compile works without precompiled", wanted
        )
    return Check("torch", "ok", f"torch {version}")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def route(found: probe.Probe) -> Check:
    """Whether torch.compile is routed to precompiled after torch is imported."""
    if found.state == "on":
        return Check("route", "ok", "precompiled serves torch.compile when torch is imported")
    return Check(
        "route",
        "fail",
        f"torch.compile is not routed: {found.problem.removeprefix('torch.compile is not routed: ') or found.state}",
        f'Use torch.compile(backend="precompiled"), and {_REPORT_THIS}',
    )


def packages(found: probe.Probe) -> Check:
    """Whether a process can reuse the traces of earlier processes."""
    if found.packages == "on":
        return Check("packages", "ok", "a process reuses the traces of earlier processes")
    if found.packages == "off":
        return Check("packages", "ok", "the setting `packages` is off: each process traces")
    return Check(
        "packages",
        "warn",
        f"packages are off with this torch, so each process traces: {found.packages}",
        f"Artifacts are used; {_REPORT_THIS}",
    )


def _torch_version() -> str | None:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
