"""Cases about lists, dictionaries and sets: their contents and their order."""

from __future__ import annotations

from packages.cases import TRACED, USED, case

case(
    "dict_and_list_attributes",
    """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.settings = {"alpha": 2.0, "names": ["a", "b"]}
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return torch.addmm(x, x, x, alpha=self.settings["alpha"]) if "a" in self.settings["names"] else x
def build():
    return Net(), [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "list_attribute",
    """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = [2.0, 3.0]
    def forward(self, x):
        for scale in self.scales:
            x = torch.addmm(x, x, x, alpha=scale)
        return x
def build():
    return Net(), [(torch.randn(4, 4),)]
""",
    ("[2.0, 3.0]", "[2.0, 3.0, 4.0]"),
    TRACED,
)
case(
    "dict_order",
    """
TABLE = {"a": 2.0, "b": 3.0}
def f(x):
    for name, alpha in TABLE.items():
        x = torch.addmm(x, x, x, alpha=alpha)
    return x
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ('{"a": 2.0, "b": 3.0}', '{"b": 3.0, "a": 2.0}'),
    TRACED,
)
# Dynamo guards a set of operators as a whole. Dynamo iterates the set in hash order, which depends on addresses. If the
# code only tests membership, a different order must not invalidate the package.
case(
    "set_of_operators",
    """
NAMES = "abs acos asin atan ceil cos erf erfc erfinv exp expm1 floor frac log neg rsqrt sin tan".split()
OPERATORS = frozenset(getattr(torch.ops.aten, name).default for name in NAMES)
def f(x):
    return torch.addmm(x, x, x, alpha=2.0 if torch.ops.aten.abs.default in OPERATORS else 3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("in NAMES)", "in reversed(NAMES))"),
    USED,
)
case(
    "order_of_attributes",
    """
class Settings:
    pass
s = Settings()
s.a = 2.0
s.b = 3.0
def f(x):
    for name, value in s.__dict__.items():
        x = torch.addmm(x, x, x, alpha=value)
    return x
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("s.a = 2.0\ns.b = 3.0", "s.b = 3.0\ns.a = 2.0"),
    TRACED,
)
case(
    "registered_in_pytree",
    """
import torch.utils._pytree as pytree
class Batch:
    def __init__(self, x):
        self.x = x
def scale(item):
    return torch.addmm(item, item, item, alpha=2.0) if isinstance(item, torch.Tensor) else item
def f(x, batch):
    return pytree.tree_map(scale, batch).x + x
def build():
    return f, [(torch.randn(4, 4), Batch(torch.randn(4, 4)))]
""",
    (
        "def build():\n",
        "pytree.register_pytree_node(Batch, lambda b: ([b.x], None), lambda c, _: Batch(*c))\ndef build():\n",
    ),
    TRACED,
)
case(
    "keys_of_a_dictionary_that_is_changed",
    """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.options = {"alpha": 2.0}
    def forward(self, x):
        alpha = self.options.pop("alpha")
        self.options["alpha"] = alpha
        return torch.addmm(x, x, x, alpha=alpha)
def build():
    return Net(), [(torch.randn(4, 4),)]
""",
    ('{"alpha": 2.0}', '{"alpha": 2.0, "beta": 1.0}'),
    TRACED,
)
for _where, _how in (
    ("set", "2.0 if self.act in {F.relu, F.gelu} else 3.0"),
    ("dict", "{F.relu: 2.0}.get(self.act, 3.0)"),
    ("global", "2.0 if self.act in GATED else 3.0"),
):
    case(
        f"function_that_is_not_in_a_{_where}",
        f"""
from torch.nn import functional as F
GATED = {{F.relu, F.gelu}}
class Net(nn.Module):
    def __init__(self, act):
        super().__init__(); self.act = act
    def forward(self, x):
        return torch.addmm(x, x, x, alpha={_how})
def build():
    return Net(F.silu), [(torch.randn(4, 4),)]
""",
        ("Net(F.silu)", "Net(F.relu)"),
        TRACED,
    )

IN_A_SET = """
from torch.nn import functional as F
GATED = {F.relu, F.gelu, F.silu}
class Net(nn.Module):
    def __init__(self, act):
        super().__init__(); self.act = act
    def forward(self, x):
        return torch.addmm(x, x, x, alpha=2.0 if self.act in GATED else 3.0)
def build():
    return Net(F.relu), [(torch.randn(4, 4),)]
"""
for _act in ("relu", "gelu"):  # relu is a Python function, and gelu is implemented in C
    case(
        f"{_act}_that_left_a_set",
        IN_A_SET.replace("Net(F.relu)", f"Net(F.{_act})"),
        ("{F.relu, F.gelu, F.silu}", "{F.silu}"),
        TRACED,
    )
