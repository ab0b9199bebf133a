"""Cases for packages: a program as it was recorded, and as a later process has it; is the package used there?

The graphs are made of matrix products, which Inductor compiles without a C++ compiler: the cases are about frames.
"""

# ruff: noqa: E501 - programs as text
from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support_host import TIMEOUT_S, Host

PROGRAM = Path(__file__).parent / "programs" / "packages_program.py"

USED, TRACED = "used", "traced"


@dataclass(frozen=True)
class Case:
    """``before`` and ``after``: source of the case's module; ``helper``: of a module that it imports, before and after."""

    name: str
    before: str
    after: str
    expected: str
    helper: tuple[str, str] = ("", "")


CASES: dict[str, Case] = {}

_HEAD = "import contextlib, functools, enum, types\nimport torch\nfrom torch import nn\n"
FUNCTION = """
def f(x):
    return torch.addmm(x, x, x, alpha=2.0)

def build():
    return f, [(torch.randn(4, 4),)]
"""
MODULE = """
class Net(nn.Module):
    scale = 2.0
    def __init__(self, alpha=2.0, width=4, bias=True):
        super().__init__()
        self.alpha = alpha
        self.first = nn.Linear(4, width, bias=bias)
        self.second = nn.Linear(width, 4)
    def forward(self, x):
        return torch.mm(self.second(self.first(x)), x).mul_(1) if False else torch.addmm(x, self.second(self.first(x)), x, alpha=self.alpha)

def build():
    return Net(), [(torch.randn(4, 4),)]
"""


def case(name: str, before: str, change: tuple[str, str] | None, expected: str, *, helper: tuple[str, str] = ("", "")) -> None:
    """``change``: (old, new) text of ``before``; None: no change."""
    before = textwrap.dedent(before)
    after = before
    if change is not None:
        assert change[0] in before, f"{name}: {change[0]!r} is not in the program"
        after = before.replace(*change)
    CASES[name] = Case(name, _HEAD + before, _HEAD + after, expected, helper)


def write(folder: Path, *, after: bool) -> None:
    """The modules of all cases."""
    folder.mkdir(parents=True, exist_ok=True)
    for item in CASES.values():
        (folder / f"{item.name}.py").write_text(item.after if after else item.before)
        if any(item.helper):
            (folder / f"{item.name}_helper.py").write_text(_HEAD + textwrap.dedent(item.helper[after]))


def run(host: Host, python: str, folder: Path, cases: list[str], *, audit: bool = False) -> dict[str, Any]:
    """Run cases in one process; what became of each. ``audit``: trace what packages would be used for, and compare."""
    environment = {
        "PRECOMPILED_PACKAGES": "function",
        "PRECOMPILED_PACKAGE_AUDIT": str(int(audit)),
        "PRECOMPILED_MODE": "wait",
        "OMP_NUM_THREADS": "1",
    }
    started = host.start({"folder": str(folder), "cases": cases}, environment, python, PROGRAM)
    answer: dict[str, Any] = started.result(timeout_s=3 * TIMEOUT_S)
    return answer


# ---------------------------------------------------------------- the same again

