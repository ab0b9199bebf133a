"""Tests of the hook: enabled in every intended process, invisible without torch, and never fatal.

Each test starts real interpreters. The real torch takes seconds to import, so tests that only check how torch is
imported use a made-up `torch`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from precompiled.cli import pth
from precompiled.core import python_path
from precompiled.version import OFF

ROOT = Path(__file__).resolve().parents[1]
INSTALL = "import precompiled.bootstrap as b; b.install()"
STATE = """
import json, sys
b = sys.modules.get("precompiled.bootstrap")
h = sys.modules.get("precompiled.hook")
print(json.dumps({
    "state": b.state() if b else "absent",
    "calls": sys.modules["calls"].calls if "calls" in sys.modules else [],
    "problem": b.problem if b else None,
    "finders": sum(type(f).__name__ == "_TorchFinder" for f in sys.meta_path),
}))
"""


@pytest.fixture
def fake_torch(tmp_path: Path) -> Path:
    """Returns a folder with a made-up torch, and with a module `calls` that records the calls that the hook makes."""
    folder = tmp_path / "fake"
    (folder / "torch" / "nn").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("import torch.utils\nfrom torch import nn\nWHOLE = True\n")
    (folder / "torch" / "utils.py").write_text("")
    (folder / "torch" / "lazy.py").write_text("")
    (folder / "torch" / "nn" / "__init__.py").write_text("")
    (folder / "calls.py").write_text("calls = []\n")
    return folder


# Replaces the function that the hook calls after the import of torch. Records whether torch was complete at the call.
SPY = """
import sys, calls, precompiled.routing as routing
routing.on_torch_imported = lambda: calls.calls.append(hasattr(sys.modules["torch"], "WHOLE"))
"""


def python(
    code: str, *path: Path | str, flags: tuple[str, ...] = (), env: Mapping[str, str] | None = None, hook: bool = True
) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PRECOMPILED", "PYTHONP"))}
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, path), str(ROOT)])
    if hook:
        environment = python_path.with_hook(environment)
    environment.update(env or {})
    return subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


def state(code: str, *path: Path | str, **more: object) -> dict[str, object]:
    done = python(textwrap.dedent(code) + STATE, *path, **more)  # type: ignore[arg-type]
    assert done.returncode == 0 and done.stderr == "", done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def site_folder(tmp_path: Path, text: str, name: str = "other") -> Path:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(text)
    return folder


# ---------------------------------------------------------------- programs without torch


def test_program_without_torch_is_unaffected() -> None:
    code = """
        import json, sys
        print(json.dumps([sys.path, sorted(sys.modules), sys.argv, len(sys.path_hooks), len(sys.meta_path)]))
    """
    on, off = python(code), python(code, hook=False)
    assert (on.returncode, on.stderr) == (off.returncode, off.stderr) == (0, "")
    (path_on, modules_on, *rest_on), (path_off, modules_off, *rest_off) = json.loads(on.stdout), json.loads(off.stdout)
    # The last number counts the finders, and precompiled adds one finder.
    assert path_on == path_off and rest_on[:2] == rest_off[:2] and rest_on[2] == rest_off[2] + 1
    assert not {"torch", "precompiled.routing", "precompiled.core.config"} & set(modules_on)
    assert {"precompiled", "precompiled.bootstrap", "sitecustomize"} <= set(modules_on)
    assert "precompiled" not in modules_off


def test_bootstrap_imports_no_further_modules() -> None:
    # Each further import would slow the start of every interpreter. Modules that Python itself loads cost nothing.
    code = """
        import os, sys
        before = set(sys.modules)
        import precompiled.bootstrap
        print(*set(sys.modules) - before)
    """
    found = set(python(code, hook=False, flags=("-S",)).stdout.split())
    assert found == {"precompiled", "precompiled.version", "precompiled.bootstrap"}


def test_hook_waits_until_torch_is_imported(fake_torch: Path) -> None:
    assert state("", fake_torch) == {"state": "waiting", "calls": [], "problem": None, "finders": 1}


@pytest.mark.parametrize(
    ("flags", "env"),
    [*(((), {"PRECOMPILED": value}) for value in (*OFF, " Off")), (("-S",), {}), (("-I",), {}), (("-E",), {})],
)
def test_hook_is_absent_if_switched_off(flags: tuple[str, ...], env: dict[str, str]) -> None:
    assert state("", flags=flags, env=env)["state"] == "absent"


@pytest.mark.parametrize("value", ["1", "", "of", "000"])
def test_other_values_do_not_switch_the_hook_off(value: str) -> None:
    assert state("", env={"PRECOMPILED": value})["state"] == "waiting"


@pytest.mark.parametrize("value", [*OFF, "OFF"])
def test_switch_is_read_at_install_too(value: str) -> None:
    code = f"import os; os.environ['PRECOMPILED'] = '{value}'; import precompiled.bootstrap as b; b.install()"
    assert state(code, hook=False)["state"] == "off"


# ---------------------------------------------------------------- the time at which Python starts

AT_START = """
import sys, time
b = sys.modules["precompiled.bootstrap"]
if b.at_start is None:
    print(None, b.state())
