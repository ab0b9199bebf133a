"""All commands by name: their sections in the help, their modules, and their old names."""

from __future__ import annotations

# The help shows these sections, and the commands of each, in this order.
SECTIONS = {
    "Use it": ("run", "enable", "disable", "watch", "bake"),
    "See what it does": ("status", "explain", "timeline", "doctor"),
    "Manage it": ("config", "cache", "daemon"),
    "More than one host": ("remote", "farm"),
    "Tools": ("tools",),
}
# Group -> its one-line help.
GROUPS = {
    "config": "Show settings, or set one.",
    "cache": "List, inspect and clear what is compiled on this host.",
    "daemon": "Start, stop and inspect the daemon that compiles.",
    "remote": "Share compiled graphs between hosts through a bucket.",
    "remote keys": "Manage the keys that sign what is in the remote.",
    "farm": "Show the Ray cluster that compiles for this host.",
    "tools": "Tune, traces, metrics, package files, shell completion.",
}
# A group that is called without one of its commands runs this one.
DEFAULTS = {"config": "show"}
# Command -> its module in precompiled/cli, in the order of the help. The module defines `<last word>_command`.
COMMANDS = {
    "run": "switch",
    "enable": "switch",
    "disable": "switch",
    "watch": "watch",
    "bake": "bake",
    "status": "status",
    "explain": "explain",
    "timeline": "timeline",
    "doctor": "doctor",
    "config show": "settings",
    "config set": "settings",
    "cache ls": "store",
    "cache show": "store",
    "cache stats": "status",
    "cache size": "store",
    "cache dir": "store",
    "cache clear": "store",
    "cache gc": "store",
    "daemon start": "daemon",
    "daemon stop": "daemon",
    "daemon restart": "daemon",
    "daemon logs": "logs",
    "daemon cancel": "jobs",
    "daemon retry": "jobs",
    "daemon serve": "daemon",
    "remote push": "remote",
    "remote pull": "remote",
    "remote sync": "remote",
    "remote ls": "remote",
    "remote gc": "remote",
    "remote keys new": "keys",
    "remote keys list": "keys",
    "remote keys trust": "keys",
    "remote keys forget": "keys",
    "farm status": "farm",
    "tools tune": "tune",
    "tools trace": "timeline",
    "tools metrics": "metrics",
    "tools package": "package",
    "tools completion": "completion",
}
# Old name -> new name, for names up to version 0.1. They work in one more version.
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
# Words that users of other tools may try -> the command to suggest.
SYNONYMS = {
    "on": "enable",
    "off": "disable",
    "why": "explain",
    "list": "cache ls",
    "clean": "cache clear",
    "purge": "cache clear",
    "rm": "cache clear",
    "info": "status",
    "kill": "daemon stop",
    "log": "daemon logs",
    "settings": "config",
    "set": "config set",
    "get": "config",
}


def children(group: str) -> list[str]:
    """The names directly below a group ("" is the top), in the order of the help."""
    if not group:
        return [name for names in SECTIONS.values() for name in names]
    start = f"{group} "
    return list(dict.fromkeys(name.removeprefix(start).split()[0] for name in COMMANDS if name.startswith(start)))


def replace_old_name(arguments: list[str]) -> tuple[str, list[str]]:
    """The old name that a command line begins with ("" if none), and the line with the new name."""
    for words in (2, 1):
        old = " ".join(arguments[:words])
        if old in RENAMED:
            return old, [*RENAMED[old].split(), *arguments[words:]]
    return "", arguments


def suggestion(group: str, name: str) -> str:
    """The command that a user may have meant by an unknown name in ``group``; "" if none is similar."""
    from difflib import get_close_matches  # only errors need this import

    if not group and name in SYNONYMS:
        return SYNONYMS[name]
    here = {known: known for known in children(group)}
    below = {known.split()[-1]: known for known in reversed(COMMANDS)} | RENAMED
    for cutoff in (0.7, 0.6):
        for names in (here, below):
            if near := get_close_matches(name.lower(), names, 1, cutoff):
                return names[near[0]]
    return ""
