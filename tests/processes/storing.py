"""Use a store from another process while it is open here.

python -m tests.processes.storing hold DIRECTORY TOPIC          write to all partitions of the topic, wait for a line
python -m tests.processes.storing occupy DIRECTORY TOPIC        open all partitions as logs, which take no requests
python -m tests.processes.storing append DIRECTORY TOPIC        try to; print the offset, or "locked by <holder>"
python -m tests.processes.storing read DIRECTORY TOPIC          open for reading; print the number of records on demand
python -m tests.processes.storing delete DIRECTORY TOPIC        try to; print "deleted", or "locked by <holder>"
python -m tests.processes.storing create DIRECTORY PREFIX COUNT create topics; print how many it created itself
python -m tests.processes.storing commit DIRECTORY CALL         a transaction that stops before its CALL-th call to the
                                                                disk; 0: print the number of calls
python -m tests.processes.storing fork DIRECTORY                open, fork, and check what the child may do
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack

from sawlog import Log
from sawlog.errors import DirectoryLocked, LogClosed, TopicExists
from sawlog.storage import FileDirectory
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.directory.transactions.commits import INLINE_BYTES
from sawlog.testing.faulty import Call, FaultyDirectory

from .launch import say
from .locking import in_child, refused


def hold(directory: str, topic: str) -> None:
    with DirectoryStore.open(directory) as store, ExitStack() as held:
        for number in range(store[topic].partitions):
            held.enter_context(store[topic].partition(number)._hold())
            store[topic].partition(number).append(b"held")
        say("ready")
        sys.stdin.readline()


def keep(directory: str, topic: str) -> None:
    with DirectoryStore.open(directory) as store, store[topic].writer():
        for number in range(store[topic].partitions):
            store[topic].append(b"held", partition=number)
        say("ready")
        sys.stdin.readline()


def occupy(directory: str, topic: str) -> None:
    with DirectoryStore.open(directory, "r") as store:
        paths = [store[topic].partition(number).path for number in range(store[topic].partitions)]
    logs = [Log.open(path) for path in paths]
    say("ready")
    sys.stdin.readline()
    for log in logs:
        log.close()


def append(directory: str, topic: str) -> None:
    with DirectoryStore.open(directory) as store:
        try:
            say(store[topic].partition(0).append(b"appended"))
        except DirectoryLocked as error:
            say(f"locked by {error.holder}")


def read(directory: str, topic: str) -> None:
    with DirectoryStore.open(directory, "r") as store:
        say("ready")
        while sys.stdin.readline():
            say(sum(1 for _ in store[topic].scan()))


def delete(directory: str, topic: str) -> None:
    with DirectoryStore.open(directory) as store:
        try:
            store.delete_topic(topic)
            say("deleted")
        except DirectoryLocked as error:
            say(f"locked by {error.holder}")


def create(directory: str, prefix: str, count: str) -> None:
    store = DirectoryStore.open(directory)
    say("ready")
    sys.stdin.readline()
    alone = 0
    for number in range(int(count)):
        try:
            store.create_topic(f"{prefix}{number}").append(prefix.encode())
            store.create_topic(f"shared-{number}", partitions=2)
            alone += 1
        except TopicExists:
            pass
    say(alone)
    store.close()


def commit(directory: str, call: str) -> None:
    value = b"x" * (INLINE_BYTES // 4)  # four of them are too large for the intent
    faulty = FaultyDirectory(FileDirectory(directory))
    store = DirectoryStore.open(faulty)
    with store.transaction("query", 1) as tx:
        for number in range(3):
            tx.append("orders", value, partition=number)
        tx.append("stock", value)
        faulty.calls.clear()

        def before(_: Call) -> None:
            if len(faulty.calls) + 1 == int(call):
                say("ready")
                time.sleep(600)

        faulty.before = before
    say(len(faulty.calls))


def fork(directory: str) -> None:
    """The child can neither write nor commit nor remove the parent's staged files; it opens its own store."""
    store = DirectoryStore.open(directory)
    topic = store.create_topic("orders")
    topic.append(b"parent")
    other = store.create_topic("stock")
    other.partition(0).read  # noqa: B018 - opened by the parent, not locked yet
    tx, second = store.transaction(), store.transaction()
    tx.append("orders", b"x" * (2 << 20))
    second.append("stock", b"x" * (2 << 20))

    def child() -> None:
        refused(lambda: topic.append(b"child"))
        refused(tx.commit)
        refused(second.commit)
        tx.abort()
        with DirectoryStore.open(directory) as own:
            assert len(list(own["orders"].scan())) == 1
            assert own["orders"].append(b"child").offset == 1
            own["stock"].append(b"child")
        store.close()

    in_child(child)
    tx.commit()
    second.commit()
    assert len(list(store["orders"].scan())) == 3
    assert topic.append(b"parent").offset == 3
    assert other.append(b"parent").offset == 2
    store.close()
    try:
        topic.append(b"late")
    except LogClosed:
        say("good")


if __name__ == "__main__":
    {
        "hold": hold,
        "keep": keep,
        "occupy": occupy,
        "append": append,
        "read": read,
        "delete": delete,
        "create": create,
        "commit": commit,
        "fork": fork,
    }[sys.argv[1]](*sys.argv[2:])
