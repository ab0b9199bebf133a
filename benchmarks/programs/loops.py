"""Defines the programs that use libraries which run the training loop or extend it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from benchmarks.programs.registry import STEPS, Values, program, trained


def _mlp(inputs: int = 8, outputs: int = 3) -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(inputs, 16), torch.nn.Tanh(), torch.nn.Linear(16, outputs))


def _weights(model: torch.nn.Module) -> Values:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@program("lightning")
def lightning_trainer() -> Iterator[Values]:
    """Trainer.fit of a compiled module."""
    import lightning

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = _mlp()

        def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
            points, labels = batch
            return functional.cross_entropy(self.model(points), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    module = Classifier()
    compiled = torch.compile(module)
    rows = torch.utils.data.TensorDataset(torch.randn(16, 8), torch.arange(16) % 3)
    for _ in range(STEPS):
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(compiled, torch.utils.data.DataLoader(rows, batch_size=4))
        yield _weights(module)


@program("lightning")
def lightning_fabric() -> Iterator[Values]:
    """A loop on Fabric."""
    import lightning

    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    model = _mlp()
    prepared, optimizer = fabric.setup(torch.compile(model), torch.optim.SGD(model.parameters(), lr=0.01))
    points, labels = torch.randn(16, 8), torch.arange(16) % 3
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = functional.cross_entropy(prepared(points), labels)
        fabric.backward(loss)
        optimizer.step()
        yield {"loss": loss.detach().clone(), **_weights(model)}


@program("skorch")
def skorch_classifier() -> Iterator[Values]:
    """NeuralNetClassifier(compile=True)."""
    import numpy
    from skorch import NeuralNetClassifier

    points = torch.randn(32, 8).numpy()
    labels = (numpy.arange(32) % 3).astype("int64")
    model = torch.nn.Sequential(_mlp(), torch.nn.Softmax(-1))
    net = NeuralNetClassifier(model, max_epochs=1, lr=0.1, compile=True, verbose=0, train_split=None, warm_start=True)
    for _ in range(STEPS):
        net.fit(points, labels)
        yield {"probabilities": torch.tensor(net.predict_proba(points))}


@program("keras")
def keras_fit() -> Iterator[Values]:
    """Keras on torch, with jit_compile=True."""
    import os

    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    model = keras.Sequential([keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse", jit_compile=True)
    points, targets = torch.randn(32, 8).numpy(), torch.randn(32, 1).numpy()
    model.build((None, 8))
    model.set_weights([torch.randn(tuple(weight.shape)).numpy() * 0.1 for weight in model.weights])
    for _ in range(STEPS):
        model.fit(points, targets, epochs=1, batch_size=16, shuffle=False, verbose=0)
        yield {"answers": torch.tensor(model.predict(points, verbose=0))}


@program("stable_baselines3", "gymnasium")
def policy_optimization() -> Iterator[Values]:
    """PPO with a compiled policy."""
    from stable_baselines3 import PPO

    agent = PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=16, n_epochs=1, seed=0, device="cpu", verbose=0)
    agent.policy.forward = torch.compile(agent.policy.forward)
    agent.policy.evaluate_actions = torch.compile(agent.policy.evaluate_actions)
    observations = torch.randn(4, 4)
    for _ in range(STEPS):
        agent.learn(total_timesteps=32, reset_num_timesteps=False)
        with torch.no_grad():
            yield {"values": agent.policy.predict_values(observations)}


@program("tensordict")
def tensordict_modules() -> Iterator[Values]:
    """Modules that read and write a dictionary of tensors."""
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential

    model = TensorDictSequential(
        TensorDictModule(_mlp(8, 8), in_keys=["points"], out_keys=["hidden"]),
        TensorDictModule(_mlp(8, 3), in_keys=["hidden"], out_keys=["logits"]),
    )
    compiled = torch.compile(model)
    points, labels = torch.randn(16, 8), torch.arange(16) % 3

    def loss() -> torch.Tensor:
        return functional.cross_entropy(compiled(TensorDict({"points": points}, [16]))["logits"], labels)

    yield from trained(model, loss)


@program("torchrl", "tensordict")
def q_learning_loss() -> Iterator[Values]:
    """TorchRL's DQN loss, compiled as a whole."""
    from tensordict import TensorDict
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss

    actor = QValueActor(_mlp(4, 2), in_keys=["observation"], action_space="one-hot")
    module = DQNLoss(actor, action_space="one-hot", delay_value=False)
    module.make_value_estimator(gamma=0.9)
    compiled = torch.compile(module)
    batch = TensorDict(
        {
            "observation": torch.randn(8, 4),
            "action": functional.one_hot(torch.arange(8) % 2),
            "next": {
                "observation": torch.randn(8, 4),
                "reward": torch.randn(8, 1),
                "done": torch.zeros(8, 1, dtype=torch.bool),
                "terminated": torch.zeros(8, 1, dtype=torch.bool),
            },
        },
        [8],
    )
    yield from trained(module, lambda: compiled(batch)["loss"])


