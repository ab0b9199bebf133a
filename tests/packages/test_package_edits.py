"""Tests that an edited program gives eager's results, and traces nothing if the edit cannot change a trace.

One program runs unedited and records its package. Then the program runs with each edit alone, and with random
combinations. After an edit of CHANGES_NOTHING or RUNS_LATER the program must still use the package. After an edit of
COUNTS, the program must not use the package (docs/explanation/packages.md, "After an edit").
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support_host import Host
from support_packages import run_program, tells_what_ran

pytestmark = pytest.mark.slow  # one process per edit

SEEDS = range(int(os.environ.get("PRECOMPILED_TEST_SEEDS", "8")))

FILES = {
    "layers.py": '''
"""Layers."""
import functools
import logging

import torch

log = logging.getLogger(__name__)
SCALE = 2.0
COUNT = 0
STARTED = "at once"


def scaled(x):
    """Of a half."""
    return x * SCALE


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(0.25)

    def forward(self, x):
        """Twice."""
        return self.activated(scaled(self.linear(x)))

    def activated(self, x):
        return torch.relu(x)

    @torch.no_grad()
    def generate(self, x):
        best = self(x)
        return best + 1


def report(values):
    total = sum(values)
    log.info("total %s", total)
    return total


first, second = (lambda x: x + 1), (lambda x: x + 2)


def prepared(x):
    width = x.shape[-1]
    return x / width


def register(function):
    @functools.wraps(function)
    def call(*args):
        return function(*args)

    return call


@register
def finished(x):
    return x - 1
''',
    "main.py": """
import json

import torch

import precompiled

precompiled.enable()
import layers

net = layers.Net()
x = layers.first(layers.prepared(torch.arange(16.0).reshape(4, 4)))
compiled = torch.compile(net)
for step in range(2):
    got = compiled(x)
    if step % 100 == 0:
        print("step", step)
expected = net(x)
layers.report([1, 2]), net.generate(x), layers.finished(x)
from precompiled.client.process import PROCESS

