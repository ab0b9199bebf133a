"""Tests that texts of the command line about 0, 1 and 2 things have the right singular, plural and units."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import pytest
from support_cli import invoke

from precompiled.cli import checks_host, checks_store, functions, runs, status
from precompiled.cli.pending_graphs import PendingCauses
from precompiled.client.ledger import GraphReport
from precompiled.client.run_recorder import RunRecord
from precompiled.core import config
from precompiled.core.words import format_count, format_list, human_bytes, human_seconds
from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Store
from precompiled.watch import commands

sys.path.insert(0, str(Path(__file__).parents[1] / "store"))
import support_store

NUMBER = r"(?<![\d.,/#:-])\b(\d+) ([a-z]+)\b ?([a-z]*)"
ADJECTIVES = r"\b(inotify|corrupt|that) "
NUMBER = r"(?<![\d.,/#:-])\b(\d+) ([a-z]+)\b ?([a-z]*)"
ADJECTIVES = r"\b(inotify|corrupt|that) "
OF_ONE, OF_MANY = {"is", "was", "stays", "lies", "has", "runs"}, {"are", "were", "stay", "lie", "have", "run"}
# Words that may follow a number and have no plural, such as units and the states of graphs.
NEITHER = {
    "s",
    "ms",
    "min",
    "h",
    "d",
    "of",
    "at",
    "failed",
    "free",
    "more",
    "for",
    "hit",
    "swap",
    "compiled",
    "captured",
    "reused",
    "compiling",
    "ready",
    "bypassed",
    "by",
    "and",
    "used",
    "ago",
    "old",
}


def wrong(text: str) -> list[str]:
    """Returns the places where a noun or verb after a number is wrongly singular or plural."""
    found = []
    for number, word, after in re.findall(NUMBER, re.sub(ADJECTIVES, "", text)):
        one = int(number) == 1
        of_one = not word.endswith("s") and after not in ("files", "folders", "graphs", "sizes")
        is_noun = word not in NEITHER | OF_ONE | OF_MANY
        if {word, after} & (OF_MANY if one else OF_ONE) or (is_noun and of_one != one):
            found.append(f"{number} {word} {after}".strip())
    return found


def test_the_check_finds_wrong_plurals() -> None:
    said = "1 warnings; 1 artifacts, 2 failure; 3 watch, 12.5 s old; 1 of 2 ranks; 1 graph run"
    found = ["1 warnings", "1 artifacts", "2 failure", "3 watch", "1 graph run"]
    assert wrong(said) == found


@pytest.fixture(params=[0, 1, 2])
def number(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> Path:
    """Creates a directory with a store that has ``number`` things of each kind."""
    monkeypatch.setenv("PRECOMPILED_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("PRECOMPILED_RUNTIME_DIR", str(tmp_path / "run"))
    store = Store(tmp_path / "store")
    store.prepare()
    record = RunRecord(store.root)
    for at in range(number):
        whole = hashlib.sha256(f"graph {at}".encode()).hexdigest()
        path = store.publish(support_store.payload(whole)).path
        store.publish_failure(support_store.failure(hashlib.sha256(f"failed {at}".encode()).hexdigest()))
        spoiled = hashlib.sha256(f"spoiled {at}".encode()).hexdigest()
        store.publish(support_store.payload(spoiled))
        store.quarantine(store.artifacts / f"{spoiled}.0", "spoiled on purpose")
        unreadable = store.artifacts / f"{hashlib.sha256(f'unreadable {at}'.encode()).hexdigest()}.0"
        unreadable.mkdir(mode=0o700)
        (unreadable / fmt.MANIFEST).write_bytes((path / fmt.MANIFEST).read_bytes()[:20])
        record.note(GraphReport(id=f"h{at}", name="f [0/0]", key=whole, state="compiled", source="hit", lookup_s=0.004))
        record.note(GraphReport(id=f"p{at}", name="g [0/0]", state="bypassed", reason="freezing", message="no"))
        record.note(GraphReport(id=f"q{at}", name="h [0/0]", state="pending"))
    return tmp_path


SCREENS = (
    ("cache", "ls"),
    ("cache", "size"),
    ("explain", "--run", "last"),
    ("cache", "gc"),
    ("cache", "clear", "--yes"),
    ("status",),
    ("config",),
    ("daemon", "stop"),
    ("explain", "no-daemon"),
)


def test_every_screen_is_right_for_0_1_and_2_things(directory: Path, number: int) -> None:
    said = {screen: invoke(*screen).output for screen in SCREENS}
    assert all(said.values())
    assert {screen: found for screen, text in said.items() if (found := wrong(text))} == {}
    if number:
        things = format_count(number, "artifact")
        assert f"{things}, {format_count(number, 'failure')}, " in said["cache", "ls"]
        assert f"{things} cannot be read" in said["cache", "ls"]
        assert f"Removed {format_count(2 * number, 'artifact')}, " in said["cache", "clear", "--yes"]
    else:
        assert "Removed no artifacts, 0 B" in said["cache", "clear", "--yes"]
    assert "GiB" in said["config",] and "600 s (10 min)" in said["config",]


def test_screens_about_workers_and_packages(number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worker = {
        "pid": 7,
        "device": "cpu",
        "python": "3.11",
        "torch": "2.13.0",
        "state": "idle",
        "rss_bytes": 5 << 20,
        "jobs_done": number,
        "job": "",
        "job_s": 0.0,
    }
    status._show_workers({"workers": [worker] * number, "jobs": []})
    package = {"function": "model.f", "entries": number + 1, "skipped": number, "bytes": 2048, "used": 0.0}
    for skipped in (0, 1):
        functions.show_rows([package] * number + [{**package, "skipped": number + 1}] * number * skipped, [])
    fields = dict.fromkeys(("captured", "reused", "compiling", "ready", "failed", "bypassed", "packages"), number)
    print(commands._cells({**fields, "edited": "", "id": "1", "name": "m:f", "state": "ready", "ready_s": 0.04}))
    store = Store(tmp_path / "store")
    watches = checks_host.inotify(number, 128, number)
    for check in (checks_store.entries(store), checks_store.quarantine(store), watches):
        print(check.message)
    print(checks_store.space(tmp_path, 1 << 40, number).message)
    text = capsys.readouterr().out
    assert wrong(text) == []
    assert "0 that" not in text and (not number or f"{format_count(number, 'package')}" in text)


def test_the_job_of_a_worker_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """As a column of the table, it wrapped over four lines of a terminal with 80 columns."""
    worker = {"pid": 7, "device": "cpu", "python": "3.11.7", "torch": "2.13.0+cpu", "state": "busy", "jobs_done": 8}
    worker |= {"rss_bytes": 5 << 20, "job": "ab" * 32, "job_s": 3.1}
    job = {"worker": 7, "id": "1", "key": "ab" * 32, "name": "f", "began": 1.0, "phase": "C++ compilers"}
    job |= {"phase_began": 2.0, "estimate_s": 6.3, "kernels": (0, 3)}
    status._show_workers({"workers": [worker, {**worker, "pid": 8, "job": ""}], "jobs": [job]})
    *_, last = lines = capsys.readouterr().out.splitlines()
    assert last == "7 compiles abababababab for 3.1 s of about 6.3 s, C++ compilers, 0 of 3 kernels"
    assert len(lines) == 6 and max(map(len, lines)) <= 80
    status._show_workers({"workers": [{**worker, "job_s": 9.0}], "jobs": [job]})
    assert "for 9.0 s, C++ compilers, 0 of 3 kernels" in capsys.readouterr().out, "longer than the estimate"


@pytest.mark.parametrize(
    ("served", "expected"),
    [
        (0, "0 of 3 ranks have code that the daemon compiled for all their graphs (up to 1 graph each)"),
        (1, "1 of 3 ranks has code that the daemon compiled for all its graphs (up to 1 graph each)"),
        (2, "2 of 3 ranks have code that the daemon compiled for all their graphs (up to 1 graph each)"),
    ],
)
def test_ranks_in_a_sentence(served: int, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        record = RunRecord(tmp_path / "store")
        state = {"state": "compiled", "source": "hit"} if rank < served else {"state": "failed", "reason": "timeout"}
        record.note(GraphReport(id=f"{rank}", name="f", **state))  # type: ignore[arg-type]
    (run,) = runs.runs(tmp_path / "store")
    assert runs.describe_graphs(run, PendingCauses(config.load()))[0] == expected
    for process in run.processes:
        process.ended = 1.0
    ended = runs.describe_graphs(run, PendingCauses(config.load()))[0]
    assert ended.startswith(
        f"{served} of 3 ranks {'runs all its' if served == 1 else 'run all their'} graphs with code"
    )


def test_counts_lists_sizes_and_times_as_text() -> None:
    assert [format_count(n, "entry", "entries", zero="no") for n in (0, 1, 2, 12345)] == [
        "no entries",
        "1 entry",
        "2 entries",
        "12,345 entries",
    ]
    lists: list[list[str]] = [[], ["a"], ["a", "b"], ["a", "b", "c"]]
    assert [format_list(parts) for parts in lists] == ["", "a", "a and b", "a, b and c"]
    assert [human_bytes(n) for n in (0, 1023, 1024, 1024**2 - 1, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.0 MiB",
        "3.0 TiB",
    ]
    assert [human_seconds(n) for n in (0, 0.0001, 0.004, 0.0994, 0.0999, 59.94, 59.96, 3599, 47.4 * 3600, 172800)] == [
        "0.0 s",
        "under 1 ms",
        "4 ms",
        "99 ms",
        "0.1 s",
        "59.9 s",
        "1 min",
        "1 h",
        "47 h",
        "2 d",
    ]
