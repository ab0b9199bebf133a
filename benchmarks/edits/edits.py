"""Lists the edits. An edit consists of a program, a change of the program, and the compiled functions that must be
traced afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

# The name of a script in examples/. The other programs are in benchmarks/programs.
NANOGPT = "nanogpt"
# The value of ``traced`` if every function that the program compiles must be traced.
ALL = None
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Edit:
    """Replaces ``before`` by ``after`` in ``file``; ``before`` must occur exactly once. ``{n}`` is a number that
    differs in each run.

    ``traced``: the functions that must be traced again after the edit.
    """

    program: str
    what: str
    file: str
    before: str
    after: str
    traced: frozenset[str] | None = NOTHING

    def apply(self, text: str, number: int) -> str:
        assert text.count(self.before) == 1, f"{self.file} has {self.before!r} {text.count(self.before)} times"
        return text.replace(self.before, self.after.replace("{n}", str(number)))


_GPT = frozenset({"model.GPT.forward"})
_CRITIC = frozenset({"benchmarks.programs.loops.Critic.forward"})
_LANGUAGE, _LOOPS, _SCIENCE = (f"benchmarks/programs/{name}.py" for name in ("language", "loops", "science"))
_HEAD = "import math\nimport os\n"
_LOG_LINE = "time {dt * 1000:.2f}ms, mfu"
_END = "    iter_num += 1\n"
_EVERY = "    if iter_num % 1{n} == 0 and device_type == 'cpu':\n        print('iterations', iter_num, len(config))\n"
_DROPOUT = "        self.dropout = nn.Dropout(config.dropout)\n\n    def forward(self, x):\n        x = F.gelu("
_NORM = "        self.norm = LayerNorm(config.n_embd, bias=False)\n"

EDITS = [
    Edit(NANOGPT, "a comment", "train.py", "running_mfu = -1.0\n", "running_mfu = -1.0  # none yet ({n})\n"),
    Edit(
        NANOGPT,
        "a log line in the training loop",
        "train.py",
        _LOG_LINE,
        _LOG_LINE.replace("mfu", "lr {lr:.{n}e}, mfu"),
    ),
    Edit(NANOGPT, "another log line, in an `if` on the step number", "train.py", _END, _EVERY + _END),
    Edit(
        NANOGPT, "a function that samples", "model.py", "[:, -1, :] / temperature", "[:, -1, :] / (temperature + {n})"
    ),
    Edit(NANOGPT, "a function that saves", "train.py", '"iter_num": iter_num,', '"iter_num": iter_num + {n},'),
    Edit(NANOGPT, "a docstring of a module", "model.py", "A GPT in one file,", "A GPT in {n} file,"),
    Edit(
        NANOGPT,
        "a docstring of the model",
        "model.py",
        "without position embeddings.",
        "without {n} position embeddings.",
        _GPT,
    ),
    Edit(NANOGPT, "a type hint of a local variable", "train.py", "    ratio = (it", "    ratio: float = (it"),
    Edit(
        NANOGPT,
        "a type hint of a module-level variable",
        "train.py",
        "best_val_loss = 1e9\n",
        "best_val_loss: 'float{n}' = 1e9\n",
        ALL,
    ),
    Edit(NANOGPT, "an import that nothing uses", "train.py", _HEAD, "import json as json{n}\n" + _HEAD, ALL),
    Edit(
        NANOGPT,
        "a setting in the configuration file",
        "config/train_small_cpu.py",
        "eval_iters = 4\n",
        "eval_iters = 4\nlearning_rate = {n}e-4\n",
    ),
    Edit(NANOGPT, "the model: a constant", "model.py", "F.gelu(self.c_fc(x))", "F.gelu(self.c_fc(x)) * 1.0{n}", _GPT),
    Edit(
        NANOGPT,
        "the model: one more layer",
        "model.py",
        _DROPOUT,
        _DROPOUT.replace("\n\n", f"\n{_NORM}\n").replace(
            "        x = ", "        x = self.norm({n} * x)\n        x = "
        ),
        _GPT,
    ),
    Edit(
        "accelerate_loop",
        "a comment",
        _LANGUAGE,
        "    model = _gpt2()\n    data",
        "    model = _gpt2()  # {n}\n    data",
    ),
    Edit(
        "huggingface_trainer",
        "a log line",
        _LANGUAGE,
        "            trainer = transformers.Trainer(",
        "            print('trains', {n}, len(rows))\n            trainer = transformers.Trainer(",
    ),
    Edit(
        "huggingface_trainer",
        "another program's model",
        _LANGUAGE,
        "num_key_value_heads=1,",
        "num_key_value_heads=1 + {n},",
    ),
    Edit(
        "generate_with_a_static_cache",
        "a docstring",
        _LANGUAGE,
        "A Llama that generates.",
        "Llama {n}, that generates.",
    ),
    Edit(
        "generate_with_a_static_cache",
        "how many tokens to generate",
        _LANGUAGE,
        "max_new_tokens=8, min_new_tokens=8,",
        "max_new_tokens=8 + {n}, min_new_tokens=8 + {n},",
        ALL,
    ),
    Edit(
        "swa_and_ema",
        "a type hint of a variable",
        _LOOPS,
        "    average = torch.optim",
        "    average: object = torch.optim",
    ),
    Edit(
        "swa_and_ema",
        "the model: its width",
        _LOOPS,
        "(inputs, 16), torch.nn.Tanh(), torch.nn.Linear(16, outputs)",
        "(inputs, 2{n}), torch.nn.Tanh(), torch.nn.Linear(2{n}, outputs)",
        ALL,
    ),
    Edit(
        "physics_informed",
        "an import that nothing uses",
        _SCIENCE,
        "from collections.abc import Iterator\n",
        "import functools as tools{n}\nfrom collections.abc import Iterator\n",
        ALL,
    ),
    Edit("physics_informed", "the equation", _SCIENCE, "torch.sin(points)\n", "{n} * torch.cos(points)\n", ALL),
    Edit("adversarial", "one of two models", _LOOPS, "(self.hidden(x), 0.2)", "(self.hidden(x), 0.2{n})", _CRITIC),
]