else:
    wall, booted, modules = b.at_start
    print(abs(time.time() - wall) < 60, 0 <= time.clock_gettime(time.CLOCK_BOOTTIME) - booted < 60, end=" ")
    print(*sorted({"early", "late", "os", "site"} & set(modules)))
"""


def test_hook_records_its_time_and_the_modules_that_were_loaded_before(tmp_path: Path) -> None:
    late = site_folder(tmp_path, "import late\n")
    (late / "late.py").touch()
    assert python(AT_START, late).stdout.split() == ["True", "True", "os", "site"]
    early = site_folder(tmp_path, "import early, precompiled.bootstrap as b\nb.install()\n", "first")
    (early / "early.py").touch()
    assert python("import late" + AT_START, early, late, hook=False).stdout.split() == [
        "True",
        "True",
        "early",
        "os",
        "site",
    ]


@pytest.mark.parametrize(
    ("code", "flags"),
    [
        (INSTALL, ()),
        (INSTALL, ("-S",)),
        ("import precompiled; precompiled.enable()", ()),
        ("import site, sys; site.addsitedir(sys.argv[1])", ()),
        ("import site, sys; site.addsitedir(sys.argv[1])", ("-S",)),
        ("import sys; del sys.modules['site'], sys.modules['sitecustomize']; import site", ()),
        (f"import threading; t = threading.Thread(target=exec, args=({INSTALL!r},)); t.start(); t.join()", ()),
    ],
)
def test_hook_that_runs_later_records_nothing(tmp_path: Path, code: str, flags: tuple[str, ...]) -> None:
    """A program has loaded files before it calls the hook, or calls `site`, which then runs the hook."""
    folder = site_folder(
        tmp_path, "import sys\nif hasattr(sys, 'go'): import precompiled.bootstrap as b; b.install()\n"
    )
    (folder / "hook.pth").write_text(pth.LINE)
    code = f"import sys; sys.go = True; sys.argv[1:] = [{str(folder)!r}]\n{code}"
    found = python(code + AT_START, folder, flags=flags, hook=False)
    assert (found.stdout, found.stderr) == ("None waiting\n", "")


# ---------------------------------------------------------------- ways to import torch


@pytest.mark.parametrize(
    "code",
    [
        "import torch",
        "import torch.nn",
        "from torch import nn",
        "import importlib; importlib.import_module('torch.nn')",
        "__import__('torch')",
        "import importlib.util; assert importlib.util.find_spec('torch').loader; import torch",
        "import importlib.util; assert importlib.util.find_spec('torch.nn'); import torch",
        "import precompiled.bootstrap as b; b.install(); b.install(); import torch; b.install()",
        "import torch; del sys.modules['torch']; import torch",
    ],
)
def test_each_way_of_import_calls_the_hook_once_with_a_complete_torch(fake_torch: Path, code: str) -> None:
    assert state(SPY + code, fake_torch) == {"state": "fired", "calls": [True], "problem": None, "finders": 0}


def test_loader_of_torch_is_restored(fake_torch: Path) -> None:
    code = """
        import torch, importlib.machinery, inspect, importlib.resources
        loader = torch.__spec__.loader
        print(type(loader) is importlib.machinery.SourceFileLoader, sorted(vars(loader)), torch.__loader__ is loader)
        print(inspect.getsource(torch).strip()[-4:], importlib.resources.files(torch).joinpath("lazy.py").is_file())
    """
    assert python(SPY + textwrap.dedent(code), fake_torch).stdout.splitlines() == [
        "True ['name', 'path'] True",
        "True True",
    ]


def test_find_spec_alone_does_not_import(fake_torch: Path) -> None:
    code = "import importlib.util; s = importlib.util.find_spec('torch'); assert s and 'torch' not in sys.modules"
    assert state(SPY + code, fake_torch)["state"] == "waiting"


def test_missing_torch_raises_the_usual_error() -> None:
    code = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; import torch"
    on, off = python(code), python(code, hook=False)
    assert on.returncode == off.returncode == 1
    assert on.stderr == off.stderr and "ModuleNotFoundError: No module named 'torch'" in on.stderr


def test_failed_import_of_torch_raises_its_error_and_can_be_retried(fake_torch: Path) -> None:
    (fake_torch / "torch" / "__init__.py").write_text(
        "import calls\nif not hasattr(calls, 'second'):\n    calls.second = True\n    raise OSError('no libcudart')\n"
        "WHOLE = 1\n"
    )
    plain = "import torch"
    on, off = python(plain, fake_torch), python(plain, fake_torch, hook=False)
    assert on.returncode == off.returncode == 1 and on.stderr.splitlines()[-1] == "OSError: no libcudart"
    code = SPY + textwrap.dedent("""
        try:
            import torch
        except OSError:
            assert calls.calls == []
        import torch
    """)
    assert state(code, fake_torch)["calls"] == [True]


def test_concurrent_imports_of_torch_call_the_hook_once(fake_torch: Path) -> None:
    code = SPY + textwrap.dedent("""
        import importlib.util, threading
        barrier, wrong = threading.Barrier(8), []
        def work(number):
            barrier.wait()
            try:
                if number % 2:
                    importlib.util.find_spec("torch")
                import torch
                if not (torch.WHOLE and calls.calls == [True]):
                    wrong.append("torch was seen before the hook")
            except Exception as error:
                wrong.append(repr(error))
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert not wrong, wrong
    """)
    assert state(code, fake_torch)["calls"] == [True]


def test_other_hook_that_asks_all_finders_does_not_recurse(fake_torch: Path) -> None:
    # wrapt and OpenTelemetry install a finder that queries all finders, including precompiled's. precompiled's finder
    # in turn queries all other finders.
    code = SPY + textwrap.dedent("""
        import importlib.util
        class Other:
            busy = False
            def find_spec(self, name, path=None, target=None):
                if name != "torch" or self.busy:
                    return None
                self.busy = True
                try:
                    return importlib.util.find_spec(name)
                finally:
                    self.busy = False
        sys.meta_path.POSITION
        import torch
    """)
    for position in ("insert(0, Other())", "append(Other())", "insert(1, Other())"):
        assert state(code.replace("POSITION", position), fake_torch)["calls"] == [True]


def test_finder_that_hides_torch_delays_the_hook_to_the_next_import(fake_torch: Path) -> None:
    code = SPY + textwrap.dedent("""
        import importlib.machinery
        class Greedy:
            def find_spec(self, name, path=None, target=None):
                return importlib.machinery.PathFinder.find_spec(name) if name == "torch" else None
        sys.meta_path.insert(0, Greedy())
        import torch
        assert calls.calls == []
        import torch.lazy
    """)
    assert state(code, fake_torch)["calls"] == [True]


def test_hook_installed_after_torch_is_called_at_once(fake_torch: Path) -> None:
    code = "import torch" + SPY + "import precompiled.bootstrap as b; b.install()"
    assert state(code, fake_torch, hook=False)["calls"] == [True]


# ---------------------------------------------------------------- failures inside precompiled


def test_failing_hook_does_not_affect_the_program(fake_torch: Path) -> None:
    broken = """
        import precompiled.routing
        def broken():
            raise RuntimeError('ours')
        precompiled.routing.on_torch_imported = broken
        import torch
    """
    found = state(broken, fake_torch)
    assert found["state"] == "failed" and "RuntimeError: ours" in str(found["problem"])
    loud = python(broken, fake_torch, env={"PRECOMPILED_LOG": "debug"})
    assert loud.returncode == 0 and len(loud.stderr.splitlines()) == 1 and "ours" in loud.stderr


@pytest.mark.parametrize("broken", ["raise RuntimeError('ours')", "this is not Python", "import nothing_such", "1 / 0"])
@pytest.mark.parametrize("module", ["__init__", "bootstrap", "routing"])
def test_broken_package_does_not_stop_an_interpreter(
    tmp_path: Path, fake_torch: Path, module: str, broken: str
) -> None:
    package = tmp_path / "broken" / "precompiled"
    (package / "sitecustomize").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "bootstrap.py").write_text((ROOT / "precompiled" / "bootstrap.py").read_text())
    (package / "routing.py").write_text("")
    (package / f"{module}.py").write_text(broken)
    ours = package / "sitecustomize" / "sitecustomize.py"
    ours.write_text((ROOT / "precompiled" / "sitecustomize" / "sitecustomize.py").read_text())
    other = site_folder(tmp_path, "print('other')")
    done = python("import torch; print(torch.WHOLE)", ours.parent, other, package.parent, fake_torch, hook=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "other\nTrue\n", "")


def test_invalid_setting_warns_once_and_torch_works(fake_torch: Path) -> None:
    done = python("import torch; print(torch.WHOLE)", fake_torch, env={"PRECOMPILED_MODE": "fast"})
    assert done.returncode == 0 and done.stdout == "True\n"
    assert done.stderr.startswith("precompiled:0: RuntimeWarning: precompiled is off in this process: ")
    assert "PRECOMPILED_MODE" in done.stderr and done.stderr.count("\n") == 1


def test_interpreter_without_precompiled_starts_normally() -> None:
    environment = {"PYTHONPATH": str(python_path.hook_folder()), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-s", "-c", "import sys; print('precompiled' in sys.modules)"],
        capture_output=True,
        text=True,
        env={**environment, "PYTHONHOME": sys.base_prefix},
        check=False,
        timeout=60,
    )
    assert done.returncode == 0 and done.stderr == ""


# ---------------------------------------------------------------- sitecustomize modules of other packages


def test_other_sitecustomize_runs_unchanged(tmp_path: Path) -> None:
    other = site_folder(tmp_path, "import sys\nsys.seen = (__name__, __file__, list(sys.path))\nMARK = 1\n")
    code = """
        import sys, sitecustomize
        name, file, path = sys.seen
        print(name, file, sitecustomize.MARK, sitecustomize.__file__ == file, any("/sitecustom" in p for p in path))
    """
    assert python(code, other).stdout.split() == [
        "sitecustomize",
        str(other / "sitecustomize.py"),
        "1",
        "True",
        "False",
    ]
    assert state("", other)["state"] == "waiting"
    assert python("import sys; print(sys.seen[0])", other, env={"PRECOMPILED": "0"}).stdout == "sitecustomize\n"


@pytest.mark.parametrize(
    "text",
    ["raise ValueError('x')", "import nothing_such", "not python", "raise ImportError('x', name='sitecustomize')"],
)
def test_errors_of_another_sitecustomize_are_reported_unchanged(tmp_path: Path, text: str) -> None:
    other = site_folder(tmp_path, text)
    code = "import sys; print(sys.path)"
    on, off = python(code, other), python(code, other, hook=False)
    assert (on.returncode, on.stdout, on.stderr) == (off.returncode, off.stdout, off.stderr)
    assert on.returncode == 0
    assert state("", tmp_path / "none")["state"] == "waiting"


def test_exit_of_another_sitecustomize_is_kept(tmp_path: Path) -> None:
    other = site_folder(tmp_path, "raise SystemExit(7)")
    assert python("print('never')", other).returncode == python("", other, hook=False).returncode


def test_chained_sitecustomize_before_ours_works(tmp_path: Path) -> None:
    # Like ddtrace's sitecustomize, the first sitecustomize here removes its own folder from sys.path and imports the
    # next sitecustomize.
    first = site_folder(
        tmp_path,
        "import os, sys\nhere = os.path.dirname(__file__)\nsys.path.remove(here)\ndel sys.modules['sitecustomize']\n"
        "import sitecustomize\nprint('first')\n",
        "first",
    )
    last = site_folder(tmp_path, "print('last')", "last")
    done = python(STATE, first, python_path.hook_folder(), last, hook=False)
    *said, found = done.stdout.splitlines()
    assert said == ["last", "first"] and json.loads(found)["state"] == "waiting" and done.stderr == ""


def test_hook_folder_twice_on_the_path_works(tmp_path: Path) -> None:
    other = site_folder(tmp_path, "print('once')")
    done = python("", python_path.hook_folder(), other, str(python_path.hook_folder()) + os.sep)
    assert (done.returncode, done.stdout, done.stderr) == (0, "once\n", "")


# ---------------------------------------------------------------- precompiled.enable() and disable()

# Replaces inductor_route, the module that patches torch, because inductor_route needs the real torch.
ROUTE = """
import sys, types, precompiled.torch_internals.client as internals
import precompiled.hook as hook
from precompiled import bootstrap
from precompiled.core.errors import ConfigError
from precompiled.client.process import PROCESS
route = types.ModuleType("precompiled.torch_internals.client.inductor_route")
route.on = False
def install(*_): route.on = True
def remove(): route.on = False
route.install, route.remove = install, remove
internals.inductor_route = sys.modules[route.__name__] = route
def now(): return hook.state(), route.on
"""


def in_process(code: str, *path: Path, **env: str) -> list[str]:
    done = python(ROUTE + textwrap.dedent(code), *path, env=env, hook=False)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.splitlines()


def test_enable_before_torch_and_disable(fake_torch: Path) -> None:
    code = """
        print(hook.enable(), *now()); import torch; print(*now())
        hook.disable(); print(*now())
        print(hook.enable("wait"), hook.enable(), *now(), PROCESS.settings().mode, PROCESS.settings().origins["mode"])
        hook.disable(); print(*now(), PROCESS.settings().mode)
    """
    assert in_process(code, fake_torch) == [
        "True waiting False",
        "on True",
        "off False",
        "True True on True wait flag",
        "off False eager",
    ]


def test_disable_before_torch(fake_torch: Path) -> None:
    assert in_process("hook.enable(); hook.disable(); import torch; print(*now())", fake_torch) == ["off False"]


def test_enable_with_the_mode_off_or_everything_off(fake_torch: Path) -> None:
    code = "import torch; print(hook.enable(), hook.enable('off'), *now())"
    assert in_process(code, fake_torch) == ["True False off False"]
    code = "import torch; print(hook.enable('wait'), *now())"
    assert in_process(code, fake_torch, PRECOMPILED="0") == ["False off False"]
    code = "import torch; print(hook.enable(), *now()); print(hook.enable('wait'), *now())"
    assert in_process(code, fake_torch, PRECOMPILED_MODE="off") == ["False off False", "True on True"]


def test_enable_refuses_a_bad_mode_and_changes_nothing(fake_torch: Path) -> None:
    code = """
        hook.enable("wait")
        try:
            hook.enable("fast")
        except ConfigError as error:
            print("fast" in str(error), PROCESS.settings().mode, *now())
    """
    assert in_process(code, fake_torch) == ["True wait waiting False"]


def test_enable_raises_its_error_and_can_be_retried(fake_torch: Path) -> None:
    code = """
        import torch
        def broken(*_): raise RuntimeError("ours")
        route.install = broken
        for _ in range(2):
            try:
                hook.enable()
            except Exception as error:
                print("ours" in str(error), hook.state() in ("failed", "fired"), "ours" in bootstrap.problem)
        route.install = install
        print(hook.enable(), *now(), bootstrap.problem)
    """
    assert in_process(code, fake_torch) == ["True True True", "True True True", "True on True None"]
