"""Helpers for the tests of consumers: filling partitions, waiting, reading a group's files."""

from __future__ import annotations

import time
from typing import Any

from sawlog.store.consumer import Consumer
from sawlog.store.directory.members import group_directory
from sawlog.store.directory.store import DirectoryStore

PATIENCE_S = 60.0


def fill(store: DirectoryStore, count: int, partition: int = 0, topic: str = "orders") -> list[bytes]:
    """Append that many records with different values to a partition and return the values."""
    log = store.topic(topic).partition(partition)
    first = log.next_offset
    values = [b"%d/%d" % (partition, first + number) for number in range(count)]
    log.append_many(values)
    return values


def values(records: Any) -> list[bytes]:
    """Return the values of records."""
    return [record.value for record in records]


def until(condition: Any, *consumers: Consumer) -> None:
    """Poll the consumers until a condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"did not come about: {consumers}"
        time.sleep(0.002)
        for consumer in consumers:
            consumer.poll(0.01)


def committed(store: DirectoryStore, partition: int = 0) -> int | None:
    """Return the offset that the group `billing` has committed for a partition of `orders`."""
    rows = {(row.topic, row.partition): row for row in store.groups.describe("billing").rows}
    return rows["orders", partition].committed


def names(store: DirectoryStore, group: str) -> list[str]:
    """Return the names of the files of its members."""
    directory = group_directory(store._directory, group, create=False)
    try:
        return directory.names()
    finally:
        directory.close()


def remove(store: DirectoryStore, group: str, name: str) -> None:
    """Fence a member, as another member that considers it dead would."""
    directory = group_directory(store._directory, group, create=False)
    try:
        directory.remove(name)
    finally:
        directory.close()


def beats(store: DirectoryStore) -> int:
    """Return the heartbeat counter of the only member of the group `billing`."""
    (member,) = store.groups.describe("billing").members
    return member.beat
