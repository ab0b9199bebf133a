"""Tests that by default a package is used only by the program that recorded it. The source text defines a program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path
from typing import Any

import pytest
from support_host import TIMEOUT_S, Host
from support_packages import run_program, tells_what_ran

from precompiled.cli import pth
from precompiled.core import kernel, python_path
from precompiled.packages.function_report import OTHER_PROGRAMS

pytestmark = pytest.mark.integration

LIBRARY = """
import torch

def double(x):
    return torch.addmm(x, x, x, alpha=2.0)
"""
MAIN = """
import json, sys
import torch
import precompiled
precompiled.enable()
import library

x = torch.randn(4, 4)
assert torch.allclose(torch.compile(library.double)(x), library.double(x))
from precompiled.client.process import PROCESS
assert PROCESS.packages is None or PROCESS.packages.flush(60)
reports = precompiled.package_report()
print(json.dumps([[report.state, report.reason, report.message, *report.reasons] for report in reports]))
"""


@pytest.fixture
def folder(shared_host: Host, request: pytest.FixtureRequest) -> Path:
    """Create a project whose function has a different name in each test, so that tests do not share entries."""
    name = re.sub(r"\W", "_", request.node.name)
    found = shared_host.root / name
    found.mkdir()
    (found / "library.py").write_text(LIBRARY + f"\ndouble.__code__ = double.__code__.replace(co_name={name!r})\n")
    (found / "main.py").write_text(MAIN)
    (found / "other.py").write_text(MAIN + "ANOTHER = True\n")
    return found


def run(host: Host, folder: Path, *arguments: str, text: str | None = None, **extra: str) -> list[Any]:
    """Returns [state, reason, message, why each entry was not used ...] of the program's only frame."""
    (found,) = run_program(host, folder, *arguments, text=text, **extra)
    return list(found)


@pytest.mark.slow
def test_edit_anywhere_in_the_program_invalidates_until_it_is_undone(shared_host: Host, folder: Path) -> None:
    assert run(shared_host, folder)[0] == "recorded"
    assert run(shared_host, folder)[0] == "used"
    edited = (folder / "main.py").read_text()
    (folder / "main.py").write_text(edited + "NOTHING_THAT_A_TRACE_READS = 1\n")
    found = run(shared_host, folder)
    assert (found[0], found[3:]) == ("recorded", [OTHER_PROGRAMS])
    assert run(shared_host, folder)[0] == "used"
    # The same text with a new modification time, as in a fresh checkout.
    (folder / "main.py").write_text(edited)
    assert run(shared_host, folder)[0] == "used"


def test_edit_that_changes_no_code_keeps_the_package(shared_host: Host, folder: Path) -> None:
    """An edit of a comment, a docstring or a printing line must keep the package, although it moves other lines."""
    assert run(shared_host, folder)[0] == "recorded"
    library, main = (folder / "library.py").read_text(), (folder / "main.py").read_text()
    (folder / "library.py").write_text("# A library.\n\n" + library.replace("return", "# the sum\n    return"))
    (folder / "main.py").write_text(f'"""A program."""\nprint("begins")\n{main}')
    assert run(shared_host, folder)[0] == "used"


TABLES = [{"a": 1.0, "b": 2.0}, {"c": 3.0}, {"d": 4.0, "e": 5.0}, {"f": 6.0}]


def test_processes_with_equal_traces_record_the_same_entry(shared_host: Host, folder: Path) -> None:
    """The order of sets differs from process to process. If this order were part of an entry, each host would upload an
    entry of its own.
    """
    names = "".join(f"T{number} = {table}\n" for number, table in enumerate(TABLES))
    loop = "    for name, factor in T{}.items():\n        x = x + len(name) * factor\n"
    loops = "".join(map(loop.format, range(len(TABLES))))
    library = (folder / "library.py").read_text()
    (folder / "library.py").write_text(names + library.replace("    return", f"{loops}    return"))
    made = []
    for seed in ("1", "2", "3"):
        store = folder / f"store-{seed}"
        assert run(shared_host, folder, PYTHONHASHSEED=seed, PRECOMPILED_CACHE_DIR=str(store))[0] == "recorded"
        made.append([path.name for path in store.glob("packages/*/*.entry")])
    assert len(made[0]) == 1 and made == [made[0]] * 3


