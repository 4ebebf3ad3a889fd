"""Checks every batch, every record and every index entry, against each other.

`verify` reads the whole log and changes nothing. Damage is listed, not raised, and reading continues after it, so that
one report shows everything.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...batch.header import BASE, COUNT, LAST, POSITION, SIZE, Rows
from ...batch.read import malformed
from ...errors import CorruptBatch, StorageError
from ..segment.batches import Chunk, names_batch
from ..segment.index import SegmentIndex
from ..segment.segment import Segment
from ..segment.segments import SegmentSet

#: How often it starts again because segments were replaced meanwhile.
_RETRIES = 20


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where, what, and the next offset that can be read (None: nothing readable follows)."""

    path: str
    position: int
    reason: str
    next_offset: int | None

    def __str__(self) -> str:
        return f"{self.path} at byte {self.position}: {self.reason}"


class Checked:
    """A report that lists what is wrong."""

    __slots__ = ()
    problems: list[Problem]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass(slots=True)
class VerifyReport(Checked):
    """What was read and what is wrong. `bool(report)` is whether nothing is wrong."""

    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        verdict = "all good" if self.ok else f"{len(self.problems)} problems"
        head = (
            f"{verdict}: {self.records:,} records in {self.batches:,} batches, {self.segments} segments, "
            f"{self.size_bytes:,} bytes"
        )
        return "\n  ".join([head, *map(str, self.problems)])


def verify(segments: SegmentSet, max_decompressed_bytes: int) -> VerifyReport:
    """Read everything below the current end."""
    for _ in range(_RETRIES):
        version = segments.version
        report = _verify_all(segments, max_decompressed_bytes)
        if report.ok or segments.version == version:
            break  # else segments were replaced or deleted while they were read: this is not damage
    return report


def _verify_all(segments: SegmentSet, max_decompressed_bytes: int) -> VerifyReport:
    report = VerifyReport()
    for segment in segments.all:
        segments.use(segment)
        try:
            verify_segment(segment, report, max_decompressed_bytes)
        except StorageError as error:
            segments.refresh()
            if segment not in segments.all:
                continue  # trimmed or truncated while we were reading
            report.problems.append(Problem(segment.path, 0, str(error), segment.next_offset))
        finally:
            segments.done(segment)
    return report


def verify_segment(segment: Segment, report: VerifyReport, most: int) -> None:
    """Read one segment and add what it contains, and what is wrong with it, to the report."""
    following, size = segment.tail
    storage = segment.storage
    report.segments += 1
    report.size_bytes += size
    position, least = 0, segment.base_offset
    expected = segment.base_offset
    while position < size:
        try:
            for chunk in segment.batches(storage, position, size, least):
                if chunk.rows[-1, BASE] >= following:
                    chunk.keep(_without_surplus(segment, chunk, report))
                    if not len(chunk.rows):
                        position = size
                        break
                _verify_records(segment, chunk, report, most)
                last = chunk.rows[-1]
                position, expected = chunk.origin + int(last[POSITION] + last[SIZE]), int(last[LAST]) + 1
        except CorruptBatch as error:
            report.problems.append(_problem(segment, error))
            at = error.position if error.position is not None else position
            position, resumed = segment.resume(storage, at, size, expected)
            least, expected = -1, resumed if resumed is not None else following
    if expected < following and segment.dense:
        reason = f"offsets {expected} to {following - 1} are missing"
        report.problems.append(Problem(segment.path, size, reason, following))
    _verify_index(segment, segment.index, report)


def _without_surplus(segment: Segment, chunk: Chunk, report: VerifyReport) -> Rows:
    """Only the batches of this segment; batches of others after them are a problem of their own, reported once."""
    surplus = chunk.rows[:, BASE] >= segment.next_offset
    where = chunk.origin + int(chunk.rows[surplus][0, POSITION])
    problem = Problem(segment.path, where, "batches of the next segment are here", segment.next_offset)
    if not any(each.reason == problem.reason and each.path == problem.path for each in report.problems):
        report.problems.append(problem)
    return chunk.rows[~surplus]


def _problem(segment: Segment, error: CorruptBatch) -> Problem:
    return Problem(segment.path, error.position or 0, error.reason, error.next_offset)


def _verify_records(segment: Segment, chunk: Chunk, report: VerifyReport, most: int) -> None:
    """Check that every record of a chunk can be decoded."""
    report.batches += len(chunk.rows)
    report.records += int(chunk.rows[:, COUNT].sum())
    first = 0
    while first < len(chunk.rows):
        found = next(malformed(chunk.view, chunk.rows[first:], most), None)
        if found is None:
            return
        number, error = first + found[0], found[1]
        row = chunk.rows[number]
        where = chunk.origin + int(row[POSITION])
        report.problems.append(Problem(segment.path, where, error.reason, int(row[LAST]) + 1))
        first = number + 1


def _verify_index(segment: Segment, index: SegmentIndex, report: VerifyReport) -> None:
    """Check that every entry points at the batch that it names."""
    storage = segment.storage
    for relative, position in zip(index.offsets, index.positions, strict=False):
        if not names_batch(storage, position, segment.base_offset + relative):
            reason = f"the index says that the batch that ends at {segment.base_offset + relative} starts here"
            report.problems.append(Problem(segment.path, position, reason, None))
            return
