"""Defines the models whose starts are measured (starts/), each in full size and in a small size for trials.

Random weights, no downloads, dropout 0 (eager and compiled code draw different random numbers). A step is one call of a
module that returns one tensor: the loss in training, the logits (or the predicted noise) in inference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch.nn import functional

from benchmarks.models.unet import UNet
from benchmarks.models.zoo import Example, causal, classifier, images

SIZES = ("full", "small")
TASKS = ("training", "inference")
SHAPES = ("static", "dynamic")
# Batch sizes of the steps, in turn. No size is 1, because Dynamo specializes on 1.
BATCHES = {"static": (2,), "dynamic": (4, 2, 3)}
LARGEST = 4
LENGTH = 64
CPU = torch.device("cpu")


def gpt2(small: bool) -> Example:
    return _gpt2(1024, LENGTH, 2, 2, 128) if small else _gpt2(50257, LENGTH, 12, 12, 768)


def demo(small: bool) -> Example:
    """The model of examples/demo/train.py, which has one size."""
    return _gpt2(2048, 128, 4, 4, 256)


def _gpt2(vocabulary: int, length: int, layers: int, heads: int, width: int) -> Example:
    return causal(
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config,
        vocabulary=vocabulary,
        batch=LARGEST,
        length=length,
        n_layer=layers,
        n_head=heads,
        n_embd=width,
        n_positions=length,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )


def gpt2_24(small: bool) -> Example:
    """GPT-2 with twice as many layers."""
    return _gpt2(1024, LENGTH, 4, 2, 128) if small else _gpt2(50257, LENGTH, 24, 12, 768)


def bert(small: bool) -> Example:
    return _bert(transformers.BertForSequenceClassification, transformers.BertConfig, small)


def roberta(small: bool) -> Example:
    # Positions begin after the padding token, whose number is 1.
    positions = {"pad_token_id": 1, "max_position_embeddings": LENGTH + 2}
    return _bert(transformers.RobertaForSequenceClassification, transformers.RobertaConfig, small, **positions)


def _bert(model: type, config: type, small: bool, **settings: Any) -> Example:
    return classifier(
        model,
        config,
        vocabulary=1024 if small else 30522,
        batch=LARGEST,
        length=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **{"max_position_embeddings": LENGTH, **_encoder(small, 768, 12), **settings},
    )


def llama(small: bool) -> Example:
    return _llama(transformers.LlamaForCausalLM, transformers.LlamaConfig, small)


def mistral(small: bool) -> Example:
    return _llama(transformers.MistralForCausalLM, transformers.MistralConfig, small)


def qwen2(small: bool) -> Example:
    return _llama(transformers.Qwen2ForCausalLM, transformers.Qwen2Config, small)


def _llama(model: type, config: type, small: bool) -> Example:
    return causal(
        model,
        config,
        vocabulary=1024 if small else 32000,
        batch=LARGEST,
        length=LENGTH,
        max_position_embeddings=LENGTH,
        num_key_value_heads=1 if small else 4,
        use_cache=False,
        **_encoder(small, 512, 4),
    )


def resnet(small: bool) -> Example:
    settings = (
        {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 1]}
        if small
        else {
            "embedding_size": 64,
            "hidden_sizes": [64, 128, 256, 512],
            "depths": [2, 2, 2, 2],
        }
    )
    return images(
        transformers.ResNetForImageClassification,
        transformers.ResNetConfig,
        batch=LARGEST,
        size=32 if small else 224,
        layer_type="basic",
        **settings,
    )


def vit(small: bool) -> Example:
    side = 32 if small else 224
    return images(
        transformers.ViTForImageClassification,
        transformers.ViTConfig,
        batch=LARGEST,
        size=side,
        image_size=side,
        patch_size=8 if small else 16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **_encoder(small, 384, 6),
    )


def unet(small: bool) -> Example:
    side = 16 if small else 32
    inputs = {"sample": torch.randn(LARGEST, 3, side, side), "timestep": torch.arange(LARGEST) * 200 + 3}
    model = UNet(width=32 if small else 64, depth=2 if small else 3)
    return Example(model, inputs, {"noise": torch.randn(LARGEST, 3, side, side)})


def llama_1b(small: bool) -> Example:
    """Llama 3.2 1B's shape on texts of 512 tokens, for GPUs."""
    sizes = (
        {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
        if small
        else {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
        }
    )
    return causal(
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig,
        vocabulary=1024 if small else 128256,
        batch=LARGEST,
        length=LENGTH if small else 512,
        num_attention_heads=4 if small else 32,
        num_key_value_heads=1 if small else 8,
        use_cache=False,
        **sizes,
    )


def resnet50(small: bool) -> Example:
    """torchvision's ResNet-50, for GPUs."""
    settings = {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 1]} if small else {}
    return images(
        transformers.ResNetForImageClassification,
        transformers.ResNetConfig,
        batch=LARGEST,
        size=32 if small else 224,
        **settings,
    )


def _encoder(small: bool, width: int, layers: int) -> dict[str, int]:
    """Return the sizes of a stack of transformer layers."""
    width, layers = (128, 2) if small else (width, layers)
    return {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 64,
    }


MODELS: dict[str, Callable[[bool], Example]] = {
    build.__name__: build for build in (gpt2, bert, llama, resnet, vit, unet)
}
# Models that a measure requests by name.
FURTHER: dict[str, Callable[[bool], Example]] = {
    build.__name__: build for build in (demo, gpt2_24, llama_1b, mistral, qwen2, resnet50, roberta)
}
# Models whose starts are measured on a GPU.
ON_GPU = ("gpt2", "llama_1b", "resnet50")


class Step(torch.nn.Module):
    """One call of the model. Returns its predictions, or their loss if there is a ``target``.

    The loss is computed here because HuggingFace's loss logs a warning for some models, and Dynamo breaks the graph at
    this warning.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, target: torch.Tensor | None = None, **inputs: torch.Tensor) -> torch.Tensor:
        output = self.model(**inputs)
        predicted: torch.Tensor = output["sample"] if "sample" in output else output["logits"]
        if target is None:
            return predicted
        if target.is_floating_point():
            return functional.mse_loss(predicted, target)
        if predicted.ndim == 3:  # predict the next token
            return functional.cross_entropy(predicted[:, :-1].flatten(0, 1), target[:, 1:].flatten())
        return functional.cross_entropy(predicted, target)


def build(
    name: str, size: str, task: str, shapes: str, device: torch.device = CPU
) -> tuple[Step, list[dict[str, Any]]]:
    """Return the module and its inputs, one dict for each batch size. Module and inputs are equal in every process."""
    torch.manual_seed(0)
    example = {**MODELS, **FURTHER}[name](size == "small")
    step = Step(example.model).train(task == "training").to(device)
    (target,) = example.targets.values()
    inputs = {**example.inputs, **({"target": target} if task == "training" else {})}
    return step, [{key: value[:batch].clone().to(device) for key, value in inputs.items()} for batch in BATCHES[shapes]]
