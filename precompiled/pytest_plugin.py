"""The pytest plugin: with `pytest --precompiled=wait|require|off`, the daemon compiles the tests' graphs.

pytest imports this file wherever precompiled is installed. So it imports no other module of precompiled, and no torch,
until the option is given. Under xdist each worker counts its own graphs, and the controller adds the counts up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from precompiled.client.ledger import GraphReport

_HELP = """Graphs of torch.compile by precompiled: "wait" (each waits for its artifact), "require" (a test \
fails if the daemon does not serve its graph), or "off". Default: as without pytest."""
MAX_SHOWN = 40


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("precompiled")
    group.addoption("--precompiled", choices=("wait", "require", "off"), default=None, help=_HELP)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    wanted = config.getoption("--precompiled")
    if wanted is not None:
        config.pluginmanager.register(Reporter(config, wanted, _switch(wanted)), "precompiled-report")


def _switch(wanted: str) -> str:
    """Apply the option to this process and to Python processes that tests start. Returns text for pytest's header."""
    import os

    from precompiled import hook
    from precompiled.client.process import PROCESS
    from precompiled.core import python_path
    from precompiled.core.errors import PrecompiledError
    from precompiled.version import switched_off

    if wanted == "off":
        os.environ["PRECOMPILED"] = "0"
        hook.disable()
        return "off"
    if switched_off(os.environ):
        return f"off, since PRECOMPILED={os.environ['PRECOMPILED']} is set"
    require = wanted == "require"
    os.environ.update(python_path.with_hook(os.environ))
    # If graphs ran in pieces at first, a test's results could change between two calls. The report at the end replaces
    # the progress lines.
    given = {"require": require, "tiers": "default", "progress": "off"}
    os.environ.update(PRECOMPILED_MODE="wait", PRECOMPILED_REQUIRE="1" if require else "0", PRECOMPILED_TIERS="default")
    PROCESS.given.update(given)
    try:
        hook.enable("wait")
    except PrecompiledError as error:
        raise pytest.UsageError(f"--precompiled={wanted}: {error}") from error
    return wanted


@dataclass
class Totals:
    """Counts of one or several processes. All values are plain, because xdist's workers send them."""

    # Maps a source of graphs ("hit", "swap", ...), or the state of graphs without a source, to the number of graphs.
    ways: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    saved_s: float = 0.0
    waited_s: float = 0.0
    # One row per graph that no artifact of the daemon served: test, graph, outcome, code, sentence.
    not_served: list[list[str]] = field(default_factory=list)
    lost: int = 0  # xdist workers that ended without a result

    def add(self, other: Totals) -> None:
        self.ways = dict(Counter(self.ways) + Counter(other.ways))
        self.reasons = dict(Counter(self.reasons) + Counter(other.reasons))
        self.saved_s += other.saved_s
        self.waited_s += other.waited_s
        self.not_served += other.not_served
        self.lost += other.lost

    def count(self, graph: GraphReport, test: str) -> None:
        way = graph.source if graph.state == "compiled" and graph.source else graph.state
        self.ways[way] = self.ways.get(way, 0) + 1
        self.saved_s += graph.saved_s
        self.waited_s += graph.lookup_s + graph.load_s + graph.swapped_after_s
        if way not in _SERVED:
            said = (graph.message.strip().splitlines() or [""])[0]
            self.reasons[graph.reason or way] = self.reasons.get(graph.reason or way, 0) + 1
            self.not_served.append([test, graph.name, _WAYS.get(way, way), graph.reason, said])


_SERVED = {"hit": "found in the store", "swap": "compiled for this run", "package": "from a package, without a trace"}
_WAYS = {"bypassed": "compiled in process", "pending": "still pending", "failed": "not compiled"}


class Reporter:
    """Records in which test each graph was captured, and reports on all graphs at the end."""

    def __init__(self, config: pytest.Config, wanted: str, state: str) -> None:
        self._config = config
        self._wanted = wanted
        self._state = state
        self._tests: dict[str, str] = {}  # maps the id of a graph to the test that captured it
        self._session: object = None
        self._seen = 0
        self._of_workers: Totals | None = None

    def pytest_report_header(self) -> str:
        return f"precompiled: {self._state}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            for report in self._reports():
                self._tests[report.id] = item.nodeid

    def _reports(self) -> list[GraphReport]:
        """The reports that are new since the last call."""
        from precompiled.client.process import PROCESS

        if PROCESS.session is not self._session:
            self._session, self._seen = PROCESS.session, 0
        if self._session is None:
            return []
        found: list[GraphReport] = self._session.reports(self._seen)
        self._seen += len(found)
        return found

    def _totals(self) -> Totals:
        from precompiled.client.process import PROCESS

        totals = Totals()
        for report in [] if PROCESS.session is None else PROCESS.session.reports():
            totals.count(report, self._tests.get(report.id, "outside of the tests"))
        return totals

    # ------------------------------------------------------------------ the end

    def pytest_sessionfinish(self) -> None:
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output["precompiled"] = asdict(self._totals())

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        counts = getattr(node, "workeroutput", {}).get("precompiled")
        self._of_workers = self._of_workers or Totals()
        self._of_workers.add(Totals(lost=1) if counts is None else Totals(**counts))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._state != self._wanted or self._wanted == "off":
            return
        totals = self._totals()
        if self._of_workers is not None:
            totals.add(self._of_workers)
        terminalreporter.section(f"precompiled ({self._wanted})")
        for line in format_report(totals):
            terminalreporter.write_line(line)


def format_report(totals: Totals) -> list[str]:
    """The lines of the report."""
    from precompiled.core.words import describe_saved, format_count, human_seconds

    number = sum(totals.ways.values())
    served = sum(totals.ways.get(way, 0) for way in _SERVED)
    lines = [f"{format_count(number, 'graph', zero='no')}, {served} by the daemon" if number else "no graphs"]
    if served:
        by = ", ".join(f"{totals.ways[way]} {text}" for way, text in _SERVED.items() if totals.ways.get(way))
        lines[0] += f" ({by})"
    if number:
        saved = f"compiles saved: {describe_saved(totals.saved_s)}; " if totals.saved_s else ""
        lines.append(f"{saved}waited for lookups, loads and compiles: {human_seconds(totals.waited_s)}")
    if totals.reasons:
        most = sorted(totals.reasons.items(), key=lambda item: (-item[1], item[0]))
        left = ", ".join(f"{code} {count}" for code, count in most)
        lines.append(f"{format_count(number - served, 'graph was', 'graphs were')} not served: {left}")
    for test, name, way, code, sentence in totals.not_served[:MAX_SHOWN]:
        lines.append(f"  {test}: {name}, {way}{f' ({code})' if code else ''}{f': {sentence}' if sentence else ''}")
    if len(totals.not_served) > MAX_SHOWN:
        lines.append(f"  and {len(totals.not_served) - MAX_SHOWN} more")
    codes = sorted(code for code in totals.reasons if "-" in code)
    if codes:
        lines.append(f"`precompiled explain {codes[0]}` says what you can do")
    if totals.lost:
        lines.append(f"{format_count(totals.lost, 'worker')} ended without a report, so their graphs are not counted")
    return lines
