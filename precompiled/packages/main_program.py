"""The text of a main program that is no file: a notebook's cells, ``python -c``, a pipe, a script below cProfile."""

from __future__ import annotations

import os
import re
import stat
import sys
import threading
from types import FrameType, ModuleType

from precompiled.core import files
from precompiled.core.looks import namespace_of
from precompiled.packages.describe.codes import code_digest
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.program_text import Text

# A cell of nothing but `%precompiled ...`, as IPython translates it.
_ASKS = re.compile(r"(\s*get_ipython\(\)\.run_line_magic\('precompiled', '(?:[^'\\\\]|\\\\.)*'\)\s*)+")


def texts() -> list[Text]:
    """Empty where the main program is a file of the user's. Raises NotPortable where nobody can tell what it is."""
    cells = _cells()
    if cells is not None:
        return cells
    typed = sys.flags.inspect or sys.flags.interactive or hasattr(sys, "ps1")
    path = file_of(sys.modules.get("__main__"))
    if path is not None and not typed and not files.is_standard(path):
        return []
    running = [] if typed else _running()
    if not running:
        raise NotPortable(
            "the program is no file that Python knows of, and no notebook (an interactive session, a thread that has "
            "outlived it): nobody can tell whether it is the same",
            code="package-program",
        )
    return running


def file_of(module: ModuleType | None) -> str | None:
    """The file that a module says that it is from."""
    held = namespace_of(module)  # not by getattr: a module's __getattr__ may import anything
    file = held.get("__file__")
    if type(file) is not str or file.startswith("<"):  # "<stdin>"
        return None
    if held.get("__name__") == "__main__" and _is_stream(file):
        return None
    return os.path.abspath(file)


def _is_stream(file: str) -> bool:
    """Whether a program was read from a pipe (``python /dev/stdin``, ``python <(...)``): its text is gone."""
    try:
        return not stat.S_ISREG(os.stat(file).st_mode)
    except OSError:  # what is not there has a message of its own
        return False


def _cells() -> list[Text] | None:
    """All that was entered in this notebook so far, in its order: each cell may have changed what a later one meets.

    Not what asks precompiled for a report: that changes nothing, and a look must not cost a trace.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    history = getattr(getattr(shell, "history_manager", None), "input_hist_parsed", None)
    if history is None:
        return None
    return [Text(str(cell).encode()) for cell in history if not _ASKS.fullmatch(str(cell))]


def _running() -> list[Text]:
    """The code of the main program, which is running: Python keeps no text of it."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    found = []
    while frame is not None:
        code = frame.f_code
        main = code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
        if main and not files.is_standard(code.co_filename) and not files.is_ours(code.co_filename):
            found.append(Text(None, code_digest(code)))
        frame = frame.f_back
    return found
