"""All metrics: their names, meanings and sources. docs/guides/seeing.md lists the same names.

Converts the documents of `status`, `cache stats` and the remote's helper into prometheus_client's families. Makes no
requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from precompiled.cli.top_view import STATES, Look

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

PREFIX = "precompiled_"


@dataclass(frozen=True)
class Row:
    """A metric.

    ``field``: the reply's field with the metric's value. ``label``: if the value is a table, the Prometheus label for
    the table's keys. ``counts``: whether the metric is a counter instead of a gauge.
    """

    name: str
    help: str
    field: str
    label: str = ""
    counts: bool = True


# All fields of wire.StatsReply.
STATS = (
    Row("hits", "graphs whose artifact was in the store", "hits"),
    Row("misses", "graphs that no artifact served when they were traced", "misses"),
    Row("submitted", "graphs that clients sent", "submitted"),
    Row("deduplicated", "graphs that clients sent while a job for the same graph existed", "deduplicated"),
    Row("compiled", "jobs whose artifact was published", "compiled"),
    Row("failed", "jobs that failed", "failed"),
    Row("swapped", "graphs that changed from eager to compiled code", "swapped"),
    Row("retried", "jobs that ran again because their worker died", "retried"),
    Row("untraced_frames", "frames that a package served without a trace", "untraced"),
    Row("traced_frames", "frames that Dynamo traced while packages were on", "traced"),
    Row("compile_seconds", "seconds that workers spent on compiles", "compile_s"),
    Row("saved_seconds", "compile seconds that cache hits saved", "saved_s"),
    Row("fallbacks", "graphs that a fallback left unserved, by reason", "fallbacks", "reason"),
    Row("bypassed", "graphs that were bypassed, by reason", "bypassed", "reason"),
    Row("not_served", "graphs whose calls raised NotServed, by reason", "not_served", "reason"),
    Row("rejected", "requests that the daemon rejected, by reason", "rejected", "reason"),
    Row("not_kept_frames", "traced frames without a package, by reason", "not_kept", "reason"),
    Row("from_base", "graphs whose artifact was in a base store", "from_base", "base"),
)
# Fields of wire.StatusReply.
STATUS = (
    Row("uptime_seconds", "seconds since the daemon started", "uptime_s", counts=False),
    Row("queue_depth", "jobs that wait for a worker", "queue_depth", counts=False),
    Row("daemon_memory_bytes", "resident memory of the daemon", "rss_bytes", counts=False),
)
# Fields of the helper's state (remote/helper.py), if a remote is set.
REMOTE = (
    Row("remote_fetched", "objects that the helper fetched", "fetched"),
    Row("remote_put", "objects that the helper uploaded", "put"),
    Row("remote_absent", "keys that the remote lacked, so this host compiled them", "absent"),
    Row("remote_fetched_bytes", "bytes that the helper fetched", "bytes_fetched"),
    Row("remote_put_bytes", "bytes that the helper uploaded", "bytes_put"),
    Row("remote_refused", "objects that the helper refused, by reason", "refused", "reason"),
    Row("remote_failed", "requests that the remote did not answer, by reason", "failed", "reason"),
    Row("remote_given_up", "objects whose upload the helper gave up", "given_up"),
    Row("remote_waiting", "objects that wait for their upload", "waiting", counts=False),
)
# Metrics that are computed in this module.
MORE = (
    Row("up", "1 if a daemon answers", "", counts=False),
    Row("build_info", "1; the label is the daemon's version", "version", "version", counts=False),
    Row("degraded", "number of problems: see `precompiled status`", "degraded", counts=False),
    Row("workers", "worker processes, by state", "workers", "state", counts=False),
    Row("workers_memory_bytes", "resident memory of the workers and their child processes", "workers", counts=False),
    Row("longest_job_seconds", "age of the oldest running job", "workers", counts=False),
    Row("clients", "live processes that have had a graph", "clients", counts=False),
    Row("client_graphs", "graphs of live processes, by how they run", "graphs", "state", counts=False),
    Row("remote_up", "1 if the remote's helper runs and the remote answers", "state", counts=False),
)
WORKER_STATES = ("starting", "idle", "busy", "stopping")


def names() -> set[str]:
    """The names of all metrics, as Prometheus scrapes them."""
    return {f"{PREFIX}{row.name}{'_total' * row.counts}" for row in (*STATS, *STATUS, *REMOTE, *MORE)}


def families(look: Look, remote: dict[str, Any] | None) -> Iterator[Metric]:
    """All metric families that have values.

    If no daemon runs, only `up` (0), the metrics of clients, and the metrics of the remote have values.
    """
    more = {row.name: row for row in MORE}
    yield _family(more["up"], [((), look.status is not None)])
    yield _family(more["clients"], [((), len(look.clients))])
    states = Counter(graph.state for graph in look.graphs)
    yield _family(more["client_graphs"], [((state,), states[state]) for state in STATES])
    if remote is not None:
        yield from _fields(REMOTE, remote)
        yield _family(more["remote_up"], [((), bool(remote["running"]) and remote["state"] == "ok")])
    if look.status is None or look.stats is None:
        return
    status = look.status
    yield from _fields(STATS, look.stats)
    yield from _fields(STATUS, status)
    yield _family(more["build_info"], [((status["version"],), 1)])
    yield _family(more["degraded"], [((), len(status["degraded"]))])
    by_state = Counter(worker["state"] for worker in status["workers"])
    yield _family(more["workers"], [((state,), by_state[state]) for state in WORKER_STATES])
    yield _family(more["workers_memory_bytes"], [((), sum(worker["rss_bytes"] for worker in status["workers"]))])
    yield _family(
        more["longest_job_seconds"], [((), max((worker["job_s"] for worker in status["workers"]), default=0.0))]
    )


def _fields(table: Iterable[Row], document: dict[str, Any]) -> Iterator[Metric]:
    for row in table:
        if row.field not in document:  # a helper without a recorded state, or a daemon of an earlier version
            continue
        value = document[row.field]
        rows = [((key,), amount) for key, amount in sorted(value.items())] if row.label else [((), value)]
        yield _family(row, rows)


def _family(row: Row, rows: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if row.counts else GaugeMetricFamily
    found = kind(PREFIX + row.name, row.help, labels=[row.label] if row.label else [])
    for labels, value in rows:
        found.add_metric(labels, float(value))
    return found
