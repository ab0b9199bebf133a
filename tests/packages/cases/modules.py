"""Cases about modules (nn.Module): their classes, submodules, parameters, attributes and hooks."""

# ruff: noqa: E501 - programs as text
from __future__ import annotations

from packages.cases import MODULE, TRACED, USED, case

case("same_module", MODULE, None, USED)
case("other_weights", MODULE, ("return Net(), [", "torch.manual_seed(9)\n    return Net(), ["), USED)
case(
    "monkeypatched_method",
    MODULE,
    ("def build():\n", "Net.forward = lambda self, x: torch.mm(self.first(x), x)\ndef build():\n"),
    TRACED,
)
case(
    "monkeypatched_torch_method",
    MODULE,
    (
        "def build():\n",
        "def plain(self, x):\n    return torch.mm(x, self.weight.t())\ndef build():\n"
        "    nn.Linear.forward, kept = plain, nn.Linear.forward\n    build.kept = kept\n",
    ),
    TRACED,
)
case(
    "subclass",
    MODULE,
    (
        "def build():\n    return Net()",
        "class Sub(Net):\n    def __init__(self):\n        super().__init__()\n        self.alpha = 2.0\ndef build():\n    return Sub()",
    ),
    TRACED,
)
case(
    "class_of_the_same_name",
    MODULE,
    (
        "def build():\n",
        "class Base(Net):\n    scale = 5.0\nBase.__name__ = Base.__qualname__ = 'Net'\nNet = Base\ndef build():\n",
    ),
    TRACED,
)
case("hyperparameter", MODULE, ("return Net()", "return Net(alpha=3.0)"), TRACED)
case(
    "submodule_type",
    MODULE,
    ("return Net(), [", "net = Net()\n    net.first = nn.Identity()\n    return net, ["),
    TRACED,
)
case("without_bias", MODULE, ("return Net()", "return Net(bias=False)"), TRACED)
case("wider", MODULE, ("return Net()", "return Net(width=6)"), TRACED)
case(
    "forward_hook",
    MODULE,
    (
        "return Net(), [",
        "net = Net()\n    net.first.register_forward_hook(lambda module, inputs, output: output * 2)\n    return net, [",
    ),
    TRACED,
)
case(
    "forward_pre_hook",
    MODULE,
    (
        "return Net(), [",
        "net = Net()\n    net.first.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))\n    return net, [",
    ),
    TRACED,
)
# The case compiles a function, because torch.compile(module) returns a module that would run global hooks again.
case(
    "global_hook",
    """
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
""",
    ("hooked = False", "hooked = True"),
    TRACED,
)
case(
    "eval_mode",
    """
class Net(nn.Module):
    def forward(self, x):
        return torch.mm(x, x) if self.training else torch.addmm(x, x, x, alpha=3.0)
def build():
    return Net(), [(torch.randn(4, 4),)]
""",
    ("return Net(), [", "return Net().eval(), ["),
    TRACED,
)
case(
    "parameter_type",
    MODULE,
    ("return Net(), [(torch.randn(4, 4),)]", "return Net().double(), [(torch.randn(4, 4).double(),)]"),
    TRACED,
)
case(
    "function_attribute",
    """
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
""",
    ("self.act = one", "self.act = two"),
    TRACED,
)
case(
    "instance_attribute_over_a_method",
    MODULE,
    ("return Net(), [", "net = Net()\n    net.first.forward = lambda x: torch.mm(x, x)\n    return net, ["),
    TRACED,
)
case(
    "property",
    """
class Net(nn.Module):
    @property
    def alpha(self):
        return 2.0
    def forward(self, x):
        return torch.addmm(x, x, x, alpha=self.alpha)
def build():
    return Net(), [(torch.randn(4, 4),)]
""",
    ("return 2.0", "return 3.0"),
    TRACED,
)
case(
    "tied_parameters",
    """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
    def forward(self, x):
        return self.second(self.first(x))
def build():
    return Net(), [(torch.randn(4, 4),)]
""",
    ("return Net(), [", "net = Net()\n    net.second.weight = net.first.weight\n    return net, ["),
    TRACED,
)
case(
    "which_hook_has_keywords",
    """
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
""",
    (
        "net.register_forward_pre_hook(plain)\n    net.register_forward_pre_hook(plain, with_kwargs=True)",
        "net.register_forward_pre_hook(plain, with_kwargs=True)\n    net.register_forward_pre_hook(plain)",
    ),
    TRACED,
)
_HOOKED = """
class Scaled:
    def __init__(self, by):
        self.by, self.seen = by, [torch.ones(4)]
    def apply(self, y):
        return y * self.by
    def other(self, y):
        return y + self.by
    def hook(self, module, args, output):
        return self.apply(output)
    def another(self, module, args, output):
        return self.other(output)
SCALED = Scaled(2.0)
TABLE = {{"scale": 2.0, "seen": torch.ones(4)}}
def made(held):
    def hook(name, module, args, output):
        {body}
    return hook
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
    def forward(self, x):
        return self.second(self.first(x))
def build():
    net = Net()
    for name, module in net.named_children():
        module.register_forward_hook({hook})
    return net, [(torch.randn(4, 4),), (torch.randn(4, 4),)]
"""
for _name, _hook, _body, _change, _expected in (
    ("records_in_a_table", "functools.partial(made(TABLE), name)", "held[name] = output.detach()", None, USED),
    (
        "multiplies_by_a_number",
        "functools.partial(made(2.0), name)",
        "return output * held",
        ("made(2.0)", "made(3.0)"),
        TRACED,
    ),
    (
        "reads_a_table",
        "functools.partial(made(TABLE), name)",
        "return output * held['scale']",
        ('"scale": 2.0', '"scale": 3.0'),
        TRACED,
    ),
    (
        "reads_an_object",
        "functools.partial(made(SCALED), name)",
        "return output * held.by",
        ("Scaled(2.0)", "Scaled(3.0)"),
        TRACED,
    ),
    (
        "calls_a_method",
        "functools.partial(made(SCALED.apply), name)",
        "return held(output)",
        ("made(SCALED.apply)", "made(SCALED.other)"),
        TRACED,
    ),
    (
        "calls_a_method_of_another",
        "functools.partial(made(SCALED.apply), name)",
        "return held(output)",
        ("Scaled(2.0)", "Scaled(3.0)"),
        TRACED,
    ),
    (
        "is_given_an_object",
        "functools.partial(made(None), SCALED)",
        "return output * name.by",
        ("Scaled(2.0)", "Scaled(3.0)"),
        TRACED,
    ),
    (
        "is_given_a_method",
        "functools.partial(made(None), SCALED.apply)",
        "return name(output)",
        ("None), SCALED.apply", "None), SCALED.other"),
        TRACED,
    ),
    ("is_a_method", "SCALED.hook", "pass", ("(SCALED.hook)", "(SCALED.another)"), TRACED),
    (
        "is_a_partial_of_a_method",
        "functools.partial(SCALED.hook)",
        "pass",
        ("(SCALED.hook)", "(SCALED.another)"),
        TRACED,
    ),
):
    case(f"hook_that_{_name}", _HOOKED.format(hook=_hook, body=_body), _change, _expected)