@program("schedulefree")
def schedule_free() -> Iterator[Values]:
    """AdamW without a schedule."""
    import schedulefree

    model = _mlp()
    compiled = torch.compile(model)
    points, labels = torch.randn(16, 8), torch.arange(16) % 3

    def optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
        found = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.01)
        found.train()
        return found

    yield from trained(model, lambda: functional.cross_entropy(compiled(points), labels), of=optimizer)


@program("torch")
def compiled_optimizer() -> Iterator[Values]:
    """Model and optimizer in one compiled step."""
    model = _mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01))
    points, labels = torch.randn(16, 8), torch.arange(16) % 3
    compiled = torch.compile(model)

    @torch.compile(fullgraph=False)
    def update() -> None:
        optimizer.step()

    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = functional.cross_entropy(compiled(points), labels)
        loss.backward()
        update()
        yield {"loss": loss.detach().clone(), **_weights(model)}


@program("torch")
def swa_and_ema() -> Iterator[Values]:
    """An exponential average of a compiled model's weights."""
    model = _mlp()
    compiled = torch.compile(model)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    averaged = torch.compile(average)
    points, labels = torch.randn(16, 8), torch.arange(16) % 3
    for values in trained(model, lambda: functional.cross_entropy(compiled(points), labels)):
        average.update_parameters(model)
        with torch.no_grad():
            yield {**values, "averaged": averaged(points)}


class Generator(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(4, 16), torch.nn.Linear(16, 8)

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.out(functional.relu(self.hidden(noise)))


class Critic(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.score = torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(functional.leaky_relu(self.hidden(x), 0.2))


@program("torch")
def adversarial() -> Iterator[Values]:
    """A compiled generator and critic."""
    generator, critic = Generator(), Critic()
    makes, judges = torch.compile(generator), torch.compile(critic)
    of_generator = torch.optim.SGD(generator.parameters(), lr=0.01)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
    points, noise = torch.randn(16, 8), torch.randn(16, 4)
    for _ in range(STEPS):
        made = makes(noise)
        of_critic.zero_grad()
        loss = functional.softplus(judges(made.detach())).mean() + functional.softplus(-judges(points)).mean()
        loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        fooled = functional.softplus(-judges(made)).mean()
        fooled.backward()
        of_generator.step()
        yield {"loss": loss.detach().clone(), "fooled": fooled.detach().clone(), **_weights(generator)}


@program("opacus")
def private_training() -> Iterator[Values]:
    """Per-sample gradients by opacus' hooks around a compiled layer."""
    from opacus import GradSampleModule

    model = _mlp()
    wrapped = GradSampleModule(model)
    compiled = torch.compile(wrapped)
    points, labels = torch.randn(16, 8), torch.arange(16) % 3
    for _ in range(STEPS):
        wrapped.zero_grad()
        loss = functional.cross_entropy(compiled(points), labels)
        loss.backward()
        samples = {name: parameter.grad_sample.clone() for name, parameter in model.named_parameters()}
        yield {"loss": loss.detach().clone(), **{f"gradient of {name}": value for name, value in samples.items()}}


@program("torchopt")
def meta_learning() -> Iterator[Values]:
    """A differentiable inner step of a functional optimizer."""
    import torchopt

    model = _mlp()
    compiled = torch.compile(model)
    points, labels = torch.randn(16, 8), torch.arange(16) % 3
    parameters = tuple(model.parameters())
    optimizer = torchopt.sgd(lr=0.1)
    state = optimizer.init(parameters)
    for _ in range(STEPS):
        loss = functional.cross_entropy(compiled(points), labels)
        gradients = torch.autograd.grad(loss, parameters)
        updates, state = optimizer.update(gradients, state, params=parameters)
        torchopt.apply_updates(parameters, updates, inplace=True)
        yield {"loss": loss.detach().clone(), **_weights(model)}
