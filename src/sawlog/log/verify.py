"""Verification of a log: every batch, every record and every index entry.

`verify` reads the whole log and changes nothing. Damage is listed, not raised, and reading continues after it, so that
one report shows everything.

A large segment is cut where the index names a batch, and its parts are checked in threads: checksums, decompression
and decoding do not hold the GIL. That answers only whether all is good. If a part is not, or does not end where the
next one begins, the segment is read again, in order, and the report is that of this reading.
"""

from __future__ import annotations

from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise

from ..batch.header import BASE, COUNT, HEADER_BYTES, LAST, POSITION, SIZE, Rows
from ..batch.read import malformed
from ..display import counted, missing_text
from ..errors import CorruptBatch, StorageError
from ..storage import Storage
from ..storage.system import cores
from .batches import Chunk, names_batch
from .files import REMOTE
from .index import SegmentIndex
from .remote import LOST_LIST
from .segment import Segment
from .segments import SegmentSet

#: Maximum number of restarts because segments were replaced meanwhile.
_RETRIES = 20
#: The smallest part of a segment that is worth a thread, and how many parts there are for each thread.
_PART_BYTES = 4 << 20
_PARTS_PER_THREAD = 4


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
    """A report that lists problems."""

    __slots__ = ()
    problems: list[Problem]

    @property
    def ok(self) -> bool:
        """True if no problem was found."""
        return not self.problems


@dataclass(slots=True)
class VerifyReport(Checked):
    """Numbers of batches and records read, and the problems found. True if there are none."""

    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    #: Number of tiered offsets, which were not read.
    remote_offsets: int = 0

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        verdict = "all good" if self.ok else counted(len(self.problems), "problem")
        head = (
            f"{verdict}: {counted(self.records, 'record')} in {counted(self.batches, 'batch', 'batches')}, "
            f"{counted(self.segments, 'segment')}, {self.size_bytes:,} bytes"
        )
        if self.remote_offsets:
            head += f"; {self.remote_offsets:,} offsets are only in the replica, and were not read"
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
    report = VerifyReport(remote_offsets=segments.lowest_offset - segments.log_start)
    report.problems += _lost_list(segments)
    for segment in _live_segments(segments):
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


def missing_ends(segments: SegmentSet) -> list[Problem]:
    """Check only that the beginning is known, that every segment extends to the next one, and the last one to the
    recorded end: reads an index and a few batches of each."""
    for _ in range(_RETRIES):
        version = segments.version
        found = _lost_list(segments)
        for segment in _live_segments(segments):
            loaded = segment.is_loaded
            try:
                reason = segment.missing_end()
            except StorageError as error:
                reason = str(error)
            if reason is not None:
                found.append(Problem(segment.path, segment.size, reason, segment.next_offset))
            if not loaded and segment.sealed:
                segment.unload()
        if not found or not segments.changed_since(version):
            break
    return found


def _live_segments(segments: SegmentSet) -> list[Segment]:
    """Return the segments of the log, without trimmed ones that could not be deleted yet."""
    return [each for each in segments.all if each.next_offset > segments.lowest_offset or each is segments.all[-1]]


def _lost_list(segments: SegmentSet) -> list[Problem]:
    """The problem that only the replica knows where the log begins, if so."""
    if segments.remote is None or segments.remote.is_known:
        return []
    return [Problem(f"{segments.directory.path}/{REMOTE}", 0, LOST_LIST, segments.lowest_offset)]


def verify_segment(segment: Segment, report: VerifyReport, most: int, *, threads: int | None = None) -> None:
    """Read one segment and add its content and its problems to the report. Uses one thread per core unless `threads` is
    given."""
    if not _is_good(segment, report, most, cores() if threads is None else threads):
        _verify_in_order(segment, report, most)
    _verify_index(segment, segment.index, report)


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes of a segment, and the offsets that they should have: from `first` up to, not including, `following`."""

    position: int
    stop: int
    first: int
    following: int


def _is_good(segment: Segment, report: VerifyReport, most: int, threads: int) -> bool:
    """Check the parts of a segment at the same time; if all are good, add them to the report."""
    storage = segment.storage
    parts = _parts(segment, storage, threads)
    if len(parts) < 2:
        return False
    pool = ThreadPoolExecutor(min(threads, len(parts)), thread_name_prefix="sawlog-verify")
    try:
        found = list(pool.map(lambda part: _verify_part(segment, storage, part, most), parts))
    except CorruptBatch:
        return False
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    if not all(each.ok for each in found):
        return False
    report.segments += 1
    report.size_bytes += parts[-1].stop
    report.batches += sum(each.batches for each in found)
    report.records += sum(each.records for each in found)
    return True


def _parts(segment: Segment, storage: Storage, threads: int) -> list[_Part]:
    """About equal parts, each of which begins with a batch that the index names."""
    following, size = segment.tail
    least = max(_PART_BYTES, size // max(threads * _PARTS_PER_THREAD, 1))
    if threads < 2 or size < 2 * _PART_BYTES:
        return []
    positions = segment.index.positions
    cuts = [0]
    while (at := bisect_left(positions, cuts[-1] + least)) < len(positions) and positions[at] + least <= size:
        cuts.append(positions[at])
    # The base offset of a batch is its first field.
    firsts = [int.from_bytes(storage.view(cut, HEADER_BYTES)[:8], "big") for cut in cuts]
    firsts[0] = segment.base_offset
    ends = pairwise([*zip(cuts, firsts, strict=True), (size, following)])
    return [_Part(position, stop, first, behind) for (position, first), (stop, behind) in ends]


def _verify_part(segment: Segment, storage: Storage, part: _Part, most: int) -> VerifyReport:
    """Read a part and report its content. Every unexpected error is a problem of the log."""
    found = VerifyReport()
    position, expected = part.position, part.first
    for chunk in segment.batches(storage, part.position, part.stop, part.first):
        _verify_records(segment, chunk, found, most)
        last = chunk.rows[-1]
        position, expected = chunk.origin + int(last[POSITION] + last[SIZE]), int(last[LAST]) + 1
    joined = expected == part.following if segment.dense else expected <= part.following
    if position != part.stop or not joined:
        found.problems.append(Problem(segment.path, position, "it does not end where the next part begins", expected))
    return found


def _verify_in_order(segment: Segment, report: VerifyReport, most: int) -> None:
    """Read it from its beginning to its end, also after damage."""
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
        report.problems.append(Problem(segment.path, size, missing_text(expected, following), following))


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
