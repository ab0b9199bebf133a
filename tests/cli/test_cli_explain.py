"""Tests of `explain`, and of the graph in `cache show`, with a real store and made-up serialized graphs."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support_artifacts import publish_artifact
from support_cli import answer, invoke
from support_programs import ARGS, NODES, PROGRAM, TENSOR, changed, everything, put

from precompiled.client.ledger import GraphReport
from precompiled.client.run_recorder import MAX_KEPT, RunRecord
from precompiled.graph import key
from precompiled.store import artifact_format as fmt
from precompiled.store import crashes, eviction, package_format
from precompiled.store.artifacts import Artifact, Store
from precompiled.store.packages import PackageStore

NOW = time.time()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name in list(os.environ):
        if name.startswith("PRECOMPILED"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PRECOMPILED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Store(tmp_path / "cache")


def key_of(label: str) -> str:
    return fmt.digest(label.encode())


def publish(store: Store, label: str, program: dict[str, Any], age_s: float, **fields: Any) -> Artifact:
    return publish_artifact(store, key_of(label), program, created=NOW - age_s, **fields)


def publish_failure(store: Store, label: str, program: bytes, age_s: float) -> None:
    kept = fmt.program_for_failure(program)
    record = fmt.Failure(key_of(label), "forward [0/0]", "compile-error", "it broke", NOW - age_s, 3600, program=kept)
    store.publish_failure(record)


CONSTANT = put(*NODES, 2, 2, 1, 3)
NO_GRAD = put("modes", "grad", False)


def test_the_nearest_graph_has_the_fewest_different_components_then_fields(store: Store) -> None:
    publish(store, "two components", changed(put("environment", "python", "x")), 40)
    publish(store, "two fields", changed(everything(CONSTANT, NO_GRAD, put("modes", "threads", 9))), 50)
    publish(store, "near", changed(put(*NODES, 2, 2, 1, 7)), 100)
    publish(store, "target", changed(CONSTANT), 10)
    publish(store, "later", PROGRAM, 5)
    publish(store, "another device", PROGRAM, 30, device="cuda")
    found = answer("explain", key_of("target")[:10])
    assert found["key"] == key_of("target") and found["state"] == "artifact" and found["slot"] == 0
    assert found["nearest"]["key"] == key_of("near")
    assert found["equal"] == ["inputs", "modes", "configs", "environment"]
    (change,) = found["changes"]
    assert change == {
        "section": "graph",
        "where": "operation %2",
        "field": "",
        "before": "operator.mul(%0, 7)",
        "after": "operator.mul(%0, 3)",
        "note": "",
        "source": "/home/me/model.py:12, in forward: return x * 2 + y",
        "parameter": False,
    }
    text = invoke("explain", key_of("target")).output
    assert "operation %2: operator.mul(%0, 7) -> operator.mul(%0, 3)" in text
    assert "model.py:12, in forward: return x * 2 + y" in text
    assert f"nearest: {key_of('near')[:12]} forward [0/0], artifact 0, " in text
    assert "the same: inputs, modes, configs, environment" in text


def test_a_version_of_the_graph_is_nearer_than_a_graph_with_fewer_different_components(store: Store) -> None:
    """Under ``eval()`` and ``no_grad()``, the graphs of discriminator and generator have more components in common than
    the discriminator's graphs in evaluation and in training.
    """
    other = put("graph", [[["p"], ["m", "sin", [{"n": 0}], []], ["o", None, [{"n": 1}], []]]])
    trained = changed(put(*ARGS, 0, "shape", [12, 16]))
    publish(store, "trained", trained, 30, name="Disc.forward [1/0]")
    publish(store, "generator", changed(everything(other, NO_GRAD)), 20, name="Gen.forward [0/1]")
    publish(store, "target", changed(everything(CONSTANT, NO_GRAD)), 10, name="Disc.forward [1/1]")
    found = answer("explain", key_of("target"))
    assert found["nearest"]["key"] == key_of("trained")
    assert "no similar graph" not in invoke("explain", key_of("target")).output


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (CONSTANT, "operator.mul(%0, 2) -> operator.mul(%0, 3)"),
        (put(*ARGS, 0, "shape", [12, 16]), "input 0: shape [8, 16] -> [12, 16]"),
        (NO_GRAD, "grad: True -> False"),
        (put("configs", "inductor", "max_autotune", True), "inductor.max_autotune: False -> True"),
        (put("environment", "python", "cpython-312"), "python: cpython-311-3.11.7 -> cpython-312"),
    ],
)
def test_last_explains_the_newest_graph(store: Store, change: Callable[[dict[str, Any]], Any], text: str) -> None:
    publish(store, "before", PROGRAM, 20)
    publish(store, "last", changed(change), 10)
    assert text in invoke("explain", "--newest").output
    found = answer("explain", "--newest")
    assert found["key"] == key_of("last") and len(found["changes"]) == 1 and len(found["equal"]) == 4


def test_a_graph_without_a_similar_one_is_explained(store: Store) -> None:
    publish(store, "target", PROGRAM, 10)
    publish(store, "another device", changed(CONSTANT), 30, device="cuda")
    publish(store, "other in all", {**{name: {"other": 1} for name in key.SECTIONS}, "hints": []}, 30)
    publish(store, "later", changed(CONSTANT), 5)
    assert "no similar graph" in invoke("explain", key_of("target")).output
    found = answer("explain", key_of("target"))
    assert found["nearest"] is None and found["changes"] == [] and found["equal"] == []


def test_a_new_graph_is_not_compared_with_an_unrelated_one(store: Store) -> None:
    loss = [["p"], ["m", "sin", [{"n": 0}], []], ["o", None, [{"n": 1}], []]]
    about = {"places": [["/home/me/loss.py", 3, "loss", "return x.sin()"]], "nodes": [[-1, 0, -1]]}
    publish(store, "of another file", changed(everything(put("graph", [loss]), put("about", about))), 20)
    publish(store, "new", changed(CONSTANT), 10)
    text = invoke("explain", "--newest").output
    assert "the store had no graph of its file" in text
    assert "nearest" not in text and "the graph" not in text and "->" not in text


def test_variants_show_sizes_and_guards(store: Store) -> None:
    program = changed(everything(put(*ARGS, 0, {"size": {"s": 0}}), put("hints", [8])))
    publish(store, "dynamic", program, 30, guards="L['t0'] < 9")
    publish(store, "dynamic", {**program, "hints": [40]}, 20, guards="L['t0'] >= 9")
    found = answer("explain", "--newest")
    assert [item["sizes"] for item in found["variants"]] == [{"s0": 8}, {"s0": 40}]
    assert [item["guards"] for item in found["variants"]] == ["s0 < 9", "s0 >= 9"]
    assert found["slot"] == 1
    text = invoke("explain", key_of("dynamic")).output
    assert "artifact 1: no earlier artifact accepts the sizes s0 = 40" in text
    assert "artifact 0 needs s0 < 9" in text and "no similar graph" in text


def test_a_failed_compile_is_explained_and_shown(store: Store) -> None:
    publish(store, "before", PROGRAM, 20)
    publish_failure(store, "failed", json.dumps(changed(CONSTANT), separators=(",", ":")).encode(), 10)
    found = answer("explain", "--newest")
    assert found["state"] == "failed" and found["nearest"]["key"] == key_of("before") and len(found["changes"]) == 1
    assert "which failed to compile" in invoke("explain", "--newest").output
    shown = answer("cache", "show", key_of("failed"))
    assert shown["graph"][2]["text"] == "%2 = operator.mul(%0, 3)" and "program" not in shown["failure"]
    # `explain` can compare a later graph with the failed graph.
    publish(store, "after", changed(put(*NODES, 2, 2, 1, 4)), 5)
    publish(store, "before", PROGRAM, 20)
    eviction.remove(store, key_of("before"))
    assert answer("explain", "--newest")["nearest"]["state"] == "failed"


@pytest.mark.reason("slower-than-eager")
def test_a_graph_with_slower_code_is_neither_compared_nor_called_failed(store: Store) -> None:
    publish(store, "before", PROGRAM, 30)
    artifact = publish(store, "slower", changed(CONSTANT), 20)
    name, whole = artifact.manifest.name, key_of("slower")
    store.publish_failure(fmt.Failure(whole, name, "slower-than-eager", "it is slower", NOW - 10, 3600))
    text, short = invoke("explain", whole).output, whole[:12]
    assert "not served because an earlier run found compiled code slower than eager code" in text
    assert f"`precompiled cache clear {short}`" in text
    assert "failed" not in text and "nearest" not in text and "->" not in text
    found = answer("explain", whole)
    assert found["causes"] == [] and found["nearest"] is None


@pytest.mark.reason("crashes-processes")
def test_a_graph_whose_code_crashed_is_explained_from_its_failure_record(store: Store) -> None:
    artifact, whole = publish(store, "crashes", PROGRAM, 20), key_of("crashes")
    assert crashes._refuse(store, crashes.name_of(artifact), 3600.0) and not store.lookup(whole)
    failure = store.failure(whole)
    assert failure is not None and failure.reason == "crashes-processes"
    assert "not served because earlier processes crashed in compiled code" in invoke("explain", whole).output
    assert answer("cache", "show", whole)["graph"] is not None


@pytest.mark.reason("graph-not-kept")
def test_an_artifact_without_its_program_cannot_be_explained(store: Store) -> None:
    publish_artifact(store, key_of("bare"), created=NOW - 20)
    assert answer("explain", "--newest", status=1)["error"]["code"] == "graph-not-kept"
    assert answer("cache", "show", key_of("bare"))["graph"] is None
    assert "not kept" in invoke("cache", "show", key_of("bare")).output
    publish(store, "target", changed(CONSTANT), 10)
    assert answer("explain", "--newest")["nearest"] is None


@pytest.mark.parametrize(
    "program",
    [
        b"",
        b"junk",
        b"[]",
        b"{}",
        json.dumps({name: None for name in key.SECTIONS}).encode(),
        json.dumps({name: [[1]] for name in key.SECTIONS}).encode(),
    ],
)
def test_a_failure_record_without_a_valid_program_is_handled(store: Store, program: bytes) -> None:
    publish(store, "before", PROGRAM, 30)
    publish_failure(store, "odd", program, 20)
    assert answer("explain", key_of("odd"), status=1)["error"]["code"] == "graph-not-kept"
    assert answer("cache", "show", key_of("odd"))["graph"] is None
    publish(store, "target", changed(CONSTANT), 10)
    assert answer("explain", "--newest")["nearest"]["key"] == key_of("before")


def test_a_damaged_program_is_reported(store: Store) -> None:
    entry = publish(store, "target", PROGRAM, 10)
    path = entry.path / fmt.PROGRAM
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert answer("cache", "show", key_of("target"))["graph"] is None
    assert not entry.path.exists() and any(store.quarantined.iterdir())


def test_files_that_others_could_have_written_are_not_read(store: Store) -> None:
    publish(store, "before", PROGRAM, 20)
    entry = publish(store, "target", changed(CONSTANT), 10)
    path = store.artifacts / f"{key_of('before')}.0" / fmt.PROGRAM
    path.chmod(0o666)
    assert answer("explain", "--newest")["nearest"] is None
    (entry.path / fmt.PROGRAM).chmod(0o666)
    assert answer("cache", "show", key_of("target"), status=1)["error"]["code"] == "store-untrusted"
    store.artifacts.chmod(0o777)
    assert answer("explain", "--newest", status=1)["error"]["code"] == "store-untrusted"


def test_wrong_arguments_of_explain_are_refused(store: Store) -> None:
    assert answer("explain", status=1)["error"]["code"] == "no-such-run", "without arguments, it explains the last run"
    publish(store, "target", PROGRAM, 10)
    assert answer("explain", key_of("target"), "--newest", status=2)["error"]["code"] == "usage"
    assert answer("explain", "0000", status=1)["error"]["code"] == "no-such-key"
    assert answer("explain", key_of("target")[:3], status=2)["error"]["code"] == "usage"


def test_explain_of_an_empty_store_fails(store: Store) -> None:
    error = answer("explain", "--newest", status=1)["error"]
    assert error["code"] == "no-such-key" and error["action"]


def test_a_pending_graph_is_shown_before_the_last_compiled_one(store: Store) -> None:
    store.prepare()
    RunRecord(store.root).note(GraphReport("p", "i [3/0]", "cc12", "pending"))  # the record of a running process
    found = answer("explain", "--newest")
    assert [(graph["key"], graph["name"]) for graph in found["awaited"]] == [("cc12", "i [3/0]")] and len(found) == 1
    text = invoke("explain", "--newest").output
    assert text.startswith("i [3/0] cc12 of ") and "is not compiled yet (pending for " in text
    publish(store, "target", PROGRAM, 10)
    found = answer("explain", "--newest")
    assert found["key"] == key_of("target") and [graph["key"] for graph in found["awaited"]] == ["cc12"]


def test_the_number_of_compared_programs_is_limited(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precompiled.cli.nearest.MAX_COMPARED", 3)
    for number in range(6):
        publish(store, str(number), changed(put(*NODES, 2, 2, 1, number + 10)), 50 - number, name="other [0/0]")
    publish(store, "namesake", changed(put(*NODES, 2, 2, 1, 99)), 90)
    publish(store, "target", changed(CONSTANT), 10, name="forward [3/1]")
    # Within the limit, `explain` prefers graphs of the same function, even if they are older.
    assert answer("explain", "--newest")["nearest"]["key"] == key_of("namesake")


def test_show_prints_operations_below_their_source_lines(store: Store) -> None:
    publish(store, "target", PROGRAM, 10)
    text = invoke("cache", "show", key_of("target")).output
    assert "  # /home/me/model.py:12, in forward: return x * 2 + y\n  %2 = operator.mul(%0, 2)\n  %3 = %2.add(" in text
    assert "%0 = input 0: float32 [8, 16]  x" in text
    many = changed(everything(put("graph", 0, [*[["p"]] * 2, *[PROGRAM["graph"][0][2]] * 30]), put("about", {})))
    publish(store, "many operations", many, 10)
    lines = invoke("cache", "show", key_of("many operations")).output.splitlines()
    assert len(lines) <= 24 and "  and 18 more operations" in lines
    assert len(invoke("cache", "show", "--all", key_of("many operations")).output.splitlines()) > 40
    shown = answer("cache", "show", key_of("target"))["graph"]
    assert shown[2]["source"] == {
        "file": "/home/me/model.py",
        "line": 12,
        "function": "forward",
        "code": "return x * 2 + y",
    }
    assert [item["node"] for item in shown] == [0, 1, 2, 3, 4] and shown[0]["source"] is None


def publish_package(
    store: Store, module: str, qualname: str, *guards: package_format.GuardText, graph: str = ""
) -> package_format.Header:
    function = package_format.function_key(module, qualname, "code", one_graph=False)
    artifacts = [key_of(graph)] if graph else []
    # A new entry replaces an entry of the same meaning.
    header = package_format.Header(
        function,
        module,
        qualname,
        "code",
        False,
        "compiled",
        artifacts=artifacts,
        meaning=fmt.digest(repr(guards).encode()),
    )
    PackageStore(store.root).publish(header, package_format.About(list(guards)).to_bytes(), b"body")
    return header


def guards(layers: int, place: str = "/me/net.py:9, in forward") -> list[package_format.GuardText]:
    """Guards of a model with this number of layers. Each model has its own objects."""
    return [
        package_format.GuardText("L['self'].h", "ID_MATCH", "", ["object", layers], place),
        package_format.GuardText("L['self'].training", "TYPE_MATCH", "", ["class", "a", "b", [], [layers]], place),
        package_format.GuardText("L['self'].n_layer", "EQUALS_MATCH", "", ["int", str(layers)], place),
        package_format.GuardText("L['self']._modules['n_layer']", "EQUALS_MATCH", "", ["int", str(layers)], place),
    ]


def with_parameters(*names: str) -> dict[str, Any]:
    """A graph with these parameters as further inputs."""
    return changed(
        everything(
            put("graph", 0, [["p"]] * (2 + len(names)) + PROGRAM["graph"][0][2:]),
            put("inputs", "args", [TENSOR, TENSOR, *[{**TENSOR, "parameter": True}] * len(names)]),
            put("about", "inputs", ["x", "self.y", *names]),
            put("about", "nodes", [[-1] * (5 + len(names))]),
        )
    )


def test_the_guarded_value_that_differs_is_the_cause(store: Store) -> None:
    first = ("self.h.0.weight", "self.h.1.weight")
    publish(store, "two", with_parameters(*first), 20)
    publish(store, "three", with_parameters(*first, "self.h.2.weight", "self.h.2.bias"), 10)
    (cause,) = answer("explain", key_of("three"))["causes"]
    assert (cause["short"], cause["what"]) == ("another model", "2 more parameters: self.h.2.*; 7 -> 9 operations")
    for graph, layers in (("two", 2), ("three", 3)):
        publish_package(store, "net", "Net.forward", *guards(layers), graph=graph)
    (cause,) = answer("explain", key_of("three"))["causes"]
    assert cause["short"] == "other value of self.n_layer"
    assert (
        cause["what"] == "2 -> 3; 2 more parameters: self.h.2.*; 7 -> 9 operations"
        and cause["line"] == "/me/net.py:9, in forward"
    )
    assert "watch" not in cause["advice"]
    text = invoke("explain", key_of("three")).output
    assert "\nthe inputs\n  2 more parameters: self.h.2.*\n  number of inputs: 4 -> 6\n" in text


def test_a_function_with_a_hexadecimal_name_is_not_a_key_that_is_too_short(store: Store) -> None:
    publish(store, "graph", PROGRAM, 20)
    for name in ("f", "decade", key_of("graph")[:6]):
        publish_package(store, "__main__", name)
    for name in ("f", "decade"):
        assert answer("explain", name)["function"] == f"__main__.{name}"
        assert answer("cache", "show", name)["function"] == f"__main__.{name}"
    for command in (("explain",), ("cache", "show")):
        assert answer(*command, key_of("graph")[:6])["key"] == key_of("graph"), "a key comes first"
        assert "'e' is too short" in answer(*command, "e", status=2)["error"]["message"]
    publish_package(store, "net", "f")
    for command in (("explain",), ("cache", "show")):
        assert answer(*command, "f", status=1)["error"]["action"] == "Did you mean net.f or __main__.f?"


def test_values_of_a_function_come_first_and_identities_are_only_counted(store: Store) -> None:
    for layers, place in (
        (2, "/venv/lib/python3.11/site-packages/hub/net.py:9, in forward"),
        (4, "/me/other.py:3, in forward"),
        (3, "/venv/lib/python3.11/site-packages/hub/net.py:9, in forward"),
    ):
        publish_package(store, "__main__", "Net.forward", *guards(layers, place))
    for entry in PackageStore(store.root).entries():
        layers = int(package_format.About.parse(entry.about).guards[2].fact[1])
        os.utime(entry.path, (NOW + layers, NOW + (9 if layers == 3 else 0)))
    (nearest,) = answer("explain", "net.Net.forward")["others"]
    assert nearest["changes"][0].startswith("L['self'].n_layer: 3 here, 2 there")
    assert len(nearest["changes"]) == 2 and len(nearest["identities"]) == 1
    lines = invoke("explain", "net.Net.forward").output.splitlines()
    assert lines[1] == "1 entry belongs to other programs."
    assert lines[4] == "  self.n_layer: 3 here, 2 there (hub/net.py:9, in forward)"
    assert lines[-1] == "  and 1 object that differs only in identity or memory: see --json"


def test_entries_with_one_difference_share_a_line(store: Store) -> None:
    for number in range(9):
        object_of = package_format.GuardText("L['self'].h", "ID_MATCH", "", ["object", number], "")
        kind = ["class", "torch.nn", "SiLU" if number == 8 else "GELU"]
        publish_package(store, "net", "Net.forward", object_of, package_format.GuardText("L['f']", "T", "", kind, ""))
    for number, entry in enumerate(PackageStore(store.root).entries()):
        newest = "SiLU" in entry.about.decode()
        os.utime(entry.path, (NOW, NOW + (90 if newest else number)))
    lines = invoke("explain", "net.Net.forward").output.splitlines()
    assert lines[-1] == "7 entries: f: class torch.nn.SiLU here, class torch.nn.GELU there"


def _publish_versions(store: Store, *sources: str) -> None:
    """Entries of one function that differ only in the digest of the program."""
    for number, digest in enumerate(sources):
        header = publish_package(store, "net", "Net.forward")
        header = dataclasses.replace(header, sources=digest, requires={})
        name = PackageStore(store.root).publish(header, package_format.About().to_bytes(), b"body")
        os.utime(store.root / "packages" / header.function / name, (NOW, NOW + number))


def test_a_trace_without_a_different_guard_has_its_recorded_reason(store: Store) -> None:
    _publish_versions(store, "1", "2", "3")
    text = invoke("explain", "net.Net.forward").output
    assert "  no guard differs: the program's code or its modules differ\n" in text and "another path" not in text
    function = SimpleNamespace(name="net.Net.forward", state="recorded", reason="", message="", reasons=("n: 2 here",))
    RunRecord(store.root).end([], [function], {}, {})
    assert "  no guard differs: n: 2 here\n" in invoke("explain", "net.Net.forward").output


def test_a_package_is_shown_by_its_values(store: Store) -> None:
    publish_package(store, "net", "Net.forward", *guards(3))
    lines = invoke("cache", "show", "net.Net.forward").output.splitlines()
    assert lines[-2:] == [
        "    self.n_layer: 3 (/me/net.py:9, in forward)",
        "    and 2 guards on types, tensors and code: --all shows all",
    ]
    assert invoke("cache", "show", "--all", "net.Net.forward").output.count("_MATCH") == 4
    publish_package(store, "net", "Plain.forward", *guards(3)[:2])
    text = invoke("cache", "show", "Plain.forward").output
    assert "  guards   2\n    all of them on types, tensors and code: --all shows all\n" in text
    (entry,) = answer("cache", "show", "net.Net.forward")["entries"]
    assert [guard["value"] for guard in entry["guards"]] == ["", "", "3", "3"]


def test_inputs_that_share_memory_name_each_other(store: Store) -> None:
    shared = {**TENSOR, "shares": 1}
    program = changed(
        everything(
            put("graph", 0, [["p"]] * 3 + PROGRAM["graph"][0][2:]),
            put("inputs", "args", [TENSOR, shared, shared]),
            put("about", "inputs", ["x", "y", "z"]),
            put("about", "nodes", [[-1] * 6]),
        )
    )
    publish(store, "shared", program, 10)
    text = invoke("cache", "show", key_of("shared")).output
    assert re.search(r"= input 1: .*, shares memory with input 2  y\n", text)
    assert re.search(r"= input 2: .*, shares memory with input 1  z\n", text)


def test_a_shortened_graph_shows_operations_beside_many_inputs(store: Store) -> None:
    names = [f"self.h.{number}.weight" for number in range(20)]
    publish(store, "wide", with_parameters(*names), 10)
    text = invoke("cache", "show", key_of("wide")).output
    assert text.count("= input ") == 5 and "and 17 more inputs\n" in text and " = operator.mul(" in text
    assert invoke("cache", "show", "--all", key_of("wide")).output.count("= input ") == 22


def test_a_function_is_found_under_another_module_name(store: Store) -> None:
    """A program's own file is the module ``__main__``, but users may type the name by which other files import it."""
    publish_package(store, "__main__", "Net.forward")
    publish_package(store, "lib.layers", "Outer.Block.forward")
    for given in ("pkg.model.Net.forward", "Net.forward", "__main__.Net.forward"):
        assert answer("explain", given)["function"] == "__main__.Net.forward"
        assert answer("cache", "show", given)["function"] == "__main__.Net.forward"
    for given in ("layers.Outer.Block.forward", "Block.forward", "elsewhere.Block.forward"):
        assert answer("explain", given)["function"] == "lib.layers.Outer.Block.forward"


