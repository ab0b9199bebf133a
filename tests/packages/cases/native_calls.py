"""Cases about functions of the program that Dynamo calls, instead of tracing them, and about the values they read."""

from __future__ import annotations

from packages.cases import TRACED, USED, case

_PROGRAM = """
G = 2.0
SCALES = {{"a": 2.0}}
def helper():
    return G
{setup}
def f(x):
    return torch.addmm(x, x, x, alpha=float({expression}))
def build():
    return f, [(torch.randn(4, 4),)]
"""
_META = """
class Meta(type):
    {method}
class Kind(metaclass=Meta):
    scale = 2.0
"""
_ENUM = """
class Kind(enum.Enum):
    A = 1
    B = 2
    {method}
"""
_CHANGE = ("G = 2.0", "G = 3.0")

_OF_A_METACLASS = {
    "add": ("def __add__(cls, other): return G", "Kind + 1"),
    "bool": ("def __bool__(cls): return G == 2.0", "2.0 if Kind else 3.0"),
    "getitem": ("def __getitem__(cls, key): return G", "Kind['a']"),
    "str": ("def __str__(cls): return 'a' if G == 2.0 else 'b'", "2.0 if str(Kind) == 'a' else 3.0"),
    "text": ("def __repr__(cls): return 'a' if G == 2.0 else 'b'", "2.0 if f'{Kind}' == 'a' else 3.0"),
    "format": ("def __format__(cls, how): return 'a' if G == 2.0 else 'b'", "2.0 if f'{Kind}' == 'a' else 3.0"),
    "eq": ("def __eq__(cls, other): return G == 2.0\n    __hash__ = type.__hash__", "2.0 if Kind == 1 else 3.0"),
    "ne": ("def __ne__(cls, other): return G == 2.0", "2.0 if Kind != 1 else 3.0"),
    "len": ("def __len__(cls): return int(G)", "len(Kind)"),
    "contains": ("def __contains__(cls, key): return G == 2.0", "2.0 if 1 in Kind else 3.0"),
    "property": ("@property\n    def level(cls): return G", "Kind.level"),
    "getattr": ("def __getattr__(cls, name): return G", "Kind.level"),
    "helper": ("def __add__(cls, other): return helper()", "Kind + 1"),
    "default": ("def __add__(cls, other, by=G): return by", "Kind + 1"),
    "table": ("def __add__(cls, other): return SCALES['a'] * G / 2.0", "Kind + 1"),
}
_OF_AN_ENUM = {
    "bool": ("def __bool__(self): return G == 2.0", "2.0 if Kind.A else 3.0"),
    "format": ("def __format__(self, how): return 'a' if G == 2.0 else 'b'", "2.0 if f'{Kind.A}' == 'a' else 3.0"),
    "str": ("def __str__(self): return 'a' if G == 2.0 else 'b'", "2.0 if str(Kind.A) == 'a' else 3.0"),
    "missing": (
        "@classmethod\n    def _missing_(cls, value): return cls.A if G == 2.0 else cls.B",
        "2.0 if Kind(9) is Kind.A else 3.0",
    ),
    "property": ("@property\n    def scale(self): return G", "Kind.A.scale"),
    "method": ("def scale(self): return G", "Kind.A.scale()"),
    "hash": ("def __hash__(self): return int(G)", "{Kind.A: 2.0}.get(Kind.A, 3.0) * G / 2.0"),
}
_OF_A_CLASS = {
    "class_getitem": ("class Kind:\n    def __class_getitem__(cls, key): return G", "Kind['a']"),
    "class_property": (
        """
class Other: pass
class Kind:
    @property
    def __class__(self): return Other if G == 2.0 else Kind
KIND = Kind()""",
        "2.0 if isinstance(KIND, Other) else 3.0",
    ),
    "descriptor": (
        """
class Level:
    def __get__(self, instance, owner): return G
class Kind:
    level = Level()""",
        "Kind.level",
    ),
}
for _kind, _setup, _methods in (
    ("metaclass", _META, _OF_A_METACLASS),
    ("enum", _ENUM, _OF_AN_ENUM),
    ("class", "{method}", _OF_A_CLASS),
):
    for _name, (_method, _expression) in _methods.items():
        _text = _PROGRAM.format(setup=_setup.format(method=_method), expression=_expression)
        case(f"native_call_{_kind}_{_name}", _text, _CHANGE, TRACED)
        case(f"native_call_{_kind}_{_name}_again", _text, None, USED)

case(
    "native_call_argument",
    _PROGRAM.format(
        setup="""
class Level:
    def __init__(self): self.by = G
LEVEL = Level()
class Meta(type):
    def __add__(cls, other): return LEVEL.by
class Kind(metaclass=Meta): pass
""",
        expression="Kind + 1",
    ),
    _CHANGE,
    TRACED,
)
case(
    "cell_of_two_closures",
    """
def made():
    n = 0.0
    def write():
        nonlocal n
        n = n + 3.0
    def read():
        return n
    return write, read
def f(x):
    WRITE()
    return torch.addmm(x, x, x, alpha=READ())
def build():
    global WRITE, READ
    WRITE, own = made()
    _, other = made()
    READ = other if 1 else own
    return f, [(torch.randn(4, 4),)]
""",
    ("if 1", "if 0"),
    TRACED,
)
