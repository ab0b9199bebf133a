"""Cases about globals, builtins and imports: values that the code reads by name."""

from __future__ import annotations

from packages.cases import TRACED, USED, case

case(
    "global_tensor",
    """
WEIGHT = torch.full((4, 4), 2.0)
def f(x):
    return torch.mm(x, WEIGHT)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("(4, 4), 2.0", "(4, 4), 5.0"),
    USED,
)
case(
    "import_inside",
    """
def f(x):
    import math
    return torch.addmm(x, x, x, alpha=math.pi)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "changed_global",
    """
ALPHA = 2.0
def f(x):
    return torch.addmm(x, x, x, alpha=ALPHA)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("ALPHA = 2.0", "ALPHA = 3.0"),
    TRACED,
)
case(
    "changed_type_of_a_global",
    """
ALPHA = 1
def f(x):
    return torch.addmm(x, x, x, alpha=ALPHA) if ALPHA is not True else torch.mm(x, x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("ALPHA = 1", "ALPHA = True"),
    TRACED,
)
case(
    "global_tensor_of_another_type",
    """
WEIGHT = torch.full((4, 4), 2.0)
def f(x):
    return torch.mm(x.to(WEIGHT.dtype), WEIGHT)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("(4, 4), 2.0", "(4, 4), 2.0, dtype=torch.float64"),
    TRACED,
)
case(
    "changed_global_of_a_callee",
    """
from changed_global_of_a_callee_helper import g
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
    helper=(
        "ALPHA = 2.0\ndef g(x):\n    return torch.addmm(x, x, x, alpha=ALPHA)\n",
        "ALPHA = 3.0\ndef g(x):\n    return torch.addmm(x, x, x, alpha=ALPHA)\n",
    ),
)
case(
    "builtin_that_is_shadowed",
    """
def f(x):
    return torch.addmm(x, x, x, alpha=max(2.0, 1.0))
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("def build():\n", "def max(a, b): return 3.0\ndef build():\n"),
    TRACED,
)
case(
    "builtin_that_is_shadowed_where_a_callee_is",
    """
from builtin_that_is_shadowed_where_a_callee_is_helper import g
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
    helper=(
        "def g(x):\n    return torch.addmm(x, x, x, alpha=max(2.0, 1.0))\n",
        "def g(x):\n    return torch.addmm(x, x, x, alpha=max(2.0, 1.0))\ndef max(a, b): return 3.0\n",
    ),
)
case(
    "value_among_the_builtins",
    """
import builtins
builtins.ALPHA_B = 2.0
def f(x):
    return torch.addmm(x, x, x, alpha=ALPHA_B)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("ALPHA_B = 2.0", "ALPHA_B = 3.0"),
    TRACED,
)
case(
    "builtin_that_a_cell_shadows",
    """
exec(compile("def g(x):\\n    return torch.addmm(x, x, x, alpha=max(2.0, 1.0))", "<cell 1>", "exec"), globals())
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("def build():\n", "def max(a, b): return 3.0\ndef build():\n"),
    TRACED,
)
case(
    "import_that_a_call_would_not_come_to",
    """
USE = True
def f(x):
    if USE:
        import import_that_a_call_would_not_come_to_helper as helper
        return torch.addmm(x, x, x, alpha=helper.ALPHA)
    return torch.mm(x, x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("USE = True", "USE = False"),
    TRACED,
    helper=("ALPHA = 2.0\n", "raise SystemExit('imported')\n"),
)

# Dynamo's bytecode needs the module `collections` to create the output. The bytecode reads this module from the
# program's global variable.
ORDERED = """
import collections, dataclasses
@dataclasses.dataclass
class Out(collections.OrderedDict):
    sample: torch.Tensor
    requires_grad = False
    def __post_init__(self):
        for field in dataclasses.fields(self):
            self[field.name] = getattr(self, field.name)
    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)
    def detach(self):
        return self["sample"].detach()
def f(x):
    return Out(sample=torch.addmm(x, x, x, alpha=2.0))
def build():
    return f, [(torch.randn(4, 4),)]
"""
case("module_that_the_bytecode_needs", ORDERED, None, USED)
case(
    "module_that_the_bytecode_needs_by_another_name",
    ORDERED,
    ("def f(x)", "other, collections = collections, None\ndef f(x)"),
    TRACED,
)
case("module_that_the_bytecode_needs_is_gone", ORDERED, ("def f(x)", "del collections\ndef f(x)"), TRACED)
case(
    "namedtuple_of_a_transform",
    """
def f(x):
    return torch.func.jvp(lambda y: torch.addmm(y, y, y, alpha=2.0), (x,), (x,))[1]
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "function_inside_of_one_without_a_name",
    """
FUNCTIONS = {"f": lambda x: torch.func.grad(lambda y: torch.addmm(y, y, y, alpha=2.0).sum())(x)}
def build():
    return FUNCTIONS["f"], [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "function_inside_of_one_without_a_name_that_is_another",
    """
FUNCTIONS = {"f": lambda x: torch.func.grad(lambda y: torch.addmm(y, y, y, alpha=2.0).sum())(x)}
def build():
    return FUNCTIONS["f"], [(torch.randn(4, 4),)]
""",
    ("alpha=2.0", "alpha=3.0"),
    TRACED,
)
# The trace itself fills a table of the library, so the table differs before and after the trace. Dynamo also fills a
# table of einops.
case(
    "library_that_dynamo_prepares",
    """
from torch._dynamo import trace_rules
import library_that_dynamo_prepares_helper as helper
trace_rules.add_module_init_func("library_that_dynamo_prepares_helper", lambda: helper.TABLE.update(alpha=2.0))
def f(x):
    return torch.addmm(x, x, x, alpha=helper.look())
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    USED,
    helper=("TABLE = {}\ndef look():\n    return TABLE.get('alpha', 2.0)\n",) * 2,
)
