"""What is installed of a package: a digest of its files, as the installer's record tells them.

A worker imports code of installed packages (custom ops, tensor subclasses), and a new version of one is other code.
Its files are not read: the record of its distribution (RECORD in *.dist-info, PEP 376 and PEP 627) has their hashes.

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata

# Their versions are in the key.
_IN_THE_KEY = frozenset({"torch", "triton", *sys.stdlib_module_names})


@cache
def digest(package: str) -> str:
    """SHA-256 over the files of a top-level package; "" where no record tells them, or the key has its version.

    Kept for the life of the process, for this is what it has loaded.
    """
    if package in _IN_THE_KEY:
        return ""
    state = hashlib.sha256()
    found = False
    for lines in _records(package):
        # Not scripts, whose first line is the virtual environment, nor what an installer notes of its own.
        for line in sorted(line for line in lines if line.partition("/")[0].partition(".")[0] == package):
            if not line.partition(",")[0].endswith(".pyc"):
                state.update(f"{line}\n".encode())
                found = True
    return state.hexdigest() if found else ""


def _records(package: str) -> Iterator[list[str]]:
    names = [package]
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:  # its distribution has another name; to ask for that takes longer
        names = sorted(set(metadata.packages_distributions().get(package, ())))
    for name in names:
        yield (metadata.distribution(name).read_text("RECORD") or "").splitlines()
