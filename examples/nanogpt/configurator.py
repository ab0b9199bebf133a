"""Sets globals of train.py from files of settings and --name=value. train.py runs this file with exec()."""

import sys
from ast import literal_eval

for argument in sys.argv[1:]:
    if not argument.startswith("--"):
        with open(argument) as file:
            exec(file.read())
        continue
    name, _, text = argument.removeprefix("--").partition("=")
    if name not in globals():
        raise ValueError(f"there is no setting {name}")
    try:
        value = literal_eval(text)
    except (SyntaxError, ValueError):
        value = text
    assert type(value) is type(globals()[name]), f"{name} is a {type(globals()[name]).__name__}"
    globals()[name] = value
