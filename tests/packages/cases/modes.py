"""Cases about torch's modes and configuration, options of torch.compile, and context managers."""

from __future__ import annotations

from packages.cases import FUNCTION, MODULE, TRACED, USED, case

case("in_inference_mode", FUNCTION + "\ncontext = torch.inference_mode\n", None, USED)
case("no_grad", FUNCTION + "\ncontext = torch.no_grad\n", None, USED)
case(
    "grad_mode",
    MODULE + "\nGRAD = True\ncontext = lambda: torch.set_grad_enabled(GRAD)\n",
    ("GRAD = True", "GRAD = False"),
    TRACED,
)
case(
    "inference_mode",
    FUNCTION + "\nON = False\ncontext = lambda: torch.inference_mode(ON)\n",
    ("ON = False", "ON = True"),
    TRACED,
)
case(
    "autocast",
    FUNCTION + "\nON = False\ncontext = lambda: torch.autocast('cpu', torch.bfloat16, enabled=ON)\n",
    ("ON = False", "ON = True"),
    TRACED,
)
case(
    "default_dtype",
    """
@contextlib.contextmanager
def context():
    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(kept)
def f(x):
    return torch.mm(x, torch.ones(4, 4).to(x.dtype))
def build():
    return f, [(torch.ones(4, 4, dtype=torch.float32),)]
""",
    ("set_default_dtype(torch.float32)", "set_default_dtype(torch.float64)"),
    TRACED,
)
case(
    "threads",
    FUNCTION
    + """
@contextlib.contextmanager
def context():
    kept = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(kept)
""",
    ("set_num_threads(1)", "set_num_threads(2)"),
    TRACED,
)
case(
    "dynamo_configuration",
    FUNCTION
    + """
import torch._dynamo.config
CHANGE = {}
context = lambda: torch._dynamo.config.patch(CHANGE)
""",
    ("CHANGE = {}", "CHANGE = {'specialize_float': True}"),
    TRACED,
)
case(
    "inductor_configuration",
    FUNCTION
    + """
import torch._inductor.config
CHANGE = {}
context = lambda: torch._inductor.config.patch(CHANGE)
""",
    ("CHANGE = {}", "CHANGE = {'max_fusion_size': 7}"),
    TRACED,
)
case(
    "configuration_of_symbolic_sizes",
    FUNCTION
    + """
import torch.fx.experimental._config
CHANGE = {}
context = lambda: torch.fx.experimental._config.patch(CHANGE)
""",
    ("CHANGE = {}", "CHANGE = {'backed_size_oblivious': True}"),
    TRACED,
)
case(
    "sources_that_are_dynamic",
    FUNCTION
    + """
CHANGE = {}
context = lambda: torch.compiler.config.patch(CHANGE)
""",
    ("CHANGE = {}", "CHANGE = {'dynamic_sources': \"L['x']\"}"),
    TRACED,
)
case(
    "options", FUNCTION + "\nOPTIONS = {}\n", ("OPTIONS = {}", "OPTIONS = {'options': {'max_fusion_size': 7}}"), TRACED
)
case("fullgraph", FUNCTION + "\nOPTIONS = {}\n", ("OPTIONS = {}", "OPTIONS = {'fullgraph': True}"), TRACED)
case(
    "context_manager_of_the_users",
    """
class Scaled:
    factor = 2.0
    def __enter__(self):
        return self.factor
    def __exit__(self, *error):
        return False
def f(x):
    with Scaled() as factor:
        return torch.addmm(x, x, x, alpha=factor)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("return self.factor", "return self.factor + 1"),
    TRACED,
)
case(
    "autocast_of_another_dtype",
    """
def f(x):
    with torch.autocast("cpu"):
        return torch.mm(x, x).float()
@contextlib.contextmanager
def context():
    before = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    try:
        yield
    finally:
        torch.set_autocast_dtype("cpu", before)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ('("cpu", torch.bfloat16)', '("cpu", torch.float16)'),
    TRACED,
)

DECORATED = """
guard = torch.no_grad
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
    @guard()
    def forward(self, x):
        return torch.mm(x, self.weight)
def build():
    return Net(), [(torch.randn(4, 4),)]
"""
case("mode_of_a_decorator", DECORATED, ("guard = torch.no_grad", "guard = torch.enable_grad"), TRACED)
case("mode_of_a_decorator_again", DECORATED, None, USED)
case(
    "mode_of_a_decorated_callee",
    """
@torch.no_grad()
def g(x):
    return torch.mm(x, x)
def f(x):
    return g(x) + x
def build():
    return f, [(torch.randn(4, 4, requires_grad=True),)]
""",
    ("@torch.no_grad()", "@torch.enable_grad()"),
    TRACED,
)
case(
    "inference_mode_of_a_decorator",
    DECORATED.replace("guard = torch.no_grad", "guard = functools.partial(torch.inference_mode, True)"),
    ("torch.inference_mode, True", "torch.inference_mode, False"),
    TRACED,
)
case(
    "what_a_nullcontext_gives",
    """
CTX = contextlib.nullcontext()
def f(x):
    with CTX as scale:
        return torch.addmm(x, x, x, alpha=2.0 if scale is None else 3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("nullcontext()", "nullcontext(3.0)"),
    TRACED,
)
case(
    "type_of_an_autocast_that_is_off",
    """
@torch.compiler.disable
def op(x, alpha):
    return torch.addmm(x, x, x, alpha=alpha)
def f(x):
    return op(x, 2.0 if torch.get_autocast_dtype("cpu") == torch.bfloat16 else 3.0)
def context():
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=False)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("dtype=torch.bfloat16, enabled", "dtype=torch.float16, enabled"),
    TRACED,
)
