"""Cases about methods that hold objects which packages cannot describe, such as locks in defaults or in a decorator."""

from __future__ import annotations

from packages.cases import TRACED, USED, case

_DEFAULTS = """
import logging, threading
class Act(nn.Module):
    def __init__(self, alpha):
        super().__init__()
        self.alpha = alpha
    def forward(self, x):
        return torch.addmm(x, x, x, alpha=self.alpha)
class Net(nn.Module):
    def __init__(self, act=Act(2.0), *, lock=threading.Lock(), of=(nn.ReLU(), logging.getLogger("a"))):
        super().__init__()
        self.act = act
    def scaled(self, x, by=torch.full((), 2.0), kind=2.0):
        return torch.addmm(x, x, x, alpha=kind)
    def forward(self, x):
        return self.scaled(self.act(x))
net = Net()
def f(x):
    return net(x) if isinstance(net, Net) else x
def build():
    return f, [(torch.randn(4, 4),)]
"""
case("defaults_of_methods_are_modules_and_locks", _DEFAULTS, None, USED)
case("a_default_that_is_a_module_differs", _DEFAULTS, ("Act(2.0)", "Act(3.0)"), TRACED)
case("a_default_beside_a_tensor_differs", _DEFAULTS, ("kind=2.0", "kind=3.0"), TRACED)
_MADE = """
import threading
class Box:
    alpha = 2.0
class Scale:
    def run(self, x, lock=threading.Lock(), by=Box):
        return torch.addmm(x, x, x, alpha=by.alpha)
def f(x):
    return Scale().run(x)
def build():
    return f, [(torch.randn(4, 4),)]
"""
case("a_method_with_a_lock_in_its_defaults_of_an_object_that_is_made", _MADE, None, USED)
case("a_class_beside_a_lock_in_the_defaults_of_a_method", _MADE, ("alpha = 2.0", "alpha = 3.0"), TRACED)
_PARTS = """
import threading
class Box:
    alpha = 2.0
def make(lock, box):
    def scaled(x):
        return torch.addmm(x, x, x, alpha=box.alpha) if lock else x
    return scaled
class Scale:
    def run(self, x, by=make(threading.Lock(), Box)):
        return by(x)
def f(x):
    return Scale().run(x)
def build():
    return f, [(torch.randn(4, 4),)]
"""
case("a_class_beside_a_lock_in_a_closure_of_a_default", _PARTS, ("alpha = 2.0", "alpha = 3.0"), TRACED)
_DECORATED = """
@contextlib.contextmanager
def scaled(by):
    yield by
class Helper:
    @staticmethod
    @scaled(2.0)
    def scale(x):
        return torch.addmm(x, x, x, alpha=2.0)
def g(x, cls=Helper):
    return torch.mm(x, x) if cls is Helper else x
def f(x):
    return g(Helper.scale(x))
def build():
    return f, [(torch.randn(4, 4),)]
"""
case("a_method_below_a_context_managers_decorator", _DECORATED, None, USED)
case("a_context_manager_that_decorates_a_method_differs", _DECORATED, ("@scaled(2.0)", "@scaled(3.0)"), TRACED)
_NATIVE = """
class Meta(type):
    def __add__(cls, other, by=torch.full((), 2.0)):
        return float(by)
class Kind(metaclass=Meta): pass
def f(x):
    return torch.addmm(x, x, x, alpha=Kind + 1)
def build():
    return f, [(torch.randn(4, 4),)]
"""
case("native_call_with_a_tensor_as_a_default", _NATIVE, ("2.0", "3.0"), TRACED)
_KEYS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.other = nn.ReLU(), nn.ReLU(), nn.ReLU()
    def forward(self, x, cache):
        alpha = 2.0 if self.first in cache else 3.0 if self.second in cache else 4.0
        for number, module in enumerate(cache):
            alpha = alpha + number if module is self.second else alpha
        return torch.addmm(x, x, x, alpha=alpha)
net = Net()
def f(x):
    return torch.mm(net(x, {net.second: 1.0, net.first: 2.0}), net(x, CACHE))
CACHE = {net.first: 1.0, net.second: 2.0}
def build():
    return f, [(torch.randn(4, 4),)]
"""
case("modules_are_the_keys_of_a_dictionary", _KEYS, None, USED)
case("another_module_is_the_key_of_a_dictionary", _KEYS, ("{net.first: 1.0,", "{net.other: 1.0,"), TRACED)
_SWAPPED = ("{net.first: 1.0, net.second", "{net.second: 1.0, net.first")
case("modules_are_the_keys_in_another_order", _KEYS, _SWAPPED, TRACED)
