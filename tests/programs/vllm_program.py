"""Runs a small Llama with made-up weights in vLLM on the CPU. Prints JSON.

Usage: vllm_program.py FOLDER [pieces [PASSES]]. With ``pieces`` vLLM splits its graph into pieces, as on a GPU, and
compiles each for a range of sizes and for one size. PASSES is "own" (add a pass of the program to vLLM's passes) or
"noops" (disable one of vLLM's passes). The program downloads nothing: the model is a configuration, and the prompts are
lists of numbers, which need no tokenizer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine runs in this process, which then has the report
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def settings_of_pieces(passes: str) -> dict[str, Any]:
    """Returns vLLM's ``compilation_config`` for pieces."""
    from vllm_pieces import cut_into_pieces

    cut_into_pieces()
    found: dict[str, Any] = {"compile_sizes": [2]}
    if passes == "own":
        found["inductor_passes"] = {"post_grad_custom_post_pass": "vllm_pieces.nothing"}
    if passes == "noops":
        found["pass_config"] = {"eliminate_noops": False}
    return found


def main(folder: Path, how: list[str]) -> None:
    os.environ.update(SETTINGS, VLLM_CACHE_ROOT=str(folder / "cache"))
    (folder / "model").mkdir(parents=True, exist_ok=True)
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG))

    from vllm import LLM, SamplingParams

    import precompiled

    more = {"compilation_config": settings_of_pieces("".join(how[1:]))} if how else {}
    started = time.monotonic()
    engine = LLM(
        model=str(folder / "model"),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="float32",
        seed=0,
        max_model_len=256,
        max_num_seqs=4,
        **more,
    )
    engine_s = time.monotonic() - started
    sampling = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": list(range(5, 25))}, {"prompt_token_ids": list(range(40, 47))}]
    tokens = [list(output.outputs[0].token_ids) for output in engine.generate(prompts, sampling)]
    graphs = [[graph.state, graph.source, graph.reason, graph.calls_eager > 0] for graph in precompiled.report()]
    keys = [graph.key for graph in precompiled.report()]
    print(json.dumps({"tokens": tokens, "graphs": graphs, "keys": keys, "engine_s": engine_s}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