LATER = """
def later(x):
    return x + 1

class Model(torch.nn.Module):
    def forward(self, x):
        return self.twice(x)

    def twice(self, x):
        return double(x)

    @torch.no_grad()
    def generate(self, count):
        return [self(torch.ones(4, 4)) + later(2)]
"""


@pytest.mark.slow
@tells_what_ran
def test_edit_of_a_function_that_runs_later_keeps_the_package(shared_host: Host, folder: Path) -> None:
    library = (folder / "library.py").read_text() + LATER
    edited = library.replace("x + 1", "x - 1").replace("later(2)", "later(3) + later(4)")
    (folder / "library.py").write_text(library)
    main = MAIN.replace("torch.compile(library.double)", "(model := library.Model()).compile() or model")
    main = main.replace("library.double(x))", "torch.addmm(x, x, x, alpha=2.0))")
    (folder / "main.py").write_text(main)
    assert run(shared_host, folder)[0] == "recorded"
    (folder / "library.py").write_text(edited)
    assert run(shared_host, folder)[0] == "used"
    # The setting `function` compares the code of the whole class, which the edit changed.
    found = run(shared_host, folder, PRECOMPILED_PACKAGES="function")
    assert found[0] == "recorded" and "the code of library.Model differs" in found[3]
    (folder / "main.py").write_text(main.replace("x = torch", "library.later(1)\nx = torch"))
    assert run(shared_host, folder)[0] == "recorded"
    (folder / "library.py").write_text(library)
    found = run(shared_host, folder)
    assert found[0] == "recorded" and {*found[3:]} == {OTHER_PROGRAMS}
    # An edit of code that the trace reads invalidates the package, even if the code has not run.
    (folder / "main.py").write_text(main)
    (folder / "library.py").write_text(library.replace("return double(x)", "return double(x) * 1"))
    assert run(shared_host, folder)[0] == "recorded"


def test_traceback_names_the_current_lines_of_the_function(shared_host: Host, folder: Path) -> None:
    """Recorded bytecode has the line numbers of its trace. After an edit, a traceback must show the new numbers."""
    body = "    return torch.addmm(x, x, x, alpha=2.0)"
    breaks = (
        "    y = torch.addmm(x, x, x, alpha=2.0)\n    torch._dynamo.graph_break()\n"
        "    if sys.argv[1:]:\n        raise ValueError(len(traceback.format_stack()))\n    return y"
    )
    library = "import sys, traceback\n" + (folder / "library.py").read_text().replace(body, breaks)
    (folder / "library.py").write_text(library)
    main = (folder / "main.py").read_text().replace("import json, sys", "import json, sys, traceback")
    says = (
        "sys.argv.append('raise')\ntry:\n    torch.compile(library.double)(x)\nexcept ValueError as error:\n"
        "    places = [[f.filename, f.lineno] for f in traceback.extract_tb(error.__traceback__)]\n"
        "    print(json.dumps([[place for place in places if 'library' in place[0]]]))\n"
    )
    (folder / "main.py").write_text(main.replace("reports =", says + "sys.exit()\nreports ="))
    before = run(shared_host, folder)
    moved = folder / "moved"
    moved.mkdir()
    for name in ("library.py", "main.py"):
        text = (folder / name).read_text()
        (folder / name).unlink()
        (moved / name).write_text("# moved\n\n\n" + text)
    after = run(shared_host, moved)
    lines = [line + 3 for _file, line in before]
    assert lines and after == [[str(moved / "library.py"), line] for line in lines]


