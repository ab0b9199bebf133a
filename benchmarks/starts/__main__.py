"""Measures starts of models by all contenders: the time of a fresh process until its first result, and until its first
result from compiled code.

`python -m benchmarks.starts` (`make bench-full`: everything, hours). Each sample is a fresh process on its own host.
The contenders of a model, task and kind of shapes take turns; each turn begins with a different contender.

Exits 1 if one of precompiled's contenders crashed, differed from eager, or did not do what its name says.
"""

from __future__ import annotations

import argparse

from benchmarks.harness.console import begin
from benchmarks.harness.result import HEADERS, markdown
from benchmarks.models.suite import FURTHER, MODELS, ON_GPU, SHAPES, TASKS
from benchmarks.starts.contenders import CONTENDERS, chosen
from benchmarks.starts.goals import goals
from benchmarks.starts.report import publish
from benchmarks.starts.run import Plan, run
from benchmarks.starts.sample import Group

KNOWN = {**MODELS, **FURTHER}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.starts", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the models are")
    parser.add_argument("--mode", default="", help="torch.compile's mode, such as max-autotune-no-cudagraphs")
    parser.add_argument("--model", default="", help=f"a,b of {', '.join(KNOWN)}; all the device's")
    parser.add_argument("--contender", default="", help=f"a,b of {', '.join(CONTENDERS)}, or their first parts; all")
    parser.add_argument("--task", choices=TASKS)
    parser.add_argument("--shapes", choices=SHAPES)
    parser.add_argument("--repeats", type=int, default=1, metavar="N")
    parser.add_argument("--quick", action="store_true", help="small models: no figures to be quoted")
    parser.add_argument("--docs", action="store_true", help="the picture of the first group also to docs/images/")
    arguments = parser.parse_args()
    wanted = arguments.model.split(",") if arguments.model else list(ON_GPU if arguments.device == "cuda" else MODELS)
    if unknown := set(wanted) - set(KNOWN):
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(KNOWN)}")
    try:
        contenders = tuple(chosen(arguments.contender) if arguments.contender else CONTENDERS)
    except ValueError as error:
        parser.error(str(error))
    _, say = begin(180)
    plans = [
        Plan(Group(model, task, shapes, arguments.device, arguments.mode), contenders, arguments.repeats)
        for model in wanted
        for task in TASKS
        if arguments.task in (None, task)
        for shapes in SHAPES
        if arguments.shapes in (None, shapes)
    ]
    size = "small" if arguments.quick else "full"
    samples = run(plans, size, say)
    publish(samples, arguments.quick, say, docs=arguments.docs)
    wrong = any(item.outcome != "ok" and item.contender.startswith("ours") for item in samples)
    if not wrong and (results := goals(samples)):
        print(f"\n{markdown(HEADERS, [result.row() for result in results])}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