@pytest.mark.reason("no-such-function")
def test_similar_function_names_are_suggested_nearest_first(store: Store) -> None:
    for module, qualname in [
        ("a", "Attention.forward"),
        ("__main__", "Net.forward"),
        ("b", "Net.forward"),
        ("c", "Nets.backward"),
    ]:
        publish_package(store, module, qualname)
    assert answer("explain", "b.Net.forward")["function"] == "b.Net.forward"
    error = answer("explain", "pkg.Net.forward", status=1)["error"]  # the name matches two functions
    assert error["code"] == "no-such-function"
    assert error["action"] == "Did you mean __main__.Net.forward or b.Net.forward?"
    error = answer("explain", "pkg.Nett.forward", status=1)["error"]
    assert error["action"] == "Did you mean __main__.Net.forward or b.Net.forward or a.Attention.forward?"


def test_the_class_of_a_torch_module_is_found_by_its_forward(store: Store) -> None:
    sequential = "torch.nn.modules.container.Sequential"
    publish_package(store, "model", "Tiny.forward")
    publish_package(store, *sequential.rsplit(".", 1))
    for given in (sequential, f"{sequential}.forward", "Sequential.forward", "nn.container.Sequential.forward"):
        assert answer("explain", given)["function"] == sequential
        assert answer("cache", "show", given)["function"] == sequential
    assert answer("explain", "Tiny.forward")["function"] == "model.Tiny.forward"
    error = answer("explain", f"{sequential}.backward", status=1)["error"]
    assert error["action"] == f"Did you mean {sequential}?"
    error = answer("explain", "model.Tiny", status=1)["error"]
    assert error["action"] == "Did you mean model.Tiny.forward?"


