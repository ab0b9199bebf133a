"""Cases that are never recorded: each process traces them, and package_report() gives the reason."""

# ruff: noqa: E501 - programs as text
from __future__ import annotations

from packages.cases import FUNCTION, TRACED, case

# For each case, the code of the reason that package_report() gives.
NEVER = {
    "asks_for_id": "package-id",
    "a_class_of_exec": "package-inlined",
    "a_random_number": "package-global",
    "module_as_a_default": "package-not-portable",
    "a_device_context": "package-mode",
    "assumed_constant_of_a_local": "package-assumed-constant",
    "order_of_a_set": "package-set-order",
    "a_set_that_is_gone_through": "package-set-order",
    **{f"order_of_texts_in_a_set_{number}": "package-set-order" for number in range(22)},
    "asks_for_hash": "package-id",
    "asks_for_a_seed": "package-id",
    "a_metaclass_that_decides": "package-not-portable",
    "module_in_a_default": "package-not-portable",
    "a_protocol_of_values": "package-not-portable",
    "a_hook_of_subclasses": "package-not-portable",
    "order_of_a_set_that_is_made": "package-set-order",
    "a_set_that_is_changed": "package-set-order",
    "method_that_gives_members_of_a_set": "package-not-portable",
    "a_union_with_a_hook": "package-not-portable",
    "key_of_a_max": "package-not-portable",
    "key_of_a_max_that_is_a_class": "package-not-portable",
    "a_region_like_another": "package-not-portable",
    "native_call_that_reads_the_environment": "package-native-call",
    "native_call_that_is_given_a_lock": "package-native-call",
    "native_call_with_a_tensor_as_a_default": "package-native-call",
    **{
        f"native_call_that_reads_{what}": "package-native-call"
        for what in (
            "a_getter",
            "a_file",
            "an_import",
            "a_path",
            "a_memo",
            "a_memo_in_a_class",
            "a_memo_in_a_table",
            "a_getter_in_a_table",
            "a_getter_in_an_object",
        )
    },
    "hook_that_is_a_method": "package-not-portable",
    "hook_that_is_a_partial_of_a_method": "package-not-portable",
    "frozen_weights": "package-graph",
    "inputs_that_overlap": "package-graph",  # the graph is bypassed (aliased-mutation)
}
case(
    "frozen_weights",
    """
import torch._inductor.config
WEIGHT = 2.0
@contextlib.contextmanager
def context():
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        yield
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((4, 4), WEIGHT))
    def forward(self, x):
        return torch.addmm(x, x, self.weight, alpha=2.0)
def build():
    return Net().eval(), [(torch.randn(4, 4),)]
""",
    ("WEIGHT = 2.0", "WEIGHT = 3.0"),
    TRACED,
)
case(
    "order_of_a_set",
    """
TABLE = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
def f(x):
    for name in {"a", "b", "c", "d"}:
        x = torch.addmm(x, x, x, alpha=TABLE[name])
    return x
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
)
case(
    "a_set_that_is_gone_through",
    """
NAMES = frozenset({"a", "b", "c", "d"})
TABLE = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
def f(x):
    for name in NAMES:
        x = torch.addmm(x, x, x, alpha=TABLE[name])
    return x
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
)
case(
    "asks_for_hash",
    """
def f(x):
    return torch.addmm(x, x, x, alpha=float(hash("name") % 1000 + 1) / 1000)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
)
case(
    "asks_for_a_seed",
    """
def f(x):
    torch.seed()
    return torch.mul(x, 2.0 + torch.seed() * 0.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
)
case(
    "a_metaclass_that_decides",
    """
class Meta(type):
    def __instancecheck__(cls, value):
        return True
class Kind(metaclass=Meta): pass
class Thing: pass
def f(x, y):
    return torch.mm(x, x) if isinstance(y, Kind) else torch.addmm(x, x, x, alpha=3.0)
def build():
    return f, [(torch.randn(4, 4), Thing())]
""",
    None,
    TRACED,
)
case(
    "a_class_of_exec",
    """
SPACE = {}
exec("class G:\\n    def __enter__(self):\\n        return 3.0\\n    def __exit__(self, *error):\\n        return False\\n", SPACE)
G = SPACE["G"]
def f(x):
    with G() as alpha:
        return torch.addmm(x, x, x, alpha=alpha)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
)
case(
    "a_random_number",
    """
import random
def g(x):
    return torch.addmm(x, x, x, alpha=2.0), random.randint(1, 5)
@torch._dynamo.disable
def f(x):
    return torch.compile(g)(x)[0]
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
)
case(
    "text_of_an_enums_member",
    """
NAMES = {1: "relu"}
class Kind(enum.Enum):
    ONE = 1
    def __str__(self):
        return NAMES[self.value]
def f(x):
    return torch.mm(x, x) if f"{Kind.ONE}" == "relu" else torch.addmm(x, x, x, alpha=2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ('"relu"}', '"gelu"}'),
    TRACED,
)
case("a_device_context", FUNCTION + "\ncontext = lambda: torch.device('cpu')\n", None, TRACED)
case(
    "assumed_constant_of_a_local",
    """
def make():
    @torch._dynamo.assume_constant_result
    def alpha():
        return 2.0
    def f(x):
        return torch.addmm(x, x, x, alpha=alpha())
    return f
def build():
    return make(), [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
)
case(
    "asks_for_id",
    """
MARKER = object()
def f(x):
    return torch.mm(x, x) if id(MARKER) % 2 == 0 else torch.addmm(x, x, x, alpha=2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
)
case(
    "module_as_a_default",
    """
import module_as_a_default_helper as config
class Block:
    def run(self, x, cfg=config):
        return torch.addmm(x, x, x, alpha=cfg.ALPHA)
def f(x):
    return Block().run(x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
    helper=("ALPHA = 2.0\n", "ALPHA = 3.0\n"),
)
case(
    "key_of_a_max",
    """
COST = {"a": 1.0, "b": 2.0}
def f(x):
    best = max(("a", "b"), key=cost)
    return torch.mm(x, x) if best == "b" else torch.addmm(x, x, x, alpha=3.0)
def cost(name):
    return COST[name]
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ('"a": 1.0', '"a": 5.0'),
    TRACED,
)
case(
    "a_region_like_another",
    """
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
""",
    ("Net(2.0, 2.0)", "Net(2.0, 3.0)"),
    TRACED,
)
case(
    "inputs_that_overlap",
    """
def f(x, y):
    y.mul_(3.0)
    return torch.mm(x, y)
def build():
    base = torch.randn(8, 4)
    return f, [(base[:4], base[4:])]
""",
    ("base[4:]", "base[2:6]"),
    TRACED,
)
case(
    "module_in_a_default",
    """
import module_in_a_default_helper as config
class Block:
    def run(self, x, cfg=(config,)):
        return torch.addmm(x, x, x, alpha=cfg[0].ALPHA)
def f(x):
    return Block().run(x)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
    helper=("ALPHA = 2.0\n", "ALPHA = 3.0\n"),
)
case(
    "a_protocol_of_values",
    """
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
""",
    ("Thing(len)", "Thing(None)"),
    TRACED,
)

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
    case(
        _name,
        HOOK_OF_SUBCLASSES.replace("thing, Scaled)", f"thing, {_asked})"),
        ('WANTED = "scale"', 'WANTED = "other"'),
        TRACED,
    )
case(
    "key_of_a_max_that_is_a_class",
    """
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
""",
    ('"a": 1.0', '"a": 5.0'),
    TRACED,
)
case(
    "order_of_a_set_that_is_made",
    """
NAMES = ("a", "b", "c", "d")
def f(x):
    found = x
    for name in set(NAMES).difference(("a",)):
        found = torch.addmm(found, x, x, alpha=float(ord(name)))
    return found
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
)
case(
    "a_set_that_is_changed",
    """
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
""",
    None,
    TRACED,
)
for _number, _goes in enumerate(
    (
        "list(NAMES)",
        "[*NAMES]",
        "tuple(NAMES)",
        "NAMES - {'a'}",
        "NAMES | {'e'}",
        "NAMES.copy()",
        "[NAMES.copy().pop()]",
        "sorted(NAMES, key=len)",
        "frozenset(NAMES)",
        "f'{NAMES}'[2]",
        "str(NAMES)[2]",
        "','.join(NAMES)[0]",
        "[name for name, _ in zip(NAMES, range(2))]",
        "set(name for name in NAMES)",
        "dict.fromkeys(NAMES)",
        # The trace does not fill these sets item by item, so their order differs from process to process.
        "{'z', *NAMES}",
        "set(('a', 'b', 'c')) | {'d'}",
        "set(('a', 'b', 'c')).union(('d',))",
        "set(('a', 'b')).symmetric_difference(('c',))",
        "[set(('a', 'b', 'c')).pop()]",
        "[repr(set(('a', 'b', 'c')))]",
        "[*map(len, {'a', 'bb', 'ccc', 'dddd'})]",
    )
):
    case(
        f"order_of_texts_in_a_set_{_number}",
        f"""
NAMES = {{"a", "b", "c", "d"}}
def f(x):
    for name in {_goes}:
        x = torch.mul(x, 2.0)
    return x
def build():
    return f, [(torch.randn(4, 4),)]
""",
        None,
        TRACED,
    )
case(
    "native_call_that_reads_the_environment",
    """
import os
class Meta(type):
    def __add__(cls, other): return float(os.environ.get("SCALE", "2.0"))
class Kind(metaclass=Meta): pass
def f(x):
    return torch.addmm(x, x, x, alpha=Kind + 1)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
)
for _what, _setup, _read in (
    ("a_getter", "from os import getenv", "float(getenv('SCALE', '2.0'))"),
    ("a_file", "", "float(len(open('/dev/null').read())) + 2.0"),
    ("an_import", "", "__import__('os').cpu_count() and 2.0"),
    ("a_path", "from pathlib import Path\nPATH = Path('/dev/null')", "float(len(PATH.read_text())) + 2.0"),
    ("a_memo", "SCALE = 2.0\n@functools.lru_cache\ndef scale(): return SCALE\nscale()", "scale()"),
    (
        "a_memo_in_a_class",
        """
SCALE = 2.0
class Scales:
    @functools.lru_cache
    def scale(self): return SCALE
SCALES = Scales()
SCALES.scale()""",
        "SCALES.scale()",
    ),
    (
        "a_memo_in_a_table",
        """
SCALE = 2.0
@functools.lru_cache
def scale(): return SCALE
scale()
TABLE = {'scale': scale}""",
        "TABLE['scale']()",
    ),
    ("a_getter_in_a_table", "import os\nTABLE = [os.getenv]", "float(TABLE[0]('SCALE', '2.0'))"),
    (
        "a_getter_in_an_object",
        """
import os
class Reads: pass
READS = Reads()
READS.get = os.getenv""",
        "float(READS.get('SCALE', '2.0'))",
    ),
):
    case(
        f"native_call_that_reads_{_what}",
        f"""
{_setup}
class Meta(type):
    def __add__(cls, other): return {_read}
class Kind(metaclass=Meta): pass
def f(x):
    return torch.addmm(x, x, x, alpha=Kind + 1)
def build():
    return f, [(torch.randn(4, 4),)]
""",
        None,
        TRACED,
    )
case(
    "native_call_that_is_given_a_lock",
    """
import threading
LOCK = threading.Lock()
class Meta(type):
    def __add__(cls, other): return 3.0 if LOCK.locked() else 2.0
class Kind(metaclass=Meta): pass
def f(x):
    return torch.addmm(x, x, x, alpha=Kind + 1)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
)
