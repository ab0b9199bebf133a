"""Cases about tensors: sizes, types, strides, gradients, views, subclasses."""

from __future__ import annotations

from packages.cases import FUNCTION, TRACED, USED, case

case(
    "two_shapes",
    """
def f(x):
    return torch.addmm(x, x, x, alpha=2.0)
OPTIONS = {"dynamic": False}
def build():
    return f, [(torch.randn(4, 4),), (torch.randn(6, 6),)]
""",
    ("(torch.randn(4, 4),), (torch.randn(6, 6),)", "(torch.randn(6, 6),), (torch.randn(4, 4),)"),
    USED,
)
case(
    "another_shape",
    """
def f(x):
    return torch.addmm(x, x, x, alpha=2.0)
OPTIONS = {"dynamic": False}
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("torch.randn(4, 4)", "torch.randn(6, 6)"),
    TRACED,
)
case(
    "dynamic_shape",
    """
def f(x):
    return torch.addmm(x, x, x, alpha=2.0)
OPTIONS = {"dynamic": True}
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("torch.randn(4, 4)", "torch.randn(6, 6)"),
    USED,
)
case(
    "dynamic_shape_guarded",
    """
def f(x):
    return torch.addmm(x, x, x, alpha=2.0) if x.shape[0] < 8 else torch.mm(x, x)
OPTIONS = {"dynamic": True}
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("torch.randn(4, 4)", "torch.randn(16, 16)"),
    TRACED,
)
case(
    "backward",
    """
def f(x, w):
    return torch.mm(x, torch.mm(w, w))
def build():
    return f, [(torch.randn(4, 4), torch.randn(4, 4, requires_grad=True))]
""",
    None,
    USED,
)
case(
    "input_mutation",
    """
def f(x, y):
    y.copy_(torch.mm(x, x))
    return torch.mm(y, x)
def build():
    return f, [(torch.randn(4, 4), torch.zeros(4, 4))]
""",
    None,
    USED,
)
case("input_requires_grad", FUNCTION, ("torch.randn(4, 4)", "torch.randn(4, 4, requires_grad=True)"), TRACED)
case("input_strides", FUNCTION, ("torch.randn(4, 4)", "torch.randn(4, 4).t()"), TRACED)
case(
    "input_subclass",
    FUNCTION,
    ("(torch.randn(4, 4),)", "(nn.Parameter(torch.randn(4, 4), requires_grad=False),)"),
    TRACED,
)
case(
    "marked_unbacked",
    """
def f(x):
    return torch.addmm(x, x, x, alpha=2.0)
def build():
    x = torch.randn(4, 4)
    torch._dynamo.decorators.mark_unbacked(x, 0)
    torch._dynamo.decorators.mark_unbacked(x, 1)
    return f, [(x,)]
""",
    ("torch.randn(4, 4)", "torch.randn(7, 7)"),
    USED,
)
case(
    "marked_unbacked_no_more",
    """
MARK = True
def f(x):
    return torch.addmm(x, x, x, alpha=2.0)
def build():
    x = torch.randn(4, 4)
    if MARK:
        torch._dynamo.decorators.mark_unbacked(x, 0)
    return f, [(x,)]
""",
    ("MARK = True", "MARK = False"),
    TRACED,
)
case(
    "marked_dynamic",
    """
MARK = False
def f(x):
    return torch.addmm(x, x, x, alpha=2.0)
def build():
    x = torch.randn(4, 4)
    if MARK:
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_dynamic(x, 1)
    return f, [(x,)]
""",
    ("MARK = False", "MARK = True"),
    TRACED,
)
case("dynamic_flag", FUNCTION + "\nOPTIONS = {'dynamic': False}\n", ("'dynamic': False", "'dynamic': True"), TRACED)
case(
    "subclass_of_tensor_by_name",
    """
class T(torch.Tensor): pass
KIND = T
def f(x):
    return torch.mm(x, x) if isinstance(x, KIND) else torch.addmm(x, x, x, alpha=3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("KIND = T", "KIND = torch.Tensor"),
    TRACED,
)
_OF_A_FUNCTION = """
def kinds(factor):
    class Kind(torch.Tensor):
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride(), dtype=inner.dtype)
        def __init__(self, inner):
            self.inner = inner
        def __tensor_flatten__(self):
            return ["inner"], None
        @staticmethod
        def __tensor_unflatten__(inner, context, size, stride):
            return Kind(inner["inner"])
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            inner = [value.inner if isinstance(value, Kind) else value for value in args]
            if func is torch.ops.aten.mm.default:
                return Kind(torch.addmm(inner[0], *inner, alpha=factor))
            found = func(*inner, **(kwargs or {}))
            return Kind(found) if isinstance(found, torch.Tensor) else found
    return Kind
Kind = kinds(2.0)
def f(x):
    return torch.mm(x, x).inner
def build():
    return f, [(Kind(torch.randn(4, 4)),)]
"""
case("subclass_of_a_function", _OF_A_FUNCTION, None, USED)
case("closure_of_a_subclass_of_a_function", _OF_A_FUNCTION, ("kinds(2.0)", "kinds(3.0)"), TRACED)
case(
    "not_a_leaf",
    """
def f(x):
    return torch.mm(x, x) if x.grad_fn is None else torch.addmm(x, x, x, alpha=3.0)
def build():
    x = torch.randn(4, 4, requires_grad=True)
    return f, [(x,)]
""",
    ("[(x,)]", "[(x * 1.0,)]"),
    TRACED,
)
case(
    "array_that_became_a_tensor",
    """
import numpy as np
W = np.arange(4, dtype=np.float32)
def f(x):
    return torch.addmm(x, x, x, alpha=2.0 if isinstance(W, np.ndarray) else 3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    ("np.arange(4, dtype=np.float32)", "torch.arange(4, dtype=torch.float32)"),
    TRACED,
)
case(
    "subclass_of_tensor_behind_a_module",
    """
import subclass_of_tensor_behind_a_module_helper as helper
def f(x):
    return torch.mm(x, x) if isinstance(x, helper.KIND) else torch.addmm(x, x, x, alpha=3.0)
def build():
    return f, [(torch.randn(4, 4),)]
""",
    None,
    TRACED,
    helper=("class Mine(torch.Tensor):\n    pass\nKIND = Mine\n", "KIND = torch.Tensor\n"),
)
TWO_TENSORS = """
from torch.testing._internal.two_tensor import TwoTensor
A, B = torch.ones(4, 4), torch.ones(4, 4)
PAIR = TwoTensor(A, B)
def f(x):
    return torch.mm(x, x) if PAIR.requires_grad else torch.addmm(x, x, PAIR.a, alpha=2.0)
def build():
    return f, [(torch.randn(4, 4),)]
"""
case("a_wrapper_of_tensors", TWO_TENSORS, ("torch.ones(4, 4)\nPAIR", "torch.zeros(4, 4)\nPAIR"), USED)
case(
    "a_wrapper_of_other_tensors",
    TWO_TENSORS,
    ("torch.ones(4, 4), torch.ones(4, 4)", "torch.ones(4, 8)[:, ::2], torch.ones(4, 8)[:, ::2]"),
    TRACED,
)
case("a_wrapper_that_is_none", TWO_TENSORS, ("PAIR = TwoTensor(A, B)", "PAIR = A\nPAIR.a = B"), TRACED)
case(
    "a_weight_that_wraps_tensors",
    """
from torch.testing._internal.two_tensor import TwoTensor
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(TwoTensor(torch.ones(4, 4), torch.ones(4, 4)), requires_grad=False)
    def forward(self, x):
        return torch.mm(x, self.weight)
def build():
    return Net(), [(torch.randn(4, 4),)]
""",
    None,
    USED,
)
case(
    "alignment_of_a_parameter",
    """
base = torch.randn(20)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(base[:16].view(4, 4))
    def forward(self, x):
        return torch.mm(x, self.weight)
def build():
    return Net(), [(torch.randn(4, 4),)]
""",
    ("base[:16]", "base[1:17]"),
    TRACED,
)
case(
    "a_view",
    """
def f(x):
    return torch.addmm(x, x, x, alpha=2.0 if x._base is None else 3.0)
def build():
    x = torch.randn(4, 4)
    return f, [(x,)]
""",
    ("[(x,)]", "[(x.view(4, 4),)]"),
    TRACED,
)
for _name, _kind, _said in (
    ("a_buffer", "nn.Buffer", "t = nn.Buffer(t)"),
    ("a_parameter", "nn.Parameter", "t._is_param = True"),
):
    case(
        f"a_tensor_that_says_that_it_is_{_name}",
        f"""
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
""",
        ("        pass\n", f"        {_said}\n"),
        TRACED,
    )
