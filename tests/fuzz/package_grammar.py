"""Random programs in which one input decides a value, for ``make fuzz-packages``.

A program is made of where the value comes from (SOURCES), how it is read (READS), which function reads it (HOLDERS) and
where its graph breaks (BREAKS). The file ``ch`` beside the program decides: its text never changes.
"""

# ruff: noqa: E501 - programs as text
from __future__ import annotations

import random
import textwrap
from dataclasses import dataclass

HEAD = '''
import abc, collections, contextlib, contextvars, copy, dataclasses, enum, functools, itertools, json, math, operator, os
import torch
import torch.nn.functional as F
from torch import nn
CH = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "ch")).read() == "1"
V = 3.0 if CH else 2.0
W = 2.0 if CH else 3.0
'''

# Text that defines a value, and the expression that gives it: 2.0, and 3.0 where the input has changed.
SOURCES = {
    "global": ("G = V", "G"),
    "class": ("class K:\n    a = V", "K.a"),
    "base class": ("class B:\n    a = V\nclass K(B): pass", "K.a"),
    "instance": ("class K: pass\nk = K()\nk.a = V", "k.a"),
    "made instance": ("class K:\n    def __init__(self): self.a = V", "K().a"),
    "slot": ("class K:\n    __slots__ = ('a',)\nk = K()\nk.a = V", "k.a"),
    "property": ("class K:\n    @property\n    def a(self): return V\nk = K()", "k.a"),
    "descriptor": ("class D:\n    def __get__(self, o, t): return V\nclass K:\n    a = D()\nk = K()", "k.a"),
    "class descriptor": ("class D:\n    def __get__(self, o, t): return V\nclass K:\n    a = D()", "K.a"),
    "closure": ("def mk(v):\n    def g(): return v\n    return g\ng = mk(V)", "g()"),
    "shared cell": (
        "def mk():\n    n = 2.0\n    def a():\n        nonlocal n\n        n = 3.0\n    def b(): return n\n    return a, b\n"
        "a, own = mk()\n_, other = mk()\nb = own if CH else other\ndef both():\n    a()\n    return b()", "both()"),
    "default": ("def g(a=V): return a", "g()"),
    "keyword default": ("def g(*, a=V): return a", "g()"),
    "partial": ("def h(a): return a\ng = functools.partial(h, V)", "g()"),
    "dict": ("d = {'a': V}", "d['a']"),
    "presence in a dict": ("d = {'a': 3.0} if CH else {}", "d.get('a', 2.0)"),
    "list": ("d = [V, 1.0]", "d[0]"),
    "length of a list": ("d = [0] * int(V)", "float(len(d))"),
    "tuple": ("d = (V, 1.0)", "d[0]"),
    "set": ("d = {V}", "(3.0 if 3.0 in d else 2.0)"),
    "frozenset": ("d = frozenset({'b' if CH else 'a'})", "(3.0 if 'b' in d else 2.0)"),
    "deque": ("d = collections.deque([V])", "d[0]"),
    "defaultdict": ("d = collections.defaultdict(lambda: V)", "d['x']"),
    "order of a dict": ("d = dict([('b', 3.0), ('a', 2.0)] if CH else [('a', 2.0), ('b', 3.0)])", "next(iter(d.values()))"),
    "ChainMap": ("d = collections.ChainMap({}, {'a': V})", "d['a']"),
    "enum": ("class E(enum.Enum):\n    A = 2.0\n    B = 3.0\ne = E.B if CH else E.A", "e.value"),
    "enum value": ("class E(enum.Enum):\n    A = V", "E.A.value"),
    "dataclass": ("@dataclasses.dataclass\nclass K:\n    a: float = V\nk = K()", "k.a"),
    "namedtuple": ("K = collections.namedtuple('K', 'a b')\nk = K(V, 1.0)", "k.a"),
    "environment": ("os.environ['FUZZED'] = str(V)", "float(os.environ['FUZZED'])"),
    "module": ("import types\nm = types.ModuleType('m')\nm.a = V", "m.a"),
    "attribute that is there": ("class K: pass\nk = K()\nif CH: k.a = 1", "(3.0 if hasattr(k, 'a') else 2.0)"),
    "identity": ("class K: pass\nk, o = K(), K()\np = k if CH else o", "(3.0 if k is p else 2.0)"),
    "function that is bound": ("def one(): return 2.0\ndef two(): return 3.0\ng = two if CH else one", "g()"),
    "replaced method": ("class K:\n    def m(self): return 2.0\nif CH: K.m = lambda self: 3.0\nk = K()", "k.m()"),
    "isinstance": ("class A: pass\nclass B(A): pass\nk = (B if CH else A)()", "(3.0 if isinstance(k, B) else 2.0)"),
    "default dtype": ("T = torch.float64 if CH else torch.float32", "(3.0 if T is torch.float64 else 2.0)"),
}
# Of a class's special methods: the text of the method, and an expression of an instance, a class or a member.
SPECIAL = {
    "__bool__": ("def __bool__(self): return G == 3.0", "(3.0 if {k} else 2.0)"),
    "__len__": ("def __len__(self): return int(G)", "float(len({k}))"),
    "__contains__": ("def __contains__(self, i): return G == 3.0", "(3.0 if 1 in {k} else 2.0)"),
    "__getitem__": ("def __getitem__(self, i): return G", "{k}[0]"),
    "__call__": ("def __call__(self): return G", "{k}()"),
    "__eq__": ("def __eq__(self, o): return G == 3.0\n    __hash__ = object.__hash__", "(3.0 if {k} == 7 else 2.0)"),
    "__ne__": ("def __ne__(self, o): return G == 3.0", "(3.0 if {k} != 7 else 2.0)"),
    "__lt__": ("def __lt__(self, o): return G == 3.0", "(3.0 if {k} < 7 else 2.0)"),
    "__add__": ("def __add__(self, o): return G", "({k} + 1)"),
    "__rmul__": ("def __rmul__(self, o): return G", "(2 * {k})"),
    "__neg__": ("def __neg__(self): return G", "(-{k})"),
    "__str__": ("def __str__(self): return 'b' if G == 3.0 else 'a'", "(3.0 if str({k}) == 'b' else 2.0)"),
    "__repr__": ("def __repr__(self): return 'b' if G == 3.0 else 'a'", "(3.0 if repr({k}) == 'b' else 2.0)"),
    "__format__": ("def __format__(self, f): return 'b' if G == 3.0 else 'a'", "(3.0 if f'{{{k}}}' == 'b' else 2.0)"),
    "__iter__": ("def __iter__(self): return iter([G])", "next(iter({k}))"),
    "__float__": ("def __float__(self): return G", "float({k})"),
    "__getattr__": ("def __getattr__(self, n):\n        if n == 'zz': return G\n        raise AttributeError(n)", "{k}.zz"),
    "method": ("def m(self): return G", "{k}.m()"),
    "property": ("@property\n    def p(self): return G", "{k}.p"),
    "classmethod": ("@classmethod\n    def m(cls): return G", "{k}.m()"),
}
OWNERS = {
    "instance": ("class K:\n    {method}\nk = K()", "k"),
    "instance of a base": ("class B:\n    {method}\nclass K(B): pass\nk = K()", "k"),
    "metaclass": ("class M(type):\n    {method}\nclass K(metaclass=M): pass", "K"),
    "enum": ("class E(enum.Enum):\n    A = 1\n    B = 2\n    {method}", "E.A"),
    "module": ("class K(nn.Module):\n    {method}\nk = K()", "k"),
    "text": ("class K(str):\n    {method}\nk = K('q')", "k"),
    "number": ("class K(int):\n    {method}\nk = K(5)", "k"),
}
HIDDEN = {
    "global": "G = V",
    "helper": "def h(): return V\nclass _G:\n    def __eq__(self, o): return h() == o\nG = V",
    "table": "TABLE = {'a': V}\nG = TABLE['a']",
}
# Functions of torch that the program replaces: what is replaced, and a use of it.
REPLACED = {
    "torch.relu": ("torch", "relu", "F.relu(x)"),
    "torch.sigmoid": ("torch", "sigmoid", "torch.sigmoid(x)"),
    "torch.layer_norm": ("torch", "layer_norm", "F.layer_norm(x, (4,))"),
    "F.silu": ("F", "silu", "nn.SiLU()(x)"),
    "F.linear": ("F", "linear", "F.linear(x, x)"),
    "mse_loss": ("torch._C._nn", "mse_loss", "F.mse_loss(x, x + 1) * x"),
    "Tensor.relu": ("torch.Tensor", "relu", "(x * 1).relu()"),
    "Tensor.__matmul__": ("torch.Tensor", "__matmul__", "x @ x"),
}
READS = (
    "{e}", "abs({e})", "max({e}, 1.0)", "[{e}][0]", "(lambda: {e})()", "{{'a': {e}}}['a']", "float(str({e}))", "sum([{e}])",
    "next(iter([{e}]))", "({e} if {e} > 0 else 1.0)", "[v for v in ({e},)][0]", "sorted([{e}, 9.0])[0]",
    "functools.reduce(operator.add, [{e}, 0.0])", "list(map(float, [{e}]))[0]", "math.sqrt({e} * {e})", "float(f'{{{e}}}')",
    "(3.0 if any([{e} == 3.0]) else 2.0)", "copy.copy([{e}])[0]", "dict(a={e}).get('a')", "next(v for v in [{e}])",
    "(lambda *a: a[0])({e})", "round({e}, 1)", "min(filter(None, [{e}]))", "list(zip([{e}], [1]))[0][0]",
)  # fmt: skip
HOLDERS = {
    "function": "def f(x):\n    {before}y = torch.addmm(x, x, x, alpha={e})\n    {after}return y",
    "called": "def g(x): return torch.addmm(x, x, x, alpha={e})\ndef f(x):\n    {before}y = g(x)\n    {after}return y",
    "module": "class Net(nn.Module):\n    def forward(self, x):\n        y = torch.addmm(x, x, x, alpha={e})\n        return y\nf = Net()",
    "attribute": (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.s = {e}\n"
        "    def forward(self, x): return torch.addmm(x, x, x, alpha=self.s)\nf = Net()"),
    "decorated": (
        "def deco(g):\n    @functools.wraps(g)\n    def w(x): return g(x)\n    return w\n@deco\n"
        "def f(x):\n    {before}y = torch.addmm(x, x, x, alpha={e})\n    {after}return y"),
    "closure": "def mk():\n    def g(x): return torch.addmm(x, x, x, alpha={e})\n    return g\nf = mk()",
    "method": "class H:\n    def m(self, x): return torch.addmm(x, x, x, alpha={e})\nf = H().m",
    "generator": "def gen():\n    yield {e}\ndef f(x):\n    for s in gen(): x = torch.addmm(x, x, x, alpha=s)\n    return x",
    "try": "def f(x):\n    try: s = {e}\n    except KeyError: s = 1.0\n    return torch.addmm(x, x, x, alpha=s)",
    "no_grad": "@torch.no_grad()\ndef f(x): return torch.addmm(x, x, x, alpha={e})",
}  # fmt: skip
BREAKS = {"none": ("", ""), "before": ("torch._dynamo.graph_break()\n    ", ""),
          "after": ("", "torch._dynamo.graph_break()\n    ")}  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A program's text, and what it is made of."""

    name: str
    text: str
    made_of: tuple[str, ...]


