"""A writer of a log that other processes write too; and a process that forks with a store open.

    python -m tests.processes.contending write DIRECTORY NAME SESSIONS   opens, appends, closes, SESSIONS times
    python -m tests.processes.contending fork DIRECTORY                  forks with open consumers and readers

`write` prints "<offset> <name>" for every acknowledged record; a record is named "<NAME>.<session>.<number>".
"""

from __future__ import annotations

import operator
import os
import random
import sys
import threading
import time
from contextlib import suppress

from sawlog import Log, LogConfig
from sawlog.errors import DirectoryLocked, GroupError, LogClosed
from sawlog.store.directory.store import DirectoryStore

from . import content
from .launch import say
from .locking import in_child

SETTINGS = LogConfig(segment_bytes=2000, durability="os")


def opened(directory: str) -> Log:
    while True:
        try:
            return Log.open(directory, SETTINGS)
        except DirectoryLocked:
            time.sleep(0.001)


def write(directory: str, name: str, sessions: str) -> None:
    say("ready")
    sys.stdin.readline()
    chance = random.Random(name)
    for session in range(int(sessions)):
        log = opened(directory)
        for number in range(chance.randrange(1, 6)):
            told = f"{name}.{session}.{number}"
            say(f"{log.append(content.make(told, 100))} {told}")
        log.close()
        time.sleep(chance.random() * 0.002)


def refused(call: object) -> None:
    try:
        call()  # type: ignore[operator]
    except (LogClosed, GroupError, DirectoryLocked):
        return
    raise AssertionError(f"a forked child was allowed to call {call}")


def fork(directory: str) -> None:
    """A child neither commits for its parent's consumer, nor takes its partitions, nor ends its membership; readers and
    followers that it inherits continue in both, each at its own place; and threads of the parent do not hang it."""
    store = DirectoryStore.open(directory)
    topic = store.create_topic("orders", partitions=2, exist_ok=True)
    for number in range(20):
        topic.append(b"%d" % number, partition=number % 2)
    consumer = store.consumer("billing", ["orders"], auto_commit_ms=50)
    assert len(consumer.poll(1.0, max_records=4)) == 4
    consumer.commit()
    before = [consumer.committed("orders", n) or 0 for n in range(2)]
    reader = DirectoryStore.open(directory, "r")
    scan = reader["orders"].partition(0).scan()
    first = next(scan).offset
    following = reader["orders"].partition(0).follow(timeout=0.2)
    next(following)
    stop = threading.Event()
    busy = threading.Thread(
        target=lambda: [topic.append(b"more", partition=1) for _ in iter(stop.is_set, True)], daemon=True
    )
    busy.start()

    def child() -> None:
        refused(lambda: consumer.commit({("orders", 0): 9}))
        assert [record.offset for record in scan] == list(range(first + 1, 10))
        assert next(following).offset == 1
        with DirectoryStore.open(directory) as own:
            rows = own.groups.describe("billing").rows
            assert {row.owner for row in rows} == {rows[0].owner} != {None}, "the child took its parent's membership"
            with own.consumer("billing", ["orders"], auto_commit_ms=None) as mine:
                assert mine.assignment == set(), "the child got partitions that its parent owns"
        consumer.close()
        store.close()

    def hasty_child() -> None:
        """Fork while a thread of the parent is in the middle of any operation."""
        refused(lambda: topic.append(b"child", partition=1))
        refused(topic.partition(1).sync)
        with suppress(GroupError):  # the child is not a member and must not make its parent's last commit
            store.close()

    for _ in range(2):
        in_child(child)
    for _ in range(40):
        in_child(hasty_child)
    stop.set()
    busy.join()
    assert [record.offset for record in scan] == list(range(first + 1, 10)), "a child moved its parent's scan"
    assert len(consumer.assignment) == 2, "a child gave up its parent's partitions"
    after = [consumer.committed("orders", n) or 0 for n in range(2)]
    assert all(map(operator.ge, after, before)), f"a child took back what its parent committed: {before}, {after}"
    found = consumer.poll(1.0)
    assert found, "the parent cannot go on"
    consumer.commit()
    consumer.close()
    topic.append(b"last", partition=0)
    reader.close()
    store.close()
    with DirectoryStore.open(directory) as again:
        assert all(again["orders"].partition(n).verify() for n in range(2))
    say("good")
    os._exit(0)


if __name__ == "__main__":
    {"write": write, "fork": fork}[sys.argv[1]](*sys.argv[2:])
