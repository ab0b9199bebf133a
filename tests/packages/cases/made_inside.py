"""Cases about objects that a frame creates: they have no source, and no guard except on their class."""

from __future__ import annotations

from packages.cases import TRACED, USED, case

case(
    "default_of_a_method_of_an_object_made_inside",
    """
class Scale:
    def __init__(self, factor=2.0):
        self.factor = factor
def f(x):
    return torch.addmm(x, x, x, alpha=Scale().factor)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("factor=2.0", "factor=3.0"),
    TRACED,
)
case(
    "decorator_of_a_method_of_an_object_made_inside",
    """
def scaled(factor):
    def decorate(method):
        def call(self, x):
            return torch.addmm(x, x, method(self, x), alpha=factor)
        return call
    return decorate
class Twice:
    @scaled(2.0)
    def run(self, x):
        return torch.mm(x, x)
def f(x):
    return Twice().run(x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("@scaled(2.0)", "@scaled(3.0)"),
    TRACED,
)
case(
    "class_of_a_factory",
    """
def make(factor):
    class Scale:
        def __mul__(self, x):
            return torch.addmm(x, x, x, alpha=factor)
    return Scale
Scale = make(2.0)
def f(x):
    return Scale() * x
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("make(2.0)", "make(3.0)"),
    TRACED,
)
case(
    "partial_method_of_an_object_made_inside",
    """
class Scale:
    def by(self, x, factor):
        return torch.addmm(x, x, x, alpha=factor)
    run = functools.partialmethod(by, factor=2.0)
def f(x):
    return Scale().run(x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("factor=2.0", "factor=3.0"),
    TRACED,
)
case(
    "list_of_the_class_of_an_object_made_inside",
    """
class Scale:
    FACTORS = [2.0, 5.0]
def f(x):
    return torch.addmm(x, x, x, alpha=Scale().FACTORS[0])
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("[2.0, 5.0]", "[3.0, 5.0]"),
    TRACED,
)
case(
    "static_method_of_c_of_an_object_made_inside",
    """
class Block:
    act = staticmethod(torch.relu)
    def run(self, x):
        return torch.mm(self.act(x), x)
def f(x):
    return Block().run(x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("torch.relu", "torch.sigmoid"),
    TRACED,
)
case(
    "default_behind_a_decorator_of_torchs",
    """
class Scale:
    @torch.no_grad()
    def run(self, x, alpha=2.0):
        return torch.addmm(x, x, x, alpha=alpha)
def f(x):
    return Scale().run(x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("alpha=2.0", "alpha=3.0"),
    TRACED,
)
case(
    "attribute_of_a_method_of_an_object_made_inside",
    """
def tagged(function):
    function.alpha = 2.0
    return function
class Thing:
    @tagged
    def run(self):
        pass
def f(x):
    return torch.addmm(x, x, x, alpha=Thing().run.alpha)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("alpha = 2.0", "alpha = 3.0"),
    TRACED,
)
case(
    "what_a_transform_of_torchs_was_given",
    """
def g(x, y):
    return x * y
class Block:
    run = staticmethod(torch.vmap(g, in_dims=(0, 0)))
def f(x):
    return Block().run(x, x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("in_dims=(0, 0)", "in_dims=(0, 1)"),
    TRACED,
)
case(
    "attribute_of_a_wrapper_of_torchs",
    """
def tagged(function):
    function.alpha = 2.0
    return function
class Block:
    @tagged
    @torch.no_grad()
    def run(self, x):
        return x
def f(x):
    return torch.addmm(x, x, x, alpha=Block().run.alpha)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("alpha = 2.0", "alpha = 3.0"),
    TRACED,
)
# A set that the trace fills item by item has an order that Dynamo defines. The order is the same in each process.
for number, made in enumerate(
    (
        "NAMES = set()\n    for name in TEXTS:\n        NAMES.add(name)",
        "NAMES = {name for name in TEXTS}",
        "NAMES = set(TEXTS)",
        "NAMES = list(set(TEXTS))",
        "NAMES = {TEXTS[1], TEXTS[0]}\n    NAMES.update(list(TEXTS))",
        "NAMES = set(set(TEXTS))",
        "NAMES = set(TEXTS)\n    NAMES.discard('beta')",
    )
):
    case(
        f"order_of_a_set_that_is_built_{number}",
        f"""
TEXTS = ("delta", "alpha", "gamma", "beta", "epsilon")
def f(x):
    {made}
    found = x
    for name in NAMES:
        found = torch.addmm(found, x, x, alpha=float(ord(name[0])) / 100)
    return found
def build():
    return f, [(torch.randn(4, 4),)]
""",
        None,
        USED,
    )
case(
    "a_set_that_is_asked_in_a_comprehension",
    """
TEXTS = ("delta", "alpha")
def f(x, **kwargs):
    known = set(TEXTS) | {"gamma"}
    kept = {name: value for name, value in kwargs.items() if name in known}
    return torch.addmm(x, x, x, alpha=sum(kept.values()) + 2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "a_frozenset_in_a_set",
    """
def f(x):
    seen = set()
    seen.add(frozenset({"a", "b"}))
    return torch.addmm(x, x, x, alpha=3.0 if frozenset({"a", "b"}) in seen else 2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
