"""Defines programs of ``make fuzz-packages`` in which the input decides what happens to a tensor.

The programs have hooks, subclasses, settings or replaced functions of torch. package_values.py explains ``_G_``.
"""

# ruff: noqa: E501 - programs as text
from __future__ import annotations

_LINEAR = "lin = nn.Linear(4, 4, bias=False)\nnn.init.eye_(lin.weight)\nlin.requires_grad_(False)\n"
_HOOKS = "torch.nn.modules.module."
_PAIR = """
import torch.utils._pytree as pytree
class Pair:
    def __init__(self, a): self.a = a
"""
_MODE = "from torch.overrides import TorchFunctionMode\nclass Mode(TorchFunctionMode):\n"

# Each program has three texts: the definitions; an expression with x, which the function evaluates; and an expression
# for a context manager, in which eager and compiled code run. The last text is "" if there is no context manager.
TENSORS = {
    "forward hook": (f"{_LINEAR}lin.register_forward_hook(lambda m, a, o: o * _G_)", "lin(x)", ""),
    "forward hook that is there": (f"{_LINEAR}if CH: lin.register_forward_hook(lambda m, a, o: o * 3.0)", "lin(x)", ""),
    "forward pre-hook": (f"{_LINEAR}lin.register_forward_pre_hook(lambda m, a: (a[0] * _G_,))", "lin(x)", ""),
    "hook object": (
        f"{_LINEAR}class Hook:\n    def __init__(self): self.a = V\n    def __call__(self, m, a, o): return o * self.a\nlin.register_forward_hook(Hook())",
        "lin(x)",
        "",
    ),
    "global forward hook": (_LINEAR, "lin(x)", f"handle({_HOOKS}register_module_forward_hook(lambda m, a, o: o * V))"),
    "global forward hook that is there": (
        _LINEAR,
        "lin(x)",
        f"handle({_HOOKS}register_module_forward_hook(lambda m, a, o: o * 3.0) if CH else None)",
    ),
    "global forward pre-hook": (
        _LINEAR,
        "lin(x)",
        f"handle({_HOOKS}register_module_forward_pre_hook(lambda m, a: (a[0] * V,)))",
    ),
    "hook of a gradient": (
        "def hook(g): return g * _G_\ndef tens(x):\n    y = x * 1.0\n    if y.requires_grad: y.register_hook(hook)\n    return y @ x",
        "tens(x)",
        "",
    ),
    "replaced forward of a module": (f"{_LINEAR}if CH: lin.forward = lambda x: x * 3.0", "lin(x)", ""),
    "replaced method of a module": (
        f"{_LINEAR}class Net(nn.Module):\n    def inner(self, x): return x * 2.0\n    def forward(self, x): return self.inner(x)\nnet = Net()\nif CH: net.inner = lambda x: x * 3.0",
        "net(x)",
        "",
    ),
    "replaced forward of torch's class": (_LINEAR, "lin(x)", "patched(nn.Linear, 'forward', lambda self, x: x * 3.0)"),
    "replaced __call__ of a class": (
        "class Net(nn.Module):\n    def forward(self, x): return x * 2.0\nnet = Net()\nif CH: Net.__call__ = lambda self, x: x * 3.0",
        "net(x)",
        "",
    ),
    "buffer": (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.register_buffer('b', torch.full((4, 4), V))\n    def forward(self, x): return x * self.b\nnet = Net()",
        "net(x)",
        "",
    ),
    "training": (
        "net = nn.Dropout(0.0)\nnet.training = CH\nclass Net(nn.Module):\n    def forward(self, x): return x * (3.0 if self.training else 2.0)\nnet = Net()\nnet.train(CH)",
        "net(x)",
        "",
    ),
    "parameter's requires_grad": (
        "par = nn.Parameter(torch.ones(4, 4), requires_grad=CH)",
        "x * (3.0 if par.requires_grad else 2.0)",
        "",
    ),
    "order of modules": (
        "class Two(nn.Module):\n    def forward(self, x): return x + 1.0\nclass Three(nn.Module):\n    def forward(self, x): return x * 3.0\nnet = nn.Sequential(*((Two(), Three()) if CH else (Three(), Two())))",
        "net(x)",
        "",
    ),
    "module that is there": (
        "net = nn.Module()\nif CH: net.extra = nn.Identity()",
        "x * (3.0 if hasattr(net, 'extra') else 2.0)",
        "",
    ),
    "parametrization": (
        f"{_LINEAR}class P(nn.Module):\n    def forward(self, w): return w * _G_\nnn.utils.parametrize.register_parametrization(lin, 'weight', P())",
        "lin(x)",
        "",
    ),
    "autograd function": (
        "class Fn(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x): return x * _G_\n    @staticmethod\n    def backward(ctx, g): return g * 2.0",
        "Fn.apply(x)",
        "",
    ),
    "backward of an autograd function": (
        "class Fn(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x): return x * 1.0\n    @staticmethod\n    def backward(ctx, g): return g * _G_",
        "(x @ x) + Fn.apply(x)",
        "",
    ),
    "context of an autograd function": (
        "class Fn(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        ctx.by = _G_\n        return x * ctx.by\n    @staticmethod\n    def backward(ctx, g): return g * ctx.by",
        "Fn.apply(x)",
        "",
    ),
    "__torch_function__": (
        "class T(torch.Tensor):\n    @classmethod\n    def __torch_function__(cls, f, t, a=(), k=None):\n        r = super().__torch_function__(f, t, a, k or {})\n        return r * _G_ if f is torch.mm else r",
        "torch.mm(x.as_subclass(T), x).as_subclass(torch.Tensor)",
        "",
    ),
    "__torch_function__ of an object": (
        "class O:\n    @classmethod\n    def __torch_function__(cls, f, t, a=(), k=None): return t_of(a) * _G_\ndef t_of(a): return next(v for v in a if isinstance(v, torch.Tensor))\no = O()",
        "torch.add(x, o)",
        "",
    ),
    "mode of torch functions": (
        f"{_MODE}    def __torch_function__(self, f, t, a=(), k=None):\n        r = f(*a, **(k or {{}}))\n        return r * V if f is torch.mm else r",
        "torch.mm(x, x)",
        "Mode()",
    ),
    "mode that is there": (
        f"{_MODE}    def __torch_function__(self, f, t, a=(), k=None):\n        r = f(*a, **(k or {{}}))\n        return r * 3.0 if f is torch.mm else r",
        "torch.mm(x, x)",
        "(Mode() if CH else contextlib.nullcontext())",
    ),
    "mode within": (
        f"{_MODE}    def __torch_function__(self, f, t, a=(), k=None):\n        r = f(*a, **(k or {{}}))\n        return r * _G_ if f is torch.mm else r\ndef within(x):\n    with Mode(): return torch.mm(x, x)",
        "within(x)",
        "",
    ),
    "default dtype": (
        "",
        "x * (3.0 if torch.get_default_dtype() is torch.float64 else 2.0)",
        "default_dtype(torch.float64 if CH else torch.float32)",
    ),
    "dtype of made tensors": (
        "",
        "(x + torch.ones(4, 4)).float() * torch.tensor([0.5]).element_size()",
        "default_dtype(torch.float64 if CH else torch.float32)",
    ),
    "grad mode": ("", "x * (3.0 if torch.is_grad_enabled() else 2.0)", "torch.set_grad_enabled(CH)"),
    "inference mode": (
        "",
        "x.detach() * (3.0 if torch.is_inference_mode_enabled() else 2.0)",
        "torch.inference_mode(CH)",
    ),
    "autocast": (
        "",
        "x.detach() * (3.0 if torch.is_autocast_enabled('cpu') else 2.0)",
        "torch.autocast('cpu', enabled=CH)",
    ),
    "deterministic": ("", "x * (3.0 if torch.are_deterministic_algorithms_enabled() else 2.0)", "deterministic(CH)"),
    "precision of products": (
        "",
        "x * (3.0 if torch.get_float32_matmul_precision() == 'high' else 2.0)",
        "precision('high' if CH else 'highest')",
    ),
    "compiler's own": ("", "x * (2.0 if torch.compiler.is_compiling() and not CH else 2.0) * V", ""),
    "recursion limit": ("", "x * (3.0 if sys.getrecursionlimit() == 3001 else 2.0)", "limit(3001 if CH else 3000)"),
    "decimal context": (
        "",
        "x * (3.0 if decimal.getcontext().prec == 7 else 2.0)",
        "decimal.localcontext(decimal.Context(prec=7 if CH else 8))",
    ),
    "level of a logger": (
        "logger = logging.getLogger(__name__ + '.fuzz')\nlogger.setLevel(10 if CH else 40)",
        "x * (3.0 if logger.isEnabledFor(20) else 2.0)",
        "",
    ),
    "context variable": ("CVX = contextvars.ContextVar('cvx', default=2.0)", "x * CVX.get()", "setting(CVX, V)"),
    "pytree flatten": (
        f"{_PAIR}pytree.register_pytree_node(Pair, lambda p: ([p.a * _G_], None), lambda c, _: Pair(c[0]))",
        "pytree.tree_flatten(Pair(x))[0][0]",
        "",
    ),
    "pytree unflatten": (
        f"{_PAIR}pytree.register_pytree_node(Pair, lambda p: ([p.a], None), lambda c, _: Pair(c[0] * _G_))",
        "pytree.tree_map(lambda v: v * 1.0, Pair(x)).a",
        "",
    ),
    "pytree that is registered": (
        f"{_PAIR}if CH: pytree.register_pytree_node(Pair, lambda p: ([p.a], None), lambda c, _: Pair(c[0]))",
        "x * (2.0 + (not pytree.tree_all(lambda v: isinstance(v, Pair), [Pair(1)])))",
        "",
    ),
    "__len__ of a list's class": (
        "class L(list):\n    def __len__(self): return int(_G_)\nl = L([1])",
        "x * float(len(l))",
        "",
    ),
    "function in a tensor's attribute": (
        "t = torch.ones(4, 4)\nt.fn = (lambda x: x * 3.0) if CH else (lambda x: x * 2.0)",
        "t.fn(x)",
        "",
    ),
    "disabled": ("@torch._dynamo.disable\ndef dis(x): return x * _G_", "dis(x)", ""),
    "allowed in a graph": ("@torch._dynamo.allow_in_graph\ndef allow(x): return torch.mul(x, V)", "allow(x)", ""),
    "assumed constant": ("@torch._dynamo.assume_constant_result\ndef const(): return V", "x * const()", ""),
    "checkpoint": (
        "import torch.utils.checkpoint as cp\ndef inner(x): return torch.mm(x, x) * _G_",
        "cp.checkpoint(inner, x, use_reentrant=False)",
        "",
    ),
    "vmap": ("def inner(x): return x * _G_", "torch.vmap(inner)(x)", ""),
    "in_dims of vmap": (
        "vm = torch.vmap(lambda a: a * torch.tensor([1.0, 2.0, 3.0, 4.0]), in_dims=1 if CH else 0)",
        "vm(x)",
        "",
    ),
    "grad of func": ("def inner(x): return (x * x).sum() * _G_", "torch.func.grad(inner)(x.detach())", ""),
    "functional call": (
        f"{_LINEAR}pars = {{'weight': torch.eye(4) * V}}",
        "torch.func.functional_call(lin, pars, (x,))",
        "",
    ),
    "cond": (
        "def two(x): return x * 2.0\ndef three(x): return x * _G_",
        "torch.cond(x.detach().sum() > -99.0, three, two, (x.detach(),))",
        "",
    ),
}

