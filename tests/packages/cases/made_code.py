"""Cases about code that is compiled at run time: its globals belong to no module."""

from packages.cases import TRACED, USED, case

GRAPH = """
class Inner(nn.Module):
    def forward(self, x):
        return torch.addmm(x, x, x, alpha=2.0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.fx.symbolic_trace(Inner())
    def forward(self, x):
        return torch.mm(self.inner(x), x)
def build():
    return Net(), [(torch.randn(4, 4),)]
"""
case("graph_module_within", GRAPH, None, USED)
case("graph_module_within_of_another_graph", GRAPH, ("alpha=2.0", "alpha=3.0"), TRACED)
case(
    "exported_module",
    """
class Net(nn.Module):
    def forward(self, x):
        return torch.addmm(x, x, x, alpha=2.0)
def build():
    x = torch.randn(4, 4)
    return torch.export.export(Net(), (x,)).module(), [(x,)]
""",
    None,
    USED,
)
MADE = """
scope = {"torch": torch, "alpha": 2.0}
exec("def g(x):\\n    return torch.addmm(x, x, x, alpha=alpha)", scope)
g = scope["g"]
def f(x):
    return torch.mm(g(x), x)
def build():
    return f, [(torch.randn(4, 4),)]
"""
case("function_that_is_made", MADE, None, USED)
case("function_that_is_made_of_another_text", MADE, ("alpha=alpha)", "alpha=alpha + 1)"), TRACED)
case("changed_global_of_a_function_that_is_made", MADE, ('"alpha": 2.0', '"alpha": 3.0'), TRACED)
HELD = """
class Holds:
    def __init__(self):
        scope = {"torch": torch, "alpha": 2.0}
        exec("def g(x):\\n    return torch.addmm(x, x, x, alpha=alpha)", scope)
        self.g = scope["g"]
holds = Holds()
def f(x):
    return torch.mm(holds.g(x), x)
def build():
    return f, [(torch.randn(4, 4),)]
"""
case("made_function_that_an_object_has", HELD, None, USED)
case("changed_global_of_a_made_function_that_an_object_has", HELD, ('"alpha": 2.0', '"alpha": 3.0'), TRACED)
case("object_that_has_another_made_function", HELD, ("alpha=alpha)", "alpha=alpha + 1)"), TRACED)
case("object_that_has_no_made_function_any_more", HELD, ('scope["g"]', "lambda x: torch.mm(x, x)"), TRACED)
# In the first attempt to trace f, Dynamo inlines g, which reads a global. After the graph break, the last attempt
# leaves h to a separate frame, so f must not depend on that global.
BREAKS = """
scope = {"torch": torch, "alpha": 2.0}
exec("def g(x):\\n    return torch.addmm(x, x, x, alpha=alpha)", scope)
g = scope["g"]
def h(x):
    y = g(x)
    torch._dynamo.graph_break()
    return torch.mm(y, y)
def f(x):
    return h(torch.mm(x, x))
def build():
    return f, [(torch.randn(4, 4),)]
"""
case("made_function_that_only_a_first_attempt_met", BREAKS, None, USED)
# Both functions read one dictionary of globals, which Dynamo guards under one name. In a later process they may have
# separate dictionaries.
SHARED = """
class Holds:
    pass
def made(name, scope):
    exec(f"def {name}(x):\\n    return torch.addmm(x, x, x, alpha=alpha)", scope)
    holds = Holds()
    holds.function = scope[name]
    return holds
scope = {"torch": torch, "alpha": 2.0}
one = made("g", scope)
two = made("h", scope)
def f(x):
    return torch.mm(one.function(x), two.function(x))
def build():
    return f, [(torch.randn(4, 4),)]
"""
case("made_functions_over_one_scope", SHARED, None, USED)
for _name, _made in (("one", 'made("g", scope)'), ("two", 'made("h", scope)')):
    _alone = _made.replace("scope", '{**scope, "alpha": 3.0}')
    case(f"made_function_that_left_the_others_scope_{_name}", SHARED, (_made, _alone), TRACED)

_NAMEDTUPLE = """
import collections
Pair = collections.namedtuple("Pair", ("left", "right"))
def inner(x):
    torch._dynamo.graph_break()
    return Pair(torch.mm(x, x), torch.addmm(x, x, x, alpha=2.0))
def f(x):
    pair = inner(x)
    torch._dynamo.graph_break()
    return torch.addmm(pair.left, pair.right, x, alpha=2.0)
def build():
    return f, [(torch.randn(4, 4),)]
"""
case("namedtuple_over_a_break", _NAMEDTUPLE, None, USED)
for _name, _each in (
    ("iterator", "iter([2.0, 3.0])"),
    ("reversed", "reversed([2.0, 3.0])"),
    ("range", "range(2, 4)"),
    ("deque", "collections.deque([2.0, 3.0])"),
    ("iterator_of_a_tuple", "iter((2.0, 3.0))"),
):
    _text = f"""
import collections
def f(x):
    for scale in {_each}:
        x = torch.addmm(x, x, x, alpha=scale)
        torch._dynamo.graph_break()
    return x
def build():
    return f, [(torch.randn(4, 4),)]
"""
    case(f"a_{_name}_over_a_break", _text, None, USED)
    case(f"another_{_name}_over_a_break", _text, ("2", "4"), TRACED)
