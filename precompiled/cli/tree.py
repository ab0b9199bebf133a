"""All commands by name: their sections in the help, their modules, and their old names."""

from __future__ import annotations

from precompiled import parts
from precompiled.core.words import closest

# The help's sections and their commands, in order.
SECTIONS = {
    "Use it": ("run", "enable", "disable", "watch", "bake"),
    "See what it does": ("status", "explain", "timeline", "doctor"),
    "Manage it": ("config", "cache", "daemon"),
    "More than one host": ("remote", "farm"),
    "Tools": ("tools",),
}
# Maps each group to its one-line help.
GROUPS = {
    "config": "Show settings, or set one.",
    "cache": "List, inspect and clear the compiled graphs of this host.",
    "daemon": "Start, stop and inspect the daemon that compiles.",
    "remote": "Share compiled graphs between hosts through a bucket.",
    "remote keys": "Manage the keys that sign objects in the remote.",
    "farm": "Show the Ray cluster that compiles for this host.",
    "tools": "Tuning, traces, metrics, package files, shell completion.",
}
# The command that runs when a group is called without a command.
DEFAULTS = {"config": "show"}
# Maps each command to its module below precompiled, in the order of the help. The module defines `<last word>_command`.
# A command of a part that is not installed does not exist.
COMMANDS = {
    "run": "cli.switch",
    "enable": "cli.switch",
    "disable": "cli.switch",
    "watch": "watch.commands",
    "bake": "cli.bake",
    "status": "cli.status",
    "explain": "cli.explain",
    "timeline": "timeline.commands",
    "doctor": "cli.doctor",
    "config show": "cli.settings",
    "config set": "cli.settings",
    "config unset": "cli.settings",
    "cache ls": "cli.store",
    "cache show": "cli.store",
    "cache stats": "cli.stats",
    "cache size": "cli.store",
    "cache dir": "cli.store",
    "cache clear": "cli.store",
    "cache gc": "cli.store",
    "daemon start": "cli.daemon",
    "daemon stop": "cli.daemon",
    "daemon restart": "cli.daemon",
    "daemon logs": "cli.logs",
    "daemon cancel": "cli.jobs",
    "daemon retry": "cli.jobs",
    "daemon serve": "cli.daemon",
    "remote push": "remote.commands",
    "remote pull": "remote.commands",
    "remote sync": "remote.commands",
    "remote ls": "remote.commands",
    "remote gc": "remote.commands",
    "remote keys new": "remote.key_commands",
    "remote keys list": "remote.key_commands",
    "remote keys trust": "remote.key_commands",
    "remote keys forget": "remote.key_commands",
    "farm status": "farm.commands",
    "tools tune": "made_up_cuda.tune",
    "tools trace": "timeline.commands",
    "tools metrics": "metrics.commands",
    "tools package": "cli.package",
    "tools completion": "cli.completion",
}
REMOVED_IN = "0.2"  # the version that removes the old names
# Maps each old name (of versions up to 0.1) to the new name.
RENAMED = {
    "start": "daemon start",
    "stop": "daemon stop",
    "restart": "daemon restart",
    "serve": "daemon serve",
    "top": "status --watch",
    "stats": "cache stats",
    "ls": "cache ls",
    "show": "cache show",
    "clear": "cache clear",
    "gc": "cache gc",
    "cancel": "daemon cancel",
    "retry": "daemon retry",
    "push": "remote push",
    "pull": "remote pull",
    "sync": "remote sync",
    "keys": "remote keys",
    "tune": "tools tune",
    "trace": "tools trace",
    "metrics": "tools metrics",
    "package inspect": "tools package",
    "package": "tools package",
    "completion": "tools completion",
}
# Maps words of other tools to the command to suggest.
SYNONYMS = {
    "cache list": "cache ls",
    "on": "enable",
    "off": "disable",
    "why": "explain",
    "report": "explain",
    "list": "cache ls",
    "clean": "cache clear",
    "purge": "cache clear",
    "rm": "cache clear",
    "info": "status",
    "kill": "daemon stop",
    "log": "daemon logs",
    "settings": "config",
    "set": "config set",
    "unset": "config unset",
    "get": "config",
}


def exists(path: str) -> bool:
    """Whether a command or a group exists. A command of an optional part exists only if the part is installed."""
    if path in GROUPS:
        return any(exists(name) for name in COMMANDS if name.startswith(f"{path} "))
    module = COMMANDS.get(path)
    return module is not None and (module.startswith("cli.") or parts.is_installed(f"precompiled.{module}"))


def sections() -> dict[str, list[str]]:
    """The sections of the help, with the names that exist."""
    found = {title: [name for name in names if exists(name)] for title, names in SECTIONS.items()}
    return {title: names for title, names in found.items() if names}


def children(group: str) -> list[str]:
    """The names directly below a group ("" is the top), in the order of the help."""
    if not group:
        return [name for names in sections().values() for name in names]
    start = f"{group} "
    below = (name.removeprefix(start).split()[0] for name in COMMANDS if name.startswith(start) and exists(name))
    return list(dict.fromkeys(below))


def _is_old_name(name: str) -> bool:
    """Whether a name is the old name of a command that exists."""
    return name in RENAMED and exists(RENAMED[name].partition(" --")[0])


def replace_old_name(arguments: list[str]) -> tuple[str, list[str]]:
    """The old name of a command at the start of a command line ("" if none), and the line with the new name."""
    for words in (2, 1):
        old = " ".join(arguments[:words])
        if _is_old_name(old):
            return old, [*RENAMED[old].split(), *arguments[words:]]
    return "", arguments


def suggestion(group: str, name: str) -> str:
    """The command that a user may have meant by an unknown name in ``group``; "" if no name is similar."""
    if known := SYNONYMS.get(f"{group} {name}".strip()):
        return known
    here = {known: known for known in children(group)}
    commands = [known for known in COMMANDS if exists(known)]
    below = {known.split()[-1]: known for known in reversed(commands)}
    below |= {old: new for old, new in RENAMED.items() if _is_old_name(old)}
    for names in (here, below):
        if near := closest(name.lower(), names):
            return names[near]
    return ""
