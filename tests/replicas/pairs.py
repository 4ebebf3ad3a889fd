"""A store in a directory and its replica, and comparisons of the two and of restored directories."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import sawlog
from sawlog import Log, Store
from sawlog.clock import Deadline
from sawlog.store.objects.store import ObjectStore
from sawlog.store.replica import Progress, Replicator, replicate, restore


def address() -> str:
    """Return the address of a new bucket in this process."""
    return f"memory://replica-{uuid.uuid4().hex}"


def ship(data: Path, url: str, **more: object) -> Progress:
    """Replicate the current content once."""
    return replicate(data, url, once=True, maintenance_interval_s=None, **more)  # type: ignore[arg-type]


def batches(log: Log) -> bytes:
    """Return all batches as stored."""
    found, at = b"", log.lowest_offset
    while at < log.visible_offset:
        page = log.fetch(at, 1 << 20, isolation="uncommitted")
        found, at = found + page.raw, page.next_offset
    return found


def assert_same(one: Store, other: Store) -> None:
    """Check that two stores are equal: topics, batches, offsets, settings and groups; and that both verify."""
    assert other.topics() == one.topics()
    for mine in one:
        theirs = other[mine.name]
        assert (theirs.id, theirs.partitions, theirs.settings) == (mine.id, mine.partitions, mine.settings)
        for number in range(mine.partitions):
            a, b = mine.partition(number), theirs.partition(number)
            where = f"{mine.name}/{number}"
            assert (b.lowest_offset, b.visible_offset) == (a.lowest_offset, a.visible_offset), where
            assert batches(b) == batches(a), where
            assert [each.value for each in b.scan()] == [each.value for each in a.scan()], where
            assert not b.verify().problems
    assert other.groups.list() == one.groups.list()
    for group in one.groups.list():
        assert other.groups.describe(group).rows == one.groups.describe(group).rows


def assert_comes_back(source: Store, url: str, to: Path) -> None:
    """Check that the replica has the same content as the source."""
    restore(url, to)
    with sawlog.open(to, "r") as again:
        assert_same(source, again)


def eventually(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until a condition holds that another thread or process fulfils."""
    deadline = Deadline(seconds)
    while not is_so():
        assert deadline.retry(), "it did not happen in time"


def replica(url: str) -> ObjectStore:
    """Open the replica for reading."""
    return ObjectStore.open(url, "r")


def replicator(data: Path, url: str) -> Replicator:
    """Return a replicator whose rounds the test runs itself."""
    return Replicator(data, url, maintenance_interval_s=None)