@pytest.mark.slow
def test_programs_that_share_a_function_keep_separate_packages(shared_host: Host, folder: Path) -> None:
    assert run(shared_host, folder)[0] == "recorded"
    assert run(shared_host, folder, "other.py")[0] == "recorded"
    assert run(shared_host, folder)[0] == "used"
    # With PRECOMPILED_PACKAGES=function every program may use the package.
    (folder / "other.py").write_text((folder / "other.py").read_text() + "EDITED = 1\n")
    assert run(shared_host, folder, "other.py", PRECOMPILED_PACKAGES="function")[0] == "used"


OWN = MAIN.replace("import library\n", "HEADS = 2\ndef own(x):\n    return torch.addmm(x, x, x, alpha=float(HEADS))\n")
OWN = OWN.replace("library.double", "own").replace("\nreports =", "\nHEADS += LATER\ntorch.compile(own)(x)\nreports =")
OWN = OWN.replace(
    "HEADS = 2\n", "HEADS = 2\nLATER = 0\nimport os\ntorch.set_num_threads(int(os.environ.get('THREADS', '2')))\n"
)


@pytest.mark.slow
def test_explain_compares_only_with_entries_of_the_same_main_file(shared_host: Host, folder: Path) -> None:
    """All main programs are called ``__main__``. `explain` must not compare functions of two different main files."""
    (folder / "main.py").write_text(OWN)
    assert run(shared_host, folder)[0] == "recorded"
    for packages, heads in (("program", 4), ("function", 6)):  # "function" also compares the guards
        (folder / f"{packages}.py").write_text(OWN.replace("HEADS = 2", f"HEADS = {heads}"))
        found = run(shared_host, folder, f"{packages}.py", PRECOMPILED_PACKAGES=packages)
        assert (found[0], found[3:]) == ("recorded", [])
        text = shared_host.command("explain", "--run", "last")
        assert "none of its earlier runs is recorded" in text and "1 new graph" in text and "the store had no" in text
    # Although other programs have entries too, the reason names the one setting that differs.
    (folder / "main.py").write_text(OWN + "EDITED = 1\n")
    found = run(shared_host, folder)
    assert (found[0], found[3:]) == ("recorded", [OTHER_PROGRAMS])
    assert "the code of the program has changed since the trace" in shared_host.command("explain", "--run", "last")
    found = run(shared_host, folder, THREADS="1")
    (said,) = found[3:]
    assert found[0] == "recorded" and said == "global state: num threads 1 here, 2 when it was traced"
    assert "num threads 1 here, " in shared_host.command("explain", "--run", "last")
    text = shared_host.command("explain", "__main__.own")
    assert "num threads 1 here, " in text and "HEADS" not in text
    # If a process traces a function a second time, the reason names the guard that failed.
    (folder / "main.py").write_text(OWN.replace("LATER = 0", "LATER = 3"))
    (_first, second) = run_program(shared_host, folder)
    (said,) = second[3:]
    assert second[0] == "recorded" and said.startswith("G['HEADS']: 5 here, 2 when it was traced")


@pytest.mark.slow
def test_additional_module_makes_a_different_program(shared_host: Host, folder: Path) -> None:
    """A plugin may be loaded without an import statement, as ``sitecustomize`` is, and still change the trace."""
    assert run(shared_host, folder)[0] == "recorded"
    (folder / "sitecustomize.py").write_text("")
    found = run(shared_host, folder)
    assert (found[0], found[3:]) == ("recorded", [OTHER_PROGRAMS])
    text = shared_host.command("explain", "--run", "last")
    assert "sitecustomize.py is imported now, and was not at the trace" in text and "the code of" not in text


