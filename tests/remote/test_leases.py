"""Tests of leases: one of the hosts that miss a key compiles it, and no host waits for a holder that is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from support_daemon import wait_until
from support_remote import host, memory
from support_store import KEY, OTHER, payload

from precompiled.remote import bucket, claims, envelope, lease
from precompiled.remote.bucket import Bucket
from precompiled.remote.claims import Claims
from precompiled.remote.errors import RemoteError
from precompiled.remote.lease import Claim, Found
from precompiled.remote.transfer import Transfer


@dataclass
class Clock:
    """The clock of one host. Clocks of hosts are independent."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def names(there: Transfer, key: str = KEY) -> list[str]:
    return sorted(name for name in there.bucket.listed(f"artifacts/{key}") if lease.is_lease(name))


def compiled(there: Transfer, claim: Claim, key: str = KEY) -> None:
    there.put_artifact(there.store.publish(payload(key)))
    claim.end()


def test_one_of_two_hosts_compiles_and_the_other_fetches(url: str, tmp_path: Path) -> None:
    a, b = host(tmp_path / "a", url), host(tmp_path / "b", url)
    mine, theirs = Claim(a, KEY), Claim(b, KEY)
    assert (mine.look(), theirs.look(), Claim(b, OTHER).look()) == (Found.MINE, Found.THEIRS, Found.MINE)
    assert mine.beat() and theirs.look() is Found.THEIRS
    compiled(a, mine)
    assert theirs.look() is Found.HERE and b.store.lookup(KEY) and names(a) == []
    assert (a.counts.absent, b.counts.absent) == (1, 1)


def test_one_of_many_concurrent_creates_succeeds(url: str) -> None:
    places = [Bucket(url, 30.0) for _ in range(16)]
    together = threading.Barrier(len(places))

    def put(number: int) -> bool:
        together.wait()
        return places[number].create("a/lease", str(number).encode())

    with ThreadPoolExecutor(len(places)) as pool:
        assert sum(pool.map(put, range(len(places)))) == 1


def looks(claim: Claim, clock: Clock, seconds: float) -> Found:
    """Call ``look`` as often as the helper does, until the result is not THEIRS, for at most ``seconds``."""
    for _ in range(int(seconds / claim.beat_s)):
        clock.now += claim.beat_s
        if (found := claim.look()) is not Found.THEIRS:
            return found
    return Found.THEIRS


@pytest.mark.fault("clocks")
@pytest.mark.parametrize("off_s", [0.0, 3600.0, -3600.0, 365 * 86400.0, -365 * 86400.0])
def test_lease_of_a_dead_holder_expires_at_any_clock_difference(url: str, tmp_path: Path, off_s: float) -> None:
    a, b, c = (host(tmp_path / name, url) for name in "abc")
    dead, clock = Claim(a, KEY, clock=Clock(5.0)), Clock(1e6 + off_s)
    waiting = Claim(b, KEY, clock=clock)
    assert dead.look() is Found.MINE and waiting.look() is Found.THEIRS
    # As long as a holder renews its lease, the lease does not expire.
    for _ in range(5):
        assert dead.beat() and looks(waiting, clock, lease.TTL_S * 0.7) is Found.THEIRS
    assert looks(waiting, clock, lease.TTL_S) is Found.MINE and waiting.fence == 2
    # The first holder was only slow. This holder stops when it finds the new lease's higher fence, and a third host
    # waits for the new holder.
    assert not dead.beat() and Claim(c, KEY).look() is Found.THEIRS
    compiled(b, waiting)
    assert names(a) == [] and Claim(c, KEY).look() is Found.HERE


@pytest.mark.fault("clocks")
def test_time_without_answers_does_not_expire_a_lease(tmp_path: Path) -> None:
    url = memory()
    a, b, clock = host(tmp_path / "a", url), host(tmp_path / "b", url), Clock()
    Claim(a, KEY).look()
    waiting = Claim(b, KEY, clock=clock)
    assert waiting.look() is Found.THEIRS
    clock.now += 10 * lease.TTL_S  # for example because this host could not reach the remote
    assert waiting.look() is Found.THEIRS


def test_artifact_put_before_the_lease_is_not_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = memory()
    a, b = host(tmp_path / "a", url), host(tmp_path / "b", url)
    create = b.bucket.create

    def late(path: str, data: bytes) -> bool:
        a.put_artifact(a.store.publish(payload()))
        return create(path, data)

    monkeypatch.setattr(b.bucket, "create", late)
    assert Claim(b, KEY).look() is Found.HERE and names(a) == []


