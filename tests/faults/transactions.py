"""Transactions of Kafka producers on one log, for the crash enumeration: a commit stays committed.

Producers send batches in transactions, which are committed and aborted, while segments are sealed, merged, trimmed and
truncated. After a crash:

- the log holds a prefix of the appended batches, at least the acknowledged ones; the markers in that prefix decide
  which records are committed and where the last stable offset is: for the next writer, and for a reader before it and
  next to it, whatever caches the crash has left;
- under "always", and after the death of a process, records that a reader has seen as committed are still committed,
  even if it read while a marker was being written to the disk.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sawlog import Interval, Log, LogConfig
from sawlog.errors import LogNotFound

from ..log.transactional import Entry, Model, batch, fetched
from .disk import FaultyStorage
from .enumeration import Workload
from .report import corruption_of
from .thresholds import chosen, small

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=150, checkpoint_interval_ms=3_600_000, segment_age_ms=None)
DURABILITIES: dict[str, Any] = {"always": "always", "os": "os", "interval": Interval(ms=3_600_000, bytes=600)}
PRODUCERS = (1, 2, 3)


@dataclass
class Promise:
    """Appended batches, the acknowledged part of them, and the records that a reader has seen as committed."""

    entries: list[Entry] = field(default_factory=list)
    lowest: int = 0
    durable: int = 0
    end: int = 0
    #: The change in progress: batches; or a truncation or trim at an offset.
    coming: list[Entry] = field(default_factory=list)
    cutting: int | None = None
    trimming: int | None = None
    shown: dict[int, bytes] = field(default_factory=dict)

    def model(self, end: int, lowest: int) -> Model:
        """Return the expected contents of a log that ends there."""
        every = Model([*self.entries, *self.coming], lowest)
        return Model(every.truncated(end), lowest)


class TransactionWorkload(Workload):
    """Some transactions in one log."""

    config: ClassVar[LogConfig] = CONFIG

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.promise = Promise()
        self.sizes = chosen(seed)
        self._sent = 0

    def work(self, disk: FaultyStorage) -> None:
        with small(self.sizes):
            log = Log.open(disk.plain, self.config)
            for _ in range(22):
                log = self.step(log, self.promise, disk)
            log.close()

    # --- what is done

    def step(self, log: Log, promise: Promise, disk: FaultyStorage) -> Log:
        kinds: list[Callable[[Log, Promise], None]] = [
            self.send,
            self.send,
            self.send,
            self.end,
            self.end_while_somebody_looks,
            self.end_while_somebody_looks,
            self.plain,
            self.seal,
            self.merge,
            self.truncate,
            self.trim,
        ]
        chosen_one = self.random.randrange(len(kinds) + 1)
        if chosen_one == len(kinds):
            log.close()
            promise.durable = promise.end
            return Log.open(disk.plain, self.config)
        kinds[chosen_one](log, promise)
        self.look(log, promise)
        return log

    def values(self) -> tuple[bytes, ...]:
        self._sent += 10
        return tuple(
            b"%d" % (self._sent + i) + bytes(self.random.choice((0, 40))) for i in range(self.random.choice((1, 2, 3)))
        )

    def acknowledged(self, log: Log, promise: Promise, *, durable: bool | None = None) -> None:
        promise.entries += promise.coming
        promise.coming = []
        promise.end = log.next_offset
        if durable or (durable is None and self.config.durability == "always"):
            promise.durable = promise.end

    def plain(self, log: Log, promise: Promise) -> None:
        values = self.values()
        promise.coming = [Entry(log.next_offset, values)]
        log.append_many(values)
        self.acknowledged(log, promise)

    def send(self, log: Log, promise: Promise) -> None:
        producer, values = self.random.choice(PRODUCERS), self.values()
        promise.coming = [Entry(log.next_offset, values, producer)]
        log.append_batches(batch(values, producer))
        self.acknowledged(log, promise)

    def end(self, log: Log, promise: Promise) -> None:
        producer, commit = self.random.choice(PRODUCERS), self.random.random() < 0.6
        promise.coming = [Entry(log.next_offset, (), producer, commit)]
        log.append_marker(producer, 0, commit=commit)
        self.acknowledged(log, promise)

    def end_while_somebody_looks(self, log: Log, promise: Promise) -> None:
        opened = log.open_transactions  # the earliest one blocks the later ones
        producer = opened[0].producer_id if opened else self.random.choice(PRODUCERS)
        promise.coming = [Entry(log.next_offset, (), producer, True)]
        log.append_marker(producer, 0, commit=True, wait=False)
        promise.shown.update({record.offset: record.value or b"" for record in log.scan()})
        log.sync()
        self.acknowledged(log, promise, durable=True)

    def seal(self, log: Log, promise: Promise) -> None:
        log.seal()
        promise.durable = promise.end

    def merge(self, log: Log, promise: Promise) -> None:
        if self.random.random() < 0.5:
            log._merge_segments()
        else:
            log._recompress("gzip")

    def truncate(self, log: Log, promise: Promise) -> None:
        offset = max(log.lowest_offset, log.next_offset - self.random.choice((1, 2, 6)))
        promise.cutting = offset
        promise.durable = min(promise.durable, offset)
        promise.shown.clear()
        log.truncate(offset)
        promise.entries = Model(promise.entries, 0).truncated(offset)
        promise.end, promise.cutting = offset, None
        promise.durable = min(promise.durable, offset)

    def trim(self, log: Log, promise: Promise) -> None:
        offset = log.lowest_offset + (log.next_offset - log.lowest_offset) // self.random.choice((1, 2, 3))
        promise.trimming = offset
        log.trim(offset)
        promise.lowest, promise.trimming = log.lowest_offset, None

    # --- what must be true

    def look(self, log: Log, promise: Promise) -> None:
        """Check the log against the markers; records shown now stay, as far as the policy promises."""
        self.check_log(log, promise.model(log.visible_offset, log.lowest_offset))
        if self.config.durability == "always":
            promise.shown = {record.offset: record.value or b"" for record in log.scan()}

    @staticmethod
    def check_log(log: Log, model: Model) -> None:
        stable = log.last_stable_offset
        assert stable in model.stable, f"the last stable offset is {stable}, not {model.stable}"
        wanted = model.committed(stable)
        assert [(r.offset, r.value) for r in log.scan(isolation="uncommitted")] == model.records()
        assert [(r.offset, r.value) for r in log.scan()] == wanted, "not what is committed"
        assert [(r.offset, r.value) for r in fetched(log, 250)] == wanted, "not what is committed, by pages"

    def recover(self, disk: FaultyStorage, promise: Promise, *, power_cut: bool) -> None:
        with small(self.sizes):
            self.check(disk, promise, power_cut=power_cut)

    def check(self, disk: FaultyStorage, promise: Promise, *, power_cut: bool) -> None:
        chance = random.Random(disk.seed)
        if power_cut:
            promise.end = promise.durable  # even if the next process dies before it has recovered the log
            if self.config.durability != "always":
                promise.shown.clear()
        if chance.random() < 0.5:
            try:
                with Log.open(disk.plain, self.config, mode="r") as reader:
                    end = reader.visible_offset
                    self.check_log(reader, promise.model(end, reader.lowest_offset))
            except LogNotFound:
                assert promise.end == 0, "a reader finds no log"
        log = Log.open(disk.plain, self.config)
        assert log.recovery, corruption_of(log)
        end, lowest = log.next_offset, log.lowest_offset
        least = promise.end if promise.cutting is None else min(promise.end, promise.cutting)
        assert end >= least, f"the log ends at {end}, and was acknowledged up to {least}"
        assert lowest in (promise.lowest, promise.trimming), f"the log starts at {lowest}"
        self.check_log(log, promise.model(end, lowest))
        self.check_log(Log.open(disk.plain, self.config, mode="r"), promise.model(end, lowest))
        there = {record.offset: record.value for record in log.scan()}
        for offset, value in promise.shown.items():
            gone = promise.cutting is not None and offset >= promise.cutting
            if offset >= lowest and not gone:
                assert there.get(offset) == value, f"offset {offset} was shown as committed, and is not any more"
        assert log.verify(), str(log.verify())
        self._go_on(log, promise, disk, chance)

    def _go_on(self, log: Log, promise: Promise, disk: FaultyStorage, chance: random.Random) -> None:
        model = promise.model(log.next_offset, log.lowest_offset)
        promise.entries, promise.coming, promise.lowest = model.entries, [], log.lowest_offset
        promise.end = promise.durable = log.next_offset
        promise.cutting = promise.trimming = None
        promise.shown.clear()
        other = type(self)(disk.seed)
        other._sent = 1000 + self._sent
        for _ in range(chance.choice((1, 2, 3))):
            log = other.step(log, promise, disk)


TRANSACTIONS: dict[str, type[Workload]] = {
    f"transactional_{name}": type(
        f"transactional_{name}",
        (TransactionWorkload,),
        {"config": CONFIG.with_(durability=durability), "__module__": __name__},
    )
    for name, durability in DURABILITIES.items()
}
globals().update(TRANSACTIONS)
