"""Support: a small serialized graph as plain data (as graph/capture.py writes it), and functions that change it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

TENSOR = {
    "dtype": "float32",
    "shape": [8, 16],
    "stride": [16, 1],
    "offset": 0,
    "storage": 512,
    "device": "cpu",
    "requires_grad": False,
    "leaf": True,
    "inference": False,
    "parameter": False,
    "flags": {},
}
PROGRAM: dict[str, Any] = {
    "graph": [
        [
            ["p"],
            ["p"],
            ["f", ["fn", "_operator", "mul"], [{"n": 0}, 2], []],
            ["m", "add", [{"n": 2}, {"n": 1}], [["alpha", 2]]],
            ["o", None, [{"t": [{"n": 3}]}], []],
        ]
    ],
    "inputs": {"args": [TENSOR, TENSOR], "ranges": [[2, None]]},
    "modes": {
        "grad": True,
        "autocast": {},
        "autocast_dtypes": {"cpu": "bfloat16", "cuda": "float16"},
        "threads": 2,
        "sdp": [True, True, True, False, True, False],
        "default_device": None,
        "float32_matmul_precision": "highest",
        "mkldnn": True,
        "groups": {"0": 2},
    },
    "configs": {
        "inductor": {"max_autotune": False, "max_fusion_size": 64, "x": {"tuple": [1, {"dtype": "float32"}]}},
        "functorch": {"activation_memory_budget": 1.0},
        "tag": {"cache_key_tag": ""},
    },
    "environment": {
        "python": "cpython-311-3.11.7",
        "torch": "2.13.0+cpu 0123456789abcdef",
        "triton": "",
        "cpu": "AVX2 0123456789abcdef",
        "compiler": "g++ /usr/bin/g++-12 1234567 1700000000",
        "variables": {"CPATH": "/a"},
    },
    "hints": [8],
    "floats": [],
    "about": {
        "places": [["/home/me/model.py", 12, "forward", "return x * 2 + y"]],
        "nodes": [[-1, -1, 0, 0, -1]],
        "inputs": ["x", "self.y"],
    },
}


def changed(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    # copy.deepcopy would keep shared lists and dicts shared. One change could then have several effects.
    program = json.loads(json.dumps(PROGRAM))
    change(program)
    return program


def put(*path: Any) -> Callable[[dict[str, Any]], Any]:
    """Returns a function that changes one value of a program. The last argument is the new value; ``...`` removes the
    value. All other arguments are the path of the value.
    """

    def change(program: Any) -> None:
        *way, name, value = path
        for step in way:
            program = program[step]
        if value is ...:
            del program[name]
        else:
            program[name] = value

    return change


def everything(*changes: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    def change(program: dict[str, Any]) -> None:
        for item in changes:
            item(program)

    return change


# Paths to the outermost graph and to the inputs.
NODES = ("graph", 0)
ARGS = ("inputs", "args")
