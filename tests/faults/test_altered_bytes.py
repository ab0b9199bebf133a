"""Tests that no altered bit of a stored file reaches a client."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from precompiled.service.watch.registry import Record, Registry
from support_altered import FILES, RECORD, AlteredStore, flip_bit, open_record
from support_store import KEY

from precompiled import wire
from precompiled.store import artifact_format as fmt
from precompiled.store import job_phases, lines, run_records
from precompiled.store.artifacts import Store


@pytest.mark.fault("altered-bytes")
@pytest.mark.parametrize("file", FILES, ids=["manifest", "bundle", "library", "program", "entry"])
def test_every_altered_bit_is_refused(tmp_path: Path, file: str, tries: Callable[[int, int], int]) -> None:
    altered = AlteredStore(tmp_path / "store")
    path = altered.paths[file]
    bits = path.stat().st_size * 8
    number = tries(40, bits)
    for bit in range(0, bits, bits // number):
        flip_bit(path, bit)
        altered.assert_refused(file, f"bit {bit} of {file}")
        altered.put_back(file)
        flip_bit(path, bit)
    assert altered.read(file) == altered.whole(file)


@pytest.mark.fault("altered-bytes")
@pytest.mark.parametrize("file", [fmt.BUNDLE, "entry"])
def test_altered_bit_of_a_large_file_is_refused(tmp_path: Path, file: str, tries: Callable[[int, int], int]) -> None:
    """The test alters bits at random places, which a fixed seed determines."""
    altered = AlteredStore(tmp_path / "store", size=1 << 18)
    path = altered.paths[file]
    numbers = random.Random(38)
    for _ in range(tries(10, 10_000)):
        bit = numbers.randrange(path.stat().st_size * 8)
        flip_bit(path, bit)
        altered.assert_refused(file, f"bit {bit} of {file}")
        altered.put_back(file)
        flip_bit(path, bit)
    assert altered.read(file) == altered.whole(file)


@pytest.mark.fault("altered-bytes")
def test_altered_bit_of_a_record_raises_nothing(store: Store, tries: Callable[[int, int], int]) -> None:
    """Records that are only shown, or that only delay a compile, have no digest. No altered bit may break a reader."""
    folder = run_records.begin(store.root, "run")
    process = {"rank": 0, "ranks": 1, "pid": 1, "started": "2", "program": "p", "argv": ["a", "b"], "executable": "e"}
    graph = {"id": "i", "key": KEY, "state": "compiled", "source": "hit", "spans": [["load", 1.5, 0.5, 1]]}
    end = {"ended": 3.5, "functions": [{"name": "f"}], "files": {"a": "b"}, "calls": {"i": [1, 2]}}
    frame = {"frame": "f", "span": ["trace", 1.0, 0.5, 1]}
    run = lines.AppendedFile(folder / "0-1.jsonl")
    for line in ({**process, "directory": "/", "began": 1.0}, graph, frame, end):
        run.append(line)
    jobs = lines.AppendedFile(lines.folder(store.root, job_phases.JOBS) / "1-2.jsonl")
    for line in (
        {"pid": 1, "started": "2", "launched": 1.0, "ready": 2.0},
        {"job": "j", "key": KEY, "name": "n", "attempt": 1, "queued": 1.0, "began": 1.0},
        {"job": "j", "phase": "p", "at": 2.0},
        {"job": "j", "kernels": [1, 2]},
        {"job": "j", "ended": 3.0, "outcome": "published", "reason": "", "spans": [["p", 1.0, 0.5, 1]]},
    ):
        jobs.append(line)
    registry = Registry(store.root)
    registry.save("id", Record(wire.Registration("entry", ["m:f"], sys.executable, "/", "/store", {"A": "b"})))
    watch = store.root / "watch" / "id.json"
    store.prepare()

    def read_run() -> None:
        for run in run_records.runs(store.root):
            assert run.since <= run.began or run.ranks
            for process in run.processes:
                run_records.traces(process)
                [(run_records.way(graph), run_records.waited_s(graph)) for graph in process.graphs.values()]

    def read_jobs() -> None:
        job_phases.workers(store.root)
        job_phases.under_way(store.root)

    read_run()
    assert job_phases.workers(store.root)[0].jobs and len(list(registry.load())) == 1
    everything = [
        (run.file, read_run),
        (jobs.file, read_jobs),
        (watch, lambda: [msgspec.json.encode(record) for _, record in registry.load()]),
    ]
    every = 40 if tries(200, 10_000) == 200 else 1
    for path, read in everything:
        data = path.read_bytes()
        for bit in range(0, len(data) * 8, every):
            path.write_bytes(_flipped(data, bit))
            read()
            if path == watch:
                for left in path.parent.iterdir():  # a watch that cannot be captured is set aside
                    left.unlink()
                path.touch(0o600)
        path.write_bytes(data)
    for bit in range(0, len(RECORD) * 8, every):
        found = open_record(store, _flipped(RECORD, bit))
        assert found is None or found.key == KEY


def _flipped(data: bytes, bit: int) -> bytes:
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)