@pytest.mark.slow
def test_explain_names_an_installed_module_that_the_program_imports_now(shared_host: Host, folder: Path) -> None:
    """A library may import a further library if it is installed, as torch and others import numpy. The user has edited
    nothing, so `explain` must not name an edit.
    """
    optional = INSTALLED.replace("import plugin\n", "try:\n    import plugin\nexcept ImportError:\n    pass\n")
    (folder / "main.py").write_text(optional + MAIN)
    assert run(shared_host, folder)[0] == "recorded"
    (folder / "site-packages").mkdir()
    (folder / "site-packages" / "plugin.py").write_text("VALUE = 1\n")
    assert run(shared_host, folder)[0] == "recorded"
    text = shared_host.command("explain")
    assert "plugin is imported now, and was not at the trace" in text and "the code of" not in text
    function = shared_host.command("explain", "library.double")
    assert "no guard differs" in function and "plugin is imported now, and was not at the trace" in function
    (folder / "main.py").write_text(optional + MAIN + "EDITED = 1\n")
    assert run(shared_host, folder)[0] == "recorded"
    for arguments in ((), ("library.double",)):
        text = shared_host.command("explain", *arguments)
        assert "the code of the program has changed since the trace: main.py" in text and "plugin" not in text


@pytest.mark.reason("package-program")
@pytest.mark.slow
def test_file_saved_after_it_was_loaded_prevents_packages(shared_host: Host, folder: Path) -> None:
    saved = "import os\nos.utime('library.py')\n"
    (folder / "main.py").write_text(MAIN.replace("import library\n", f"import library\n{saved}"))
    found = run(shared_host, folder)
    assert found[:2] == ["traced", "package-program"] and "library.py was saved after this process started" in found[2]
    assert run(shared_host, folder, PRECOMPILED_PACKAGES="function")[0] == "recorded"
    assert run(shared_host, folder, PRECOMPILED_PACKAGES="function")[0] == "used"


