"""Defines small models of many architectures: random weights, no downloads.

Dropout and other random draws are off, because eager and compiled code draw different numbers. Otherwise, each
architecture keeps its defaults. Models have two layers (or the number in the variable ZOO_LAYERS), 32 to 64 wide, if
the architecture allows it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from benchmarks.models.unet import UNet

VOCABULARY, WIDTH, INNER, HEADS, LAYERS = 128, 64, 128, 2, int(os.environ.get("ZOO_LAYERS", "2"))
BATCH, LENGTH, IMAGE, LABELS = 2, 16, 32, 4
# The standard deviation of weights, five times the usual value. With the usual value, the attention weights of these
# small models are nearly equal, so rounding hides the gradients.
SPREAD = 0.1
_SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@dataclass(frozen=True)
class Example:
    """A model. ``inputs``: keyword arguments of a call. ``targets``: further keyword arguments in training."""

    model: torch.nn.Module
    inputs: dict[str, Any]
    targets: dict[str, Any]


@dataclass(frozen=True)
class Architecture:
    name: str
    kind: str
    _build: Callable[[], Example]

    def build(self) -> Example:
        """Return a model whose weights and inputs come from one seed."""
        torch.manual_seed(0)
        return self._build()


ARCHITECTURES: dict[str, Architecture] = {}


def _architecture(kind: str) -> Callable[[Callable[[], Example]], Callable[[], Example]]:
    def register(build: Callable[[], Example]) -> Callable[[], Example]:
        name = build.__name__
        ARCHITECTURES[name] = Architecture(name, kind, build)
        return build

    return register


def _tokens(length: int = LENGTH, *, batch: int = BATCH, vocabulary: int = VOCABULARY) -> torch.Tensor:
    # Skip the special tokens, which some models treat differently.
    return torch.randint(8, vocabulary, (batch, length))


# ---------------------------------------------------------------- decoders


def causal(
    model: type,
    config: type,
    *,
    vocabulary: int = VOCABULARY,
    batch: int = BATCH,
    length: int = LENGTH,
    **settings: Any,
) -> Example:
    """A language model, and ``batch`` texts of ``length`` tokens as inputs and labels."""
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    tokens = _tokens(length, batch=batch, vocabulary=vocabulary)
    built = model(config(**{"vocab_size": vocabulary, **special, **settings}))
    return Example(built, {"input_ids": tokens}, {"labels": tokens})


_LLAMA_LIKE: dict[str, Any] = {**_SIZES, "max_position_embeddings": 64, "initializer_range": SPREAD}


@_architecture("decoder")
def gpt2() -> Example:
    return causal(
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config,
        n_layer=LAYERS,
        n_head=HEADS,
        n_embd=WIDTH,
        n_positions=64,
        initializer_range=SPREAD,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )


@_architecture("decoder")
def llama() -> Example:
    return causal(transformers.LlamaForCausalLM, transformers.LlamaConfig, num_key_value_heads=1, **_LLAMA_LIKE)


@_architecture("decoder")
def mistral() -> Example:
    # The window is shorter than the sequence, so it has an effect.
    return causal(
        transformers.MistralForCausalLM,
        transformers.MistralConfig,
        num_key_value_heads=1,
        sliding_window=8,
        **_LLAMA_LIKE,
    )


@_architecture("decoder")
def qwen2() -> Example:
    return causal(transformers.Qwen2ForCausalLM, transformers.Qwen2Config, num_key_value_heads=1, **_LLAMA_LIKE)


@_architecture("decoder")
def gemma() -> Example:
    return causal(
        transformers.GemmaForCausalLM, transformers.GemmaConfig, num_key_value_heads=1, head_dim=32, **_LLAMA_LIKE
    )


@_architecture("decoder")
def gpt_neox() -> Example:
    return causal(transformers.GPTNeoXForCausalLM, transformers.GPTNeoXConfig, **_LLAMA_LIKE)


@_architecture("decoder")
def opt() -> Example:
    return causal(
        transformers.OPTForCausalLM,
        transformers.OPTConfig,
        hidden_size=WIDTH,
        word_embed_proj_dim=WIDTH,
        ffn_dim=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=64,
        init_std=SPREAD,
        dropout=0.0,
    )


@_architecture("mixture of experts")
def mixtral() -> Example:
    return causal(
        transformers.MixtralForCausalLM,
        transformers.MixtralConfig,
        num_key_value_heads=1,
        num_local_experts=4,
        num_experts_per_tok=2,
        **_LLAMA_LIKE,
    )


@_architecture("state space")
def mamba() -> Example:
    return causal(
        transformers.MambaForCausalLM,
        transformers.MambaConfig,
        hidden_size=WIDTH,
        state_size=8,
        num_hidden_layers=LAYERS,
    )


# ---------------------------------------------------------------- encoders


def classifier(
    model: type,
    config: type,
    *,
    vocabulary: int = VOCABULARY,
    batch: int = BATCH,
    length: int = LENGTH,
    **settings: Any,
) -> Example:
    """A text classifier, and ``batch`` texts. Every second text has half the length."""
    tokens = _tokens(length, batch=batch, vocabulary=vocabulary)
    mask = torch.ones_like(tokens)
    mask[1::2, length // 2 :] = 0
    built = model(config(**{"vocab_size": vocabulary, "pad_token_id": 0, "num_labels": LABELS, **settings}))
    labels = torch.arange(batch) * (LABELS - 1) % LABELS
    return Example(built, {"input_ids": tokens, "attention_mask": mask}, {"labels": labels})


_BERT_LIKE: dict[str, Any] = {**_LLAMA_LIKE, **_NO_DROPOUT}


@_architecture("encoder")
def bert() -> Example:
    return classifier(transformers.BertForSequenceClassification, transformers.BertConfig, **_BERT_LIKE)


@_architecture("encoder")
def roberta() -> Example:
    return classifier(transformers.RobertaForSequenceClassification, transformers.RobertaConfig, **_BERT_LIKE)


@_architecture("encoder")
def distilbert() -> Example:
    return classifier(
        transformers.DistilBertForSequenceClassification,
        transformers.DistilBertConfig,
        dim=WIDTH,
        hidden_dim=INNER,
        n_layers=LAYERS,
        n_heads=HEADS,
        max_position_embeddings=64,
        initializer_range=SPREAD,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
    )


@_architecture("encoder")
def electra() -> Example:
    return classifier(
        transformers.ElectraForSequenceClassification, transformers.ElectraConfig, embedding_size=32, **_BERT_LIKE
    )


@_architecture("encoder")
def albert() -> Example:
    return classifier(
        transformers.AlbertForSequenceClassification,
        transformers.AlbertConfig,
        embedding_size=32,
        classifier_dropout_prob=0.0,
        **_BERT_LIKE,
    )


# ---------------------------------------------------------------- encoder and decoder


@_architecture("encoder-decoder")
def t5() -> Example:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=32,
        d_ff=INNER,
        num_layers=LAYERS,
        num_heads=HEADS,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    answer = _tokens(12)
    inputs = {"input_ids": _tokens(), "decoder_input_ids": answer}
    return Example(transformers.T5ForConditionalGeneration(config), inputs, {"labels": answer})


@_architecture("encoder-decoder")
def bart() -> Example:
    config = transformers.BartConfig(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_ffn_dim=INNER,
        decoder_ffn_dim=INNER,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        max_position_embeddings=64,
        init_std=SPREAD,
        dropout=0.0,
    )
    answer = _tokens(12)
    inputs = {"input_ids": _tokens(), "decoder_input_ids": answer}
    return Example(transformers.BartForConditionalGeneration(config), inputs, {"labels": answer})


# ---------------------------------------------------------------- images


def images(model: type, config: type, *, size: int = IMAGE, batch: int = BATCH, **settings: Any) -> Example:
    """An image classifier, and ``batch`` images of ``size`` by ``size``."""
    built = model(config(**{"num_labels": LABELS, **settings}))
    labels = torch.arange(batch) % LABELS
    return Example(built, {"pixel_values": torch.randn(batch, 3, size, size)}, {"labels": labels})


_VIT_LIKE: dict[str, Any] = {
    **_SIZES,
    "image_size": IMAGE,
    "patch_size": 8,
    "initializer_range": SPREAD,
    **_NO_DROPOUT,
}


@_architecture("vision transformer")
def vit() -> Example:
    return images(transformers.ViTForImageClassification, transformers.ViTConfig, **_VIT_LIKE)


@_architecture("vision transformer")
def deit() -> Example:
    made = images(transformers.DeiTForImageClassification, transformers.DeiTConfig, **_VIT_LIKE)
    # These embeddings start as zeros. Layer norm (eps 1e-12) of a vector without variance would scale gradients by a
    # million.
    embeddings = made.model.deit.embeddings
    for parameter in (embeddings.cls_token, embeddings.position_embeddings):
        torch.nn.init.normal_(parameter, std=SPREAD)
    return made


@_architecture("vision transformer")
def swin() -> Example:
    # A window has 4 x 4 patches, and the two stages have 16 x 16 and 8 x 8 patches. So the second layer of each stage
    # shifts its windows.
    return images(
        transformers.SwinForImageClassification,
        transformers.SwinConfig,
        image_size=IMAGE,
        patch_size=2,
        embed_dim=32,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        initializer_range=SPREAD,
        drop_path_rate=0.0,
    )


@_architecture("vision transformer")
def beit() -> Example:
    return images(
        transformers.BeitForImageClassification,
        transformers.BeitConfig,
        use_relative_position_bias=True,
        drop_path_rate=0.0,
        **_VIT_LIKE,
    )


@_architecture("convolution")
def resnet() -> Example:
    return images(
        transformers.ResNetForImageClassification,
        transformers.ResNetConfig,
        batch=4,
        embedding_size=16,
        hidden_sizes=[32, 64],
        depths=[1, 1],
        layer_type="basic",
    )


@_architecture("convolution")
def convnext() -> Example:
    # The initial layer scale of 1e-6 would hide the layers' results.
    return images(
        transformers.ConvNextForImageClassification,
        transformers.ConvNextConfig,
        num_stages=2,
        hidden_sizes=[32, 64],
        depths=[1, 1],
        layer_scale_init_value=0.5,
    )


@_architecture("convolution")
def mobilenet_v2() -> Example:
    made = images(
        transformers.MobileNetV2ForImageClassification,
        transformers.MobileNetV2Config,
        size=64,
        batch=8,
        image_size=64,
        depth_multiplier=0.25,
        classifier_dropout_prob=0.0,
    )
    # The model uses double precision, because rounding near ReLU6's kinks changes the gradients. In single precision,
    # eager is as inaccurate as compiled code, and both exceed all tolerances.
    return Example(made.model.double(), {"pixel_values": made.inputs["pixel_values"].double()}, made.targets)


@_architecture("diffusion")
def unet() -> Example:
    inputs = {"sample": torch.randn(BATCH, 3, 16, 16), "timestep": torch.tensor([3, 700])}
    return Example(UNet(width=32), inputs, {"noise": torch.randn(BATCH, 3, 16, 16)})


# ---------------------------------------------------------------- speech, images with text


@_architecture("speech")
def wav2vec2() -> Example:
    config = transformers.Wav2Vec2Config(
        vocab_size=32,
        conv_dim=(32, 32, 32),
        conv_stride=(5, 2, 2),
        conv_kernel=(10, 3, 3),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        **_SIZES,
        hidden_dropout=0.0,
        activation_dropout=0.0,
        attention_dropout=0.0,
        feat_proj_dropout=0.0,
        final_dropout=0.0,
        layerdrop=0.0,
        initializer_range=SPREAD,
        apply_spec_augment=False,
        ctc_loss_reduction="mean",
    )
    inputs = {"input_values": torch.randn(BATCH, 1600)}
    return Example(transformers.Wav2Vec2ForCTC(config), inputs, {"labels": torch.randint(1, 32, (BATCH, 8))})


@_architecture("speech")
def whisper() -> Example:
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=16,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_ffn_dim=INNER,
        decoder_ffn_dim=INNER,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        max_source_positions=32,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        init_std=SPREAD,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    answer = _tokens(12)
    inputs = {"input_features": torch.randn(BATCH, 16, 64), "decoder_input_ids": answer}
    return Example(transformers.WhisperForConditionalGeneration(config), inputs, {"labels": answer})


@_architecture("vision and language")
def clip() -> Example:
    text = {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": LENGTH,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 3,
    }
    config = transformers.CLIPConfig(
        text_config={**_SIZES, **text},
        vision_config={**_SIZES, "image_size": IMAGE, "patch_size": 8},
        projection_dim=32,
    )
    tokens = _tokens()
    tokens[:, -1] = 3  # the model takes the text's embedding at this token
    inputs = {"input_ids": tokens, "pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE)}
    return Example(transformers.CLIPModel(config), inputs, {"return_loss": True})
