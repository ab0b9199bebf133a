"""Cases about graph breaks: functions with several frames, skipped frames, functions that are used after a break."""

# ruff: noqa: E501 - programs as text
from __future__ import annotations

from packages.cases import TRACED, USED, case

case(
    "namedtuple_before_a_graph_break",
    """
import collections
Pair = collections.namedtuple("Pair", "left right")
def f(x):
    pair = Pair(x, x)
    y = torch.mm(pair.left, pair.right)
    torch._dynamo.graph_break()
    return torch.addmm(y, y, y, alpha=2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "graph_break",
    """
def f(x):
    y = torch.mm(x, x)
    torch._dynamo.graph_break()
    return torch.addmm(y, x, x, alpha=2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "two_graph_breaks_in_a_loop",
    """
def f(x):
    for at in range(2):
        x = torch.addmm(x, x, x, alpha=float(at))
        torch._dynamo.graph_break()
    return torch.mm(x, x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "graph_breaks_that_raise",
    """
def f(x):
    y = torch.mm(x, x)
    torch._dynamo.graph_break()
    return torch.mm(y, x)
context = contextlib.nullcontext
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    USED,
)

LEFT_ALONE = """
class Settings:
    def __init__(self, on):
        self.on = on
def f(x, settings):
    if not settings.on:
        return x
    return torch.mm(x, x)
def build():
    return f, [(torch.randn(4, 4), Settings(False))]
"""
case("left_alone_for_its_value", LEFT_ALONE, ("Settings(False)", "Settings(True)"), TRACED)
case(
    "left_alone_for_the_grad_mode",
    """
GRAD = True
context = lambda: torch.set_grad_enabled(GRAD)
def f(x):
    if torch.is_grad_enabled():
        return x
    return torch.mm(x, x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("GRAD = True", "GRAD = False"),
    TRACED,
)
case("left_alone_again", LEFT_ALONE, None, USED)
case(
    "changed_source_of_what_broke_the_graph",
    """
from changed_source_of_what_broke_the_graph_helper import g
def f(x):
    x = torch.mm(x, x)
    return torch.mm(g(x), x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
    helper=(
        "def g(x):\n    torch._dynamo.graph_break()\n    return torch.mm(x, x)\n",
        "def g(x):\n    return torch.mm(x, x)\n",
    ),
)
case(
    "changed_source_of_what_was_left_alone",
    """
from changed_source_of_what_was_left_alone_helper import g
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
    helper=(
        "def g(x):\n    try:\n        torch._dynamo.graph_break()\n        return torch.mm(x, x)\n    finally:\n        pass\n",
        "def g(x):\n    return torch.mm(x, x)\n",
    ),
)

NESTED = """
BOX = types.SimpleNamespace(later=None)
def f(x):
    scale = 2.0
    def later(z: torch.Tensor, by: float = 2.0) -> torch.Tensor:
        return torch.addmm(z, z, z, alpha=scale)
    y = torch.mm(x, x)
    torch._dynamo.graph_break()
    return later(y)
def build():
    return f, [(torch.randn(4, 4),)]
"""
case("function_over_a_break", NESTED, None, USED)
case("function_over_a_break_changed", NESTED, ("alpha=scale", "alpha=scale + 1.0"), TRACED)
case(
    "function_that_is_kept",
    """
BOX = types.SimpleNamespace(later=None)
def f(x):
    def later(z, by=2.0):
        return torch.addmm(z, z, z, alpha=by)
    BOX.later = later
    return torch.mm(x, x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "a_graph_in_which_nothing_is_left",
    """
def setup(x):
    torch._dynamo.graph_break()
    return [float(x.shape[0]) * 0.5, 0.25], x.shape[1]
def scaled(x, scales, number):
    torch._dynamo.graph_break()
    return torch.addmm(x, x, x, alpha=scales[0] + number)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = self.number = None
    def forward(self, x):
        if self.scales is None:
            self.scales, self.number = setup(x)
        return scaled(x, self.scales, self.number)
def build():
    return Net(), [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
