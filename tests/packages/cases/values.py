"""Cases about strings, patterns and dates: objects without attributes that Dynamo could guard one by one."""

from __future__ import annotations

from packages.cases import TRACED, USED, case

# Dynamo evaluates the match during the trace, and guards on the identity of the pattern object.
case(
    "a_regular_expression",
    """
import re
PATTERN = re.compile("a+")
def f(x):
    return torch.mm(x, x) if PATTERN.match("aa") else torch.addmm(x, x, x, alpha=2.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ('"a+"', '"b+"'),
    TRACED,
)

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
case(
    "text_of_an_object",
    """
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
""",
    ("Config()", 'Config("gelu")'),
    TRACED,
)
case(
    "text_of_a_dictionary",
    """
TABLE = {"a": 2.0}
def f(x):
    return torch.mm(x, x) if "b" in str(TABLE) else torch.addmm(x, x, x, alpha=3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ('{"a": 2.0}', '{"a": 2.0, "b": 1.0}'),
    TRACED,
)
case(
    "dates",
    """
import datetime
LIMIT, OTHER = datetime.date(2024, 1, 2), datetime.date(2024, 1, 1)
def f(x):
    return torch.addmm(x, x, x, alpha=2.0 if LIMIT > OTHER else 3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("(2024, 1, 1)", "(2025, 1, 1)"),
    TRACED,
)