@pytest.mark.fault("remote")
def test_host_that_loses_the_remote_leaves_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = host(tmp_path / "a", memory())
    fetch, create = a.fetch, a.bucket.create

    def refuse(*_: object) -> int:
        raise RemoteError("no answer", "", code="remote-timeout")

    def made(path: str, data: bytes) -> bool:
        monkeypatch.setattr(a, "fetch", refuse)
        return create(path, data)

    monkeypatch.setattr(a.bucket, "create", made)
    with pytest.raises(RemoteError, match="no answer"):
        Claim(a, KEY).look()
    assert names(a) == []
    monkeypatch.setattr(a, "fetch", fetch)
    monkeypatch.setattr(a.bucket, "create", create)
    assert Claim(a, KEY).look() is Found.MINE


@pytest.mark.fault("remote")
def test_after_a_failed_holder_each_host_compiles_itself(url: str, tmp_path: Path) -> None:
    a, b = host(tmp_path / "a", url), host(tmp_path / "b", url)
    mine, theirs = Claim(a, KEY), Claim(b, KEY)
    assert (mine.look(), theirs.look()) == (Found.MINE, Found.THEIRS)
    mine.give_up()
    assert (theirs.look(), Claim(b, KEY).look()) == (Found.ALONE, Found.ALONE)


def test_host_without_put_waits_for_others_and_holds_no_lease(tmp_path: Path) -> None:
    url = memory()
    a, b = host(tmp_path / "a", url), host(tmp_path / "b", url)
    assert Claim(b, KEY, may_hold=False).look() is Found.ALONE and names(b) == []
    Claim(a, KEY).look()
    assert Claim(b, KEY, may_hold=False).look() is Found.THEIRS


class Others:
    """The trust of a host that trusts only its own signature."""

    by = "0123456789abcdef"

    def believes(self, by: str) -> bool:
        return by == self.by

    def check(self, envelope: envelope.Envelope) -> None:
        pass

    def signed(self, envelope: envelope.Envelope) -> envelope.Envelope:
        return envelope


class Mine(Others):
    by = "fedcba9876543210"


@pytest.mark.fault("remote")
def test_host_does_not_wait_for_an_untrusted_holder(tmp_path: Path) -> None:
    url = memory()
    a, b = host(tmp_path / "a", url, Others()), host(tmp_path / "b", url, Mine())
    assert Claim(a, KEY).look() is Found.MINE and Claim(b, KEY).look() is Found.MINE and len(names(a)) == 2


# ---------------------------------------------------------------- the helper's claims


@pytest.fixture
def failed() -> list[Exception]:
    return []


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "LOOK_S", (0.02, 0.05))
    monkeypatch.setattr(claims, "ANSWER_S", 5.0)


def decided(asked: Callable[[], dict[str, object]]) -> dict[str, object]:
    answers: list[dict[str, object]] = []

    def is_decided() -> bool:
        answers.append(asked())
        return "again_s" not in answers[-1]

    wait_until(is_decided)
    return answers[-1]


@pytest.mark.usefixtures("quick")
def test_one_of_two_hosts_workers_compiles(url: str, tmp_path: Path, failed: list[Exception]) -> None:
    a, b = host(tmp_path / "a", url), host(tmp_path / "b", url)
    of_a, of_b = (Claims(failed.append, may_hold=True) for _ in "ab")
    assert of_a.ask(a, KEY) == {"compile": True} and of_a.held == 1
    assert "again_s" in of_a.ask(a, KEY) and "again_s" in of_b.ask(b, KEY)
    a.put_artifact(a.store.publish(payload()))
    of_a.ended(KEY, "put")
    # The artifact arrives at host b before b's worker asks again.
    wait_until(lambda: b.store.lookup(KEY))
    assert decided(lambda: of_b.ask(b, KEY)) == {"found": True}
    wait_until(lambda: names(a) == [] and of_a.held == 0)
    assert failed == []


@pytest.mark.fault("remote")
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("how", ["", "failed"])
def test_worker_that_ends_without_an_artifact_releases_its_lease(
    how: str, tmp_path: Path, failed: list[Exception]
) -> None:
    url = memory()
    a, b = host(tmp_path / "a", url), host(tmp_path / "b", url)
    of_a, of_b = (Claims(failed.append, may_hold=True) for _ in "ab")
    assert of_a.ask(a, KEY) == {"compile": True} and "again_s" in of_b.ask(b, KEY)
    of_a.ended(KEY, how)
    assert decided(lambda: of_b.ask(b, KEY)) == {"compile": True}
    assert of_b.held == (how == "")


