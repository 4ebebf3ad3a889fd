"""Observers of a topic while it is written: the reading half of `readers`."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

from sawlog.errors import LogNotFound, SawlogError
from sawlog.log.appender import Appender
from sawlog.log.files import VISIBLE
from sawlog.log.log import Log
from sawlog.storage import open_published

from .device import Folder, Step
from .disk import FaultyStorage
from .planners import TOPIC
from .witness import PARTITIONS, View, Witness


def partition_of(disk: FaultyStorage, number: int) -> Folder:
    """The directory of a partition, without faults."""
    found = disk.plain.child("topics").child(TOPIC).child(f"partition-{number}")
    assert isinstance(found, Folder)
    return found


def view_of(who: str, log: Log) -> View:
    """All that can be read of a log now."""
    rows = {}
    for cursor in log._cursors():
        for record in cursor:
            rows[record.offset] = (record.value or b"", int(cursor.leader_epoch))
    return View(who, log.lowest_offset, log.visible_offset, rows, log._leader_epochs)


class Eyes:
    """Readers in another process, one for each partition, which look before every change of the disk."""

    def __init__(self, disk: FaultyStorage, witness: Witness) -> None:
        self._disk = disk
        self._witness = witness
        self._logs: dict[int, Log] = {}
        self._known: dict[int, object] = {}
        #: Writers that have begun; their ends are observed, too.
        self.writers: list[Log] = []

    def watch(self, then: Callable[[Step], None] | None) -> Callable[[Step], None]:
        """Look before every step, then call the previous watcher."""

        def watching(step: Step) -> None:
            self.look(f"a reader before {step}")
            if then is not None:
                then(step)

        return watching

    def look(self, who: str) -> None:
        """At whatever may have changed; at all of it if nothing is published."""
        try:
            for number in range(PARTITIONS):
                self._look_at(who, number)
            for log in self.writers:
                if log._access.appender is not None:
                    self._check_ends(who, log._access.appender)
        except SawlogError as error:
            self._witness.complain("I2", f"{who} cannot read: {type(error).__name__}: {error}")

    def _look_at(self, who: str, number: int) -> None:
        folder = partition_of(self._disk, number)
        found = open_published(folder, VISIBLE)
        told = None if found is None else found.load()
        self._witness.tell(number, told)
        state = told, folder.stamp()
        if told is not None and self._known.get(number) == state:
            return
        self._known[number] = state
        if number not in self._logs:
            with suppress(LogNotFound):
                self._logs[number] = Log.open(folder, mode="r")
        if number in self._logs:
            log = self._logs[number]
            self._witness.look(number, view_of(who, log))
            if not log.durable_offset <= log.visible_offset == log.written_offset == log.next_offset:
                self._witness.complain("I4", f"{who} sees {log.durable_offset} durable of {log.visible_offset}")

    def _check_ends(self, who: str, appender: Appender) -> None:
        segments = appender.segments
        ends = (
            appender.durability.durable_offset,
            segments.visible_offset,
            appender.written_offset,
            segments.next_offset,
        )
        if list(ends) != sorted(ends):
            self._witness.complain("I4", f"{who}: durable, visible, written and next are {ends}")
        elif self._witness.always and ends[1] > ends[0]:
            self._witness.complain("I4", f"{who}: {ends[1]} is shown, and only {ends[0]} is durable")


def restore(folder: Folder, promise: Witness, number: int, chance: random.Random) -> None:
    """Put back an earlier published value."""
    older = chance.choice(promise.told[number])
    published = open_published(folder, VISIBLE)
    if published is not None and published.load() not in (None, older):
        published.store(*older)
        promise.restored[number] = older
