"""Gets the text of a main program that has no file: a notebook, ``python -c``, a pipe, or a script under cProfile."""

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

# A cell that contains only `%precompiled ...`, as IPython translates it.
_ASKS = re.compile(r"(\s*get_ipython\(\)\.run_line_magic\('precompiled', '(?:[^'\\\\]|\\\\.)*'\)\s*)+")


def texts() -> list[Text]:
    """The texts of the main program; empty if the main program is a file of the user.

    Raises NotPortable if the text is unknown (an interactive session).
    """
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
            "the program has no file and is not a notebook (an interactive session, or a thread that outlived it), so "
            "a later process cannot recognize it",
            code="package-program",
        )
    return running


def file_of(module: ModuleType | None) -> str | None:
    """The absolute path in a module's ``__file__``, or None if no file has the module's text."""
    held = namespace_of(module)  # not by getattr: a module's __getattr__ may import anything
    file = held.get("__file__")
    if type(file) is not str or file.startswith("<"):  # "<stdin>"
        return None
    if held.get("__name__") == "__main__" and _is_stream(file):
        return None
    return os.path.abspath(file)


def _is_stream(file: str) -> bool:
    """Whether Python read the program from a pipe (``python /dev/stdin``, ``python <(...)``), so its text is lost."""
    try:
        return not stat.S_ISREG(os.stat(file).st_mode)
    except OSError:  # a missing file has its own message later
        return False


def _cells() -> list[Text] | None:
    """All cells that this notebook has run, in order. Each cell may have changed what later cells read.

    Leaves out cells that only call ``%precompiled``, because reading a report must not cause a retrace. None outside
    IPython.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    history = getattr(getattr(shell, "history_manager", None), "input_hist_parsed", None)
    if history is None:
        return None
    return [Text(str(cell).encode()) for cell in history if not _ASKS.fullmatch(str(cell))]


def _running() -> list[Text]:
    """The code of the running main program, for which Python keeps no text."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    found = []
    while frame is not None:
        code = frame.f_code
        main = code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
        if main and not files.is_standard(code.co_filename) and not files.is_ours(code.co_filename):
            found.append(Text(None, code_digest(code)))
        frame = frame.f_back
    return found