@pytest.mark.reason("package-audit")
def test_a_function_disabled_by_an_audit_is_reported_by_any_of_its_names(store: Store) -> None:
    PackageStore(store.root).refuse(publish_package(store, "__main__", "Net.forward"), "it was not right")
    error = answer("explain", "pkg.model.Net.forward", status=1)["error"]
    assert (error["code"], error["message"]) == ("package-audit", "it was not right")


def test_an_unsent_miss_is_explained_from_its_runs_program(store: Store) -> None:
    publish(store, "before", PROGRAM, 20)
    missed = changed(put(*ARGS, 0, "shape", [12, 16]))
    whole = key.key({name: json.dumps(missed[name], separators=(",", ":")) for name in key.SECTIONS})
    record = RunRecord(store.root)
    for _ in range(2):  # the record keeps one program per key
        record.keep(whole, lambda: json.dumps(missed).encode())
    record.note(GraphReport("1", "forward [0/1]", whole, "failed", "error", "lookup-only", "it is not there"))
    record.end([], [], {}, {})
    for arguments in ((whole[:10],), ("--newest",)):
        found = answer("explain", *arguments)
        assert found["state"] == "not sent" and found["nearest"]["key"] == key_of("before")
        assert [cause["short"] for cause in found["causes"]] == ["new size"] and not found["variants"]
    assert "forward [0/1], which was a miss and was not sent to a daemon" in invoke("explain", whole).output
    run = invoke("explain", "--run", "last").output
    assert "of 1 graph: no hits, 1 new size" in run and "x: shape [8, 16] -> [12, 16]" in run
    assert "lookup-only: it is not there" in run
    # The graph that was not sent was never compiled, so `explain` must not compare a later miss with it.
    publish(store, "target", changed(put(*ARGS, 0, "shape", [13, 16])), -3600)
    assert answer("explain", "--newest")["nearest"]["key"] == key_of("before")
    (run_file,) = store.root.glob("runs/*/*.program.gz")
    run_file.chmod(0o666)
    assert answer("explain", whole, status=1)["error"]["code"] == "graph-not-kept"