def run_after_a_shell(host: Host, folder: Path, file: str, *command: str, **extra: str) -> list[Any]:
    """Run ``command`` as containers start programs: a shell writes a file, then executes the command in its process.

    The shell writes the file when the process is some clock ticks old.
    """
    script = 'read -r _ && cat "$0" > copy && mv copy "$0" && exec "$@"'
    settings = {"PRECOMPILED_PACKAGES": "program", "PRECOMPILED_MODE": "wait", "OMP_NUM_THREADS": "1"}
    shell = subprocess.Popen(
        ["bash", "-c", script, file, *command],
        cwd=folder,
        env=host.environment({"PYTHONPATH": str(folder), **settings, **extra}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        stat = kernel.stat_of(shell.pid)
        assert stat is not None
        while time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") < stat.started + 5:
            pass
        output, errors = shell.communicate("go\n", TIMEOUT_S)
    finally:
        shell.kill()
    assert shell.returncode == 0, errors[-3000:]
    (found,) = json.loads(output.splitlines()[-1])
    return list(found)


def python_with_hook(folder: Path) -> str:
    """Create a virtual environment with the installed packages and with the .pth file of `precompiled enable`."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "a_sources.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    pth.write(site)
    return str(folder / "bin" / "python")


def test_packages_are_recorded_if_a_shell_writes_a_module_and_then_executes_python(
    shared_host: Host, folder: Path
) -> None:
    ways = {
        "alpha=3.5": [sys.executable, "-m", "precompiled", "run", "--", sys.executable, "main.py"],
        "alpha=4.5": [python_with_hook(folder / "environment"), "main.py"],
    }
    for edited, command in ways.items():
        text = (folder / "library.py").read_text()
        (folder / "library.py").write_text(re.sub(r"alpha=[\d.]+", edited, text))
        found = run_after_a_shell(shared_host, folder, "library.py", *command)
        assert found[0] == "recorded", found
        assert run_after_a_shell(shared_host, folder, "library.py", *command)[0] == "used"


def test_module_that_python_loads_before_the_hook_may_differ_from_its_file(shared_host: Host, folder: Path) -> None:
    python = python_with_hook(folder / "environment")
    (site,) = (folder / "environment" / "lib").glob("python*/site-packages")
    (site / "a_early.pth").write_text("import early\n")
    (folder / "early.py").write_text("VALUE = 1\n")
    found = run_after_a_shell(shared_host, folder, "early.py", python, "main.py")
    assert found[:2] == ["traced", "package-program"] and "early.py was saved after this process started" in found[2]


@pytest.mark.parametrize("place", ["program", "hook"])
def test_module_saved_after_the_hook_may_differ_from_its_file(shared_host: Host, folder: Path, place: str) -> None:
    """``place``: what switches the hook on. The program's own ``precompiled.enable()`` does not know when Python
    started in this process, so a file that the shell wrote counts as saved later.
    """
    saved = "import os\nos.utime('library.py')\n" if place == "hook" else ""
    (folder / "main.py").write_text(MAIN.replace("import library\n", f"import library\n{saved}"))
    hook = python_path.with_hook({"PYTHONPATH": str(folder)}) if place == "hook" else {}
    found = run_after_a_shell(shared_host, folder, "library.py", sys.executable, "main.py", **hook)
    assert found[:2] == ["traced", "package-program"] and "library.py was saved after this process started" in found[2]


@pytest.mark.slow
def test_program_without_a_file_is_identified_by_its_code(shared_host: Host, folder: Path) -> None:
    """One text is one program, whether Python reads it from `-c`, stdin, `-m` or a file."""
    assert run(shared_host, folder, "-c", MAIN)[0] == "recorded"
    assert run(shared_host, folder, "-c", MAIN + "\n# the same")[0] == "used"
    assert run(shared_host, folder, "-", text=MAIN)[0] == "used"
    assert run(shared_host, folder, "-m", "cProfile", "-o", "profile", "main.py")[0] == "used"
    assert run(shared_host, folder, "/dev/stdin", text=MAIN)[0] == "used"
    assert run(shared_host, folder, "-c", MAIN + "\nANOTHER = 1")[0] == "recorded"
    assert run(shared_host, folder, "/dev/stdin", text=MAIN + "\nANOTHER = 2")[0] == "recorded"


@pytest.mark.reason("package-program")
def test_interactive_program_has_no_packages(shared_host: Host, folder: Path) -> None:
    found = run(shared_host, folder, "-i", "-c", MAIN, text="")
    assert found[:2] == ["traced", "package-program"] and "the program has no file" in found[2]


CELLS = [
    "import json, torch, precompiled\nprecompiled.enable()\nimport library",
    "x = torch.randn(4, 4)",
    "def triple(x):\n    return library.double(x) * 3",
    MAIN[MAIN.index("assert") :].replace("library.double", "triple"),
]


def notebook(cells: list[str]) -> list[str]:
    """Returns Python arguments that run the cells as a notebook kernel does."""
    return [
        "-c",
        f"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in {cells!r}:
    shell.run_cell(cell, store_history=True).raise_error()
""",
    ]


@pytest.mark.slow
def test_notebook_uses_a_package_only_if_all_earlier_cells_are_equal(shared_host: Host, folder: Path) -> None:
    """Each earlier cell may have changed a value that the trace reads. So all earlier cells and their order count."""
    assert run(shared_host, folder, *notebook(CELLS))[0] == "recorded"
    assert run(shared_host, folder, *notebook([*CELLS[:2], "# says nothing\n" + CELLS[2], CELLS[3]]))[0] == "used"
    assert run(shared_host, folder, *notebook([CELLS[0], CELLS[2], CELLS[1], CELLS[3]]))[0] == "recorded"


GENERATES = """
import importlib.util, tempfile
with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
    with open("template") as template:
        file.write(template.read())
spec = importlib.util.spec_from_file_location("generated", file.name)
generated = sys.modules["generated"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generated)
"""
TEMPLATE = "SCALE = 2.0\n__rate = 2.0\nclass A:\n    def scaled(x):\n        return x * SCALE"


@pytest.mark.slow
def test_generated_module_counts_by_its_content(shared_host: Host, folder: Path) -> None:
    """torch_geometric generates modules. In each process, the file of such a module has a new name and is newer than
    the process.
    """
    main = MAIN.replace("import library\n", f"import library\n{GENERATES}library.generated = generated\n")
    (folder / "main.py").write_text(main)
    (folder / "template").write_text(TEMPLATE)
    library = (folder / "library.py").read_text()
    (folder / "library.py").write_text(library.replace("return torch", "return generated.A.scaled(x) + torch"))
    assert run(shared_host, folder)[0] == "recorded"
    assert run(shared_host, folder)[0] == "used"
    for edit in (("SCALE = 2.0", "SCALE = 3.0"), ("__rate = 2.0", "__rate = 3.0"), ("x * SCALE", "x + SCALE")):
        (folder / "template").write_text(TEMPLATE.replace(*edit))
        assert run(shared_host, folder)[0] == "recorded"


@pytest.mark.parametrize("enabled", ["before", "after"])
def test_forked_process_checks_when_its_modules_were_loaded(shared_host: Host, folder: Path, enabled: str) -> None:
    """A file saved before the fork may be newer than the modules, which the parent loaded. The fork must not be misled
    by its own start time.
    """
    fork = """
import os
os.utime('library.py')
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    program = MAIN.replace("import library\n", f"import library\n{fork}")
    if enabled == "after":
        program = program.replace("precompiled.enable()", "").replace("x = torch", "precompiled.enable()\nx = torch")
    (folder / "main.py").write_text(program)
    assert run(shared_host, folder)[:2] == ["traced", "package-program"]


@pytest.mark.reason("package-program")
def test_replaced_source_file_prevents_packages(shared_host: Host, folder: Path) -> None:
    """A changed link or a moved file puts a different text in the place of a loaded module.

    The new file is older than the process, so its modification time does not show the change.
    """
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "library.py").write_text((folder / "library.py").read_text() + f"# {name}\n")
    (folder / "library.py").unlink()
    (folder / "current").symlink_to("one")
    begin = "sys.path.insert(0, 'current')\nimport library\nimport os\n"
    link = "os.unlink('current')\nos.symlink('two', 'current')\n"
    for change in (link, "os.rename('two/library.py', 'one/library.py')\n"):
        (folder / "main.py").write_text(MAIN.replace("import library\n", begin + change))
        found = run(shared_host, folder)
        assert found[:2] == ["traced", "package-program"] and "library.py was saved after this process" in found[2]
        (folder / "current").unlink()
        (folder / "current").symlink_to("one")


@pytest.mark.slow
def test_modules_that_torch_generates_are_not_part_of_the_program(shared_host: Host, folder: Path) -> None:
    """torch writes generated modules after the start of a process, or loads them from its cache. Packages must work in
    both cases.
    """
    compiled = """
from torch._inductor.compile_fx import compile_fx
torch.compile(lambda x: x.sin() + 1, backend=lambda graph, inputs: compile_fx(graph, inputs))(torch.randn(4))
assert any(name.endswith(".kernel") for name in sys.modules)
"""
    (folder / "main.py").write_text(MAIN.replace("import library\n", f"import library\n{compiled}"))
    assert run(shared_host, folder)[0] == "recorded"
    found = run(shared_host, folder)
    assert found[0] == "used", found


INSTALLED = "import sys\nsys.path.insert(0, 'site-packages')\nimport plugin\n"


@pytest.mark.reason("package-program")
@pytest.mark.slow
def test_installed_module_counts_even_if_it_is_loaded_late(shared_host: Host, folder: Path) -> None:
    """The program loads a plugin between its two functions. Only the second function's package depends on the plugin,
    so the test reads only the report of the second function.
    """
    (folder / "site-packages").mkdir()
    plugin = folder / "site-packages" / "plugin.py"
    plugin.write_text("VALUE = 1\n")
    first = "torch.compile(lambda x: torch.mm(x, x))(torch.randn(4, 4))\n"
    program = MAIN.replace("x = torch", first + INSTALLED + "x = torch").replace("report()", "report()[1:]")
    (folder / "main.py").write_text(program)
    assert run(shared_host, folder)[0] == "recorded"
    assert run(shared_host, folder)[0] == "used"
    plugin.write_text("VALUE = 22\n")
    found = run(shared_host, folder)
    assert (found[0], found[3:]) == ("recorded", [OTHER_PROGRAMS])
    touched = program.replace("import plugin\n", "import plugin, os\nos.utime(plugin.__file__)\n")
    (folder / "main.py").write_text(touched)
    assert run(shared_host, folder)[:2] == ["traced", "package-program"]


def test_packages_can_be_switched_off(shared_host: Host, folder: Path) -> None:
    (folder / "main.py").write_text(MAIN + "assert not reports\nprint('[[\"nothing\"]]')\n")
    assert run(shared_host, folder, PRECOMPILED_PACKAGES="off") == ["nothing"]


LOOKED_UP = """
class Mixin:
    def __getattribute__(self, key):
        if key == "nothing":
            raise AttributeError
        return super().__getattribute__(key)
class Base(Mixin):
    names = {}
    def __getattribute__(self, key):
        if key != "names" and key in super().__getattribute__("names"):
            key = super().__getattribute__("names")[key]
        return super().__getattribute__(key)
class Config(Base):
    def __init__(self, kind):
        self.kind, self.scale = kind, 2.0
"""
OF_TWO_CONFIGURATIONS = """
import json, sys
import torch
import precompiled
precompiled.enable()
import configured

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.config, self.inner = configured.Config(sys.argv[1]), torch.nn.Linear(4, 4)
    def forward(self, x):
        if self.config.kind is None:
            self.config.kind = "single"
        y = torch.mm(self.inner(x), x) * self.config.scale
        return torch.mm(y, x) if self.config.kind == "single" else y

net, x = torch.compile(Net()), torch.ones(4, 4)
for _ in range(2):
    net(x)
from precompiled.client.process import PROCESS
assert PROCESS.packages.flush(60)
print(json.dumps([[report.state, *report.reasons] for report in precompiled.package_report()]))
"""


def test_two_configurations_in_turns_are_traced_once_each(shared_host: Host) -> None:
    """Two models of one library have one entry each. The check of one entry must not affect the check of the other."""
    folder = shared_host.root / "two_configurations"
    folder.mkdir()
    (folder / "configured.py").write_text(LOOKED_UP)
    (folder / "main.py").write_text(OF_TWO_CONFIGURATIONS)
    found = [run_program(shared_host, folder, "main.py", kind) for kind in ("single", "double") * 2]
    assert {report[0] for report in found[0] + found[1]} >= {"recorded"}
    assert {report[0] for report in found[2] + found[3]} == {"used"}, found[2:]


def test_only_the_tracing_thread_parses_the_program(shared_host: Host, folder: Path) -> None:
    """Before CPython 3.13, two concurrent parses may fail. A parse in a thread of precompiled could make the program's
    own ``ast.parse`` raise.
    """
    noting = """
import ast, threading
parsed_in, parse = set(), ast.parse
def noted(*arguments, **options):
    parsed_in.add(threading.current_thread().name)
    return parse(*arguments, **options)
ast.parse = noted
"""
    last = "print(json.dumps([sorted(parsed_in), reports[0].state]))\n"
    (folder / "main.py").write_text(MAIN.replace("import library\n", f"import library\n{noting}") + last)
    assert run_program(shared_host, folder) == [["MainThread"], "recorded"]
