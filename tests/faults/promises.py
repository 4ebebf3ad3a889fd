"""The promises of a log at any moment of some work, and the check that the state after a crash keeps them.

A `LogPromise` knows every record that may be in the log, in order: acknowledged ones and those being appended. After a
crash the log holds a prefix of them, byte for byte. The policy decides how long it must be: after a power cut, all
durable records; after the death of a process, all acknowledged ones. It ends after a whole append.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sawlog import Log, Record
from sawlog.batch.build import Producer

from .interrupts import undisturbed

#: (key, value, timestamp, headers)
Row = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]


def row_of(record: Record) -> Row:
    return record.key, record.value, record.timestamp, tuple((name, value) for name, value in record.headers)


@dataclass
class LogPromise:
    """The promises of one log."""

    #: All records that may exist, by offset, including those being appended.
    rows: dict[int, Row] = field(default_factory=dict)
    #: The log start, and its end as far as acknowledged.
    start: int = 0
    end: int = 0
    #: A power cut loses no record below this offset.
    durable: int = 0
    #: Offsets at which the log may end after a crash.
    ends: set[int] = field(default_factory=lambda: {0})
    #: Target of a truncation and of a trim that have not returned.
    cutting: int | None = None
    trimming: int | None = None
    #: Records that are superseded may be gone; and tombstones, with all that they delete.
    compacted: bool = False
    forgotten: bool = False
    #: Offsets without a record: never given to one, or taken by compaction already; what superseded such a record may
    #: be truncated since.
    absent: set[int] = field(default_factory=set)
    #: The last batch of an idempotent producer: producer, records, offsets.
    produced: tuple[Producer, list[tuple[Any, ...]], range] | None = None
    #: True if the log is being removed, or was: it may not exist.
    removed: bool = False

    def copy(self) -> LogPromise:
        """Return a copy."""
        return replace(self, rows=dict(self.rows), ends=set(self.ends), absent=set(self.absent))

    # --- what is done

    def send(self, rows: Sequence[Row], ends: Iterable[int] = ()) -> None:
        """Announce an append of these records: all or none, or with `ends`, up to one of these offsets."""
        self.rows.update(enumerate(rows, self.end))
        self.ends.update(ends, (self.end + len(rows),))

    def send_loosely(self, rows: Sequence[Row]) -> None:
        """Announce an append of which a crash may keep any number of leading records."""
        self.send(rows, range(self.end + 1, self.end + len(rows)))

    def send_at(self, rows: Mapping[int, Row], end: int) -> None:
        """Announce an append at given offsets; the offsets between them, up to `end`, never get a record. A crash may
        keep any number of leading records."""
        self.rows.update(rows)
        self.absent.update(at for at in range(self.end, end) if at not in rows)
        self.ends.update(range(self.end + 1, end + 1))

    def acknowledge(self, log: Log, placed: range) -> None:
        """Record that the log has acknowledged them at these offsets."""
        assert placed.start == self.end, f"offset {placed.start} was given, {self.end} was next"
        self.end = placed.stop
        assert self.end - 1 in self.rows or self.end - 1 in self.absent
        self.note(log)

    def refuse(self) -> None:
        """Record that the append failed and the log continues: its records must never appear."""
        self.rows = {at: row for at, row in self.rows.items() if at < self.end}
        self.ends = {at for at in self.ends if at <= self.end}
        self.absent = {at for at in self.absent if at < self.end}

    @undisturbed
    def note(self, log: Log) -> None:
        """Record that everything durable now stays. Under "always", that is everything."""
        assert log.next_offset == self.end, f"the log ends at {log.next_offset}, not at {self.end}"
        self.durable = log.durable_offset
        if log.config.durability == "always":
            assert self.durable == self.end, f"acknowledged up to {self.end}, durable up to {self.durable}"

    @undisturbed
    def truncate(self, log: Log, offset: int) -> None:
        """Record a truncation."""
        if self.compacted:
            self.absent.update(self.rows.keys() - {record.offset for record in log.scan()})
        self.cutting = offset
        self.ends.add(offset)
        log.truncate(offset)
        self.cutting = None
        self.rows = {at: row for at, row in self.rows.items() if at < offset}
        self.absent = {at for at in self.absent if at < offset}
        self.produced = None
        self.ends = {at for at in self.ends if at <= offset}
        self.end = offset
        self.note(log)

    def begin_trim(self, offset: int) -> None:
        """Announce a trim."""
        self.trimming = offset
        self.ends.add(offset)

    @undisturbed
    def end_trim(self, log: Log) -> None:
        """Record that the trim has finished."""
        assert log.lowest_offset == self.trimming
        assert self.trimming is not None
        self.start, self.trimming = self.trimming, None
        self.rows = {at: row for at, row in self.rows.items() if at >= self.start}
        self.note(log)

    # --- what is found

    def check(self, found: list[Record], lowest: int, end: int) -> None:
        """Raise unless these records, between these offsets, keep the promise."""
        assert self.start <= lowest <= max(self.start, -1 if self.trimming is None else self.trimming), (
            f"the log starts at {lowest}, and was trimmed to {self.start}"
        )
        must = self.end if self.cutting is None else min(self.end, self.cutting)
        assert end >= must, f"the log ends at {end}: what was acknowledged below {must} is lost"
        assert end in self.ends, (
            f"the log ends at {end}, in the middle of an append (it may end at {sorted(self.ends)})"
        )
        rows = {record.offset: row_of(record) for record in found}
        assert list(rows) == sorted(rows), f"the offsets are out of order: {list(rows)}"
        for offset, row in rows.items():
            assert lowest <= offset < end, f"offset {offset} is outside of {lowest} to {end}"
            assert row == self.rows.get(offset), f"offset {offset} holds something else than was sent"
        for offset in range(lowest, end):
            if offset not in rows and offset not in self.absent:
                self._check_missing(offset, rows)

    def _check_missing(self, offset: int, found: dict[int, Row]) -> None:
        key, value, *_ = self.rows[offset]
        assert self.compacted, f"offset {offset} is missing in the middle"
        assert key is not None, f"offset {offset} has no key, and compaction took it"
        later = [at for at, row in self.rows.items() if at > offset and row[0] == key]
        if any(at in found for at in later):
            return
        assert self.forgotten, f"offset {offset} is missing, and nothing supersedes it"
        assert any(self.rows[at][1] is None for at in later) or value is None, f"the last record of {key!r} is gone"

    def settle(self, found: list[Record], lowest: int, log: Log) -> None:
        """The log was opened: its contents are the promise from now on, and all of it is durable."""
        assert lowest == log.lowest_offset
        self.take_over(found, log)
        assert self.durable == self.end, f"opened, and durable only up to {self.durable} of {self.end}"

    @undisturbed
    def take_over(self, found: list[Record], log: Log) -> None:
        """Take the log's contents as the promise from now on."""
        lowest, end = log.lowest_offset, log.next_offset
        self.rows = {at: row for at, row in self.rows.items() if lowest <= at < end}
        there = {record.offset: row_of(record) for record in found}
        self.absent = {at for at in range(lowest, end) if at not in there}
        self.rows.update(there)
        self.start, self.end = lowest, end
        if self.produced is not None and self.produced[2].stop > end:
            self.produced = None
        self.ends = {at for at in self.ends if at <= end} | {end}
        self.cutting = self.trimming = None
        self.durable = log.durable_offset