def program(seed: int) -> Program:
    """The program of a seed."""
    draw = random.Random(seed)
    kind = draw.choice(("source", "source", "special", "special", "replaced"))
    if kind == "replaced":
        return _replaced(seed, draw)
    if kind == "special":
        owner, method, hidden = draw.choice([*OWNERS]), draw.choice([*SPECIAL]), draw.choice([*HIDDEN])
        text, instance = OWNERS[owner]
        body, read = SPECIAL[method]
        setup, value = f"{HIDDEN[hidden]}\n{text.format(method=body)}", read.format(k=instance)
        made_of = ("special", owner, method, hidden)
    else:
        name = draw.choice([*SOURCES])
        setup, value = SOURCES[name]
        made_of = ("source", name)
    how, holder, breaks = draw.choice(READS), draw.choice([*HOLDERS]), draw.choice([*BREAKS])
    before, after = BREAKS[breaks]
    function = HOLDERS[holder].format(e=how.format(e=value), before=before, after=after)
    return _made(seed, f"{setup}\n{function}\n", (*made_of, how, holder, breaks))


def _replaced(seed: int, draw: random.Random) -> Program:
    name = draw.choice([*REPLACED])
    place, attribute, use = REPLACED[name]
    setup = f"""
original = {place}.{attribute}
def replacement(*args, **kwargs): return original(*args, **kwargs) * 3.0
@contextlib.contextmanager
def context():
    own = {attribute!r} in vars({place})
    if CH: setattr({place}, {attribute!r}, replacement)
    try: yield
    finally:
        if own: setattr({place}, {attribute!r}, original)
        elif CH: delattr({place}, {attribute!r})
def f(x): return torch.addmm(x, x, {use})
"""
    return _made(seed, setup, ("replaced", name))


def _made(seed: int, text: str, made_of: tuple[str, ...]) -> Program:
    build = "\ndef build():\n    return f, [(torch.arange(16.0).reshape(4, 4) / 16,)]\n"
    return Program(f"fuzzed_{seed}", HEAD + textwrap.dedent(text) + build, made_of)
