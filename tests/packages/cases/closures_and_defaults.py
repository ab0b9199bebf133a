"""Cases about values that a function object holds: closures, defaults, arguments of a partial."""

from __future__ import annotations

from packages.cases import TRACED, USED, case

case(
    "keyword_default",
    """
def f(x, *, alpha=2.0):
    return torch.addmm(x, x, x, alpha=alpha)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "nested_closure",
    """
def make(alpha):
    def f(x):
        return torch.addmm(x, x, x, alpha=alpha)
    return f
def build():
    return make(2.0), [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "partial",
    """
def f(alpha, x):
    return torch.addmm(x, x, x, alpha=alpha)
def build():
    return functools.partial(f, 2.0), [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "changed_signature",
    """
def f(x, alpha=2.0):
    return torch.addmm(x, x, x, alpha=alpha)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("alpha=2.0)", "alpha=3.0)"),
    TRACED,
)
case(
    "rebound_closure",
    """
def make(alpha):
    def f(x):
        return torch.addmm(x, x, x, alpha=alpha)
    return f
def build():
    return make(2.0), [(torch.randn(4, 4),)]
""",
    ("make(2.0)", "make(3.0)"),
    TRACED,
)
case(
    "rebound_closure_function",
    """
def one(x):
    return torch.mm(x, x)
def two(x):
    return torch.addmm(x, x, x, alpha=3.0)
def make(g):
    def f(x):
        return g(x)
    return f
def build():
    return make(one), [(torch.randn(4, 4),)]
""",
    ("make(one)", "make(two)"),
    TRACED,
)
case(
    "closure_of_a_closure",
    """
def scaled(alpha):
    return lambda x: torch.addmm(x, x, x, alpha=alpha)
def make(g):
    def f(x):
        return g(x)
    return f
def build():
    return make(scaled(2.0)), [(torch.randn(4, 4),)]
""",
    ("scaled(2.0)", "scaled(3.0)"),
    TRACED,
)
case(
    "partial_of_another_value",
    """
def f(alpha, x):
    return torch.addmm(x, x, x, alpha=alpha)
def build():
    return functools.partial(f, 2.0), [(torch.randn(4, 4),)]
""",
    ("f, 2.0", "f, 3.0"),
    TRACED,
)
case(
    "optional_argument",
    """
def f(x, mask=None):
    return torch.mm(x, x) if mask is None else torch.addmm(x, x, mask, alpha=3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("[(torch.randn(4, 4),)]", "[(torch.randn(4, 4), torch.randn(4, 4))]"),
    TRACED,
)
case(
    "default_argument_of_a_callee",
    """
def g(x, alpha=2.0):
    return torch.addmm(x, x, x, alpha=alpha)
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("def build():\n", "g.__defaults__ = (3.0,)\ndef build():\n"),
    TRACED,
)
case(
    "defaults_without_guards",
    """
torch._dynamo.config.skip_guards_on_constant_func_defaults = True
def g(x, alpha=2.0, *, beta=1.0):
    return torch.addmm(x, x, x, alpha=alpha, beta=beta)
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("beta=1.0", "beta=3.0"),
    TRACED,
)
case(
    "class_in_a_closure",
    """
class A: pass
class B: pass
def make(kind):
    def g(x, y):
        return torch.mm(x, x) if isinstance(y, kind) else torch.addmm(x, x, x, alpha=3.0)
    return g
g = make(A)
def f(x, y):
    return g(x, y)
def build():
    return f, [(torch.randn(4, 4), A())]
""",
    ("make(A)", "make(B)"),
    TRACED,
)
case(
    "class_in_a_table_in_a_closure",
    """
class A:
    factor = 2.0
class B:
    factor = 3.0
def make(table):
    def g(x):
        return torch.addmm(x, x, x, alpha=table["kind"]().factor)
    return g
g = make({"kind": A})
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ('{"kind": A}', '{"kind": B}'),
    TRACED,
)
case(
    "class_in_a_named_tuple_in_a_closure",
    """
import collections
Table = collections.namedtuple("Table", "kind")
class A:
    alpha = 2.0
class B:
    alpha = 3.0
def make(table):
    def f(x):
        return torch.addmm(x, x, x, alpha=table.kind().alpha)
    return f
def build():
    return make(Table(A)), [(torch.randn(4, 4),)]
""",
    ("Table(A)", "Table(B)"),
    TRACED,
)
case(
    "default_that_is_a_literal",
    """
def g(x, dtype=torch.float32):
    return x.to(dtype)
def f(x):
    return torch.mm(g(x), g(x))
def context():
    return torch._dynamo.config.patch(skip_guards_on_constant_func_defaults=True)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("dtype=torch.float32", "dtype=torch.float64"),
    TRACED,
)
