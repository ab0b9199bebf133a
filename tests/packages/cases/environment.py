"""Cases about the surroundings of a process: environment variables, installed packages, limits of the interpreter."""

# ruff: noqa: E501 - programs as text
from __future__ import annotations

from packages.cases import TRACED, USED, case

case(
    "environment_variable",
    """
import os
def f(x):
    return torch.addmm(x, x, x, alpha=float(os.environ.get("CASE_ALPHA", "2.0")))
@contextlib.contextmanager
def context():
    os.environ["CASE_ALPHA"] = "2.0"
    try:
        yield
    finally:
        del os.environ["CASE_ALPHA"]
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ('] = "2.0"', '] = "3.0"'),
    TRACED,
)
case(
    "environment_variable_that_was_not_set",
    """
import os
def f(x):
    return torch.addmm(x, x, x, alpha=float(os.environ.get("CASE_UNSET", "2.0")))
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("import os\n", "import os\nos.environ['CASE_UNSET'] = '3.0'\n"),
    TRACED,
)
case(
    "environment_variable_in",
    """
import os
def f(x):
    return torch.addmm(x, x, x, alpha=3.0 if "CASE_IN" in os.environ else 2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("import os\n", "import os\nos.environ['CASE_IN'] = '3.0'\n"),
    TRACED,
)
case(
    "getenv",
    """
import os
os.environ["CASE_GETENV"] = "2.0"
def f(x):
    return torch.addmm(x, x, x, alpha=float(os.getenv("CASE_GETENV", "1.0")))
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ('] = "2.0"', '] = "3.0"'),
    TRACED,
)
case(
    "getenv_that_was_not_set",
    """
import os
def f(x):
    return torch.addmm(x, x, x, alpha=float(os.getenv("CASE_GETENV_UNSET", "2.0")))
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("import os\n", "import os\nos.environ['CASE_GETENV_UNSET'] = '3.0'\n"),
    TRACED,
)
case(
    "getenv_again",
    """
import os
os.environ["CASE_OF_THIS_RUN"] = str(os.getpid())
def f(x):
    return torch.addmm(x, x, x, alpha=float(os.getenv("CASE_NOBODY_SETS", "2.0")))
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "package_that_was_not_installed",
    """
import importlib.util, pathlib
def f(x):
    return torch.addmm(x, x, x, alpha=2.0 if importlib.util.find_spec("case_installed_later") is None else 3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    (
        "import importlib.util, pathlib\n",
        "import importlib.util, pathlib\npathlib.Path(__file__).with_name('case_installed_later.py').write_text('')\nimportlib.invalidate_caches()\n",
    ),
    TRACED,
)
case(
    "package_that_is_not_installed",
    """
import importlib.util
def f(x):
    return torch.addmm(x, x, x, alpha=2.0 if importlib.util.find_spec("case_never_installed") is None else 3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "digits_of_an_integer",
    """
import sys
LIMIT = sys.get_int_max_str_digits()
def f(x):
    return torch.addmm(x, x, x, alpha=2.0 if sys.get_int_max_str_digits() == LIMIT else 3.0)
@contextlib.contextmanager
def context():
    sys.set_int_max_str_digits(LIMIT)
    yield
    sys.set_int_max_str_digits(LIMIT)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("(LIMIT)\n    yield", "(LIMIT + 700)\n    yield"),
    TRACED,
)
case(
    "limit_of_the_interpreter",
    """
import sys
LIMIT = 3000
@contextlib.contextmanager
def context():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(LIMIT)
    yield
    sys.setrecursionlimit(before)
def f(x):
    return torch.addmm(x, x, x, alpha=3.0 if sys.getrecursionlimit() == 3001 else 2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("LIMIT = 3000", "LIMIT = 3001"),
    TRACED,
)