case("same_function", FUNCTION, None, USED)
case("same_module", MODULE, None, USED)
case("moved_lines", FUNCTION, ("def f(x):", "# a comment\n\n\ndef f(x):"), USED)
case("other_weights", MODULE, ("return Net(), [", "torch.manual_seed(9)\n    return Net(), ["), USED)
case("two_functions", """
def f(x):
    return torch.mm(x, x)
def g(x):
    return torch.addmm(x, x, x, alpha=3.0)
def both(x):
    return torch.compile(f)(x) + torch.compile(g)(x)
def build():
    return both, [(torch.randn(4, 4),)]
""", None, USED)
case("two_shapes", """
def f(x):
    return torch.addmm(x, x, x, alpha=2.0)
OPTIONS = {"dynamic": False}
def build():
    return f, [(torch.randn(4, 4),), (torch.randn(6, 6),)]
""", ("(torch.randn(4, 4),), (torch.randn(6, 6),)", "(torch.randn(6, 6),), (torch.randn(4, 4),)"), USED)
case("another_shape", """
def f(x):
    return torch.addmm(x, x, x, alpha=2.0)
OPTIONS = {"dynamic": False}
def build():
    return f, [(torch.randn(4, 4),)]
""", ("torch.randn(4, 4)", "torch.randn(6, 6)"), TRACED)
case("dynamic_shape", """
def f(x):
    return torch.addmm(x, x, x, alpha=2.0)
OPTIONS = {"dynamic": True}
def build():
    return f, [(torch.randn(4, 4),)]
""", ("torch.randn(4, 4)", "torch.randn(6, 6)"), USED)
case("dynamic_shape_guarded", """
def f(x):
    return torch.addmm(x, x, x, alpha=2.0) if x.shape[0] < 8 else torch.mm(x, x)
OPTIONS = {"dynamic": True}
def build():
    return f, [(torch.randn(4, 4),)]
""", ("torch.randn(4, 4)", "torch.randn(16, 16)"), TRACED)
case("global_tensor", """
WEIGHT = torch.full((4, 4), 2.0)
def f(x):
    return torch.mm(x, WEIGHT)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("(4, 4), 2.0", "(4, 4), 5.0"), USED)
case("graph_break", """
def f(x):
    y = torch.mm(x, x)
    torch._dynamo.graph_break()
    return torch.addmm(y, x, x, alpha=2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, USED)
case("two_graph_breaks_in_a_loop", """
def f(x):
    for at in range(2):
        x = torch.addmm(x, x, x, alpha=float(at))
        torch._dynamo.graph_break()
    return torch.mm(x, x)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, USED)
case("backward", """
def f(x, w):
    return torch.mm(x, torch.mm(w, w))
def build():
    return f, [(torch.randn(4, 4), torch.randn(4, 4, requires_grad=True))]
""", None, USED)
case("input_mutation", """
def f(x, y):
    y.copy_(torch.mm(x, x))
    return torch.mm(y, x)
def build():
    return f, [(torch.randn(4, 4), torch.zeros(4, 4))]
""", None, USED)
case("keyword_default", """
def f(x, *, alpha=2.0):
    return torch.addmm(x, x, x, alpha=alpha)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, USED)
case("method", """
class Thing:
    def __init__(self):
        self.alpha = 2.0
    def f(self, x):
        return torch.addmm(x, x, x, alpha=self.alpha)
def build():
    return Thing().f, [(torch.randn(4, 4),)]
""", None, USED)
case("static_method", """
class Thing:
    @staticmethod
    def f(x):
        return torch.addmm(x, x, x, alpha=2.0)
    @classmethod
    def g(cls, x):
        return torch.mm(x, x)
def both(x):
    return Thing.f(x) + Thing.g(x)
def build():
    return torch.compile(Thing.f), [(torch.randn(4, 4),)]
""", None, USED)
case("nested_closure", """
def make(alpha):
    def f(x):
        return torch.addmm(x, x, x, alpha=alpha)
    return f
def build():
    return make(2.0), [(torch.randn(4, 4),)]
""", None, USED)
case("partial", """
def f(alpha, x):
    return torch.addmm(x, x, x, alpha=alpha)
def build():
    return functools.partial(f, 2.0), [(torch.randn(4, 4),)]
""", None, USED)
case("decorated", """
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
""", None, USED)
case("import_inside", """
def f(x):
    import math
    return torch.addmm(x, x, x, alpha=math.pi)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, USED)
case("dict_and_list_attributes", """
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
""", None, USED)
case("unrelated_edit", """
UNRELATED = 1
def g():
    return UNRELATED
def f(x):
    return torch.addmm(x, x, x, alpha=2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("UNRELATED = 1", "UNRELATED = 2"), USED)
case("in_inference_mode", FUNCTION + "\ncontext = torch.inference_mode\n", None, USED)
case("no_grad", FUNCTION + "\ncontext = torch.no_grad\n", None, USED)

# ---------------------------------------------------------------- something is different

case("changed_source", FUNCTION, ("alpha=2.0", "alpha=3.0"), TRACED)
case("changed_signature", """
def f(x, alpha=2.0):
    return torch.addmm(x, x, x, alpha=alpha)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("alpha=2.0)", "alpha=3.0)"), TRACED)
case("changed_global", """
ALPHA = 2.0
def f(x):
    return torch.addmm(x, x, x, alpha=ALPHA)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("ALPHA = 2.0", "ALPHA = 3.0"), TRACED)
case("changed_type_of_a_global", """
ALPHA = 1
def f(x):
    return torch.addmm(x, x, x, alpha=ALPHA) if ALPHA is not True else torch.mm(x, x)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("ALPHA = 1", "ALPHA = True"), TRACED)
case("global_tensor_of_another_type", """
WEIGHT = torch.full((4, 4), 2.0)
def f(x):
    return torch.mm(x.to(WEIGHT.dtype), WEIGHT)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("(4, 4), 2.0", "(4, 4), 2.0, dtype=torch.float64"), TRACED)
case("changed_callee", """
import changed_callee_helper as helper
def f(x):
    return helper.g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED, helper=("def g(x):\n    return torch.addmm(x, x, x, alpha=2.0)\n",
                            "def g(x):\n    return torch.addmm(x, x, x, alpha=3.0)\n"))
case("changed_callee_of_a_callee", """
from changed_callee_of_a_callee_helper import g
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED, helper=("def h(x):\n    return torch.mm(x, x)\ndef g(x):\n    return h(x)\n",
                            "def h(x):\n    return torch.addmm(x, x, x, alpha=3.0)\ndef g(x):\n    return h(x)\n"))
case("changed_global_of_a_callee", """
from changed_global_of_a_callee_helper import g
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED, helper=("ALPHA = 2.0\ndef g(x):\n    return torch.addmm(x, x, x, alpha=ALPHA)\n",
                            "ALPHA = 3.0\ndef g(x):\n    return torch.addmm(x, x, x, alpha=ALPHA)\n"))
case("moved_callee", """
from moved_callee_helper import g
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, USED, helper=("def g(x):\n    return torch.addmm(x, x, x, alpha=2.0)\n",
                          "\n\n# moved\ndef g(x):\n    return torch.addmm(x, x, x, alpha=2.0)\n"))
case("monkeypatched_function", """
def g(x):
    return torch.mm(x, x)
def other(x):
    return torch.addmm(x, x, x, alpha=3.0)
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("def build():\n", "g = other\ndef build():\n"), TRACED)
case("monkeypatched_in_disguise", """
def g(x):
    return torch.mm(x, x)
def other(x):
    return torch.addmm(x, x, x, alpha=3.0)
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("def build():\n", "other.__name__ = other.__qualname__ = 'g'\ng = other\ndef build():\n"), TRACED)
case("monkeypatched_method", MODULE, (
    "def build():\n", "Net.forward = lambda self, x: torch.mm(self.first(x), x)\ndef build():\n"), TRACED)
case("monkeypatched_torch_method", MODULE, (
    "def build():\n",
    "def plain(self, x):\n    return torch.mm(x, self.weight.t())\ndef build():\n"
    "    nn.Linear.forward, kept = plain, nn.Linear.forward\n    build.kept = kept\n"), TRACED)
case("monkeypatched_torch_function", """
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
""", ("changed = False", "changed = True"), TRACED)
case("rebound_closure", """
def make(alpha):
    def f(x):
        return torch.addmm(x, x, x, alpha=alpha)
    return f
def build():
    return make(2.0), [(torch.randn(4, 4),)]
""", ("make(2.0)", "make(3.0)"), TRACED)
case("rebound_closure_function", """
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
""", ("make(one)", "make(two)"), TRACED)
case("closure_of_a_closure", """
def scaled(alpha):
    return lambda x: torch.addmm(x, x, x, alpha=alpha)
def make(g):
    def f(x):
        return g(x)
    return f
def build():
    return make(scaled(2.0)), [(torch.randn(4, 4),)]
""", ("scaled(2.0)", "scaled(3.0)"), TRACED)
case("partial_of_another_value", """
def f(alpha, x):
    return torch.addmm(x, x, x, alpha=alpha)
def build():
    return functools.partial(f, 2.0), [(torch.randn(4, 4),)]
""", ("f, 2.0", "f, 3.0"), TRACED)
case("subclass", MODULE, (
    "def build():\n    return Net()",
    "class Sub(Net):\n    def __init__(self):\n        super().__init__()\n        self.alpha = 2.0\ndef build():\n    return Sub()"),
    TRACED)
case("class_of_the_same_name", MODULE, (
    "def build():\n",
    "class Base(Net):\n    scale = 5.0\nBase.__name__ = Base.__qualname__ = 'Net'\nNet = Base\ndef build():\n"), TRACED)
case("changed_base", """
class Base(nn.Module):
    def g(self, x):
        return torch.mm(x, x)
class Net(Base):
    def forward(self, x):
        return self.g(x)
def build():
    return Net(), [(torch.randn(4, 4),)]
""", ("torch.mm(x, x)", "torch.addmm(x, x, x, alpha=3.0)"), TRACED)
case("class_attribute", """
class Net(nn.Module):
    alpha = 2.0
    def forward(self, x):
        return torch.addmm(x, x, x, alpha=self.alpha)
def build():
    return Net(), [(torch.randn(4, 4),)]
""", ("alpha = 2.0", "alpha = 3.0"), TRACED)
case("class_attribute_through_the_class", """
class Settings:
    alpha = 2.0
def f(x):
    return torch.addmm(x, x, x, alpha=Settings.alpha)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("alpha = 2.0", "alpha = 3.0"), TRACED)
case("hyperparameter", MODULE, ("return Net()", "return Net(alpha=3.0)"), TRACED)
case("submodule_type", MODULE, ("return Net(), [", "net = Net()\n    net.first = nn.Identity()\n    return net, ["), TRACED)
case("without_bias", MODULE, ("return Net()", "return Net(bias=False)"), TRACED)
case("wider", MODULE, ("return Net()", "return Net(width=6)"), TRACED)
case("forward_hook", MODULE, (
    "return Net(), [",
    "net = Net()\n    net.first.register_forward_hook(lambda module, inputs, output: output * 2)\n    return net, ["), TRACED)
case("forward_pre_hook", MODULE, (
    "return Net(), [",
    "net = Net()\n    net.first.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))\n    return net, ["),
    TRACED)
# Of a function: torch.compile(module) gives a module, which runs global hooks once more.
case("global_hook", """
NET = nn.Linear(4, 4)
def f(x):
    return NET(x)
def build():
    return f, [(torch.randn(4, 4),)]
@contextlib.contextmanager
def context():
    hooked = False
    handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 2) if hooked else None
    try:
        yield
    finally:
        if handle is not None:
            handle.remove()
""", ("hooked = False", "hooked = True"), TRACED)
case("eval_mode", """
class Net(nn.Module):
    def forward(self, x):
        return torch.mm(x, x) if self.training else torch.addmm(x, x, x, alpha=3.0)
def build():
    return Net(), [(torch.randn(4, 4),)]
""", ("return Net(), [", "return Net().eval(), ["), TRACED)
case("parameter_type", MODULE, (
    "return Net(), [(torch.randn(4, 4),)]", "return Net().double(), [(torch.randn(4, 4).double(),)]"), TRACED)
case("input_requires_grad", FUNCTION, ("torch.randn(4, 4)", "torch.randn(4, 4, requires_grad=True)"), TRACED)
case("input_strides", FUNCTION, ("torch.randn(4, 4)", "torch.randn(4, 4).t()"), TRACED)
case("input_aliases", """
def f(x, y):
    return torch.addmm(x, x, y, alpha=2.0)
def build():
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    return f, [(a, b)]
""", ("[(a, b)]", "[(a, a)]"), TRACED)
case("input_subclass", FUNCTION, ("(torch.randn(4, 4),)", "(nn.Parameter(torch.randn(4, 4), requires_grad=False),)"), TRACED)
case("grad_mode", MODULE + "\nGRAD = True\ncontext = lambda: torch.set_grad_enabled(GRAD)\n",
     ("GRAD = True", "GRAD = False"), TRACED)
case("inference_mode", FUNCTION + "\nON = False\ncontext = lambda: torch.inference_mode(ON)\n", ("ON = False", "ON = True"), TRACED)
case("autocast", FUNCTION + "\nON = False\ncontext = lambda: torch.autocast('cpu', torch.bfloat16, enabled=ON)\n",
     ("ON = False", "ON = True"), TRACED)
case("default_dtype", """
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
""", ("set_default_dtype(torch.float32)", "set_default_dtype(torch.float64)"), TRACED)
case("threads", FUNCTION + """
@contextlib.contextmanager
def context():
    kept = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(kept)
""", ("set_num_threads(1)", "set_num_threads(2)"), TRACED)
case("dynamo_configuration", FUNCTION + """
import torch._dynamo.config
CHANGE = {}
context = lambda: torch._dynamo.config.patch(CHANGE)
""", ("CHANGE = {}", "CHANGE = {'specialize_float': True}"), TRACED)
case("inductor_configuration", FUNCTION + """
import torch._inductor.config
CHANGE = {}
context = lambda: torch._inductor.config.patch(CHANGE)
""", ("CHANGE = {}", "CHANGE = {'max_fusion_size': 7}"), TRACED)
case("options", FUNCTION + "\nOPTIONS = {}\n", ("OPTIONS = {}", "OPTIONS = {'options': {'max_fusion_size': 7}}"), TRACED)
case("fullgraph", FUNCTION + "\nOPTIONS = {}\n", ("OPTIONS = {}", "OPTIONS = {'fullgraph': True}"), TRACED)
case("other_function_of_the_same_code", """
def f(x):
    return torch.addmm(x, x, x, alpha=2.0)
def g(x):
    return torch.addmm(x, x, x, alpha=2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("return f, [", "return g, ["), TRACED)
case("enum_member", """
class Kind(enum.Enum):
    A = 1
    B = 2
class Net(nn.Module):
    def __init__(self, kind=Kind.A):
        super().__init__()
        self.kind = kind
    def forward(self, x):
        return torch.mm(x, x) if self.kind is Kind.A else torch.addmm(x, x, x, alpha=3.0)
def build():
    return Net(Kind.A), [(torch.randn(4, 4),)]
""", ("Net(Kind.A)", "Net(Kind.B)"), TRACED)
case("list_attribute", """
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
""", ("[2.0, 3.0]", "[2.0, 3.0, 4.0]"), TRACED)
case("function_attribute", """
def one(x):
    return torch.mm(x, x)
def two(x):
    return torch.addmm(x, x, x, alpha=3.0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = one
    def forward(self, x):
        return self.act(x)
def build():
    return Net(), [(torch.randn(4, 4),)]
""", ("self.act = one", "self.act = two"), TRACED)
case("optional_argument", """
def f(x, mask=None):
    return torch.mm(x, x) if mask is None else torch.addmm(x, x, mask, alpha=3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("[(torch.randn(4, 4),)]", "[(torch.randn(4, 4), torch.randn(4, 4))]"), TRACED)
case("identity", """
MARKER = object()
def f(x, marker):
    return torch.mm(x, x) if marker is MARKER else torch.addmm(x, x, x, alpha=3.0)
def build():
    return f, [(torch.randn(4, 4), MARKER)]
""", ("[(torch.randn(4, 4), MARKER)]", "[(torch.randn(4, 4), object())]"), TRACED)
case("instance_attribute_over_a_method", MODULE, (
    "return Net(), [", "net = Net()\n    net.first.forward = lambda x: torch.mm(x, x)\n    return net, ["), TRACED)
case("identity_of_two_equal_things", """
def make():
    def g(x):
        return torch.mm(x, x)
    return g
ONE = make()
def f(x, g, h):
    return g(x) if g is h else torch.addmm(x, h(x), x, alpha=3.0)
def build():
    return f, [(torch.randn(4, 4), ONE, make())]
""", ("ONE, make())]", "ONE, ONE)]"), TRACED)
case("environment_variable", """
import os
def f(x):
    return torch.addmm(x, x, x, alpha=float(os.environ.get("CASE_ALPHA", "2.0")))
@contextlib.contextmanager
def context():
    os.environ["CASE_ALPHA"] = "2.0"
    try:
        yield
    finally:
        del os.environ["CASE_ALPHA"]
def build():
    return f, [(torch.randn(4, 4),)]
""", ('] = "2.0"', '] = "3.0"'), TRACED)
case("marked_dynamic", """
MARK = False
def f(x):
    return torch.addmm(x, x, x, alpha=2.0)
def build():
    x = torch.randn(4, 4)
    if MARK:
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_dynamic(x, 1)
    return f, [(x,)]
""", ("MARK = False", "MARK = True"), TRACED)
case("dynamic_flag", FUNCTION + "\nOPTIONS = {'dynamic': False}\n", ("'dynamic': False", "'dynamic': True"), TRACED)
case("disabled_callee", """
def g(x):
    return torch.addmm(x, x, x, alpha=2.0)
def f(x):
    return torch.mm(g(x), x)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("def build():\n", "g = torch._dynamo.disable(g)\ndef build():\n"), TRACED)
case("allowed_in_graph", """
def g(x):
    return torch.addmm(x, x, x, alpha=2.0)
def f(x):
    return torch.mm(g(x), x)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("def build():\n", "torch._dynamo.disallow_in_graph(torch.addmm)\ndef build():\n"), TRACED)
case("context_manager_of_the_users", """
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
""", ("return self.factor", "return self.factor + 1"), TRACED)
case("operator_of_the_users", """
class Scale:
    def __init__(self, value):
        self.value = value
    def __mul__(self, other):
        return Scale(self.value * other)
def f(x, scale):
    return torch.addmm(x, x, x, alpha=(scale * 2).value)
def build():
    return f, [(torch.randn(4, 4), Scale(2.0))]
""", ("self.value * other)", "self.value + 5 * other)"), TRACED)
case("property", """
class Net(nn.Module):
    @property
    def alpha(self):
        return 2.0
    def forward(self, x):
        return torch.addmm(x, x, x, alpha=self.alpha)
def build():
    return Net(), [(torch.randn(4, 4),)]
""", ("return 2.0", "return 3.0"), TRACED)
case("dict_order", """
TABLE = {"a": 2.0, "b": 3.0}
def f(x):
    for name, alpha in TABLE.items():
        x = torch.addmm(x, x, x, alpha=alpha)
    return x
def build():
    return f, [(torch.randn(4, 4),)]
""", ('{"a": 2.0, "b": 3.0}', '{"b": 3.0, "a": 2.0}'), TRACED)
case("tied_parameters", """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
    def forward(self, x):
        return self.second(self.first(x))
def build():
    return Net(), [(torch.randn(4, 4),)]
""", ("return Net(), [", "net = Net()\n    net.second.weight = net.first.weight\n    return net, ["), TRACED)
case("wrapped_torch_function", """
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
""", ("scaled(F.linear, 2.0)", "scaled(F.linear, 3.0)"), TRACED)
case("default_argument_of_a_callee", """
def g(x, alpha=2.0):
    return torch.addmm(x, x, x, alpha=alpha)
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("def build():\n", "g.__defaults__ = (3.0,)\ndef build():\n"), TRACED)
case("lambda_in_a_table", """
TABLE = {"act": lambda x: torch.mm(x, x)}
def f(x):
    return TABLE["act"](x)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("torch.mm(x, x)}", "torch.addmm(x, x, x, alpha=3.0)}"), TRACED)
case("frozen_dataclass", """
import dataclasses
@dataclasses.dataclass(frozen=True)
class Settings:
    alpha: float = 2.0
def f(x, settings):
    return torch.addmm(x, x, x, alpha=settings.alpha)
def build():
    return f, [(torch.randn(4, 4), Settings())]
""", ("Settings())]", "Settings(3.0))]"), TRACED)
case("custom_function", """
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
""", ("* 2.0", "* 3.0"), TRACED)

# ------------------------------------------------ what a frame makes itself has no source, and no guard but its class's

case("default_of_a_method_of_an_object_made_inside", """
class Scale:
    def __init__(self, factor=2.0):
        self.factor = factor
def f(x):
    return torch.addmm(x, x, x, alpha=Scale().factor)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("factor=2.0", "factor=3.0"), TRACED)
case("decorator_of_a_method_of_an_object_made_inside", """
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
""", ("@scaled(2.0)", "@scaled(3.0)"), TRACED)
case("class_of_a_factory", """
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
""", ("make(2.0)", "make(3.0)"), TRACED)
case("partial_method_of_an_object_made_inside", """
class Scale:
    def by(self, x, factor):
        return torch.addmm(x, x, x, alpha=factor)
    run = functools.partialmethod(by, factor=2.0)
def f(x):
    return Scale().run(x)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("factor=2.0", "factor=3.0"), TRACED)
case("list_of_the_class_of_an_object_made_inside", """
class Scale:
    FACTORS = [2.0, 5.0]
def f(x):
    return torch.addmm(x, x, x, alpha=Scale().FACTORS[0])
def build():
    return f, [(torch.randn(4, 4),)]
""", ("[2.0, 5.0]", "[3.0, 5.0]"), TRACED)
case("classes_that_name_each_other", """
class Left:
    def other(self):
        return Right
    def factor(self, kind=None):
        return 2.0
class Right(Left):
    def other(self):
        return Left
    def factor(self, kind=Left):
        return super().factor(kind)
def f(x):
    return torch.addmm(x, x, x, alpha=Right().factor() * Left().factor())
def build():
    return f, [(torch.randn(4, 4),)]
""", None, USED)
case("value_of_an_enum", """
class Kind(enum.IntEnum):
    A = 2
    B = 5
def f(x):
    return torch.addmm(x, x, x, alpha=Kind.A)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("A = 2", "A = 3"), TRACED)
case("value_of_an_enum_by_its_class", """
class Kind(enum.Enum):
    A = 2
    B = 5
def f(x):
    for kind in Kind:
        x = torch.addmm(x, x, x, alpha=kind.value)
    return x
def build():
    return f, [(torch.randn(4, 4),)]
""", ("A = 2", "A = 3"), TRACED)
case("inputs_that_share_memory", """
def f(x, y):
    y.mul_(2.0)
    return torch.mm(x, y)
def build():
    base = torch.randn(5, 4)
    return f, [(base[:4], base[1:].clone())]
""", ("base[1:].clone()", "base[1:]"), TRACED)
case("defaults_without_guards", """
torch._dynamo.config.skip_guards_on_constant_func_defaults = True
def g(x, alpha=2.0, *, beta=1.0):
    return torch.addmm(x, x, x, alpha=alpha, beta=beta)
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("beta=1.0", "beta=3.0"), TRACED)
# ------------------------------------------------ what a trace did not find, or found without a guard

case("an_attribute_that_was_not_there", """
class Settings:
    def __getattr__(self, name):
        return 2.0
def f(x, s):
    return torch.addmm(x, x, x, alpha=s.alpha)
def build():
    s = Settings()
    return f, [(torch.randn(4, 4), s)]
""", ("s = Settings()\n", "s = Settings()\n    s.alpha = 3.0\n"), TRACED)
case("lists_that_are_one", """
def f(x, a, b):
    a.append(3.0)
    return torch.addmm(x, x, x, alpha=float(len(b)))
def build():
    one = [1.0]
    return f, [(torch.randn(4, 4), one, [1.0])]
""", ("one, [1.0])", "one, one)"), TRACED)
case("class_of_a_namedtuple", """
import collections
class Mixin: pass
Base = collections.namedtuple("Base", "alpha")
class Settings(Base, Mixin): pass
def f(x, s):
    return torch.mm(x, x) if isinstance(s, Mixin) else torch.addmm(x, x, x, alpha=3.0)
def build():
    return f, [(torch.randn(4, 4), Settings(2.0))]
""", ("class Settings(Base, Mixin): pass", "class Settings(Base): pass"), TRACED)
case("class_in_a_closure", """
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
""", ("make(A)", "make(B)"), TRACED)
case("class_in_a_table_in_a_closure", """
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
""", ('{"kind": A}', '{"kind": B}'), TRACED)
case("subclass_of_tensor_by_name", """
class T(torch.Tensor): pass
KIND = T
def f(x):
    return torch.mm(x, x) if isinstance(x, KIND) else torch.addmm(x, x, x, alpha=3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("KIND = T", "KIND = torch.Tensor"), TRACED)
case("name_that_a_module_had_not", """
import name_that_a_module_had_not_helper as helper
def f(x):
    return torch.addmm(x, x, x, alpha=getattr(helper, "ALPHA", 2.0))
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED, helper=("", "ALPHA = 3.0\n"))
case("attribute_that_a_function_had_not", """
def g(x):
    return x
def f(x):
    return torch.addmm(x, x, x, alpha=3.0 if hasattr(g, "alpha") else 2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("def build():\n", "g.alpha = 3.0\ndef build():\n"), TRACED)
case("builtin_that_is_shadowed", """
def f(x):
    return torch.addmm(x, x, x, alpha=max(2.0, 1.0))
def build():
    return f, [(torch.randn(4, 4),)]
""", ("def build():\n", "def max(a, b): return 3.0\ndef build():\n"), TRACED)
case("builtin_that_is_shadowed_where_a_callee_is", """
from builtin_that_is_shadowed_where_a_callee_is_helper import g
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED, helper=("def g(x):\n    return torch.addmm(x, x, x, alpha=max(2.0, 1.0))\n",
                            "def g(x):\n    return torch.addmm(x, x, x, alpha=max(2.0, 1.0))\ndef max(a, b): return 3.0\n"))
case("not_a_leaf", """
def f(x):
    return torch.mm(x, x) if x.grad_fn is None else torch.addmm(x, x, x, alpha=3.0)
def build():
    x = torch.randn(4, 4, requires_grad=True)
    return f, [(x,)]
""", ("[(x,)]", "[(x * 1.0,)]"), TRACED)
case("graph_breaks_that_raise", """
def f(x):
    y = torch.mm(x, x)
    torch._dynamo.graph_break()
    return torch.mm(y, x)
context = contextlib.nullcontext
def build():
    return f, [(torch.randn(4, 4),)]
""", None, USED)
case("metaclass", """
class Meta(type):
    def __call__(cls, *args):
        return super().__call__(*args)
    FACTOR = 2.0
class Kind(metaclass=Meta): pass
def f(x, y):
    return torch.mm(x, x) if type(y) is Kind else torch.addmm(x, x, x, alpha=3.0)
def build():
    return f, [(torch.randn(4, 4), Kind())]
""", ("FACTOR = 2.0", "FACTOR = 3.0"), TRACED)
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
case("left_alone_for_the_grad_mode", """
GRAD = True
context = lambda: torch.set_grad_enabled(GRAD)
def f(x):
    if torch.is_grad_enabled():
        return x
    return torch.mm(x, x)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("GRAD = True", "GRAD = False"), TRACED)
case("left_alone_again", LEFT_ALONE, None, USED)

# ---------------------------------------------------------------- never kept

# With the reason that package_report() gives.
NEVER = {
    "asks_for_id": "package-id",
    "a_class_of_exec": "package-inlined",
    "a_tensor_subclass": "package-guard",
    "a_random_number": "package-global",
    "text_of_an_enums_member": "package-not-portable",
    "module_as_a_default": "package-not-portable",
    "a_device_context": "package-mode",
    "assumed_constant_of_a_local": "package-assumed-constant",
    "order_of_a_set": "package-set-order",
    "a_set_that_is_gone_through": "package-set-order",
    "asks_for_hash": "package-id",
    "a_metaclass_that_decides": "package-not-portable",
    "module_in_a_default": "package-not-portable",
    "a_protocol_of_values": "package-not-portable",
    "a_hook_of_subclasses": "package-not-portable",
    "order_of_a_set_that_is_made": "package-set-order",
    "a_set_that_is_changed": "package-set-order",
    "a_union_with_a_hook": "package-not-portable",
    "key_of_a_max": "package-not-portable",
    "key_of_a_max_that_is_a_class": "package-not-portable",
    "a_region_like_another": "package-not-portable",
    "inputs_that_overlap": "package-graph",  # aliased-mutation: it is compiled in each process
}
case("order_of_a_set", """
TABLE = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
def f(x):
    for name in {"a", "b", "c", "d"}:
        x = torch.addmm(x, x, x, alpha=TABLE[name])
    return x
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED)
case("a_set_that_is_gone_through", """
NAMES = frozenset({"a", "b", "c", "d"})
TABLE = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
def f(x):
    for name in NAMES:
        x = torch.addmm(x, x, x, alpha=TABLE[name])
    return x
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED)
case("asks_for_hash", """
def f(x):
    return torch.addmm(x, x, x, alpha=float(hash("name") % 1000 + 1) / 1000)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED)
case("a_metaclass_that_decides", """
class Meta(type):
    def __instancecheck__(cls, value):
        return True
class Kind(metaclass=Meta): pass
class Thing: pass
def f(x, y):
    return torch.mm(x, x) if isinstance(y, Kind) else torch.addmm(x, x, x, alpha=3.0)
def build():
    return f, [(torch.randn(4, 4), Thing())]
""", None, TRACED)
case("a_class_of_exec", """
SPACE = {}
exec("class G:\\n    def __enter__(self):\\n        return 3.0\\n    def __exit__(self, *error):\\n        return False\\n", SPACE)
G = SPACE["G"]
def f(x):
    with G() as alpha:
        return torch.addmm(x, x, x, alpha=alpha)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED)
case("a_tensor_subclass", """
from torch.testing._internal.two_tensor import TwoTensor
PAIR = TwoTensor(torch.ones(4, 4), torch.ones(4, 4))
def f(x):
    return torch.mm(x, x) if PAIR.requires_grad else torch.addmm(x, x, x, alpha=2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED)
case("a_random_number", """
import random
def g(x):
    return torch.addmm(x, x, x, alpha=2.0), random.randint(1, 5)
@torch._dynamo.disable
def f(x):
    return torch.compile(g)(x)[0]
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED)
case("text_of_an_enums_member", """
NAMES = {1: "relu"}
class Kind(enum.Enum):
    ONE = 1
    def __str__(self):
        return NAMES[self.value]
def f(x):
    return torch.mm(x, x) if f"{Kind.ONE}" == "relu" else torch.addmm(x, x, x, alpha=2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", ('"relu"}', '"gelu"}'), TRACED)
# Dynamo guards on which object it is, and evaluates the match.
case("a_regular_expression", """
import re
PATTERN = re.compile("a+")
def f(x):
    return torch.mm(x, x) if PATTERN.match("aa") else torch.addmm(x, x, x, alpha=2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", ('"a+"', '"b+"'), TRACED)
case("a_device_context", FUNCTION + "\ncontext = lambda: torch.device('cpu')\n", None, TRACED)
case("assumed_constant_of_a_local", """
def make():
    @torch._dynamo.assume_constant_result
    def alpha():
        return 2.0
    def f(x):
        return torch.addmm(x, x, x, alpha=alpha())
    return f
def build():
    return make(), [(torch.randn(4, 4),)]
""", None, TRACED)
case("assumed_constant", """
ALPHA = 2.0
@torch._dynamo.assume_constant_result
def alpha():
    return ALPHA
def f(x):
    return torch.addmm(x, x, x, alpha=alpha())
def build():
    return f, [(torch.randn(4, 4),)]
""", ("ALPHA = 2.0", "ALPHA = 3.0"), TRACED)
case("asks_for_id", """
MARKER = object()
def f(x):
    return torch.mm(x, x) if id(MARKER) % 2 == 0 else torch.addmm(x, x, x, alpha=2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED)

case("changed_source_of_what_broke_the_graph", """
from changed_source_of_what_broke_the_graph_helper import g
def f(x):
    x = torch.mm(x, x)
    return torch.mm(g(x), x)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED, helper=("def g(x):\n    torch._dynamo.graph_break()\n    return torch.mm(x, x)\n",
                            "def g(x):\n    return torch.mm(x, x)\n"))
case("changed_source_of_what_was_left_alone", """
from changed_source_of_what_was_left_alone_helper import g
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED, helper=("def g(x):\n    try:\n        torch._dynamo.graph_break()\n        return torch.mm(x, x)\n    finally:\n        pass\n",
                            "def g(x):\n    return torch.mm(x, x)\n"))
case("assumed_constant_again", """
ALPHA = 2.0
@torch._dynamo.assume_constant_result
def alpha():
    return ALPHA
def f(x):
    return torch.addmm(x, x, x, alpha=alpha())
def build():
    return f, [(torch.randn(4, 4),)]
""", None, USED)
# Dynamo compares such a set as a whole. It shows its items in the order of their addresses, here: of their collisions.
case("set_of_operators", """
NAMES = "abs acos asin atan ceil cos erf erfc erfinv exp expm1 floor frac log neg rsqrt sin tan".split()
OPERATORS = frozenset(getattr(torch.ops.aten, name).default for name in NAMES)
def f(x):
    return torch.addmm(x, x, x, alpha=2.0 if torch.ops.aten.abs.default in OPERATORS else 3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("in NAMES)", "in reversed(NAMES))"), USED)

# ---------------------------------------------------------------- what a third reader found: read, and without a guard

case("environment_variable_that_was_not_set", """
import os
def f(x):
    return torch.addmm(x, x, x, alpha=float(os.environ.get("CASE_UNSET", "2.0")))
def build():
    return f, [(torch.randn(4, 4),)]
""", ("import os\n", "import os\nos.environ['CASE_UNSET'] = '3.0'\n"), TRACED)
case("environment_variable_in", """
import os
def f(x):
    return torch.addmm(x, x, x, alpha=3.0 if "CASE_IN" in os.environ else 2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("import os\n", "import os\nos.environ['CASE_IN'] = '3.0'\n"), TRACED)
case("getenv", """
import os
os.environ["CASE_GETENV"] = "2.0"
def f(x):
    return torch.addmm(x, x, x, alpha=float(os.getenv("CASE_GETENV", "1.0")))
def build():
    return f, [(torch.randn(4, 4),)]
""", ('] = "2.0"', '] = "3.0"'), TRACED)
case("getenv_that_was_not_set", """
import os
def f(x):
    return torch.addmm(x, x, x, alpha=float(os.getenv("CASE_GETENV_UNSET", "2.0")))
def build():
    return f, [(torch.randn(4, 4),)]
""", ("import os\n", "import os\nos.environ['CASE_GETENV_UNSET'] = '3.0'\n"), TRACED)
case("getenv_again", """
import os
os.environ["CASE_OF_THIS_RUN"] = str(os.getpid())
def f(x):
    return torch.addmm(x, x, x, alpha=float(os.getenv("CASE_NOBODY_SETS", "2.0")))
def build():
    return f, [(torch.randn(4, 4),)]
""", None, USED)
case("key_that_was_not_there", """
SETTINGS = {}
def f(x):
    try:
        alpha = SETTINGS["alpha"]
    except KeyError:
        alpha = 2.0
    return torch.addmm(x, x, x, alpha=alpha)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("SETTINGS = {}", 'SETTINGS = {"alpha": 3.0}'), TRACED)
case("package_that_was_not_installed", """
import importlib.util, pathlib
def f(x):
    return torch.addmm(x, x, x, alpha=2.0 if importlib.util.find_spec("case_installed_later") is None else 3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("import importlib.util, pathlib\n", "import importlib.util, pathlib\npathlib.Path(__file__).with_name('case_installed_later.py').write_text('')\nimportlib.invalidate_caches()\n"), TRACED)
case("package_that_is_not_installed", """
import importlib.util
def f(x):
    return torch.addmm(x, x, x, alpha=2.0 if importlib.util.find_spec("case_never_installed") is None else 3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, USED)
case("c_descriptor", """
ACT = torch.Tensor.relu
def f(x):
    return torch.mm(ACT(x), x)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("torch.Tensor.relu", "torch.Tensor.sigmoid"), TRACED)
case("c_descriptor_of_a_module", """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = torch.Tensor.relu
    def forward(self, x):
        return torch.mm(self.act(x), x)
def build():
    return Net(), [(torch.randn(4, 4),)]
""", ("torch.Tensor.relu", "torch.Tensor.sigmoid"), TRACED)
case("autocast_of_another_dtype", """
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
""", ('("cpu", torch.bfloat16)', '("cpu", torch.float16)'), TRACED)
case("attribute_that_a_module_of_the_users_had_not", """
import attribute_that_a_module_of_the_users_had_not_helper as helper
def f(x):
    try:
        alpha = helper.ALPHA
    except AttributeError:
        alpha = 2.0
    return torch.addmm(x, x, x, alpha=alpha)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED, helper=("BETA = 1.0\n", "BETA = 1.0\nALPHA = 3.0\n"))
case("attribute_that_was_tried", """
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
""", ("    return x\n", "    return x\ng.alpha = 3.0\n"), TRACED)
case("attribute_that_a_tensor_had_not", """
def f(x):
    try:
        alpha = x.tag
    except AttributeError:
        alpha = 2.0
    return torch.addmm(x, x, x, alpha=alpha)
def build():
    x = torch.randn(4, 4)
    return f, [(x,)]
""", ("    return f,", "    x.tag = 3.0\n    return f,"), TRACED)
case("static_method_of_c_of_an_object_made_inside", """
class Block:
    act = staticmethod(torch.relu)
    def run(self, x):
        return torch.mm(self.act(x), x)
def f(x):
    return Block().run(x)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("torch.relu", "torch.sigmoid"), TRACED)
case("default_behind_a_decorator_of_torchs", """
class Scale:
    @torch.no_grad()
    def run(self, x, alpha=2.0):
        return torch.addmm(x, x, x, alpha=alpha)
def f(x):
    return Scale().run(x)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("alpha=2.0", "alpha=3.0"), TRACED)
case("attribute_of_a_method_of_an_object_made_inside", """
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
""", ("alpha = 2.0", "alpha = 3.0"), TRACED)
case("attribute_of_an_enum_member", """
SCALES = {1: 2.0, 2: 4.0}
class Kind(enum.Enum):
    ONE = 1
    TWO = 2
    def __init__(self, number):
        self.scale = SCALES[number]
def f(x):
    return torch.addmm(x, x, x, alpha=Kind(1).scale)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("{1: 2.0", "{1: 3.0"), TRACED)
case("array_that_became_a_tensor", """
import numpy as np
W = np.arange(4, dtype=np.float32)
def f(x):
    return torch.addmm(x, x, x, alpha=2.0 if isinstance(W, np.ndarray) else 3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("np.arange(4, dtype=np.float32)", "torch.arange(4, dtype=torch.float32)"), TRACED)
case("checkpoint_that_was_replaced", """
from torch.utils.checkpoint import checkpoint
def g(x):
    return torch.mm(x, x)
def f(x):
    return checkpoint(g, x, use_reentrant=False)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("def g(x):", "def checkpoint(function, *values, **named):\n    return function(*values) * 3.0\ndef g(x):"), TRACED)
case("subclass_of_tensor_behind_a_module", """
import subclass_of_tensor_behind_a_module_helper as helper
def f(x):
    return torch.mm(x, x) if isinstance(x, helper.KIND) else torch.addmm(x, x, x, alpha=3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED, helper=("class Mine(torch.Tensor):\n    pass\nKIND = Mine\n", "KIND = torch.Tensor\n"))
case("class_in_a_named_tuple_in_a_closure", """
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
""", ("Table(A)", "Table(B)"), TRACED)
case("signature", """
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
""", ("def g(x):", "def g(x, mask=None):"), TRACED)
case("order_of_attributes", """
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
""", ("s.a = 2.0\ns.b = 3.0", "s.b = 3.0\ns.a = 2.0"), TRACED)
case("alignment_of_a_parameter", """
base = torch.randn(20)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(base[:16].view(4, 4))
    def forward(self, x):
        return torch.mm(x, self.weight)
def build():
    return Net(), [(torch.randn(4, 4),)]
""", ("base[:16]", "base[1:17]"), TRACED)
case("a_view", """
def f(x):
    return torch.addmm(x, x, x, alpha=2.0 if x._base is None else 3.0)
def build():
    x = torch.randn(4, 4)
    return f, [(x,)]
""", ("[(x,)]", "[(x.view(4, 4),)]"), TRACED)

# ---------------------------------------------------------------- found by the fourth reader

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
case("mode_of_a_decorated_callee", """
@torch.no_grad()
def g(x):
    return torch.mm(x, x)
def f(x):
    return g(x) + x
def build():
    return f, [(torch.randn(4, 4, requires_grad=True),)]
""", ("@torch.no_grad()", "@torch.enable_grad()"), TRACED)
case("inference_mode_of_a_decorator", DECORATED.replace("guard = torch.no_grad", "guard = functools.partial(torch.inference_mode, True)"),
     ("torch.inference_mode, True", "torch.inference_mode, False"), TRACED)
TEXT = """
class Net(nn.Module):
    def __init__(self, head):
        super().__init__()
        self.head = head
    def forward(self, x):
        return torch.mm(x, x) if "ReLU" in str(self.head) else torch.addmm(x, x, x, alpha=3.0)
def build():
    return Net(nn.Sequential(nn.Identity(), nn.ReLU())), [(torch.randn(4, 4),)]
"""
case("text_of_a_module", TEXT, ("nn.ReLU()", "nn.GELU()"), TRACED)
case("text_of_a_module_again", TEXT, None, USED)
case("text_of_an_object", """
import dataclasses
@dataclasses.dataclass
class Config:
    act: str = "relu"
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
    def forward(self, x):
        return torch.mm(x, x) if "relu" in str(self.config) else torch.addmm(x, x, x, alpha=3.0)
def build():
    return Net(), [(torch.randn(4, 4),)]
""", ("Config()", 'Config("gelu")'), TRACED)
case("registered_in_pytree", """
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
""", ("def build():\n", "pytree.register_pytree_node(Batch, lambda b: ([b.x], None), lambda c, _: Batch(*c))\ndef build():\n"), TRACED)
case("keys_of_a_dictionary_that_is_changed", """
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
""", ('{"alpha": 2.0}', '{"alpha": 2.0, "beta": 1.0}'), TRACED)
case("text_of_a_dictionary", """
TABLE = {"a": 2.0}
def f(x):
    return torch.mm(x, x) if "b" in str(TABLE) else torch.addmm(x, x, x, alpha=3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", ('{"a": 2.0}', '{"a": 2.0, "b": 1.0}'), TRACED)
case("module_as_a_default", """
import module_as_a_default_helper as config
class Block:
    def run(self, x, cfg=config):
        return torch.addmm(x, x, x, alpha=cfg.ALPHA)
def f(x):
    return Block().run(x)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED, helper=("ALPHA = 2.0\n", "ALPHA = 3.0\n"))
PROPERTY_OF_A_CLASS = """
import collections, re
class classproperty:
    def __init__(self, function):
        self.function = function
    def __get__(self, instance, owner):
        return self.function(owner)
class Net(nn.Module):
    HELD
    @classproperty
    def alpha(cls):
        return READ
    def forward(self, x):
        return torch.addmm(x, x, x, alpha=self.alpha)
def build():
    return Net(), [(torch.randn(4, 4),)]
"""
def held_by_a_class(held: str, read: str) -> str:
    return PROPERTY_OF_A_CLASS.replace("HELD", held).replace("READ", read)
case("class_in_a_class", held_by_a_class("class Config: alpha = 2.0", "cls.Config.alpha"), ("= 2.0", "= 3.0"), TRACED)
case("ordered_dictionary_in_a_class", held_by_a_class("TABLE = collections.OrderedDict(a=2.0)", "cls.TABLE['a']"),
     ("a=2.0", "a=3.0"), TRACED)
case("pattern_in_a_class", held_by_a_class("PATTERN = re.compile('a+')", "2.0 if cls.PATTERN.match('aa') else 3.0"),
     ("'a+'", "'b+'"), TRACED)
# An enum as transformers has them: its own function names nothing but itself, and a global that is never read.
ENUM_OF_TEXTS = """
class Kind(str, enum.Enum):
    @classmethod
    def _missing_(cls, value):
        raise ValueError(f"{value} is no {cls.__name__}")
    X = "x"
    Y = "y"
"""
case("enums_member_in_a_class", ENUM_OF_TEXTS + held_by_a_class("MODE = Kind.X", "2.0 if cls.MODE.value == 'x' else 3.0"),
     ("MODE = Kind.X", "MODE = Kind.Y"), TRACED)
case("enum_that_explains_itself", ENUM_OF_TEXTS + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = Kind.X
    def forward(self, x):
        return torch.mm(x, x) if self.kind == Kind.X else torch.addmm(x, x, x, alpha=3.0)
def build():
    return Net(), [(torch.randn(4, 4),)]
""", None, USED)
case("what_a_transform_of_torchs_was_given", """
def g(x, y):
    return x * y
class Block:
    run = staticmethod(torch.vmap(g, in_dims=(0, 0)))
def f(x):
    return Block().run(x, x)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("in_dims=(0, 0)", "in_dims=(0, 1)"), TRACED)
case("attribute_of_a_wrapper_of_torchs", """
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
""", ("alpha = 2.0", "alpha = 3.0"), TRACED)
case("names_in_a_module", """
import names_in_a_module_helper as helper
def f(x):
    for name in dir(helper):
        if name.startswith("op_"):
            x = getattr(helper, name)(x)
    return x
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED, helper=("def op_a(x):\n    return torch.mm(x, x)\n",
                            "def op_a(x):\n    return torch.mm(x, x)\ndef op_b(x):\n    return x + 1\n"))
case("slot_that_was_empty", """
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
""", ("net = Net()\n", "net = Net()\n    net.state.cache = 3.0\n"), TRACED)
case("attribute_of_an_enums_member", """
SCALES = {1: 2.0}
class Kind(enum.Enum):
    ONE = 1
    def __init__(self, number):
        self._scale = SCALES[number]
    @property
    def scale(self):
        return self._scale
def f(x):
    return torch.addmm(x, x, x, alpha=Kind(1).scale)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("{1: 2.0}", "{1: 3.0}"), TRACED)
case("value_among_the_builtins", """
import builtins
builtins.ALPHA_B = 2.0
def f(x):
    return torch.addmm(x, x, x, alpha=ALPHA_B)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("ALPHA_B = 2.0", "ALPHA_B = 3.0"), TRACED)
case("builtin_that_a_cell_shadows", """
exec(compile("def g(x):\\n    return torch.addmm(x, x, x, alpha=max(2.0, 1.0))", "<cell 1>", "exec"), globals())
def f(x):
    return g(x)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("def build():\n", "def max(a, b): return 3.0\ndef build():\n"), TRACED)
case("annotations", """
def g(x, mask):
    return x
def f(x):
    return torch.addmm(x, x, x, alpha=2.0 if "mask" in g.__annotations__ else 3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("def g(x, mask):", "def g(x, mask: float):"), TRACED)
case("import_that_a_call_would_not_come_to", """
USE = True
def f(x):
    if USE:
        import import_that_a_call_would_not_come_to_helper as helper
        return torch.addmm(x, x, x, alpha=helper.ALPHA)
    return torch.mm(x, x)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("USE = True", "USE = False"), TRACED, helper=("ALPHA = 2.0\n", "raise SystemExit('imported')\n"))

# ---------------------------------------------------------------- found by the fifth reader
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
case("one_tensor_under_two_names", """
W = torch.eye(4)
def f(x):
    return torch.mm(x, W)
def build():
    return f, [(W,)]
""", ("[(W,)]", "[(torch.randn(4, 4),)]"), TRACED)
case("global_first_then_the_argument", """
W = torch.eye(4)
class Net(nn.Module):
    def __init__(self, w):
        super().__init__(); self.w = (w,)
    def forward(self, x):
        return torch.mm(torch.mm(x, W), self.w[0])
def build():
    return Net(W), [(torch.randn(4, 4),)]
""", ("Net(W)", "Net(torch.ones(4, 4))"), TRACED)
for _where, _how in (("set", "2.0 if self.act in {F.relu, F.gelu} else 3.0"), ("dict", "{F.relu: 2.0}.get(self.act, 3.0)"),
                     ("global", "2.0 if self.act in GATED else 3.0")):
    case(f"function_that_is_not_in_a_{_where}", f"""
from torch.nn import functional as F
GATED = {{F.relu, F.gelu}}
class Net(nn.Module):
    def __init__(self, act):
        super().__init__(); self.act = act
    def forward(self, x):
        return torch.addmm(x, x, x, alpha={_how})
def build():
    return Net(F.silu), [(torch.randn(4, 4),)]
""", ("Net(F.silu)", "Net(F.relu)"), TRACED)
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
for _act in ("relu", "gelu"):  # of Python, and of C
    case(f"{_act}_that_left_a_set", IN_A_SET.replace("Net(F.relu)", f"Net(F.{_act})"), ("{F.relu, F.gelu, F.silu}", "{F.silu}"), TRACED)
case("keys_in_another_order", """
from torch.nn import functional as F
TABLE = {F.relu: 2.0, F.gelu: 3.0}
class Net(nn.Module):
    def __init__(self, act):
        super().__init__(); self.act = act
    def forward(self, x):
        return torch.addmm(x, x, x, alpha=TABLE[self.act])
def build():
    return Net(F.relu), [(torch.randn(4, 4),)]
""", ("F.relu: 2.0, F.gelu: 3.0", "F.gelu: 2.0, F.relu: 3.0"), TRACED)
case("pooling_by_another_function", """
from torch.nn import functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.pool = F.max_pool2d
    def forward(self, x):
        return self.pool(x, 2)
def build():
    return Net(), [(torch.randn(1, 1, 6, 6),)]
""", ("F.max_pool2d", "F.adaptive_max_pool2d"), TRACED)
case("default_that_is_a_literal", """
def g(x, dtype=torch.float32):
    return x.to(dtype)
def f(x):
    return torch.mm(g(x), g(x))
def context():
    return torch._dynamo.config.patch(skip_guards_on_constant_func_defaults=True)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("dtype=torch.float32", "dtype=torch.float64"), TRACED)
case("key_of_a_max", """
COST = {"a": 1.0, "b": 2.0}
def f(x):
    best = max(("a", "b"), key=cost)
    return torch.mm(x, x) if best == "b" else torch.addmm(x, x, x, alpha=3.0)
def cost(name):
    return COST[name]
def build():
    return f, [(torch.randn(4, 4),)]
""", ('"a": 1.0', '"a": 5.0'), TRACED)
case("a_region_like_another", """
class Layer(nn.Module):
    def __init__(self, a):
        super().__init__(); self.a = a
    @torch.compiler.nested_compile_region
    def forward(self, x):
        return torch.addmm(x, x, x, alpha=self.a)
class Net(nn.Module):
    def __init__(self, *scales):
        super().__init__(); self.layers = nn.ModuleList(Layer(a) for a in scales)
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
def build():
    return Net(2.0, 2.0), [(torch.randn(4, 4),)]
""", ("Net(2.0, 2.0)", "Net(2.0, 3.0)"), TRACED)
case("inputs_that_overlap", """
def f(x, y):
    y.mul_(3.0)
    return torch.mm(x, y)
def build():
    base = torch.randn(8, 4)
    return f, [(base[:4], base[4:])]
""", ("base[4:]", "base[2:6]"), TRACED)
case("slices_of_a_batch", """
def f(x):
    return torch.mm(x, x)
def build():
    base = torch.randn(8, 4)
    return f, [(base[:4],)]
""", ("base[:4]", "base[4:]"), TRACED)  # as in a graph's key
case("module_in_a_default", """
import module_in_a_default_helper as config
class Block:
    def run(self, x, cfg=(config,)):
        return torch.addmm(x, x, x, alpha=cfg[0].ALPHA)
def f(x):
    return Block().run(x)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED, helper=("ALPHA = 2.0\n", "ALPHA = 3.0\n"))
case("attribute_of_a_function_that_was_not_there", """
def g(x):
    return x
def f(x):
    return torch.addmm(x, x, x, alpha=g.__dict__.get("alpha", 2.0))
def build():
    return f, [(torch.randn(4, 4),)]
""", ("def build():\n", "g.alpha = 3.0\ndef build():\n"), TRACED)
case("key_of_a_class_that_was_not_there", """
import dataclasses
@dataclasses.dataclass(frozen=True)
class Key:
    number: int
TABLE = {}
def f(x):
    return torch.addmm(x, x, x, alpha=TABLE.get(Key(4), 2.0))
def build():
    return f, [(torch.randn(4, 4),)]
""", ("TABLE = {}", "TABLE = {Key(4): 3.0}"), TRACED)
case("a_protocol_of_values", """
from typing import Protocol, runtime_checkable
@runtime_checkable
class Scaled(Protocol):
    def scale(self): ...
class Thing:
    def __init__(self, scale): self.scale = scale
class Net(nn.Module):
    def __init__(self, thing):
        super().__init__(); self.thing = thing
    def forward(self, x):
        return torch.addmm(x, x, x, alpha=2.0 if isinstance(self.thing, Scaled) else 3.0)
def build():
    return Net(Thing(len)), [(torch.randn(4, 4),)]
""", ("Thing(len)", "Thing(None)"), TRACED)
HOOK_OF_SUBCLASSES = """
import abc
WANTED = "scale"
class Scaled(abc.ABC):
    @classmethod
    def __subclasshook__(cls, kind):
        return WANTED in kind.__dict__
class Thing:
    scale = 2.0
def f(x, thing=Thing()):
    return torch.addmm(x, x, x, alpha=2.0 if isinstance(thing, Scaled) else 3.0)
def build():
    return f, [(torch.randn(4, 4),)]
"""
for _name, _asked in (("a_hook_of_subclasses", "Scaled"), ("a_union_with_a_hook", "Scaled | int")):
    case(_name, HOOK_OF_SUBCLASSES.replace("thing, Scaled)", f"thing, {_asked})"), ('WANTED = "scale"', 'WANTED = "other"'), TRACED)
case("key_of_a_max_that_is_a_class", """
COST = {"a": 1.0, "b": 2.0}
class Rank:
    def __init__(self, name): self.cost = COST[name]
    def __gt__(self, other): return self.cost > other.cost
    def __lt__(self, other): return self.cost < other.cost
def f(x):
    best = max(("a", "b"), key=Rank)
    return torch.mm(x, x) if best == "b" else torch.addmm(x, x, x, alpha=3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", ('"a": 1.0', '"a": 5.0'), TRACED)
case("metadata_of_a_field", """
import collections.abc, dataclasses
@dataclasses.dataclass
class Cfg:
    cb: collections.abc.Callable[[int], int] = dataclasses.field(default=None, metadata={"scale": 2.0})
def f(x):
    for field in dataclasses.fields(Cfg()):
        x = torch.addmm(x, x, x, alpha=field.metadata["scale"])
    return x
def build():
    return f, [(torch.randn(4, 4),)]
""", ('"scale": 2.0', '"scale": 3.0'), TRACED)
case("what_a_nullcontext_gives", """
CTX = contextlib.nullcontext()
def f(x):
    with CTX as scale:
        return torch.addmm(x, x, x, alpha=2.0 if scale is None else 3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("nullcontext()", "nullcontext(3.0)"), TRACED)
case("dates", """
import datetime
LIMIT, OTHER = datetime.date(2024, 1, 2), datetime.date(2024, 1, 1)
def f(x):
    return torch.addmm(x, x, x, alpha=2.0 if LIMIT > OTHER else 3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("(2024, 1, 1)", "(2025, 1, 1)"), TRACED)
case("order_of_a_set_that_is_made", """
NAMES = ("a", "b", "c", "d")
def f(x):
    found = x
    for name in set(NAMES).difference(("a",)):
        found = torch.addmm(found, x, x, alpha=float(ord(name)))
    return found
def build():
    return f, [(torch.randn(4, 4),)]
""", None, TRACED)
case("classmethod_over_a_property", """
def make(alpha):
    return lambda cls: alpha
class Net:
    alpha = classmethod(property(make(2.0)))
def f(x):
    return torch.addmm(x, x, x, alpha=Net.alpha)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("make(2.0)", "make(3.0)"), TRACED)
case("which_hook_has_keywords", """
def plain(module, args, *more):
    if not more:
        return (torch.addmm(args[0], args[0], args[0], alpha=2.0),)
    return (torch.mm(args[0], args[0]),), more[0]
class Inner(nn.Module):
    def forward(self, x):
        return torch.mm(x, x)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
    def forward(self, x):
        return self.inner(x)
def build():
    outer = Net()
    net = outer.inner
    net.register_forward_pre_hook(plain)
    net.register_forward_pre_hook(plain, with_kwargs=True)
    return outer, [(0.5 * torch.randn(4, 4),)]
""", ("net.register_forward_pre_hook(plain)\n    net.register_forward_pre_hook(plain, with_kwargs=True)", "net.register_forward_pre_hook(plain, with_kwargs=True)\n    net.register_forward_pre_hook(plain)"), TRACED)

# ---------------------------------------------------------------- found by the sixth reader

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
case("function_that_is_kept", """
BOX = types.SimpleNamespace(later=None)
def f(x):
    def later(z, by=2.0):
        return torch.addmm(z, z, z, alpha=by)
    BOX.later = later
    return torch.mm(x, x)
def build():
    return f, [(torch.randn(4, 4),)]
""", None, USED)
case("a_set_that_is_changed", """
class Layer(nn.Module):
    def __init__(self, active):
        super().__init__()
        self.active = active
    def forward(self, x):
        return torch.addmm(x, x, x, alpha=3.0 if "lora" in self.active else 2.0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        shared = {"base"}
        self.one, self.two = Layer(shared), Layer({"base"})
    def forward(self, x):
        self.one.active.add("lora")
        return self.two(self.one(x))
def build():
    return Net(), [(torch.randn(4, 4),)]
""", None, TRACED)
case("sets_that_are_one", """
ONE = {"base"}
TWO = {"base"}
def f(x):
    return torch.addmm(x, x, x, alpha=3.0 if ONE is TWO else 2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""", ('TWO = {"base"}', "TWO = ONE"), TRACED)
case("type_of_an_autocast_that_is_off", """
@torch.compiler.disable
def op(x, alpha):
    return torch.addmm(x, x, x, alpha=alpha)
def f(x):
    return op(x, 2.0 if torch.get_autocast_dtype("cpu") == torch.bfloat16 else 3.0)
def context():
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=False)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("dtype=torch.bfloat16, enabled", "dtype=torch.float16, enabled"), TRACED)
for _name, _kind, _said in (("a_buffer", "nn.Buffer", "t = nn.Buffer(t)"), ("a_parameter", "nn.Parameter", "t._is_param = True")):
    case(f"a_tensor_that_says_that_it_is_{_name}", f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        t = torch.ones(4, 4)
        pass
        self.__dict__["t"] = t
    def forward(self, x):
        return torch.mm(x, self.t) if isinstance(self.t, {_kind}) else torch.addmm(x, x, self.t)
def build():
    return Net(), [(torch.randn(4, 4),)]
""", ("        pass\n", f"        {_said}\n"), TRACED)
case("digits_of_an_integer", """
import sys
LIMIT = sys.get_int_max_str_digits()
def f(x):
    return torch.addmm(x, x, x, alpha=2.0 if sys.get_int_max_str_digits() == LIMIT else 3.0)
@contextlib.contextmanager
def context():
    sys.set_int_max_str_digits(LIMIT)
    yield
    sys.set_int_max_str_digits(LIMIT)
def build():
    return f, [(torch.randn(4, 4),)]
""", ("(LIMIT)\n    yield", "(LIMIT + 700)\n    yield"), TRACED)

# One of each kind, and the commonest: with those of NEVER they are the everyday ones; the others are slow.
EVERYDAY = ("same_module", "graph_break", "monkeypatched_function", "changed_global", "rebound_closure", "subclass",
            "changed_callee", "set_of_operators")  # fmt: skip

# Last: what it disallows stays disallowed in its process.
CASES["allowed_in_graph"] = CASES.pop("allowed_in_graph")