case(
    "keys_in_another_order",
    """
from torch.nn import functional as F
TABLE = {F.relu: 2.0, F.gelu: 3.0}
class Net(nn.Module):
    def __init__(self, act):
        super().__init__(); self.act = act
    def forward(self, x):
        return torch.addmm(x, x, x, alpha=TABLE[self.act])
def build():
    return Net(F.relu), [(torch.randn(4, 4),)]
""",
    ("F.relu: 2.0, F.gelu: 3.0", "F.gelu: 2.0, F.relu: 3.0"),
    TRACED,
)

# If the code turns a set of numbers or a dictionary into a list, for example, Dynamo guards neither the order nor the
# keys.
for _number, _goes in enumerate(
    (
        "list(SIZES)",
        "[*SIZES]",
        "tuple(SIZES)",
        "SIZES - {3}",
        "SIZES | {3}",
        "SIZES.union({3})",
        "SIZES.copy()",
        "frozenset(SIZES)",
        "sorted(SIZES, key=lambda size: size % 2)",
        "[SIZES.copy().pop()]",
        "deque(SIZES)",
        "SIZES",
    )
):
    case(
        f"order_of_numbers_in_a_set_{_number}",
        f"""
from collections import deque
SIZES = {{0, 8}}
def f(x):
    for size in {_goes}:
        x = torch.mul(x, size + 2.0)
    return x
def build():
    return f, [(torch.randn(4, 4),)]
""",
        ("{0, 8}", "{8, 0}"),
        TRACED,
    )
for _number, (_goes, _before, _after) in enumerate(
    (
        ("list(TABLE)", '{"a": 2.0, "b": 3.0}', '{"b": 3.0, "a": 2.0}'),
        ("[*TABLE]", '{"a": 2.0, "b": 3.0}', '{"b": 3.0, "a": 2.0}'),
        ("[*TABLE]", '{"a": 2.0}', '{"a": 2.0, "b": 3.0}'),
        ("(*TABLE,)", '{"a": 2.0}', '{"a": 2.0, "b": 3.0}'),
        ("deque(TABLE)", '{"a": 2.0, "b": 3.0}', '{"b": 3.0, "a": 2.0}'),
        ("[name for names in (TABLE,) for name in list(names)]", '{"a": 2.0, "b": 3.0}', '{"b": 3.0, "a": 2.0}'),
    )
):
    case(
        f"keys_in_a_list_{_number}",
        f"""
from collections import deque
TABLE = {_before}
def f(x):
    for name in {_goes}:
        x = torch.addmm(x, x, x, alpha=TABLE[name])
    return x
def build():
    return f, [(torch.randn(4, 4),)]
""",
        (f"TABLE = {_before}", f"TABLE = {_after}"),
        TRACED,
    )
for _number, _goes in enumerate(
    (
        "[*vars(SETTINGS)]",
        "[*SETTINGS.__dict__]",
        "{**vars(SETTINGS)}",
        "vars(SETTINGS).copy()",
        "sorted(vars(SETTINGS), key=len)",
    )
):
    case(
        f"names_of_an_object_{_number}",
        f"""
import argparse
SETTINGS = argparse.Namespace(**{{"a": 2.0, "b": 3.0}})
def f(x):
    for name in {_goes}:
        x = torch.addmm(x, x, x, alpha=getattr(SETTINGS, name))
    return x
def build():
    return f, [(torch.randn(4, 4),)]
""",
        ('{"a": 2.0, "b": 3.0}', '{"b": 3.0, "a": 2.0}'),
        TRACED,
    )
for _number, _asks in enumerate(
    (
        "'a' in NAMES",
        "'a' in NAMES - OTHERS",
        "len(NAMES | OTHERS) == 5",
        "NAMES >= OTHERS",
        "(True if NAMES else False)",
        "not NAMES.isdisjoint(OTHERS)",
        "'a' in {'a', 'b'}",
        "sorted(NAMES)[0] == 'a'",
        "max(NAMES) == 'c'",
        "len(set(NAMES) | frozenset(OTHERS)) == 5",
        "len({*NAMES, 'z'}) == 4",
    )
):
    case(
        f"what_has_no_order_in_a_set_{_number}",
        f"""
NAMES, OTHERS = {{"a", "b", "c"}}, {{"c", "d", "e"}}
def f(x):
    return torch.addmm(x, x, x, alpha=2.0 if {_asks} else 3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
        None,
        USED,
    )
