"""Cases that test when a package may be used.

A case has the source text that one process records, the source text of a later process, and whether the later process
must use the package. Each file of this folder has one topic. support_packages.py finds the files, writes the cases to a
folder and runs them.

The cases test frames, so their graphs consist of matrix products, which Inductor compiles without a C++ compiler.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

USED, TRACED = "used", "traced"


@dataclass(frozen=True)
class Case:
    """A module's source ``before`` and ``after`` a change.

    ``expected`` is the state of the module's frames in the later process. ``helper``: the two sources of a module that
    the case imports.
    """

    name: str
    before: str
    after: str
    expected: str
    helper: tuple[str, str] = ("", "")


CASES: dict[str, Case] = {}

HEAD = "import contextlib, functools, enum, types\nimport torch\nfrom torch import nn\n"
FUNCTION = """
def f(x):
    return torch.addmm(x, x, x, alpha=2.0)

def build():
    return f, [(torch.randn(4, 4),)]
"""
MODULE = """
class Net(nn.Module):
    scale = 2.0
    def __init__(self, alpha=2.0, width=4, bias=True):
        super().__init__()
        self.alpha = alpha
        self.first = nn.Linear(4, width, bias=bias)
        self.second = nn.Linear(width, 4)
    def forward(self, x):
        return torch.mm(self.second(self.first(x)), x).mul_(1) if False else torch.addmm(x, self.second(self.first(x)), x, alpha=self.alpha)

def build():
    return Net(), [(torch.randn(4, 4),)]
"""  # noqa: E501


def case(
    name: str, before: str, change: tuple[str, str] | None, expected: str, *, helper: tuple[str, str] = ("", "")
) -> None:
    """Add a case. ``change``: the part of ``before`` to replace, and its replacement. None: both sources are equal."""
    assert name not in CASES, f"there are two cases {name}"
    before = textwrap.dedent(before)
    after = before
    if change is not None:
        assert change[0] in before, f"{name}: {change[0]!r} is not in the program"
        after = before.replace(*change)
    CASES[name] = Case(name, HEAD + before, HEAD + after, expected, helper)
