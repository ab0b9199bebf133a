"""Support: the test process as a client of a separate host, with its reports and counts.

The session differs from a real one only in compiles in process: instead of a compile, it runs the graph eager. These
tests check why a graph is not served. tests/e2e covers the compiled code.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import precompiled
from precompiled.client import session as sessions
from precompiled.client import submit
from precompiled.client.count_sender import CountSender
from precompiled.client.ledger import GraphReport
from precompiled.client.process import PROCESS
from precompiled.client.session import Session
from precompiled.graph.capture import SerializedGraph
from precompiled.torch_internals.client import inductor_backend
from precompiled.torch_internals.graph import graph_codec


@dataclass
class ThisProcess:
    """A client session in the test process. ``in_process`` lists the graphs that plain torch.compile would compile."""

    session: Session
    in_process: list[torch.fx.GraphModule]

    def call(self, function: Callable[..., Any], *inputs: Any, **compile_arguments: Any) -> Any:
        """Compile ``function`` with ``backend="precompiled"``, and call it once."""
        torch._dynamo.reset()
        return torch.compile(function, **{"backend": "precompiled", **compile_arguments})(*inputs)

    def reports(self) -> list[GraphReport]:
        return precompiled.report()

    def counted(self, kind: str) -> dict[str, int]:
        """Returns the counts of one kind, as the daemon would receive them, and resets all counts."""
        counted: dict[str, int] = self.session.ledger.take_counts().get(kind, {})
        return counted

    def refuses(
        self, code: str, function: Callable[..., Any], *inputs: Any, compare: bool = True, **compile: Any
    ) -> str:
        """Check that one graph of ``function`` is bypassed with ``code``, and that the bypass is reported and counted.

        Returns the message. The result must equal eager's. With ``compare=False`` the call must fail, because the
        machine does not have the device.
        """
        before = len(self.reports())
        if compare:
            torch.testing.assert_close(self.call(function, *inputs, **compile), function(*inputs))
        else:
            with pytest.raises((RuntimeError, AssertionError, NotImplementedError)):
                self.call(function, *inputs, **compile)
        return self.was_refused(code, since=before)

    def was_refused(self, code: str, *, since: int = 0) -> str:
        """Check that exactly one of the graphs reported after the first ``since`` was bypassed with ``code``."""
        found = [graph for graph in self.reports()[since:] if graph.reason != "lookup-only" or code == "lookup-only"]
        assert [(graph.state, graph.source, graph.reason) for graph in found] == [("bypassed", "inline", code)], found
        counted = self.counted("bypassed")
        assert counted.pop("lookup-only", None) == 1 if code == "lookup-only" else counted.get(code) == 1, counted
        assert len(found[0].message.split()) > 2, "the message is too short to help a user"
        return found[0].message


def _runs_eager(left: list[torch.fx.GraphModule], module: torch.fx.GraphModule, *_: Any) -> Callable[..., Any]:
    left.append(module)
    return module.forward


def _runs_program_eager(program: SerializedGraph, *_: Any) -> tuple[Callable[..., Any], str]:
    return graph_codec.decode(json.loads(program.sections["graph"])).forward, ""


@contextmanager
def this_process(settings: Mapping[str, str] | None = None) -> Iterator[ThisProcess]:
    """Start a separate session in an empty directory, without a daemon. The mode is "lookup" by default."""
    left: list[torch.fx.GraphModule] = []
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRECOMPILED")}
    with (
        tempfile.TemporaryDirectory(prefix="pc-") as directory,
        mock.patch.dict(
            os.environ,
            {
                **kept,
                "PRECOMPILED_CACHE_DIR": str(Path(directory) / "store"),
                "PRECOMPILED_RUNTIME_DIR": str(Path(directory) / "run"),
                "PRECOMPILED_AUTOSTART": "0",
                "PRECOMPILED_MODE": "lookup",
                "PRECOMPILED_CHECK": "never",
                "TORCHINDUCTOR_CACHE_DIR": str(Path(directory) / "inductor"),
                **(settings or {}),
            },
            clear=True,
        ),
        mock.patch.object(PROCESS, "session", None),
        mock.patch.object(PROCESS, "packages", None),
        mock.patch.object(inductor_backend, "compile_in_process", functools.partial(_runs_eager, left)),
        mock.patch.object(submit, "compile_inline", _runs_program_eager),
        # The tests read the counts of the process, so the client must not send them to a daemon first.
        mock.patch.object(CountSender, "changed", lambda sender: None),
    ):
        session = sessions.current()
        try:
            yield ThisProcess(session, left)
        finally:
            torch._dynamo.reset()
            session.pending.close(10)
            session.connection.close()


@contextmanager
def deaf_daemon(**settings: str) -> Iterator[ThisProcess]:
    """Start a session whose daemon accepts connections but never replies, so graphs stay pending."""
    with this_process({"PRECOMPILED_MODE": "eager", **settings}) as here:
        runtime_dir = here.session.settings.runtime_dir
        runtime_dir.mkdir(mode=0o700)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(runtime_dir / "socket"))
            listening.listen(100)
            yield here
