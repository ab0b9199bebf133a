"""Cases about identity: arguments and globals that are the same object or share memory."""

from __future__ import annotations

from packages.cases import TRACED, USED, case

case(
    "input_aliases",
    """
def f(x, y):
    return torch.addmm(x, x, y, alpha=2.0)
def build():
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    return f, [(a, b)]
""",
    ("[(a, b)]", "[(a, a)]"),
    TRACED,
)
case(
    "identity",
    """
MARKER = object()
def f(x, marker):
    return torch.mm(x, x) if marker is MARKER else torch.addmm(x, x, x, alpha=3.0)
def build():
    return f, [(torch.randn(4, 4), MARKER)]
""",
    ("[(torch.randn(4, 4), MARKER)]", "[(torch.randn(4, 4), object())]"),
    TRACED,
)
case(
    "identity_of_two_equal_things",
    """
def make():
    def g(x):
        return torch.mm(x, x)
    return g
ONE = make()
def f(x, g, h):
    return g(x) if g is h else torch.addmm(x, h(x), x, alpha=3.0)
def build():
    return f, [(torch.randn(4, 4), ONE, make())]
""",
    ("ONE, make())]", "ONE, ONE)]"),
    TRACED,
)
case(
    "inputs_that_share_memory",
    """
def f(x, y):
    y.mul_(2.0)
    return torch.mm(x, y)
def build():
    base = torch.randn(5, 4)
    return f, [(base[:4], base[1:].clone())]
""",
    ("base[1:].clone()", "base[1:]"),
    TRACED,
)
case(
    "lists_that_are_one",
    """
def f(x, a, b):
    a.append(3.0)
    return torch.addmm(x, x, x, alpha=float(len(b)))
def build():
    one = [1.0]
    return f, [(torch.randn(4, 4), one, [1.0])]
""",
    ("one, [1.0])", "one, one)"),
    TRACED,
)

ONE_OBJECT = """
class Config:
    def __init__(self, alpha): self.alpha = alpha
OTHER = Config(2.0)
CFG = OTHER
class Net(nn.Module):
    def __init__(self, cfg):
        super().__init__(); self.cfg = cfg
    def forward(self, x):
        return torch.addmm(x, x, x, alpha=self.cfg.alpha) * CFG.alpha
def build():
    return Net(OTHER), [(torch.randn(4, 4),)]
"""
case("one_object_under_two_names", ONE_OBJECT, ("CFG = OTHER", "CFG = Config(3.0)"), TRACED)
case("one_object_under_two_names_again", ONE_OBJECT, None, USED)
case(
    "one_tensor_under_two_names",
    """
W = torch.eye(4)
def f(x):
    return torch.mm(x, W)
def build():
    return f, [(W,)]
""",
    ("[(W,)]", "[(torch.randn(4, 4),)]"),
    TRACED,
)
case(
    "global_first_then_the_argument",
    """
W = torch.eye(4)
class Net(nn.Module):
    def __init__(self, w):
        super().__init__(); self.w = (w,)
    def forward(self, x):
        return torch.mm(torch.mm(x, W), self.w[0])
def build():
    return Net(W), [(torch.randn(4, 4),)]
""",
    ("Net(W)", "Net(torch.ones(4, 4))"),
    TRACED,
)
case(
    "slices_of_a_batch",
    """
def f(x):
    return torch.mm(x, x)
def build():
    base = torch.randn(8, 4)
    return f, [(base[:4],)]
""",
    ("base[:4]", "base[4:]"),
    TRACED,
)  # the key of the graph also contains the offset in the storage
case(
    "sets_that_are_one",
    """
ONE = {"base"}
TWO = {"base"}
def f(x):
    return torch.addmm(x, x, x, alpha=3.0 if ONE is TWO else 2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ('TWO = {"base"}', "TWO = ONE"),
    TRACED,
)
