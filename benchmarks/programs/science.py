"""Defines the programs that use libraries for tables, time series, probability and physics."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from benchmarks.programs.registry import STEPS, Values, program, trained


@program("rtdl_revisiting_models")
def tabular_transformer() -> Iterator[Values]:
    """FT-Transformer."""
    from rtdl_revisiting_models import FTTransformer

    settings = FTTransformer.get_default_kwargs(1)
    settings |= {"attention_dropout": 0.0, "ffn_dropout": 0.0, "residual_dropout": 0.0, "d_block": 32}
    model = FTTransformer(n_cont_features=4, cat_cardinalities=[3, 5], d_out=1, **settings)
    compiled = torch.compile(model)
    numbers, categories, target = torch.randn(16, 4), torch.randint(0, 3, (16, 2)), torch.randn(16, 1)
    yield from trained(model, lambda: functional.mse_loss(compiled(numbers, categories), target))


@program("transformers")
def patch_tst() -> Iterator[Values]:
    """A transformer for time series."""
    import transformers

    config = transformers.PatchTSTConfig(
        num_input_channels=2,
        context_length=32,
        prediction_length=8,
        patch_length=8,
        patch_stride=8,
        d_model=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=64,
        dropout=0.0,
        positional_dropout=0.0,
        head_dropout=0.0,
        ff_dropout=0.0,
        attention_dropout=0.0,
        path_dropout=0.0,
    )
    model = transformers.PatchTSTForPrediction(config)
    compiled = torch.compile(model)
    past, future = torch.randn(2, 32, 2), torch.randn(2, 8, 2)
    yield from trained(model, lambda: compiled(past_values=past, future_values=future).loss)


@program("gpytorch")
def gaussian_process() -> Iterator[Values]:
    """The marginal likelihood of an exact Gaussian process, with graph breaks."""
    import gpytorch

    class Model(gpytorch.models.ExactGP):
        def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: torch.nn.Module) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> object:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

    x = torch.linspace(0, 1, 20)
    y = torch.sin(6 * x)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(x, y, likelihood).train()
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    compiled = torch.compile(model)
    yield from trained(model, lambda: -marginal(compiled(x), y))


@program("zuko")
def normalizing_flow() -> Iterator[Values]:
    """A neural spline flow, by maximum likelihood."""
    import zuko

    model = zuko.flows.NSF(features=3, transforms=2, hidden_features=(32,))
    points = torch.randn(32, 3)

    @torch.compile
    def loss(points: torch.Tensor) -> torch.Tensor:
        return -model().log_prob(points).mean()

    yield from trained(model, lambda: loss(points))


@program("torchdiffeq")
def neural_ode() -> Iterator[Values]:
    """A compiled right-hand side, solved by Runge-Kutta."""
    from torchdiffeq import odeint

    model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    field = torch.compile(model)
    start, times = torch.randn(8, 2), torch.linspace(0, 1, 5)
    yield from trained(model, lambda: odeint(lambda t, y: field(y), start, times, method="rk4").square().mean())


@program("neuralop")
def fourier_operator() -> Iterator[Values]:
    """A Fourier neural operator: complex numbers inside."""
    from neuralop.models import FNO

    model = FNO(n_modes=(8, 8), in_channels=1, out_channels=1, hidden_channels=8, n_layers=2)
    compiled = torch.compile(model)
    fields = torch.randn(2, 1, 16, 16)
    yield from trained(model, lambda: functional.mse_loss(compiled(fields), fields.flip(-1)))


@program("ncps")
def liquid_network() -> Iterator[Values]:
    """A closed-form continuous-time network."""
    from ncps.torch import CfC
    from ncps.wirings import AutoNCP

    model = CfC(4, AutoNCP(16, 2), batch_first=True)
    compiled = torch.compile(model)
    series = torch.randn(2, 6, 4)
    yield from trained(model, lambda: compiled(series)[0].square().mean())


@program("snntorch")
def spiking_network() -> Iterator[Values]:
    """Leaky neurons with a surrogate gradient."""
    import snntorch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.neurons = torch.nn.Linear(8, 16), snntorch.Leaky(beta=0.9)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            membrane, spikes = self.neurons.reset_mem(), []
            for step in range(x.shape[0]):
                spike, membrane = self.neurons(self.linear(x[step]), membrane)
                spikes.append(spike)
            return torch.stack(spikes)

    model = Network()
    compiled = torch.compile(model)
    series = torch.randn(10, 4, 8) * 2
    yield from trained(model, lambda: (compiled(series).mean(0) - 0.2).square().mean())


@program("e3nn")
def equivariant_network() -> Iterator[Values]:
    """A tensor product, in the mode for torch.compile."""
    import e3nn
    from e3nn import o3

    e3nn.set_optimization_defaults(jit_script_fx=False)
    model = o3.FullyConnectedTensorProduct("4x0e + 2x1o", "1x0e + 1x1o", "4x0e + 2x1o")
    compiled = torch.compile(model)
    left, right = torch.randn(8, 10), torch.randn(8, 4)
    yield from trained(model, lambda: compiled(left, right).square().mean())


@program("torch")
def physics_informed() -> Iterator[Values]:
    """Second derivatives by torch.func."""
    from torch.func import grad, vmap

    model = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    points = torch.linspace(0, 1, 16)

    @torch.compile
    def loss(points: torch.Tensor) -> torch.Tensor:
        def solution(x: torch.Tensor) -> torch.Tensor:
            return model(x[None])[0]

        residual = vmap(grad(grad(solution)))(points) + torch.sin(points)
        return residual.square().mean()

    yield from trained(model, lambda: loss(points))


@program("captum")
def attributions() -> Iterator[Values]:
    """Integrated gradients."""
    from captum.attr import IntegratedGradients

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).eval()
    explained = IntegratedGradients(torch.compile(model))
    for _ in range(STEPS):
        yield {"attributions": explained.attribute(torch.randn(4, 8), target=1, n_steps=8)}


@program("pytorch_metric_learning")
def metric_learning() -> Iterator[Values]:
    """A contrastive loss with a pair miner."""
    from pytorch_metric_learning import losses, miners

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    compiled, loss, miner = torch.compile(model), losses.TripletMarginLoss(), miners.MultiSimilarityMiner()
    points, labels = torch.randn(16, 8), torch.arange(16) % 4

    def value() -> torch.Tensor:
        embedded = compiled(points)
        return loss(embedded, labels, miner(embedded, labels))

    yield from trained(model, value)
