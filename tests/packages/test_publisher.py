"""Tests that the thread that writes packages continues after any exception of a write."""

from __future__ import annotations

from typing import Any

from precompiled.packages.publisher import Publisher


class _NoException(BaseException):
    """An error that does not derive from Exception. A program's objects may raise such errors."""


def test_write_that_raises_is_reported_and_does_not_block_later_writes() -> None:
    publisher, written, reported = Publisher(), [], []

    def raising(error: BaseException) -> Any:
        raise error

    publisher.publish(lambda: raising(_NoException()), lambda error: reported.append(type(error)))
    publisher.publish(lambda: raising(OSError("full")), lambda error: raising(_NoException()))
    publisher.publish(lambda: written.append("the next"), lambda error: reported.append(type(error)))
    assert publisher.flush(20)
    assert reported == [_NoException] and written == ["the next"]
