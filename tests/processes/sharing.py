"""Processes that write to the same partitions, forked by one that has Python ready.

python -m tests.processes.sharing

It reads one JSON object per line:

    {"start": TAG, "role": ROLE, ...}    forks a child that plays a role, with the other fields as its arguments
    {"reap": PID}                        waits for the end of a child

and prints one per line: {"tag": TAG, "said": SOMETHING}, first ["started", PID]; {"tag": "", "said": [PID, EXIT CODE]}.

A child with `stop_at` stands still before its n-th call to the disk (those for checkpoints do not count), after it has
said "stopped"; with `stop_at` 0 it counts them. `after_commit` counts from the one that writes the intent.
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
from contextlib import ExitStack
from functools import partial

from sawlog.errors import SawlogError
from sawlog.storage import FileDirectory
from sawlog.store.directory.store import DirectoryStore
from sawlog.testing.faulty import Call, FaultyDirectory

from .ending import Ending

Say = Callable[[object], None]


class Stopping:
    """A directory that stops the process before one of its calls."""

    def __init__(self, path: str, say: Say, stop_at: int, after_commit: int) -> None:
        self.inner = FileDirectory(path)
        self.directory = FaultyDirectory(self.inner)
        self._say = say
        self._stop_at, self._after_commit = stop_at, after_commit
        self.count = 0
        #: Number of the call that was the commit point of a transaction.
        self.committed = 0
        self._lock = threading.Lock()

    def arm(self) -> None:
        """Count from now on."""
        self.directory.before = self._before

    def _before(self, call: Call) -> None:
        if "checkpoint" in call.name:
            return
        with self._lock:
            self.count += 1
            if call.operation == "replace" and call.name.endswith(".intent"):
                self.committed = self.count
            reached = self.count == self._stop_at
            reached |= self.committed > 0 < self._after_commit == self.count - self.committed
        if reached:
            self._say("stopped")
            time.sleep(600)


def opened(path: str, say: Say, stop_at: int | None, after_commit: int = 0) -> tuple[DirectoryStore, Stopping]:
    """Open a store whose directory stands still on demand."""
    stopping = Stopping(path, say, stop_at or 0, after_commit)
    place = path if stop_at is None else stopping.directory
    return DirectoryStore.open(place, maintenance_interval_s=None), stopping


# --- roles


def hold(say: Say, path: str, topic: str, partitions: list[int]) -> None:
    """Keep the turns of partitions until SIGTERM."""
    store = DirectoryStore.open(path, maintenance_interval_s=None)
    ended = Ending()
    ended.listen()
    with ExitStack() as held:
        for number in partitions:
            held.enter_context(store[topic].partition(number)._hold())
            store[topic].append(b"held", partition=number)
        say("ready")
        ended.wait(None)
    store.close()


def commit(
    say: Say,
    path: str,
    topic: str,
    partitions: list[int],
    value: str,
    name: str | None = None,
    sequence: int | None = None,
    stop_at: int | None = None,
    after_commit: int = 0,
    timeout_s: float = 20.0,
    size: int = 0,
) -> None:
    """One transaction; say what became of it."""
    store, stopping = opened(path, say, stop_at, after_commit)
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


def stream(say: Say, path: str, topic: str, tag: str, form: str, first: int = 0, count: int | None = None) -> None:
    """Append numbered records in one form until the count is reached, then stay; say which are acknowledged."""
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
    time.sleep(600)


ROLES: dict[str, Callable[..., None]] = {
    "hold": hold,
    "commit": commit,
    "stream": stream,
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
