"""Defines the report of a frame: whether a package served the frame, or why not."""

from __future__ import annotations

from dataclasses import dataclass

from precompiled.client.report_table import ReportTable

# The reason of a trace if the store has entries of the function, but none of this program as it is now. A client does
# not read the records of earlier runs, so only the command line can say more (cli/outcomes.py).
OTHER_PROGRAMS = "its packages belong to other programs, or to this program with other code or modules"


@dataclass
class FunctionReport:
    """What happened when Dynamo had no code for a frame.

    ``state`` is one of:

    - "used": a package served the frame, without a trace.
    - "skipped": the frame runs uncompiled, without a trace, because a
      package records that Dynamo skips it.
    - "recorded": Dynamo traced the frame, and a package was written.
    - "traced": Dynamo traced the frame, and no package was written.
      ``reason`` has the code, ``message`` explains it.
    - "raised": torch raised an error during the trace, so no graph exists.
      ``message`` has the error's first line.
    - "interrupted": Ctrl-C or ``sys.exit`` ended the program's call during
      the trace.
    - "audited": a package fits, but Dynamo traced the frame to check the
      package. Trace and package agree.

    ``reasons`` says, for each entry of the function, why the entry was not
    used. Once a package is written, the entry with the fewest differences
    comes first, as in ``precompiled explain FUNCTION``.
    """

    name: str  # module.qualified name; for a module of torch's own (nn.Sequential), the name of its class
    state: str
    reason: str = ""
    message: str = ""
    reasons: tuple[str, ...] = ()
    guards: int = 0
    find_s: float = 0.0

    def __repr__(self) -> str:
        return f"<FunctionReport {self.name}: {self.state}{f' ({self.reason})' if self.reason else ''}>"


class FunctionReports(ReportTable[FunctionReport]):
    """The result of ``precompiled.package_report()``."""

    heads = ("FUNCTION", "STATE", "GUARDS")
    empty = "no frame yet: Dynamo has handled no frame with tensors while packages were on"

    def cells(self, report: FunctionReport) -> tuple[object, ...]:
        return report.name, report.state, report.guards

    def note(self, report: FunctionReport) -> str:
        why = f"{report.reason}: {report.message}" if report.reason else "".join(report.reasons[:1]) or report.message
        return why.partition("\n")[0]
