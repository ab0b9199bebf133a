"""Defines the programs that use libraries for text: models from small configurations, no tokenizer, no download."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.programs.registry import STEPS, Values, program, trained

VOCABULARY, WIDTH = 128, 64


def _tokens(batch: int = 2, length: int = 16) -> torch.Tensor:
    return torch.randint(8, VOCABULARY, (batch, length))


def _llama() -> torch.nn.Module:
    import transformers

    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


def _gpt2() -> torch.nn.Module:
    import transformers

    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=WIDTH,
            n_layer=2,
            n_head=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


@program("transformers")
def generate_with_a_static_cache() -> Iterator[Values]:
    """A Llama that generates."""
    model = _llama().eval()
    model.forward = torch.compile(model.forward)
    for _ in range(STEPS):
        tokens = model.generate(
            _tokens(1, 8), cache_implementation="static", max_new_tokens=8, min_new_tokens=8, do_sample=False
        )
        yield {"tokens": tokens}


@program("transformers", "accelerate")
def huggingface_trainer() -> Iterator[Values]:
    """Trainer(torch_compile=True) on a BERT."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    rows = [{"input_ids": _tokens(1, 16)[0], "labels": torch.tensor(number % 2)} for number in range(8)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            torch_compile=True,
            per_device_train_batch_size=2,
            max_steps=1,
            report_to="none",
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=1,
        )
        model = transformers.BertForSequenceClassification(config)
        for _ in range(STEPS):
            trainer = transformers.Trainer(model, arguments, train_dataset=rows)
            yield {"loss": torch.tensor(trainer.train().training_loss)}


@program("accelerate", "transformers")
def accelerate_loop() -> Iterator[Values]:
    """Accelerator(dynamo_backend="inductor") on a GPT-2."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, dynamo_backend="inductor")
    model = _gpt2()
    data = torch.utils.data.DataLoader([_tokens(1)[0] for _ in range(2 * STEPS)], batch_size=2)
    prepared, optimizer, data = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), data)
    for tokens in data:
        optimizer.zero_grad()
        loss = prepared(input_ids=tokens, labels=tokens).loss
        accelerator.backward(loss)
        optimizer.step()
        yield {"loss": loss.detach().clone()}


@program("peft", "transformers")
def lora() -> Iterator[Values]:
    """LoRA on a GPT-2."""
    import peft

    model = peft.get_peft_model(_gpt2(), peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
    compiled = torch.compile(model)
    tokens = _tokens()
    yield from trained(model, lambda: compiled(input_ids=tokens, labels=tokens).loss)


@program("peft", "transformers")
def ia3() -> Iterator[Values]:
    """(IA)3 on a Llama."""
    import peft

    model = peft.get_peft_model(
        _llama(), peft.IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"])
    )
    compiled = torch.compile(model)
    tokens = _tokens()
    yield from trained(model, lambda: compiled(input_ids=tokens, labels=tokens).loss)


@program("sentence_transformers", "transformers")
def sentence_embeddings() -> Iterator[Values]:
    """SentenceTransformer.encode over batches of different lengths."""
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    words = [f"word{number}" for number in range(64)]
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocab.txt"
        vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
        transformers.BertTokenizer(str(vocabulary)).save_pretrained(folder)
        config = transformers.BertConfig(
            vocab_size=128, hidden_size=WIDTH, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2
        )
        transformers.BertModel(config).save_pretrained(folder)
        transformer = Transformer(folder)
    model = SentenceTransformer(modules=[transformer, Pooling(WIDTH)], device="cpu").eval()
    model[0].compile()
    for step in range(STEPS):
        texts = [" ".join(words[: 4 + 2 * step + number]) for number in range(4)]
        yield {"embeddings": model.encode(texts, convert_to_tensor=True, show_progress_bar=False)}


@program("x_transformers")
def x_transformers_decoder() -> Iterator[Values]:
    """A decoder with rotary embeddings and SwiGLU."""
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    decoder = Decoder(
        dim=WIDTH, depth=2, heads=2, attn_dim_head=32, rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True, ff_swish=True
    )
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=VOCABULARY, max_seq_len=32, attn_layers=decoder))
    compiled = torch.compile(model)
    tokens = _tokens(2, 33)
    yield from trained(model, lambda: compiled(tokens))


@program("x_transformers")
def x_transformers_encoder() -> Iterator[Values]:
    """An encoder for images."""
    from x_transformers import Encoder, ViTransformerWrapper

    model = ViTransformerWrapper(
        image_size=32, patch_size=8, num_classes=4, attn_layers=Encoder(dim=WIDTH, depth=2, heads=2, attn_dim_head=32)
    )
    compiled = torch.compile(model)
    images, labels = torch.randn(2, 3, 32, 32), torch.tensor([0, 3])
    yield from trained(model, lambda: torch.nn.functional.cross_entropy(compiled(images), labels))


@program("local_attention")
def local_attention() -> Iterator[Values]:
    """A transformer with local attention, trained by its own loss."""
    from local_attention import LocalTransformer

    model = LocalTransformer(
        num_tokens=VOCABULARY,
        dim=WIDTH,
        depth=2,
        max_seq_len=64,
        heads=2,
        dim_head=32,
        local_attn_window_size=16,
        causal=True,
    )
    compiled = torch.compile(model)
    tokens = _tokens(2, 33)
    yield from trained(model, lambda: compiled(tokens, return_loss=True))


@program("conformer")
def conformer() -> Iterator[Values]:
    """Conformer blocks."""
    from conformer import Conformer

    model = Conformer(dim=WIDTH, depth=2, dim_head=32, heads=2, conv_kernel_size=7)
    compiled = torch.compile(model)
    frames = torch.randn(2, 24, WIDTH)
    yield from trained(model, lambda: compiled(frames).square().mean())


@program("torchao", "transformers")
def int8_weights() -> Iterator[Values]:
    """A Llama with int8 weights."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = _llama().eval()
    quantize_(model, Int8WeightOnlyConfig())
    compiled = torch.compile(model)
    for _ in range(STEPS):
        with torch.no_grad():
            yield {"logits": compiled(input_ids=_tokens(), use_cache=False).logits}
