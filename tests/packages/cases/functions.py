"""Cases about the compiled function and the functions that it calls: their source text, and how names lead to them."""

from __future__ import annotations

from packages.cases import FUNCTION, TRACED, USED, case

case("same_function", FUNCTION, None, USED)
case("moved_lines", FUNCTION, ("def f(x):", "# a comment\n\n\ndef f(x):"), USED)
case(
    "two_functions",
    """
def f(x):
    return torch.mm(x, x)
def g(x):
    return torch.addmm(x, x, x, alpha=3.0)
def both(x):
    return torch.compile(f)(x) + torch.compile(g)(x)
def build():
    return both, [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "decorated",
    """
def twice(function):
    @functools.wraps(function)
    def wrapper(*args):
        return torch.mm(function(*args), args[0])
    return wrapper
@twice
def f(x):
    return torch.addmm(x, x, x, alpha=2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "unrelated_edit",
    """
UNRELATED = 1
def g():
    return UNRELATED
def f(x):
    return torch.addmm(x, x, x, alpha=2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("UNRELATED = 1", "UNRELATED = 2"),
    USED,
)
case("changed_source", FUNCTION, ("alpha=2.0", "alpha=3.0"), TRACED)
case(
    "changed_callee",
    """
import changed_callee_helper as helper
def f(x):
    return helper.g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
    helper=(
        "def g(x):\n    return torch.addmm(x, x, x, alpha=2.0)\n",
        "def g(x):\n    return torch.addmm(x, x, x, alpha=3.0)\n",
    ),
)
case(
    "changed_callee_of_a_callee",
    """
from changed_callee_of_a_callee_helper import g
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
    helper=(
        "def h(x):\n    return torch.mm(x, x)\ndef g(x):\n    return h(x)\n",
        "def h(x):\n    return torch.addmm(x, x, x, alpha=3.0)\ndef g(x):\n    return h(x)\n",
    ),
)
case(
    "moved_callee",
    """
from moved_callee_helper import g
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    USED,
    helper=(
        "def g(x):\n    return torch.addmm(x, x, x, alpha=2.0)\n",
        "\n\n# moved\ndef g(x):\n    return torch.addmm(x, x, x, alpha=2.0)\n",
    ),
)
case(
    "monkeypatched_function",
    """
def g(x):
    return torch.mm(x, x)
def other(x):
    return torch.addmm(x, x, x, alpha=3.0)
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("def build():\n", "g = other\ndef build():\n"),
    TRACED,
)
case(
    "monkeypatched_in_disguise",
    """
def g(x):
    return torch.mm(x, x)
def other(x):
    return torch.addmm(x, x, x, alpha=3.0)
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("def build():\n", "other.__name__ = other.__qualname__ = 'g'\ng = other\ndef build():\n"),
    TRACED,
)
case(
    "monkeypatched_torch_function",
    """
import torch.nn.functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
    def forward(self, x):
        return self.first(x)
@contextlib.contextmanager
def context():
    kept = F.linear
    changed = False
    if changed:
        F.linear = lambda x, w, b=None: torch.mm(x, w)
    try:
        yield
    finally:
        F.linear = kept
def build():
    return Net(), [(torch.randn(4, 4),)]
""",
    ("changed = False", "changed = True"),
    TRACED,
)
case(
    "other_function_of_the_same_code",
    """
def f(x):
    return torch.addmm(x, x, x, alpha=2.0)
def g(x):
    return torch.addmm(x, x, x, alpha=2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("return f, [", "return g, ["),
    TRACED,
)
case(
    "disabled_callee",
    """
def g(x):
    return torch.addmm(x, x, x, alpha=2.0)
def f(x):
    return torch.mm(g(x), x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("def build():\n", "g = torch._dynamo.disable(g)\ndef build():\n"),
    TRACED,
)
case(
    "allowed_in_graph",
    """
def g(x):
    return torch.addmm(x, x, x, alpha=2.0)
def f(x):
    return torch.mm(g(x), x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("def build():\n", "torch._dynamo.disallow_in_graph(torch.addmm)\ndef build():\n"),
    TRACED,
)
case(
    "wrapped_torch_function",
    """
import torch.nn.functional as F
def scaled(function, alpha):
    @functools.wraps(function)
    def wrapper(x, w):
        return torch.addmm(x, function(x, w), x, alpha=alpha)
    return wrapper
linear = scaled(F.linear, 2.0)
def f(x):
    return linear(x, x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("scaled(F.linear, 2.0)", "scaled(F.linear, 3.0)"),
    TRACED,
)
case(
    "lambda_in_a_table",
    """
TABLE = {"act": lambda x: torch.mm(x, x)}
def f(x):
    return TABLE["act"](x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("torch.mm(x, x)}", "torch.addmm(x, x, x, alpha=3.0)}"),
    TRACED,
)
case(
    "custom_function",
    """
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.mm(x, x)
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.mm(grad, x) * 2.0
def f(x):
    return torch.mm(Twice.apply(x), x)
def build():
    return f, [(torch.randn(4, 4, requires_grad=True),)]
""",
    ("* 2.0", "* 3.0"),
    TRACED,
)
case(
    "assumed_constant",
    """
ALPHA = 2.0
@torch._dynamo.assume_constant_result
def alpha():
    return ALPHA
def f(x):
    return torch.addmm(x, x, x, alpha=alpha())
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("ALPHA = 2.0", "ALPHA = 3.0"),
    TRACED,
)
case(
    "assumed_constant_again",
    """
ALPHA = 2.0
@torch._dynamo.assume_constant_result
def alpha():
    return ALPHA
def f(x):
    return torch.addmm(x, x, x, alpha=alpha())
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "c_descriptor",
    """
ACT = torch.Tensor.relu
def f(x):
    return torch.mm(ACT(x), x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("torch.Tensor.relu", "torch.Tensor.sigmoid"),
    TRACED,
)
case(
    "c_descriptor_of_a_module",
    """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = torch.Tensor.relu
    def forward(self, x):
        return torch.mm(self.act(x), x)
def build():
    return Net(), [(torch.randn(4, 4),)]
""",
    ("torch.Tensor.relu", "torch.Tensor.sigmoid"),
    TRACED,
)
case(
    "checkpoint_that_was_replaced",
    """
from torch.utils.checkpoint import checkpoint
def g(x):
    return torch.mm(x, x)
def f(x):
    return checkpoint(g, x, use_reentrant=False)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("def g(x):", "def checkpoint(function, *values, **named):\n    return function(*values) * 3.0\ndef g(x):"),
    TRACED,
)
case(
    "signature",
    """
import inspect
def g(x):
    pass
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.signature = inspect.signature(g)
    def forward(self, x):
        return torch.addmm(x, x, x, alpha=2.0 if "mask" in self.signature.parameters else 3.0)
def build():
    return Net(), [(torch.randn(4, 4),)]
""",
    ("def g(x):", "def g(x, mask=None):"),
    TRACED,
)
case(
    "annotations",
    """
def g(x, mask):
    return x
def f(x):
    return torch.addmm(x, x, x, alpha=2.0 if "mask" in g.__annotations__ else 3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("def g(x, mask):", "def g(x, mask: float):"),
    TRACED,
)
case(
    "pooling_by_another_function",
    """
from torch.nn import functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.pool = F.max_pool2d
    def forward(self, x):
        return self.pool(x, 2)
def build():
    return Net(), [(torch.randn(1, 1, 6, 6),)]
""",
    ("F.max_pool2d", "F.adaptive_max_pool2d"),
    TRACED,
)
METHOD_OF_A_VALUE = """
KNOWN = frozenset({"two", "three"})
known = KNOWN.__contains__
def f(x):
    return torch.addmm(x, x, x, alpha=2.0 if known("two") else 3.0)
def build():
    return f, [(torch.randn(4, 4),)]
"""
case("method_of_a_value", METHOD_OF_A_VALUE, None, USED)
case("method_of_another_value", METHOD_OF_A_VALUE, ('"two", ', ""), TRACED)
case(
    "method_that_gives_members_of_a_set",
    """
known = frozenset({"two", "three"}).union
def f(x):
    return torch.addmm(x, x, x, alpha=2.0 if "two" in known(()) else 3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
)
