"""A process that appends numbered records to one partition, among others that do the same.

python -m tests.processes.numbering STORE TOPIC TAG SEED

It says "ready", then "stored FIRST END" for every append that was acknowledged, and "refused FIRST END ERROR" for every
other one, whose records may or may not be stored. The value of a record is "TAG NUMBER"; a number is never used again.
After SIGUSR1 one of the next fsyncs of a segment fails. The process ends when its input does.
"""

from __future__ import annotations

import contextlib
import random
import select
import signal
import sys

from sawlog.errors import LogClosed, LogFailed, SawlogError, SyncFailed
from sawlog.storage import FileDirectory
from sawlog.store.directory.store import DirectoryStore
from sawlog.testing import Fault, FaultyDirectory

from .launch import say


class Writer:
    """Appends to the partition until its input ends."""

    def __init__(self, path: str, topic: str, tag: str, seed: str) -> None:
        self._topic, self._tag = topic, tag
        self._chance = random.Random(f"{tag} {seed}")
        self._directory = FaultyDirectory(FileDirectory(path))
        #: A storage that is wrapped is written without the compiled fast path.
        self._path: str | FaultyDirectory = self._directory if self._chance.random() < 0.5 else path
        self._fails_soon = False
        self._number = 0

    def run(self) -> None:
        """Open the store, and again after each failure that stops its log."""
        signal.signal(signal.SIGUSR1, self._fail_soon)
        say("ready")
        while not _input_ended():
            with contextlib.suppress(SawlogError), self._open() as store:
                while self._append(store) and not _input_ended():
                    pass

    def _open(self) -> DirectoryStore:
        return DirectoryStore.open(self._path, maintenance_interval_s=None)

    def _fail_soon(self, *_: object) -> None:
        self._fails_soon = True

    def _append(self, store: DirectoryStore) -> bool:
        """Append a few records; False if the store has to be opened again."""
        if self._fails_soon:
            self._fails_soon, self._path = False, self._directory
            self._directory.arm(Fault(self._chance.randint(1, 3), operations={"sync"}, names="*.log"))
            return False
        first, self._number = self._number, self._number + self._chance.randint(1, 4)
        values = [b"%s %d" % (self._tag.encode(), number) for number in range(first, self._number)]
        try:
            if len(values) == 1:
                store[self._topic].append(values[0], partition=0)
            else:
                store[self._topic].append_many(values, partition=0)
        except SawlogError as error:
            say(f"refused {first} {self._number} {type(error).__name__}: {error}")
            return not isinstance(error, (LogClosed, LogFailed, SyncFailed))
        say(f"stored {first} {self._number}")
        return True


def _input_ended() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


if __name__ == "__main__":
    Writer(*sys.argv[1:]).run()
