"""Cases about values that a class holds, including the members of enums."""

from __future__ import annotations

from packages.cases import TRACED, USED, case

case(
    "class_attribute",
    """
class Net(nn.Module):
    alpha = 2.0
    def forward(self, x):
        return torch.addmm(x, x, x, alpha=self.alpha)
def build():
    return Net(), [(torch.randn(4, 4),)]
""",
    ("alpha = 2.0", "alpha = 3.0"),
    TRACED,
)
case(
    "class_attribute_through_the_class",
    """
class Settings:
    alpha = 2.0
def f(x):
    return torch.addmm(x, x, x, alpha=Settings.alpha)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("alpha = 2.0", "alpha = 3.0"),
    TRACED,
)
case(
    "enum_member",
    """
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
""",
    ("Net(Kind.A)", "Net(Kind.B)"),
    TRACED,
)
case(
    "value_of_an_enum",
    """
class Kind(enum.IntEnum):
    A = 2
    B = 5
def f(x):
    return torch.addmm(x, x, x, alpha=Kind.A)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("A = 2", "A = 3"),
    TRACED,
)
case(
    "value_of_an_enum_by_its_class",
    """
class Kind(enum.Enum):
    A = 2
    B = 5
def f(x):
    for kind in Kind:
        x = torch.addmm(x, x, x, alpha=kind.value)
    return x
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("A = 2", "A = 3"),
    TRACED,
)
case(
    "attribute_of_an_enum_member",
    """
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
""",
    ("{1: 2.0", "{1: 3.0"),
    TRACED,
)

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
case(
    "ordered_dictionary_in_a_class",
    held_by_a_class("TABLE = collections.OrderedDict(a=2.0)", "cls.TABLE['a']"),
    ("a=2.0", "a=3.0"),
    TRACED,
)
case(
    "pattern_in_a_class",
    held_by_a_class("PATTERN = re.compile('a+')", "2.0 if cls.PATTERN.match('aa') else 3.0"),
    ("'a+'", "'b+'"),
    TRACED,
)

# The enums of transformers have a method `_missing_` like this one. The method's body names only the class and a
# builtin, and no trace reads either of them.
ENUM_OF_TEXTS = """
class Kind(str, enum.Enum):
    @classmethod
    def _missing_(cls, value):
        raise ValueError(f"{value} is not a {cls.__name__}")
    X = "x"
    Y = "y"
"""
case(
    "enums_member_in_a_class",
    ENUM_OF_TEXTS + held_by_a_class("MODE = Kind.X", "2.0 if cls.MODE.value == 'x' else 3.0"),
    ("MODE = Kind.X", "MODE = Kind.Y"),
    TRACED,
)
case(
    "enum_that_explains_itself",
    ENUM_OF_TEXTS
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = Kind.X
    def forward(self, x):
        return torch.mm(x, x) if self.kind == Kind.X else torch.addmm(x, x, x, alpha=3.0)
def build():
    return Net(), [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "attribute_of_an_enums_member",
    """
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
""",
    ("{1: 2.0}", "{1: 3.0}"),
    TRACED,
)
case(
    "metadata_of_a_field",
    """
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
""",
    ('"scale": 2.0', '"scale": 3.0'),
    TRACED,
)
case(
    "classmethod_over_a_property",
    """
def make(alpha):
    return lambda cls: alpha
class Net:
    alpha = classmethod(property(make(2.0)))
def f(x):
    return torch.addmm(x, x, x, alpha=Net.alpha)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("make(2.0)", "make(3.0)"),
    TRACED,
)
