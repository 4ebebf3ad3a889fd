"""Processes that hold partitions and processes that forward to them, forked from one that has imported the library.

python -m tests.processes.handing

It reads one JSON object per line:

    {"start": TAG, "role": ROLE, ...}    forks a child that plays a role, with the other fields as its arguments
    {"reap": PID}                        waits for the end of a child

and prints one per line: {"tag": TAG, "said": SOMETHING}, first ["started", PID]; {"tag": "", "said": [PID, EXIT CODE]}.

A child with `stop_at` stops before its n-th call to the disk (calls for checkpoints do not count), after printing
"stopped"; with `stop_at` 0 it counts its calls. Of a process that holds partitions, only calls for requests of other
processes count.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import sawlog.store.directory.store
from sawlog.errors import DirectoryLocked, SawlogError
from sawlog.storage import FileDirectory
from sawlog.store.directory.forwarding.listener import SocketListener
from sawlog.store.directory.store import DirectoryStore
from sawlog.testing.faulty import Call, FaultyDirectory

from .ending import Ending
from .locking import in_child, refused

Say = Callable[[object], None]


class Stopping:
    """A directory that stops the process before one of its calls."""

    def __init__(self, path: str, say: Say, stop_at: int, *, workers_only: bool) -> None:
        self.inner = FileDirectory(path)
        self.directory = FaultyDirectory(self.inner)
        self._say = say
        self._stop_at = stop_at
        self._workers_only = workers_only
        self.count = 0
        #: Number of the call that was the commit point of a transaction.
        self.committed = 0
        self._lock = threading.Lock()

    def arm(self) -> None:
        """Count from now on."""
        self.directory.before = self._before

    def _before(self, call: Call) -> None:
        name = threading.current_thread().name
        if "checkpoint" in call.name or (self._workers_only and not name.startswith("sawlog-background-work")):
            return
        with self._lock:
            self.count += 1
            if call.operation == "rename" and call.name.endswith(".proposal"):
                self.committed = self.count
            reached = self.count == self._stop_at
        if reached:
            self._say("stopped")
            time.sleep(600)


def opened(
    path: str, say: Say, stop_at: int | None, *, workers_only: bool, **options: Any
) -> tuple[DirectoryStore, Stopping]:
    """Open a store whose directory stops on demand and still supports sockets."""
    stopping = Stopping(path, say, stop_at or 0, workers_only=workers_only)
    if stop_at is None:
        return DirectoryStore.open(path, maintenance_interval_s=None, **options), stopping
    sawlog.store.directory.store.listener_for = lambda _: SocketListener(stopping.inner)
    return DirectoryStore.open(stopping.directory, maintenance_interval_s=None, **options), stopping


# --- roles


def hold(
    say: Say, path: str, topic: str, partitions: list[int], stop_at: int | None = None, busy: bool = False
) -> None:
    """Hold partitions until SIGTERM; a busy process appends to them all the time."""
    store, stopping = opened(path, say, stop_at, workers_only=True)
    ended = Ending()
    ended.listen()
    for number in partitions:
        try:
            store[topic].partition(number).append(b"held")  # through the log, which keeps the lock
        except DirectoryLocked:
            store[topic].append(b"held", partition=number)
    stopping.arm()
    say("ready")
    count = 0
    while not ended.wait(0.001 if busy else None):
        for number in partitions:
            value = b"own %d %d" % (os.getpid(), count)
            store[topic].append(value, partition=number)
            say(f"stored {number} {value.decode()}")
        count += 1
    store.close()
    say(stopping.count)


def commit(
    say: Say,
    path: str,
    topic: str,
    partitions: list[int],
    value: str,
    name: str | None = None,
    sequence: int | None = None,
    stop_at: int | None = None,
    timeout_s: float = 20.0,
    size: int = 0,
) -> None:
    """Commit a transaction and print the outcome."""
    store, stopping = opened(path, say, stop_at, workers_only=False)
    try:
        tx = store.transaction(name, sequence, lock_timeout_s=timeout_s)
        for number in partitions:
            tx.append(topic, value.encode(), partition=number, headers=[("padding", bytes(size))] if size else ())
        stopping.arm()
        placed = tx.commit()
        say({"replayed": tx.replayed, **{str(number): placed[topic, number].start for number in partitions}})
    except SawlogError as error:
        say(type(error).__name__)
    stopping.directory.before = None
    store.close()
    say([stopping.count, stopping.committed])


def append(say: Say, path: str, topic: str, partition: int, value: str, timeout_s: float = 20.0) -> None:
    """Append once and print the outcome."""
    with DirectoryStore.open(path, maintenance_interval_s=None, handover_timeout_s=timeout_s) as store:
        try:
            say(store[topic].append(value.encode(), partition=partition).offset)
        except SawlogError as error:
            say(type(error).__name__)


def stream(say: Say, path: str, topic: str, tag: str, form: str, first: int = 0, count: int | None = None) -> None:
    """Append numbered records in one form, up to a count, and print the acknowledged ones."""
    store = DirectoryStore.open(path, maintenance_interval_s=None)
    into = store[topic]
    number = first
    say("ready")
    while count is None or number < count:
        value = f"{tag}.{number}"
        partition = number % into.partitions
        say(f"trying {partition} {value}")
        if form == "append":
            into.append(value.encode(), partition=partition)
        elif form == "many":
            into.append_many([value.encode(), value.encode() + b"'"], partition=partition)
        elif form == "writer":
            with into._partition_writer(partition) as writer:
                writer.append(value.encode())
        elif form == "named":
            with store.transaction(tag, number + 1, lock_timeout_s=30) as tx:
                for each in range(into.partitions):
                    tx.append(into, value.encode(), partition=each)
        say(f"stored {partition} {value}")
        number += 1
    store.close()


def fork(say: Say, path: str, topic: str, partition: int) -> None:
    """Forward an append, then fork: the child does not use the parent's connections and opens its own store."""
    store = DirectoryStore.open(path, maintenance_interval_s=None)
    store[topic].append(b"parent", partition=partition)

    def child() -> None:
        refused(lambda: store[topic].append(b"with the parent's store", partition=partition))
        with DirectoryStore.open(path, maintenance_interval_s=None) as own:
            own[topic].append(b"child", partition=partition)
        store.close()

    in_child(child)
    store[topic].append(b"parent again", partition=partition)
    store.close()
    say("done")


ROLES: dict[str, Callable[..., None]] = {
    "hold": hold,
    "commit": commit,
    "append": append,
    "stream": stream,
    "fork": fork,
}


def main() -> None:
    """Fork children as told."""
    for line in sys.stdin:
        order = json.loads(line)
        if "reap" in order:
            _, status = os.waitpid(order["reap"], 0)
            tell("", [order["reap"], os.waitstatus_to_exitcode(status)])
            continue
        tag, role = order.pop("start"), ROLES[order.pop("role")]
        go, started = socket.socketpair()
        child = os.fork()
        if child:
            tell(tag, ["started", child])
            started.send(b"!")
            go.close()
            started.close()
            continue
        try:
            go.recv(1)  # the parent has reported the start
            role(partial(tell, tag), **order)
            os._exit(0)
        except BaseException as error:
            tell(tag, f"failed: {type(error).__name__}: {error}")
            traceback.print_exc()
        finally:
            os._exit(1)


def tell(tag: str, what: object) -> None:
    """Write one line to the parent in a single write."""
    os.write(1, (json.dumps({"tag": tag, "said": what}) + "\n").encode())


if __name__ == "__main__":
    main()
