"""Tests of the daemon's log: each record is one line, and the number of lines per user is limited."""

from __future__ import annotations

import logging

from precompiled.service.log_lines import BURST, PER_S, LineFormatter, UserLines, escape, plain


def formatted(text: str, error: BaseException | None = None) -> str:
    record = logging.LogRecord("n", logging.INFO, "f", 1, "says %s", (text,), None)
    if error is not None:
        record.exc_info = (type(error), error, None)
    return LineFormatter("%(levelname)s: %(message)s").format(record)


def test_a_record_is_always_one_line() -> None:
    assert formatted("a\nINFO: forged\r\x1b[2J\u2028\u202e\x85b") == (
        "INFO: says a\\nINFO: forged\\r\\x1b[2J\\u2028\\u202e\\x85b"
    )
    assert formatted("häßlich 名") == "INFO: says häßlich 名"
    assert len(formatted("x" * 100_000)) < 5000


def test_traceback_lines_are_marked() -> None:
    lines = formatted("x", ValueError("one\nINFO: forged\n\x1b")).split("\n")
    assert lines[0] == "INFO: says x" and all(line.startswith("  | ") for line in lines[1:])
    assert any("forged" in line for line in lines) and "\x1b" not in "".join(lines)


def test_texts_for_tables_are_cut_and_escaped() -> None:
    assert plain("a\tb" * 100, 5) == "a\\tba\\t"
    assert escape("plain") == "plain"


def test_lines_over_a_users_limit_are_dropped_and_other_users_keep_theirs() -> None:
    now = 100.0
    lines = UserLines(lambda: now)
    assert sum(lines.allows(1) for _ in range(1000)) == BURST
    assert lines.allows(2)
    assert lines.dropped() == {1: 1000 - BURST} and lines.dropped() == {}
    now += 1.0
    assert sum(lines.allows(1) for _ in range(1000)) == PER_S
    assert lines.dropped() == {}, "the next report comes only after REPORT_S"
    now += 100.0
    assert lines.dropped() == {1: 1000 - PER_S}
    assert sum(lines.allows(1) for _ in range(1000)) == BURST