@pytest.mark.fault("remote")
@pytest.mark.usefixtures("quick")
def test_holder_renews_its_lease_and_is_replaced_if_it_stops(tmp_path: Path, failed: list[Exception]) -> None:
    url = memory()
    a, b, c = (host(tmp_path / name, url) for name in "abc")
    of_a, of_b = (Claims(failed.append, may_hold=True, ttl_s=0.6) for _ in "ab")
    assert of_a.ask(a, KEY) == {"compile": True} and "again_s" in of_b.ask(b, KEY)

    def size() -> int:
        (found,) = b.bucket.listed(f"artifacts/{KEY}").values()
        return found

    first = size()
    wait_until(lambda: size() >= first + 2 * lease.BEATS)  # these renewals take twice the lease's time
    assert "again_s" in of_b.ask(b, KEY)
    of_a.ended(KEY, "")
    assert decided(lambda: of_b.ask(b, KEY)) == {"compile": True}
    # Host c takes a lease and disappears without releasing the lease.
    Claim(c, OTHER).look()
    assert decided(lambda: of_b.ask(b, OTHER)) == {"compile": True} and names(b, OTHER)[-1].endswith("2")


class Slow(Bucket):
    """A place that does not answer until the test sets ``answers``."""

    def __init__(self, url: str) -> None:
        super().__init__(url, 30.0)
        self.answers = threading.Event()

    def listed(self, folder: str) -> dict[str, int]:
        self.answers.wait(30.0)
        return super().listed(folder)


def slow_host(root: Path, url: str) -> tuple[Transfer, Slow]:
    bucket, there = Slow(url), host(root, url)
    return Transfer(there.store, bucket, there.trust), bucket


@pytest.mark.usefixtures("quick")
def test_unused_lease_is_given_back(tmp_path: Path, failed: list[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "ANSWER_S", 0.0)
    there, bucket = slow_host(tmp_path / "a", memory())
    mine = Claims(failed.append, may_hold=True, ttl_s=0.3)
    assert "again_s" in mine.ask(there, KEY)
    bucket.answers.set()  # the remote answers after the helper's reply to the worker, so no worker has the lease
    wait_until(lambda: names(there))
    monkeypatch.setattr(claims, "UNCLAIMED_S", 0.05)
    wait_until(lambda: not names(there))
    assert mine.held == 0


@pytest.mark.fault("remote")
def test_unresponsive_remote_does_not_block_a_worker(
    tmp_path: Path, failed: list[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "ANSWER_S", 0.01)
    monkeypatch.setattr(claims, "PATIENCE_S", 0.2)
    there, bucket = slow_host(tmp_path / "a", memory())
    mine = Claims(failed.append, may_hold=True)
    began = time.monotonic()
    assert "again_s" in mine.ask(there, KEY) and time.monotonic() - began < 0.2
    assert decided(lambda: mine.ask(there, KEY)) == {"compile": True} and mine.held == 0
    # The remote answers only now. No worker waits for the lease any more, so the helper gives it back.
    bucket.answers.set()
    assert decided(lambda: mine.ask(there, OTHER)) == {"compile": True}
    wait_until(lambda: not names(there))


@pytest.mark.fault("remote")
@pytest.mark.usefixtures("quick")
def test_failing_remote_lets_each_host_compile(
    tmp_path: Path, failed: list[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = host(tmp_path / "a", memory())

    def fails(_: str) -> Iterator[None]:
        raise RemoteError("no", code="remote-unreachable")

    monkeypatch.setattr(there.bucket, "listed", fails)
    assert Claims(failed.append, may_hold=True).ask(there, KEY) == {"compile": True}
    assert isinstance(failed[0], RemoteError)


def test_new_lease_is_never_seen_as_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts read an empty lease as "its holder could not compile", so a new lease must never appear empty."""
    url = f"file://{tmp_path / 'bucket'}"
    a, b = host(tmp_path / "a", url), host(tmp_path / "b", url)
    write, seen = bucket.durable.write, []

    def watched(path: Path, *rest: object) -> None:
        seen.append(Claim(b, KEY, may_hold=False).look())
        write(path, *rest)  # type: ignore[arg-type]
        seen.append(names(b))

    monkeypatch.setattr(bucket.durable, "write", watched)
    assert Claim(a, KEY).look() is Found.MINE and seen == [Found.ALONE, []]
    assert [item.name for item in (tmp_path / "bucket" / "artifacts" / KEY).iterdir()] == names(a)
