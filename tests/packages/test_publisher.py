"""The thread that writes packages outlives whatever a write raises."""

from __future__ import annotations

from typing import Any

from precompiled.packages.publisher import Publisher


class _NoException(BaseException):
    """What an object of the program may raise as well."""


def test_a_write_that_raises_anything_is_reported_and_holds_up_nothing() -> None:
    publisher, written, reported = Publisher(), [], []

    def raising(error: BaseException) -> Any:
        raise error

    publisher.publish(lambda: raising(_NoException()), lambda error: reported.append(type(error)))
    publisher.publish(lambda: raising(OSError("full")), lambda error: raising(_NoException()))
    publisher.publish(lambda: written.append("the next"), lambda error: reported.append(type(error)))
    assert publisher.flush(20)
    assert reported == [_NoException] and written == ["the next"]
