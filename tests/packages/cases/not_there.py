"""Cases about failed lookups of attributes, names and keys: a missing value creates no guard."""

from __future__ import annotations

from packages.cases import TRACED, case

case(
    "an_attribute_that_was_not_there",
    """
class Settings:
    def __getattr__(self, name):
        return 2.0
def f(x, s):
    return torch.addmm(x, x, x, alpha=s.alpha)
def build():
    s = Settings()
    return f, [(torch.randn(4, 4), s)]
""",
    ("s = Settings()\n", "s = Settings()\n    s.alpha = 3.0\n"),
    TRACED,
)
case(
    "name_that_a_module_had_not",
    """
import name_that_a_module_had_not_helper as helper
def f(x):
    return torch.addmm(x, x, x, alpha=getattr(helper, "ALPHA", 2.0))
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
    helper=("", "ALPHA = 3.0\n"),
)
case(
    "attribute_that_a_function_had_not",
    """
def g(x):
    return x
def f(x):
    return torch.addmm(x, x, x, alpha=3.0 if hasattr(g, "alpha") else 2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("def build():\n", "g.alpha = 3.0\ndef build():\n"),
    TRACED,
)
case(
    "key_that_was_not_there",
    """
SETTINGS = {}
def f(x):
    try:
        alpha = SETTINGS["alpha"]
    except KeyError:
        alpha = 2.0
    return torch.addmm(x, x, x, alpha=alpha)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("SETTINGS = {}", 'SETTINGS = {"alpha": 3.0}'),
    TRACED,
)
case(
    "attribute_that_a_module_of_the_users_had_not",
    """
import attribute_that_a_module_of_the_users_had_not_helper as helper
def f(x):
    try:
        alpha = helper.ALPHA
    except AttributeError:
        alpha = 2.0
    return torch.addmm(x, x, x, alpha=alpha)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
    helper=("BETA = 1.0\n", "BETA = 1.0\nALPHA = 3.0\n"),
)
case(
    "attribute_that_was_tried",
    """
def g(x):
    return x
def f(x):
    try:
        alpha = g.alpha
    except AttributeError:
        alpha = 2.0
    return torch.addmm(x, x, x, alpha=alpha)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("    return x\n", "    return x\ng.alpha = 3.0\n"),
    TRACED,
)
case(
    "attribute_that_a_tensor_had_not",
    """
def f(x):
    try:
        alpha = x.tag
    except AttributeError:
        alpha = 2.0
    return torch.addmm(x, x, x, alpha=alpha)
def build():
    x = torch.randn(4, 4)
    return f, [(x,)]
""",
    ("    return f,", "    x.tag = 3.0\n    return f,"),
    TRACED,
)
case(
    "names_in_a_module",
    """
import names_in_a_module_helper as helper
def f(x):
    for name in dir(helper):
        if name.startswith("op_"):
            x = getattr(helper, name)(x)
    return x
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
    helper=(
        "def op_a(x):\n    return torch.mm(x, x)\n",
        "def op_a(x):\n    return torch.mm(x, x)\ndef op_b(x):\n    return x + 1\n",
    ),
)
case(
    "slot_that_was_empty",
    """
class State:
    __slots__ = ("cache",)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = State()
    def forward(self, x):
        try:
            alpha = self.state.cache
        except AttributeError:
            alpha = 2.0
        return torch.addmm(x, x, x, alpha=alpha)
def build():
    net = Net()
    return net, [(torch.randn(4, 4),)]
""",
    ("net = Net()\n", "net = Net()\n    net.state.cache = 3.0\n"),
    TRACED,
)
case(
    "attribute_of_a_function_that_was_not_there",
    """
def g(x):
    return x
def f(x):
    return torch.addmm(x, x, x, alpha=g.__dict__.get("alpha", 2.0))
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("def build():\n", "g.alpha = 3.0\ndef build():\n"),
    TRACED,
)
case(
    "key_of_a_class_that_was_not_there",
    """
import dataclasses
@dataclasses.dataclass(frozen=True)
class Key:
    number: int
TABLE = {}
def f(x):
    return torch.addmm(x, x, x, alpha=TABLE.get(Key(4), 2.0))
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("TABLE = {}", "TABLE = {Key(4): 3.0}"),
    TRACED,
)
