"""What a fresh machine needs before `make` can do the rest; says what is missing and how to get it.

Run by the Makefile with the machine's own Python, before anything is installed: standard library only, and in a syntax
that Pythons older than ours still read, since telling them is the point.
"""

import importlib.util
import os
import shutil
import sys
import sysconfig

OLDEST = (3, 10)


def problems():
    if sys.version_info < OLDEST:
        yield "Python %d.%d or newer is needed, and %s is %s. Name another one: make PYTHON=python3.12" % (
            OLDEST + (sys.executable, sys.version.split()[0])
        )
        return  # what an older Python lacks besides does not matter
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        yield "%s cannot make virtual environments. Debian, Ubuntu: apt install python3-venv" % sys.executable
    named = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ([named] if named else ["g++", "clang++", "c++"])):
        yield (
            "there is no C++ compiler (%s), which torch.compile needs on CPUs, with and without precompiled. "
            "Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++" % (named or "g++, clang++")
        )
    header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
    if not os.path.exists(header):
        yield "there is no %s, which torch.compile needs. Debian, Ubuntu: apt install python3-dev" % header


found = list(problems())
for problem in found:
    sys.stderr.write("make: " + problem + "\n")
sys.exit(1 if found else 0)
