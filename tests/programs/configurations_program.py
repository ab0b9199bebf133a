"""A program with two configurations of a HuggingFace model. As in a user's script, an argument selects one of the
configurations.

Usage: configurations_program.py MODEL one|other. Prints a line of JSON: whether the compiled result equals eager's, and
the state of each function's package.
"""

from __future__ import annotations

import json
import sys

import torch
import transformers

import precompiled
from precompiled.client.process import PROCESS

SMALL = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "num_hidden_layers": 1}
TEXT = {**SMALL, "vocab_size": 64, "max_position_embeddings": 32}
OTHER = {"num_hidden_layers": 2}
# For each model, its class, the arguments of its configuration, and the changes that make the other configuration.
MODELS = {
    "gpt2": (
        "GPT2Model",
        {"n_embd": 32, "n_head": 4, "n_layer": 1, "vocab_size": 64, "n_positions": 32},
        {"n_layer": 2, "activation_function": "relu"},
    ),
    "bert": ("BertModel", TEXT, {**OTHER, "hidden_act": "relu"}),
    "llama": ("LlamaModel", {**TEXT, "num_key_value_heads": 2}, {**OTHER, "attention_bias": True}),
    "qwen2": ("Qwen2Model", {**TEXT, "num_key_value_heads": 2}, {**OTHER, "hidden_act": "gelu"}),
    "vit": ("ViTModel", {**SMALL, "image_size": 16, "patch_size": 8}, {**OTHER, "qkv_bias": False}),
}


def main(name: str, which: str) -> None:
    precompiled.enable()
    kind, settings, changes = MODELS[name]
    made = getattr(transformers, kind)
    torch.manual_seed(0)
    model = made(made.config_class(**{**settings, **(changes if which == "other" else {})})).eval()
    given = torch.rand(1, 3, 16, 16) if name == "vit" else torch.randint(0, 64, (2, 8))
    with torch.no_grad():
        expected = model(given).last_hidden_state
        got = torch.compile(model)(given).last_hidden_state
    if PROCESS.packages is not None:
        PROCESS.packages.flush()
    equal = torch.allclose(got, expected, rtol=1e-3, atol=1e-4)
    print(json.dumps({"equal": equal, "states": [report.state for report in precompiled.package_report()]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
