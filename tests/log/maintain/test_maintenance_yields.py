"""Maintenance that has taken the lock of a log which nobody was writing gives it up when somebody wants to write."""

from __future__ import annotations

import threading

import pytest

from sawlog import Log, LogConfig
from sawlog.errors import LogClosed
from sawlog.storage import MemoryDirectory
from sawlog.testing import FaultyDirectory
from sawlog.testing.faulty import Call

from ..places import eventually

CONFIG = LogConfig(segment_bytes=2000, durability="os")


@pytest.mark.parametrize("work", ["compact", "_merge_segments", "_recompress", "_scrub"])
def test_a_writer_does_not_wait_until_maintenance_is_done(work: str) -> None:
    inner = MemoryDirectory()
    with Log.open(inner, CONFIG) as log:
        for number in range(400):
            log.append(b"v" * 100, b"%d" % (number % 7))
    directory = FaultyDirectory(inner)
    tending = Log.open(directory, CONFIG.with_(segment_bytes=100_000), mode="a")
    tending._lend_to_maintenance()
    with tending._hold():
        pass
    begun, go = threading.Event(), threading.Event()

    def wait(call: Call) -> None:
        if call.operation in ("view", "read", "open_sealed") and call.name.endswith(".log"):
            begun.set()
            go.wait(60)

    directory.before = wait
    ended: list[BaseException] = []

    def tend() -> None:
        try:
            getattr(tending, work)()
        except LogClosed as error:
            ended.append(error)
        finally:
            tending.close()

    thread = threading.Thread(target=tend)
    thread.start()
    assert begun.wait(60)
    got: list[int] = []

    def write() -> None:
        with Log.open(inner, CONFIG) as log:
            got.append(log.append(b"new"))

    writer = threading.Thread(target=write)
    writer.start()
    assert eventually(lambda: inner.exists("wanted"))
    go.set()
    thread.join(60)
    writer.join(60)
    assert got == [400]
    assert "a writer is waiting" in str(ended[0])
    assert not inner.exists("wanted")
    with Log.open(inner, CONFIG) as log:
        assert log.verify()
        assert log.next_offset == 401


def test_maintenance_ignores_an_abandoned_request_for_the_lock() -> None:
    directory = MemoryDirectory()
    with Log.open(directory, CONFIG) as log:
        for number in range(100):
            log.append(b"v" * 100, b"%d" % (number % 7))
    directory.replace("wanted", b"")
    tending = Log.open(directory, CONFIG, mode="a")
    tending._lend_to_maintenance()
    assert tending.compact()
    tending.close()
    assert not directory.exists("wanted")