def test_a_pending_graph_is_compared_with_earlier_graphs(store: Store) -> None:
    """A user asks for the cause while the graph runs eager, not after its compile."""
    publish(store, "before", PROGRAM, 20)
    record = RunRecord(store.root)
    keys = []
    for number, size in enumerate((12, 13)):
        missed = changed(put(*ARGS, 0, "shape", [size, 16]))
        keys.append(key.key({name: json.dumps(missed[name], separators=(",", ":")) for name in key.SECTIONS}))
        record.note(GraphReport(str(number), f"forward [0/{number + 1}]", keys[-1], "pending"))
        record.keep(keys[-1], lambda missed=missed: json.dumps(missed).encode())
        (file,) = store.root.glob(f"runs/*/{keys[-1]}.program.gz")
        os.utime(file, (time.time() + number, time.time() + number))
    found = answer("explain", keys[0][:10])
    assert found["state"] == "pending" and found["nearest"]["key"] == key_of("before")
    assert [cause["what"] for cause in found["causes"]] == ["x: shape [8, 16] -> [12, 16]"]
    found = answer("explain", "--newest")
    assert found["key"] == keys[1] and len(found["awaited"]) == 2
    assert found["nearest"]["key"] == keys[0], (
        "a pending graph will have an artifact, so later ones are compared with it"
    )
    text = invoke("explain", "--newest").output
    assert "forward [0/2], which is not compiled yet, " in text and text.count(keys[1][:12]) == 1
    assert [miss["since"].count("names the cause") for miss in answer("explain")["misses"]] == [0, 0]
    assert "of 2 graphs: no hits, 2 new sizes" in invoke("explain").output
    record.drop(keys[1])
    assert answer("explain", keys[1], status=1)["error"]["code"] == "no-such-key"


def test_a_program_that_still_runs_has_no_graph_yet(store: Store) -> None:
    """Its first graph may be compiled in process, after the miss was recorded."""
    record = RunRecord(store.root)
    record.keep(key_of("0"), lambda: b"{}")
    assert answer("explain")["summary"] == "no graph yet"
    record.end([], [], {}, {})
    assert answer("explain")["summary"].startswith("no graph: torch.compile made none")


def test_the_number_of_kept_programs_of_a_run_is_limited(store: Store) -> None:
    record = RunRecord(store.root)
    for number in range(MAX_KEPT + 1):
        record.keep(key_of(str(number)), lambda: b"{}")
    assert len(list(store.root.glob("runs/*/*.program.gz"))) == MAX_KEPT
    record.drop(key_of("0"))
    record.keep(key_of("next"), lambda: b"{}")
    assert len(list(store.root.glob("runs/*/*.program.gz"))) == MAX_KEPT, "the limit is on programs at one time"