assert PROCESS.packages is None or PROCESS.packages.flush(60)
found = [[report.name, report.state, report.reason, *report.reasons] for report in precompiled.package_report()]
print("\\n" + json.dumps({"equal": torch.allclose(got, expected), "packages": found}))
""",
}


class Edit(NamedTuple):
    name: str
    file: str
    before: str
    after: str


CHANGES_NOTHING = [
    Edit("a comment", "layers.py", "SCALE = 2.0", "SCALE = 2.0  # of all layers"),
    Edit("empty lines", "main.py", "net = layers.Net()", "\n\n\nnet = layers.Net()"),
    Edit("formatting", "layers.py", "torch.nn.Linear(4, 4)", "torch.nn.Linear(\n    4,\n    4,\n)"),
    Edit("the docstring of a module", "layers.py", '"""Layers."""', '"""A layer."""'),
    Edit("a type hint of a local variable", "layers.py", "width = x.shape[-1]", "width: int = x.shape[-1]"),
    Edit("a line that is logged", "layers.py", '"total %s", total', '"in all %s", total'),
    Edit("a line that is printed", "main.py", 'print("step", step)', 'print("at", step, len(str(x)))'),
    Edit("how often it is printed", "main.py", "step % 100 == 0", "step % 10 == 1"),
]
# After these edits the package stays in use only if precompiled can determine which functions have run.
RUNS_LATER = [
    Edit("a function that runs later", "layers.py", "total = sum(values)", "total = 3 * sum(values)"),
    Edit("a method that runs later", "layers.py", "return best + 1", "return best + 5"),
]
COUNTS = [
    Edit("the compiled function", "layers.py", "self.activated(scaled(", "self.activated(3 * scaled("),
    Edit("a docstring of the compiled function", "layers.py", '"""Twice."""', '"""Thrice."""'),
    Edit("a function that is inlined", "layers.py", "return x * SCALE", "return x * SCALE + 1"),
    Edit("a method that is inlined", "layers.py", "return torch.relu(x)", "return torch.tanh(x)"),
    Edit("a number that a trace reads", "layers.py", "SCALE = 2.0", "SCALE = 3.0"),
    Edit("a number that nothing reads", "layers.py", "COUNT = 0", "COUNT = 1"),
    Edit("a text that nothing reads", "layers.py", '"at once"', '"later"'),
    Edit("an import that nothing uses", "layers.py", "import logging\n", "import logging\nimport string\n"),
    Edit("a type hint of a module's variable", "layers.py", "COUNT = 0", "COUNT: int = 0"),
    Edit("a function that ran before", "layers.py", "return x / width", "return x / (2 * width)"),
    Edit("one of two functions on a line, which ran", "layers.py", "(lambda x: x + 1)", "(lambda x: x + 3)"),
    Edit("one of two functions on a line, which did not", "layers.py", "(lambda x: x + 2)", "(lambda x: x + 3)"),
    Edit("a function below a decorator of the program's", "layers.py", "return x - 1", "return x - 2"),
    Edit("arguments of a function that runs later", "layers.py", "def report(values):", "def report(values, start=0):"),
    Edit("the weights, in a method that ran", "layers.py", "fill_(0.25)", "fill_(0.5)"),
    Edit("the program itself", "main.py", "arange(16.0)", "arange(1.0, 17.0)"),
]
EDITS = [*CHANGES_NOTHING, *RUNS_LATER, *COUNTS]


def write(folder: Path, edits: Sequence[Edit]) -> None:
    texts = dict(FILES)
    for edit in edits:
        assert texts[edit.file].count(edit.before) == 1, edit
        texts[edit.file] = texts[edit.file].replace(edit.before, edit.after)
    for name, text in texts.items():
        (folder / name).write_text(text)


@pytest.fixture(scope="module")
def folder(shared_host: Host) -> Path:
    """Write the unedited program and let it record its package. Each edited program starts with this store."""
    found = shared_host.root / "edited"
    found.mkdir()
    write(found, ())
    assert {state for _, state, *_ in run_program(shared_host, found)["packages"]} == {"recorded"}
    assert {state for _, state, *_ in run_program(shared_host, found)["packages"]} == {"used"}
    return found


def check(host: Host, folder: Path, edits: Sequence[Edit]) -> None:
    write(folder, edits)
    # This run's entries are removed afterwards. Otherwise a later edit with the same code would use these entries.
    left = {path: path.read_bytes() for path in (host.store.root / "packages").rglob("*") if path.is_file()}
    found = run_program(host, folder)
    assert found["equal"], found
    states = {state for _, state, *_ in found["packages"]}
    assert states == ({"recorded"} if set(edits) & set(COUNTS) else {"used"}), found["packages"]
    for path in (host.store.root / "packages").rglob("*.entry"):
        if path not in left:
            path.unlink()


def cases() -> list[Any]:
    return [
        pytest.param(edit, id=edit.name.replace(" ", "-"), marks=tells_what_ran if edit in RUNS_LATER else ())
        for edit in EDITS
    ]


@pytest.mark.parametrize("edit", cases())
def test_package_stays_in_use_only_if_the_edit_cannot_change_the_trace(
    shared_host: Host, folder: Path, edit: Edit
) -> None:
    check(shared_host, folder, [edit])


@tells_what_ran
@pytest.mark.parametrize("seed", SEEDS)
def test_combined_edits_invalidate_the_package_if_one_of_them_does(shared_host: Host, folder: Path, seed: int) -> None:
    """Every second combination has one edit that invalidates the package, which the other edits must not hide."""
    draw = random.Random(seed)
    edits = draw.sample([*CHANGES_NOTHING, *RUNS_LATER], draw.randint(2, 6))
    if seed % 2:
        edits.append(draw.choice([edit for edit in COUNTS if all(edit.before != other.before for other in edits)]))
    check(shared_host, folder, edits)