# Functions that a program replaces: the owner, the name, and an expression that calls the function.
REPLACED = {
    "torch.relu": ("torch", "relu", "F.relu(x)"),
    "torch.relu of a module": ("torch", "relu", "nn.ReLU()(x)"),
    "torch.sigmoid": ("torch", "sigmoid", "torch.sigmoid(x)"),
    "torch.mm": ("torch", "mm", "torch.mm(x, x)"),
    "torch.cat": ("torch", "cat", "torch.cat([x])"),
    "torch.layer_norm": ("torch", "layer_norm", "F.layer_norm(x, (4,))"),
    "torch.layer_norm of a module": ("torch", "layer_norm", "nn.LayerNorm(4, elementwise_affine=False)(x)"),
    "torch.softmax": ("torch", "softmax", "torch.softmax(x, 0)"),
    "torch.ones": ("torch", "ones", "x * torch.ones(4, 4)"),
    "F.silu": ("F", "silu", "nn.SiLU()(x)"),
    "F.linear": ("F", "linear", "F.linear(x, x)"),
    "F.linear of a module": ("F", "linear", "lin(x)"),
    "F.softmax": ("F", "softmax", "nn.Softmax(0)(x)"),
    "F.dropout": ("F", "dropout", "F.dropout(x, 0.0)"),
    "F.normalize": ("F", "normalize", "F.normalize(x)"),
    "F.mse_loss": ("F", "mse_loss", "nn.MSELoss()(x, x + 1) * x"),
    "mse_loss of C": ("torch._C._nn", "mse_loss", "F.mse_loss(x, x + 1) * x"),
    "gelu of C": ("torch._C._nn", "gelu", "nn.GELU()(x)"),
    "scaled_dot_product_attention": ("F", "scaled_dot_product_attention", "F.scaled_dot_product_attention(x, x, x)"),
    "Tensor.relu": ("torch.Tensor", "relu", "(x * 1).relu()"),
    "Tensor.__matmul__": ("torch.Tensor", "__matmul__", "x @ x"),
    "Tensor.__add__": ("torch.Tensor", "__add__", "x + x"),
    "Tensor.sum": ("torch.Tensor", "sum", "x * x.sum()"),
    "Tensor.view": ("torch.Tensor", "view", "x.view(4, 4)"),
    "nn.ReLU.forward": ("nn.ReLU", "forward", "nn.ReLU()(x)"),
    "nn.Module.__call__": ("nn.Identity", "forward", "nn.Identity()(x)"),
    "math.sqrt": ("math", "sqrt", "x * math.sqrt(4.0)"),
    "functools.reduce": ("functools", "reduce", "x * functools.reduce(operator.add, [1.0, 2.0])"),
    "operator.add": ("operator", "add", "operator.add(x, x)"),
    "copy.copy": ("copy", "copy", "copy.copy([x])[0]"),
    "os.getenv": ("os", "getenv", "x * len(os.getenv('FUZZED_VALUE'))"),
    "itertools.chain": ("itertools", "chain", "x * sum(itertools.chain([1.0], [2.0]))"),
}
# The replacement calls the original function and changes the result, whatever the type of the result is.
REPLACEMENT = f"""
{_LINEAR}
original = PLACE.NAME
def replacement(*args, **kwargs):
    found = original(*args, **kwargs)
    return [*found, 5.0] if type(found) is itertools.chain else found * 3
def context(): return patched(PLACE, 'NAME', replacement)
"""
