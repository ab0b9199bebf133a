"""Tests of `precompiled tools metrics` with a real daemon.

prometheus-client's parser and, if it is installed, a real Prometheus read the metrics.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import support_daemon
from prometheus_client.parser import text_string_to_metric_families
from support_daemon import DaemonUnderTest, graph, raw_client, running_daemon, wait_until

from precompiled import wire
from precompiled.metrics import families as metrics

ROOT = Path(__file__).parent.parent.parent
MONITORING = ROOT / "monitoring"
# maps the name of a metric and the value of its only label to the value of the sample
Samples = dict[tuple[str, str], float]


def parsed(text: str) -> Samples:
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            assert len(sample.labels) <= 1
            found[sample.name, "".join(sample.labels.values())] = sample.value
    return found


def environment(daemon: DaemonUnderTest) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRECOMPILED")}
    settings = daemon.settings
    return {
        **kept,
        "PRECOMPILED_CACHE_DIR": str(settings.cache_dir),
        "PRECOMPILED_AUTOSTART": "0",
        "PRECOMPILED_RUNTIME_DIR": str(settings.runtime_dir),
    }


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "precompiled", "tools", "metrics", *arguments]


def said(daemon: DaemonUnderTest, *arguments: str) -> str:
    return subprocess.run(
        command(*arguments), env=environment(daemon), capture_output=True, text=True, check=True
    ).stdout


@contextmanager
def serving(where: str, variables: Mapping[str, str]) -> Iterator[str]:
    """Run `metrics --listen` and yield the address that the command prints."""
    process = subprocess.Popen(command("--listen", where), env=variables, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("precompiled: metrics at "), line
        yield line.split()[-1]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(support_daemon.TIMEOUT_S) == 0
        process.stderr.close()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    """A daemon with four jobs (compiled, failed, running, queued) and with the counts of one client."""
    directory = tmp_path_factory.mktemp("m")
    go_on = directory / "go-on"
    with running_daemon(directory, workers=1) as found, raw_client(found.settings) as client:
        for do in ("publish", "fail"):
            message = found.submit()
            client.submit(message, graph(do))
            client.ended(message.id)
        tally = wire.Tally(
            pid=1,
            hits=3,
            misses=2,
            saved_s=12.5,
            bypassed={"freezing": 2},
            fallbacks={"no-daemon": 1},
            not_kept={"package-graph": 4},
            from_base={"/opt/base": 1},
            traced=5,
        )
        client.send(wire.PREAMBLE, wire.encode(tally))
        for _ in range(2):
            client.submit(found.submit(), graph("wait-for", path=str(go_on)))
        wait_until(lambda: found.status().queue_depth == 1 and any(w.job for w in found.status().workers), "busy")
        wait_until(lambda: found.stats().hits == 3, "the counts are there")
        try:
            yield found
        finally:
            go_on.touch()


def test_metrics_equal_stats_and_status(daemon: DaemonUnderTest) -> None:
    samples, stats = parsed(said(daemon)), daemon.stats()
    for metric in metrics.STATS:
        value = getattr(stats, metric.field)
        for label, amount in value.items() if metric.label else [("", value)]:
            assert samples[f"precompiled_{metric.name}_total", label] == amount, metric
    assert samples["precompiled_bypassed_total", "freezing"] == 2
    assert samples["precompiled_saved_seconds_total", ""] == 12.5
    assert samples["precompiled_up", ""] == 1 and samples["precompiled_queue_depth", ""] == 1
    assert samples["precompiled_workers", "busy"] == 1 and samples["precompiled_workers", "idle"] == 0
    assert samples["precompiled_longest_job_seconds", ""] > 0 and samples["precompiled_workers_memory_bytes", ""] > 0
    assert {name for name, _ in samples} <= metrics.names()


def test_every_counter_has_a_metric() -> None:
    assert {metric.field for metric in metrics.STATS} == {item.name for item in msgspec.structs.fields(wire.StatsReply)}
    with_label = {item.name for item in msgspec.structs.fields(wire.StatsReply) if item.default_factory is dict}
    assert {metric.field for metric in metrics.STATS if metric.label} == with_label


def test_a_port_and_a_socket_serve_the_same_metrics(daemon: DaemonUnderTest, tmp_path: Path) -> None:
    with serving("0", environment(daemon)) as url:
        with urllib.request.urlopen(url, timeout=support_daemon.TIMEOUT_S) as answer:
            by_port = parsed(answer.read().decode())
        assert urllib.parse.urlsplit(url).hostname == "127.0.0.1"
    path = tmp_path / "metrics.sock"
    with serving(str(path), environment(daemon)) as where:
        assert where == str(path) and path.stat().st_mode & 0o777 == 0o600
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(path))
        connection.request("GET", "/metrics")
        by_socket = parsed(connection.getresponse().read().decode())
        connection.close()
    assert not path.exists()
    assert by_port.keys() == by_socket.keys()
    assert all(by_port[name] == by_socket[name] for name in by_port if name[0].endswith("_total"))


def test_the_file_for_node_exporter_is_written_atomically(daemon: DaemonUnderTest, tmp_path: Path) -> None:
    file = tmp_path / "precompiled.prom"
    said(daemon, "--textfile", str(file))
    assert parsed(file.read_text())["precompiled_hits_total", ""] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["precompiled.prom"]
    process = subprocess.Popen(command("--textfile", str(file), "--interval", "1"), env=environment(daemon))
    try:
        before = file.stat().st_ino
        wait_until(lambda: file.stat().st_ino != before, "it is written again")
        again = file.stat().st_ino
        wait_until(lambda: file.stat().st_ino != again, "and again")
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(support_daemon.TIMEOUT_S) == 0


def test_json_prints_the_samples(daemon: DaemonUnderTest) -> None:
    samples = json.loads(said(daemon, "--json"))
    assert {"name": "precompiled_hits_total", "labels": {}, "value": 3.0} in samples


def test_without_a_daemon_up_is_0(tmp_path: Path) -> None:
    absent = DaemonUnderTest(tmp_path / "absent")
    samples = parsed(said(absent))
    assert samples["precompiled_up", ""] == 0 and samples["precompiled_clients", ""] == 0
    assert not any(name.startswith("precompiled_hits") for name, _ in samples)


@pytest.mark.reason("listen", "metrics-unavailable")
def test_impossible_options_are_errors(daemon: DaemonUnderTest, tmp_path: Path) -> None:
    def refused(*arguments: str, env: Mapping[str, str] | None = None) -> str:
        variables = {**environment(daemon), **(env or {})}
        asked = command(*arguments, "--json")
        found = subprocess.run(asked, env=variables, capture_output=True, text=True, check=False)
        assert found.returncode in (1, 2)
        code: str = json.loads(found.stdout)["error"]["code"]
        return code

    assert refused("--listen", str(tmp_path / "absent" / "socket")) == "listen"
    (tmp_path / "file").write_text("not ours")
    assert refused("--listen", str(tmp_path / "file")) == "listen" and (tmp_path / "file").read_text() == "not ours"
    assert refused("--textfile", str(tmp_path / "absent" / "x.prom")) == "output-unwritable"
    assert refused("--listen", "9", "--textfile", "x") == refused("--interval", "5") == "usage"
    (tmp_path / "prometheus_client.py").write_text("raise ImportError")
    assert refused(env={"PYTHONPATH": str(tmp_path)}) == "metrics-unavailable"


# ---------------------------------------------------------------- the documentation and the files in monitoring/


def named(text: str) -> set[str]:
    return set(re.findall(r"precompiled_\w+", text))


def test_exactly_the_documented_metrics_exist() -> None:
    page = ROOT / "docs" / "guides" / "seeing.md"
    assert named(page.read_text()) - {"precompiled_" + way for way in _WAYS} == metrics.names()


# The page also lists names of artifacts in torch's traces, precompiled_<way>. These names are not metrics.
_WAYS = ("hit", "miss", "swap", "package", "in_process", "eager", "error", "frame")


@pytest.mark.parametrize("file", ["grafana.json", "alerts.yml"])
def test_monitoring_files_use_only_existing_metrics(file: str) -> None:
    used = named((MONITORING / file).read_text())
    assert used and used <= metrics.names()


def test_dashboard_panels_are_complete_and_show_counters_as_rates() -> None:
    board = json.loads((MONITORING / "grafana.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    assert all(target["expr"] and target["legendFormat"] for panel in panels for target in panel["targets"])
    # A panel must show a counter as a rate, and any other metric as it is.
    for panel in panels:
        for target in panel["targets"]:
            (name,) = named(target["expr"])
            assert ("rate(" in target["expr"]) == name.endswith("_total"), target["expr"]


PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool here (Debian: prometheus)")
def test_promtool_accepts_the_metrics_and_rules(daemon: DaemonUnderTest) -> None:
    assert PROMTOOL is not None
    subprocess.run([PROMTOOL, "check", "rules", MONITORING / "alerts.yml"], check=True, capture_output=True)
    found = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=said(daemon), capture_output=True, text=True, check=False
    )
    assert found.returncode == 0 and not found.stderr, found.stderr


@pytest.mark.slow
@pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus here (Debian: prometheus)")
def test_prometheus_scrapes_metrics_and_evaluates_board_and_rules(daemon: DaemonUnderTest, tmp_path: Path) -> None:
    assert PROMETHEUS is not None
    with serving("0", environment(daemon)) as url, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(MONITORING / "alerts.yml")],
            "scrape_configs": [
                {"job_name": "precompiled", "static_configs": [{"targets": [urllib.parse.urlsplit(url).netloc]}]}
            ],
        }
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # every JSON document is a YAML document
        process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stderr=subprocess.DEVNULL,
        )
        try:

            def ask(path: str, **query: str) -> dict[str, object]:
                try:
                    with urllib.request.urlopen(
                        f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=10
                    ) as answer:
                        found: dict[str, object] = json.loads(answer.read())
                        return found
                except OSError:
                    return {}

            def value(expression: str) -> list[str]:
                data = ask("query", query=expression).get("data")
                return [row["value"][1] for row in data["result"]] if isinstance(data, dict) else []

            wait_until(lambda: value("precompiled_hits_total") == ["3"], "it is scraped")
            board = json.loads((MONITORING / "grafana.json").read_text())
            for panel in board["panels"]:
                for target in panel["targets"]:
                    answer = ask("query", query=target["expr"].replace("$host", ".*"))
                    assert answer.get("status") == "success", target["expr"]

            def healths() -> set[str]:
                data = ask("rules").get("data")
                groups = data["groups"] if isinstance(data, dict) else []
                return {rule["health"] for group in groups for rule in group["rules"]}

            wait_until(lambda: healths() == {"ok"}, "all rules were evaluated")
        finally:
            process.terminate()
            process.wait(support_daemon.TIMEOUT_S)
