"""Tests of Triton kernels in a remote: puts, fetches, lists of a program, and the helper's requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support_daemon import wait_until
from support_remote import host, memory
from support_store import KEY, OTHER, flip

from precompiled.client.process import PROCESS
from precompiled.core import config
from precompiled.core.config import Settings
from precompiled.core.errors import CorruptArtifact
from precompiled.remote import ahead, helper_link, keys, lists, trusting
from precompiled.remote import envelope as form
from precompiled.remote.transfer import KERNEL_LABEL, Transfer
from precompiled.store import kernel_turns
from precompiled.store.requests import requests
from precompiled.store.triton_kernels import TritonKernels, seal

FILES = {"added.json": b"{}", "added.cubin": b"\x7fELF"}
PROGRAM = "a" * 64


def publish(store: TritonKernels, key: str = KEY) -> None:
    store.publish(key, seal(key, "added", FILES))


def filled(there: Transfer) -> Transfer:
    publish(there.kernels)
    assert there.put_kernel(KEY)
    return there


def test_kernel_is_put_once_and_fetched(url: str, tmp_path: Path) -> None:
    a, b = filled(host(tmp_path / "a", url)), host(tmp_path / "b", url)
    assert not a.put_kernel(KEY), "the remote has it"
    assert b.fetch_kernel(KEY) and b.kernels.read(KEY) == FILES
    assert not b.fetch_kernel(OTHER)
    assert (b.counts.fetched, dict(b.counts.refused)) == (1, {})


def test_pull_and_push_copy_kernels(tmp_path: Path) -> None:
    url = memory()
    a, b = host(tmp_path / "a", url), host(tmp_path / "b", url)
    publish(a.kernels)
    publish(a.kernels, OTHER)
    assert a.push() == 2 and a.push() == 0
    assert b.pull() == 2 and sorted(b.kernels.all_keys()) == sorted([KEY, OTHER])
    assert b.pull() == 0


def test_kernels_that_a_program_used_are_listed_and_fetched_at_once(tmp_path: Path) -> None:
    url = memory()
    a, b = filled(host(tmp_path / "a", url)), host(tmp_path / "b", url)
    assert lists.note(a, PROGRAM, [], [], [], [KEY]) and not lists.note(a, PROGRAM, [], [], [], [KEY])
    objects = lists.read_lists(b, PROGRAM)[1]
    assert [(item.kind, item.group) for item in objects] == [(form.KERNEL, KEY)]
    assert b.bring(objects) == 1 and b.bring(objects) == 0 and b.kernels.read(KEY) == FILES


@pytest.mark.parametrize(
    "body",
    [seal(KEY, "added", FILES)[:-1], seal(OTHER, "added", FILES), b"", b"{}\n"],
    ids=["truncated", "another-key", "empty", "no-kernel"],
)
def test_damaged_kernel_is_refused(body: bytes, tmp_path: Path) -> None:
    url = memory()
    host(tmp_path / "a", url).write(form.KERNEL, KEY, KERNEL_LABEL, body)
    b = host(tmp_path / "b", url)
    assert not b.fetch_kernel(KEY) and b.kernels.all_keys() == []
    assert dict(b.counts.refused) == {"remote-corrupt": 1}


def test_altered_kernel_of_this_store_is_not_put(tmp_path: Path) -> None:
    a = host(tmp_path / "a", memory())
    publish(a.kernels)
    flip(a.kernels.path(KEY), -1)
    with pytest.raises(CorruptArtifact):
        a.put_kernel(KEY)
    assert a.everything() == []


def test_kernel_of_an_untrusted_signer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: dict[str, Transfer] = {}
    for name in "ab":
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / name))
        public = keys.new()
        opened[name] = host(tmp_path / f"store-{name}", f"file://{tmp_path / 'bucket'}", trusting.trust(False))
        if name == "a":
            filled(opened["a"])
            trusted_by_b = public
    assert not opened["b"].fetch_kernel(KEY)
    assert dict(opened["b"].counts.refused) == {"remote-untrusted": 1}
    keys.believe(keys.PublicKey.parse(f"{trusted_by_b} a"))
    again = host(tmp_path / "store-b", f"file://{tmp_path / 'bucket'}", trusting.trust(False))
    assert again.fetch_kernel(KEY) and again.kernels.read(KEY) == FILES


# ---------------------------------------------------------------- by the helper, for a process


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Settings]]:
    """Yield a function that starts the helper of a host, and returns the host's settings."""
    begun: list[Settings] = []

    def begin(name: str) -> Settings:
        monkeypatch.setattr(PROCESS, "ahead", None)
        url = f"file://{tmp_path / 'bucket'}"
        given = {"cache_dir": tmp_path / name, "remote": url, "remote_unsigned": "1", "remote_ahead_s": 60.0}
        found = config.load(given)
        begun.append(found)
        assert ahead.begin(found) is not None
        return found

    yield begin
    for one in begun:
        helper_link.ask(one.cache_dir, {"do": "stop"})


def test_helper_puts_lists_and_fetches_kernels(settings: Callable[[str], Settings]) -> None:
    a = settings("a")
    found = PROCESS.ahead
    assert isinstance(found, ahead.Ahead) and not found.wait()
    publish(TritonKernels(a.cache_dir))
    helper_link.put_kernel(a.cache_dir, KEY)
    found.used((), (), (), [KEY])
    assert helper_link.ask(a.cache_dir, {"do": "flush"}) == {}

    b = settings("b")
    assert isinstance(PROCESS.ahead, ahead.Ahead) and PROCESS.ahead.wait()
    assert TritonKernels(b.cache_dir).read(KEY) == FILES, "the program's list names the kernel"

    c = TritonKernels(b.cache_dir)
    c.clear()
    assert helper_link.fetch_kernel(b.cache_dir, KEY, 60.0, compiles=False) and c.read(KEY) == FILES
    assert not helper_link.fetch_kernel(b.cache_dir, OTHER, 60.0, compiles=False)


def test_host_waits_for_the_kernel_that_the_other_host_compiles(settings: Callable[[str], Settings]) -> None:
    both = []
    for name in "ab":
        both.append(settings(name))
        assert isinstance(PROCESS.ahead, ahead.Ahead) and not PROCESS.ahead.wait(), "the helper has answered"
    a, b = both
    stores = [TritonKernels(one.cache_dir) for one in (a, b)]
    turns = []
    for store in stores:
        store.prepare()
        turns.append(kernel_turns.take(store.tmp, KEY))
    assert not helper_link.fetch_kernel(a.cache_dir, KEY, 60.0, compiles=True), "a has the lease, so it compiles"
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(helper_link.fetch_kernel, b.cache_dir, KEY, 60.0, compiles=True)
        wait_until(lambda: [item.what for item in requests(b.cache_dir, 0.0)].count("list") > 2, "b looks again")
        assert not waiting.done()
        publish(stores[0])
        helper_link.put_kernel(a.cache_dir, KEY)
        assert turns[0] is not None
        turns[0].end()
        assert waiting.result() and stores[1].read(KEY) == FILES


def test_host_without_a_helper_fetches_nothing(tmp_path: Path) -> None:
    assert not helper_link.fetch_kernel(tmp_path, KEY, 0.1, compiles=True)
    helper_link.put_kernel(tmp_path, KEY)
