"""Cases about classes and methods: how a trace finds them, and which class an object has."""

from __future__ import annotations

from packages.cases import TRACED, USED, case

case(
    "method",
    """
class Thing:
    def __init__(self):
        self.alpha = 2.0
    def f(self, x):
        return torch.addmm(x, x, x, alpha=self.alpha)
def build():
    return Thing().f, [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "static_method",
    """
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
""",
    None,
    USED,
)
case(
    "changed_base",
    """
class Base(nn.Module):
    def g(self, x):
        return torch.mm(x, x)
class Net(Base):
    def forward(self, x):
        return self.g(x)
def build():
    return Net(), [(torch.randn(4, 4),)]
""",
    ("torch.mm(x, x)", "torch.addmm(x, x, x, alpha=3.0)"),
    TRACED,
)
case(
    "operator_of_the_users",
    """
class Scale:
    def __init__(self, value):
        self.value = value
    def __mul__(self, other):
        return Scale(self.value * other)
def f(x, scale):
    return torch.addmm(x, x, x, alpha=(scale * 2).value)
def build():
    return f, [(torch.randn(4, 4), Scale(2.0))]
""",
    ("self.value * other)", "self.value + 5 * other)"),
    TRACED,
)
case(
    "frozen_dataclass",
    """
import dataclasses
@dataclasses.dataclass(frozen=True)
class Settings:
    alpha: float = 2.0
def f(x, settings):
    return torch.addmm(x, x, x, alpha=settings.alpha)
def build():
    return f, [(torch.randn(4, 4), Settings())]
""",
    ("Settings())]", "Settings(3.0))]"),
    TRACED,
)
case(
    "classes_that_name_each_other",
    """
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
""",
    None,
    USED,
)
case(
    "class_of_a_namedtuple",
    """
import collections
class Mixin: pass
Base = collections.namedtuple("Base", "alpha")
class Settings(Base, Mixin): pass
def f(x, s):
    return torch.mm(x, x) if isinstance(s, Mixin) else torch.addmm(x, x, x, alpha=3.0)
def build():
    return f, [(torch.randn(4, 4), Settings(2.0))]
""",
    ("class Settings(Base, Mixin): pass", "class Settings(Base): pass"),
    TRACED,
)
case(
    "metaclass",
    """
class Meta(type):
    def __call__(cls, *args):
        return super().__call__(*args)
    FACTOR = 2.0
class Kind(metaclass=Meta): pass
def f(x, y):
    return torch.mm(x, x) if type(y) is Kind else torch.addmm(x, x, x, alpha=3.0)
def build():
    return f, [(torch.randn(4, 4), Kind())]
""",
    ("FACTOR = 2.0", "FACTOR = 3.0"),
    TRACED,
)
CONFIG = """
class Mixin:
    def __getattribute__(self, key):
        return super().__getattribute__(key)
class Config(Mixin):
    names = {"factor": "scale"}
    def __getattribute__(self, key):
        return super().__getattribute__(super().__getattribute__("names").get(key, key))
    def __init__(self):
        self.kind, self.scale = None, 2.0
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
    def forward(self, x):
        if self.config.kind is None:
            self.config.kind = "single"
        return torch.addmm(x, x, x, alpha=self.config.factor)
def build():
    return Net(), [(torch.randn(4, 4),)] * 2
"""
case("two_entries_of_a_class_with_super", CONFIG, None, USED)
case("two_entries_of_a_class_with_super_that_is_another", CONFIG, ("scale = None, 2.0", "scale = None, 3.0"), TRACED)

for _name, _of in (("abstract_class", "Scaled"), ("base_of_an_abstract_class", "Base")):
    case(
        f"registered_in_an_{_name}" if _name[0] == "a" else f"registered_below_a_{_name}",
        f"""
import abc
class Base(abc.ABC): pass
class Scaled(Base): pass
class Thing: pass
THING = Thing()
if 0: Scaled.register(Thing)
def f(x):
    return torch.addmm(x, x, x, alpha=3.0 if isinstance(THING, {_of}) else 2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
        ("if 0", "if 1"),
        TRACED,
    )
case(
    "registered_in_an_abstract_class_of_python",
    """
from collections.abc import Mapping
class Thing: pass
THING = Thing()
if 0: Mapping.register(Thing)
def f(x):
    return torch.addmm(x, x, x, alpha=3.0 if isinstance(THING, Mapping) else 2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("if 0", "if 1"),
    TRACED,
)
case(
    "object_of_a_class_whose_metaclass_decides",
    """
class Meta(type):
    def __instancecheck__(cls, value):
        return True
class Options(metaclass=Meta):
    def __init__(self, alpha):
        self.alpha = alpha
def f(x, options):
    return torch.addmm(x, x, x, alpha=options.alpha)
def build():
    return f, [(torch.randn(4, 4), Options(2.0))]
""",
    None,
    USED,
)
case(
    "isinstance_of_a_class_with_types_own_check",
    """
class Meta(type):
    __instancecheck__ = type.__instancecheck__
class Options(metaclass=Meta):
    alpha = 2.0
def f(x, options):
    return torch.addmm(x, x, x, alpha=options.alpha) if isinstance(options, Options) else torch.mm(x, x)
def build():
    return f, [(torch.randn(4, 4), Options())]
""",
    None,
    USED,
)
_NOTED = """
class Options:
    def __init__(self, alpha):
        self.alpha = alpha
Options.__schema__ = {"class": Options, "reference": f"Options:{id(Options)}", "number": 1234567890}
def f(x, options):
    return torch.addmm(x, x, x, alpha=options.alpha)
def build():
    return f, [(torch.randn(4, 4), Options(2.0))]
"""
case("class_in_which_a_library_notes_its_id", _NOTED, None, USED)
case("class_in_which_a_library_notes_another_number", _NOTED, ("1234567890", "1234567891"), TRACED)
_PROXY = """
import operator
def proxy(function):
    def call(self):
        return function(self.wrapped)
    return call
class Lazy:
    def __init__(self, wrapped):
        self.wrapped = wrapped
    value = property(proxy(operator.attrgetter("alpha")))
class Settings:
    alpha, beta = 2.0, 3.0
LAZY = Lazy(Settings())
def f(x):
    return torch.addmm(x, x, x, alpha=LAZY.wrapped.alpha)
def build():
    return f, [(torch.randn(4, 4),)]
"""
case("class_that_holds_an_attrgetter", _PROXY, None, USED)
case("class_that_holds_another_attrgetter", _PROXY, ('attrgetter("alpha")', 'attrgetter("beta")'), TRACED)
case(
    "mock_in_the_place_of_a_function",
    """
from unittest import mock
scale = mock.MagicMock(return_value=2.0)
def f(x):
    return torch.mul(torch.mm(x, x), scale())
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
