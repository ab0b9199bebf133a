"""Rows of the corpus about the transforms of torch.func in compiled functions."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap

from corpus.rows import ROWS, Row, linear, rand


def loss(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (x @ weight).tanh().square().sum()


def _with_a_model(x: torch.Tensor) -> torch.Tensor:
    parameters = {name: value.detach() for name, value in MODEL.named_parameters()}
    gradients = grad(lambda held: functional_call(MODEL, held, (x,)).square().sum())(parameters)
    return torch.cat([gradient.flatten() for gradient in gradients.values()])


torch.manual_seed(0)
MODEL = linear(4, 3, 2)

# Each call creates its transformed function anew, so that Dynamo traces the transform too.
_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "grad": lambda w, x: grad(loss)(w, x) * 2,
    "grad_and_value": lambda w, x: grad_and_value(loss)(w, x)[0] * 2,
    "vmap_of_grad": lambda w, x: vmap(grad(loss), (None, 0))(w, x) * 2,
    "jacrev": lambda w, x: jacrev(lambda weight: (x @ weight).tanh())(w),
    "jacfwd": lambda w, x: jacfwd(lambda weight: (x @ weight).tanh())(w),
    "hessian": lambda w, x: hessian(loss)(w, x) * 2,
    "jvp": lambda w, x: jvp(lambda weight: (x @ weight).tanh(), (w,), (w.cos(),))[1],
    "vjp": lambda w, x: vjp(lambda weight: (x @ weight).tanh(), w)[1](torch.ones(3))[0],
}
for _name, _function in _FUNCTIONS.items():
    ROWS[f"func_{_name}"] = functools.partial(
        lambda function: Row(function, [(rand(4, grad=False), rand(3, 4, grad=False))]), _function
    )
ROWS["func_grad_of_a_functional_call"] = lambda: Row(_with_a_model, [(rand(3, 4, grad=False),)])
ROWS["func_grad_of_which_a_gradient_is_taken"] = lambda: Row(_FUNCTIONS["grad"], [(rand(4), rand(3, 4))])
