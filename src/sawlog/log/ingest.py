"""Appending many batches: at the next offsets, at their own offsets, as a whole file, or from an Arrow table.

`place` appends batches from a caller at the next offsets. Headers and checksums are always checked, and the records
inside unless this library encoded them: decompressing costs more than everything else. Batches of a producer that are
already stored are left out. A broker mostly receives a single batch, so that case has its own path with the same checks
(`_place_sole`): for a small batch, numpy arrays of one row cost more than everything else together.

`place_at_offsets` copies batches of another log unchanged, at the offsets they already have. Only a leader epoch below
the log's current one is raised to it, because epochs never decrease. Each batch must begin where the previous one
ended. Where offsets are missing (compaction in another system drops whole batches), a batch without records stands in
for them, as after our own compaction. One such batch covers up to two billion offsets, so a gap of 10**12 costs 28 KB,
all in one segment and without index entries. A gap of more than 2**44 is refused. Nothing is decoded, and nothing is
copied unless a gap precedes it.

`advance` moves the start of an empty log by renaming its only, empty file. The new start is recorded first, so a crash
in between leaves an empty log that continues at the same offset. The first batch of an empty log may begin below the
log's start, because its first records were dropped: the file then begins where the batch does, and the records below
the start stay invisible.

`number` and `adopt` turn a file of finished batches into a segment without copying it, so the work grows with the
number of batches and not with their bytes. The file is elsewhere on the same disk, complete and synced. Its batches get
offsets and leader epoch in place (twelve bytes each, not covered by a checksum); it is synced, hard-linked over the
empty active segment, and sealed. A hard link and not a rename: the file keeps its first name until its creator removes
it, so it can be placed again if the append is rolled back or a power cut loses the new name. A log never changes the
bytes of an adopted file: it is sealed, and a truncation writes the remainder to a new file (active_segment.py).

Threads: numbering and syncing take no lock, but no other thread may append meanwhile; `adopt` takes the log's lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..batch import kernel
from ..batch.build import NO_PRODUCER, Encoded, Producer
from ..batch.checksum import crc32c
from ..batch.compression import decompress
from ..batch.header import (
    ATTRIBUTES,
    BASE,
    BASE_SEQUENCE,
    COMPRESSION_MASK,
    CONTROL_BIT,
    COUNT,
    HEADER_BYTES,
    LAST,
    LEADER_EPOCH,
    MAX_TIME,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    SIZE,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchSpan,
    Rows,
    batch_spans,
    scan_rows,
)
from ..batch.read import MALFORMED, first_bad_crc, malformed
from ..clock import now_ms
from ..config import LogConfig
from ..errors import CorruptBatch, InvalidRecord, OffsetMismatch, OutOfOrderSequence, StorageError
from ..storage import Directory, Storage
from .appender import Appender, check_expected
from .batches import MAX_SPAN
from .epochs import Epochs
from .files import TMP, file_name
from .index import TIME_ENTRY_BYTES, SegmentIndex
from .producers import ProducerState
from .segment import Segment
from .writer import BATCH_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

#: Batches that change the state of transactions.
_SPECIAL = CONTROL_BIT | TRANSACTIONAL_BIT


def checked_rows(data: memoryview, *, max_unpacked_bytes: int | None = None) -> Rows:
    """Return the headers of these batches, at least one, after verifying their checksums. With a limit for
    decompression, the records are parsed as well."""
    rows = rows_of(data)
    if not len(rows):
        raise InvalidRecord("no batch to append")
    bad = first_bad_crc(data, rows)
    if bad >= 0:
        raise CorruptBatch(f"the checksum of the batch at byte {rows[bad, POSITION]} does not match; not stored")
    for number, error in () if max_unpacked_bytes is None else malformed(data, rows, max_unpacked_bytes):
        where = int(rows[number, POSITION])
        raise type(error)(f"{error.reason} (the batch at byte {where}; nothing was stored)")
    return rows


def place(
    appender: Appender, data: memoryview, trusted: bool, expect_offset: int | None, max_decompressed_bytes: int | None
) -> range:
    """Place batches at the next offsets, all of them or none, without waiting for the disk. Modifies the buffer.
    `expect_offset` is compared after duplicates are left out: a retry carries the old expectation."""
    allowed = appender.config.max_decompressed_bytes
    max_unpacked_bytes = None if trusted else min(allowed, max_decompressed_bytes or allowed)
    if expect_offset is None:
        sole = _place_sole(appender, data, max_unpacked_bytes)
        if sole is not None:
            return sole
    rows = checked_rows(data, max_unpacked_bytes=max_unpacked_bytes)
    with appender.hold():
        rows, placed = _without_duplicates(appender.producers, rows)
        if len(rows):
            if appender.config.timestamp_type == "append":
                stamp_batches(data, rows)
            if not _is_contiguous(rows):
                data, rows = _compacted(data, rows)
            placed = appender.place_rows(data, rows, expect_offset)
    return placed


def _place_sole(appender: Appender, data: memoryview, max_unpacked_bytes: int | None) -> range | None:
    """Place one batch that is not part of a transaction; None if the buffer holds anything else, or a batch that the
    general path has to refuse."""
    header = kernel.sole_batch(data)
    if header is None or appender.segments.maybe_undecided or len(data) > appender.config.segment_bytes:
        return None
    attributes, count, delta, newest, producer_id, epoch, sequence, crc = header
    if attributes & _SPECIAL or (producer_id < 0, epoch < 0) != (sequence < 0,) * 2 or crc32c(data[21:]) != crc:
        return None
    if max_unpacked_bytes is not None:
        _check_records(data, attributes & COMPRESSION_MASK, count, delta, max_unpacked_bytes)
    producer = NO_PRODUCER if producer_id < 0 else Producer(producer_id, epoch, sequence)
    if appender.config.timestamp_type == "create":
        return appender.place(kernel.Encoded(data, delta + 1, -1, newest), producer=producer)
    with appender.hold():  # so that timestamps increase with offsets
        newest = _stamp(data, attributes)
        return appender.place(kernel.Encoded(data, delta + 1, -1, newest), producer=producer)


def _check_records(data: memoryview, codec: int, count: int, delta: int, max_bytes: int) -> None:
    """Raise unless the records of one batch can be decoded."""
    try:
        body, start = (
            (decompress(codec, data[HEADER_BYTES:], max_bytes=max_bytes), 0) if codec else (data, HEADER_BYTES)
        )
        if not kernel.records_parse(body, start, count, delta):
            raise CorruptBatch(MALFORMED)
    except CorruptBatch as error:
        raise type(error)(f"{error.reason} (the batch at byte 0; nothing was stored)") from None


def rows_of(data: memoryview) -> Rows:
    """Return the headers of encoded batches with any offsets; `CorruptBatch` if one is incomplete."""
    rows, stopped, why = scan_rows(data, least_offset=-1)
    if why != kernel.SCAN_END:
        raise CorruptBatch(f"no complete batch at byte {stopped}; not stored")
    return rows


def _without_duplicates(state: ProducerState, rows: Rows) -> tuple[Rows, range]:
    """Return the batches that are not stored yet, and the offsets of the stored ones."""
    known = range(0)
    fresh: list[int] = []
    ahead: dict[int, tuple[int, int]] = {}  # producer -> (epoch, next sequence), as if the fresh ones were stored
    columns = (PRODUCER_ID, PRODUCER_EPOCH, BASE_SEQUENCE, BASE, LAST, ATTRIBUTES)
    for i, row in enumerate(rows[:, columns].tolist()):
        producer_id, epoch, sequence, base, last, attributes = row
        if producer_id < 0 or sequence < 0:
            if producer_id >= 0:  # a marker, or not idempotent
                state.check_epoch(producer_id, epoch)
            fresh.append(i)
            continue
        if producer_id in ahead:
            if ahead[producer_id] != (epoch, sequence):
                raise OutOfOrderSequence(
                    f"producer {producer_id} is at epoch and sequence {ahead[producer_id]}; a batch with "
                    f"{(epoch, sequence)} is refused, with all batches of the same call"
                )
        else:
            transactional = bool(attributes & TRANSACTIONAL_BIT)
            found = state.duplicate(producer_id, epoch, sequence, last - base + 1, transactional=transactional)
            if found is not None:
                known = range(min(known.start, found.start), max(known.stop, found.stop)) if known else found
                continue
        ahead[producer_id] = epoch, (sequence + last - base + 1) % 2**31
        fresh.append(i)
    return rows[fresh], known


def _is_contiguous(rows: Rows) -> bool:
    return bool((rows[1:, POSITION] == rows[:-1, POSITION] + rows[:-1, SIZE]).all())


def _compacted(data: memoryview, rows: Rows) -> tuple[memoryview, Rows]:
    """Copy these batches into a contiguous buffer, without the duplicates between them."""
    kept = bytearray().join(data[p : p + s] for p, s in rows[:, (POSITION, SIZE)].tolist())
    return memoryview(kept), rows_of(memoryview(kept))


def stamp_batches(data: memoryview, rows: Rows) -> None:
    """Set the timestamps of batches to the log's clock (LogAppendTime)."""
    for row in rows:
        position, size = int(row[POSITION]), int(row[SIZE])
        row[MAX_TIME] = _stamp(data[position : position + size], int(row[ATTRIBUTES]))


def _stamp(batch: memoryview, attributes: int) -> int:
    """Set the timestamp of one batch to the log's clock and return it."""
    now = now_ms()
    batch[21:23] = (attributes | TIMESTAMP_TYPE_BIT).to_bytes(2, "big", signed=True)
    batch[35:43] = now.to_bytes(8, "big")
    kernel.patch_crc(batch, 0, crc32c(batch[21:]))
    return now


#: Most offsets that one batch without records covers.
_MOST_MISSING = 2**31 - 1
#: A larger gap is refused: an offset is damaged or mistyped.
_MOST_GAP = 2**44


def place_at_offsets(appender: Appender, data: memoryview, rows: Rows, *, any_size: bool = False) -> range:
    """Place complete, verified batches at their own offsets, all of them or none. Returns the offsets from the first to
    the last, including gaps. With `any_size`, a batch larger than a segment gets a segment of its own: for copies of a
    log whose segments used to be larger."""
    with appender.hold():
        first = appender.segments.next_offset
        if not (int(rows[0, BASE]) < first <= int(rows[0, LAST]) and _is_empty(appender)):
            return _place(appender, data, rows, first, any_size=any_size)
        if not any_size:
            appender.check_sizes(rows)
        _rename(appender, int(rows[0, BASE]))
        try:
            return _place(appender, data, rows, first, any_size=any_size)
        except BaseException:
            if appender.durability.failure is None and _is_empty(appender):
                _rename(appender, first)  # offsets must not go back
            raise


def _place(appender: Appender, data: memoryview, rows: Rows, first: int, *, any_size: bool) -> range:
    with appender.appending() as placed_from:
        data, rows = _without_gaps(data, rows, placed_from)
        if not any_size:
            appender.check_sizes(rows)
        data, rows = _in_later_epochs(appender, data, rows)
        start = 0
        while start < len(rows):
            start = _place_run(appender, data, rows, start)
        return range(first, appender.segments.next_offset)


def _in_later_epochs(appender: Appender, data: memoryview, rows: Rows) -> tuple[memoryview, Rows]:
    """Raise epochs that would decrease, and durably begin the epochs that are new to the log."""
    wanted = np.maximum.accumulate(np.maximum(rows[:, LEADER_EPOCH], appender.durability.epoch))
    low = np.flatnonzero(rows[:, LEADER_EPOCH] != wanted)
    if len(low):
        data, rows = memoryview(bytearray(data)), rows.copy()
        rows[:, LEADER_EPOCH] = wanted
        for position, base, epoch in rows[low][:, (POSITION, BASE, LEADER_EPOCH)].tolist():
            kernel.patch_place(data, position, base, epoch)
    if wanted[-1] > appender.durability.epoch:
        appender.lineage.begin_epoch(appender.segments.epochs.begun_by(rows))
    return data, rows


def advance(appender: Appender, offset: int, leader_epoch: int = 0) -> int:
    """Move the next offset forward and return the number of offsets skipped. They never hold a record."""
    with appender.hold():
        following = appender.segments.next_offset
        if offset < following:
            raise OffsetMismatch(offset, following)
        if offset > following:
            if _is_empty(appender):
                with appender.exclusive():
                    appender.lineage.move_start(offset)
                    _rename(appender, offset)
            else:
                data = fillers(following, offset, -1, leader_epoch)
                place_at_offsets(appender, memoryview(data), rows_of(memoryview(data)))
    return offset - following


def retract_epochs(appender: Appender, epoch: int) -> None:
    """Drop the leader epochs after `epoch` that have no batch. One begins whenever a log was not closed cleanly,
    because lost records may have been read; a copy, however, receives the same records again, in their own epochs."""
    with appender.hold():
        epochs, end = appender.segments.epochs, appender.segments.next_offset
        later = [first for number, first in epochs.entries if number > epoch]
        if later and min(later) >= end:
            kept = tuple(each for each in epochs.entries if each[0] <= epoch)
            appender.lineage.begin_epoch(Epochs(kept or ((epoch, appender.segments.lowest_offset),)))


def _is_empty(appender: Appender) -> bool:
    if appender.segments.remote is not None:
        return False  # its first records are in the replica
    return len(appender.segments.all) == 1 and not appender.segments.active.size


def _rename(appender: Appender, base: int) -> None:
    """Rename the only segment, which is empty, so that it begins at `base`."""
    directory, old = appender.directory, appender.segments.active
    with appender.exclusive():
        # A watermark that refers to a later file would report data loss.
        appender.lineage.record_truncation(base, (base, base, 0), appender.segments.epochs)
        appender.begin_change()
        try:
            old.remove_index()
            directory.rename(old.name, file_name(base))
            directory.sync()
            index = SegmentIndex(base, appender.config.index_interval_bytes)
            storage = directory.open(file_name(base))
            appender.producers.transactions.begin_segment(base)
            appender.adopt([Segment.active(directory, base, storage, index, base, 0)])
        except BaseException as error:
            appender.durability.fail(error)  # only reopening can tell which name the file has now
            raise
        appender.end_change()
        old.unload()


def _without_gaps(data: memoryview, rows: Rows, following: int) -> tuple[memoryview, Rows]:
    """Fill gaps between the batches with batches without records."""
    ends = np.concatenate(([following], rows[:-1, LAST] + 1))
    if (rows[:, BASE] < ends).any():
        at = int((rows[:, BASE] < ends).argmax())
        raise InvalidRecord(
            f"a batch begins at offset {rows[at, BASE]}, expected at least {ends[at]}; nothing was stored"
        )
    begin, end = int(rows[0, POSITION]), int(rows[-1, POSITION] + rows[-1, SIZE])
    gaps = np.flatnonzero(rows[:, BASE] != ends).tolist()
    if not gaps:
        return data, rows
    parts: list[bytearray | memoryview] = []
    for at in gaps:
        position = int(rows[at, POSITION])
        like = rows[at - 1 if at else at]  # the neighbour's timestamp and epoch, so that neither decreases
        parts += (
            data[begin:position],
            fillers(int(ends[at]), int(rows[at, BASE]), int(like[MAX_TIME]), int(like[LEADER_EPOCH])),
        )
        begin = position
    made = memoryview(b"".join([*parts, data[begin:end]]))  # one join: growing a buffer costs ten times as much
    return made, rows_of(made)


def fillers(start: int, end: int, timestamp: int, epoch: int) -> bytearray:
    """Return batches without records for these offsets. Several of them carry no timestamp, because the index could not
    locate it."""
    if end - start > _MOST_GAP:
        raise InvalidRecord(
            f"offsets {start} to {end - 1} are missing: the gap is too large for a log; nothing was stored"
        )
    made = bytearray()
    timestamp = timestamp if end - start <= _MOST_MISSING else -1
    for first in range(start, end, _MOST_MISSING):
        span = min(end - first, _MOST_MISSING)
        one = memoryview(bytearray(HEADER_BYTES))
        kernel.write_header(one, 0, first, HEADER_BYTES, epoch, 0, span - 1, timestamp, timestamp, -1, -1, -1, 0)
        kernel.patch_crc(one, 0, crc32c(one[21:]))
        made += one
    return made


def _place_run(appender: Appender, data: memoryview, rows: Rows, start: int) -> int:
    """Write as many batches from `start` on as fit into one segment; return the first that did not."""
    config, segment = appender.config, appender.segments.active
    offset, size = segment.tail
    sizes = size + np.cumsum(rows[start:, SIZE])
    fits = (sizes <= config.segment_bytes) & (
        (rows[start:, LAST] - segment.base_offset < MAX_SPAN) | (rows[start:, COUNT] == 0)
    )
    # Unlike an append, not by age: the source has decided how long its segments are.
    if size and (not fits[0] or segment.index.size_bytes + 12 > config.max_index_bytes):
        appender.active.rotate()
        return start
    run = rows[start : start + max(int(fits.sum()), 1)]
    begin, end = int(run[0, POSITION]), int(run[-1, POSITION] + run[-1, SIZE])
    assert int(run[0, BASE]) == offset, f"a batch at {run[0, BASE]} in a log that ends at {offset}"
    segment.storage.reserve(end - begin)  # under every policy: no caller waits for the disk here
    appender.active.write(data[begin:end], int(run[-1, LAST]) + 1)
    segment.index.add_rows(run, size - begin)
    appender.note_rows(run)
    return start + len(run)


@dataclass(frozen=True, slots=True)
class NumberedFile:
    """A file whose batches have their final offsets."""

    directory: Directory
    name: str
    storage: Storage
    rows: Rows

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return int(self.rows[-1, POSITION] + self.rows[-1, SIZE])

    def sync(self) -> None:
        """Make the offsets durable before `adopt`. Callable from any thread."""
        try:
            self.storage.sync()
        finally:
            self.storage.close()

    @property
    def offsets(self) -> range:
        """Offsets of its records."""
        return range(int(self.rows[0, BASE]), int(self.rows[-1, LAST]) + 1)


def number(appender: Appender, directory: Directory, name: str, offset: int) -> NumberedFile | None:
    """Assign offsets from `offset` on to the batches of a file; None if it cannot become a segment here. The result is
    not durable before `NumberedFile.sync`."""
    if not hasattr(directory, "link") or appender.config.timestamp_type == "append":
        return None
    batches = _batches_in(directory, name)
    if not _fits(appender.config, batches):
        return None
    storage = directory.open(name)
    try:
        _give_offsets(storage, batches, offset, appender.durability.epoch)
        mapped = directory.open_sealed(name)
        try:
            rows = rows_of(mapped.view(0, mapped.size))
        finally:
            mapped.close()
    except BaseException:
        storage.close()
        raise
    if _is_plain(rows):
        return NumberedFile(directory, name, storage, rows)
    storage.close()
    return None


def _give_offsets(storage: Storage, batches: Sequence[BatchSpan], offset: int, epoch: int) -> None:
    """Write offsets and epoch, but not the length between them: a power cut may leave garbage wherever it interrupts a
    write, and the next process needs the lengths to find the batches."""
    belonging = epoch.to_bytes(4, "big", signed=True)
    write = storage.write_at
    for position, _, count in batches:
        write(position, offset.to_bytes(8, "big"))
        write(position + 12, belonging)
        offset += count


def check(appender: Appender, directory: Directory, name: str) -> int:
    """Return the number of offsets in a file of batches. Raises if one is incomplete or too large."""
    batches = _batches_in(directory, name)
    for _, size, _ in batches:
        appender.check_size(size)
    return sum(count for _, _, count in batches)


def _batches_in(directory: Directory, name: str) -> list[BatchSpan]:
    """Return position, size and offset count of all batches of a file."""
    mapped = directory.open_sealed(name)
    try:
        found, _ = batch_spans(mapped.view(0, mapped.size))
        end = found[-1].position + found[-1].size_bytes if found else 0
        if end < mapped.size:
            raise CorruptBatch(f"no complete batch at byte {end} of {directory.path}/{name}; not stored")
    finally:
        mapped.close()
    return found


def _fits(config: LogConfig, batches: Sequence[BatchSpan]) -> bool:
    """Return True if these batches and their indexes stay within the limits of a segment."""
    size = sum(size for _, size, _ in batches)
    entries = min(len(batches), size // config.index_interval_bytes + 1)
    return (
        0 < size <= config.segment_bytes
        and entries * TIME_ENTRY_BYTES <= config.max_index_bytes
        and sum(count for _, _, count in batches) <= MAX_SPAN
    )


def _is_plain(rows: Rows) -> bool:
    """Return True if no batch has a producer, whose state would have to be updated."""
    special = (rows[:, ATTRIBUTES] & (CONTROL_BIT | TRANSACTIONAL_BIT)) != 0
    return not (special | (rows[:, PRODUCER_ID] >= 0)).any()


def adopt(appender: Appender, file: NumberedFile) -> range | None:
    """Make a numbered file the next segment and return its offsets; None if the file system has no hard links."""
    with appender.appending() as first:
        check_expected(file.offsets.start, first)
        if appender.active.segment.tail[1]:
            appender.active.rotate()
        temporary = _linked(appender.directory, file, first)
        if temporary is None:
            return None
        with appender.active.lock:
            try:
                _take(appender, file, temporary)
            except BaseException as error:
                # The empty segment may have lost its name, and appends to it would be lost.
                appender.durability.fail(error)
                raise
        appender.active.rotate()
        return file.offsets


def _linked(directory: Directory, file: NumberedFile, base: int) -> str | None:
    """Hard-link the file into the log's directory; None if that is impossible."""
    temporary = file_name(base) + TMP
    directory.remove(temporary)
    try:
        file.directory.link(file.name, directory, temporary)
    except StorageError:
        return None
    return temporary


def _take(appender: Appender, file: NumberedFile, temporary: str) -> None:
    """Replace the active segment, which is empty, with the file."""
    directory, segments = appender.directory, appender.segments
    base, end = file.offsets.start, file.offsets.stop
    directory.rename(temporary, file_name(base))
    directory.sync()
    index = SegmentIndex(base, appender.config.index_interval_bytes)
    index.add_rows(file.rows, 0)
    made = Segment.active(directory, base, directory.open(file_name(base)), index, end, file.size_bytes)
    appender.active.replace(made, segments.all[:-1])


# --- Arrow tables

#: Bytes encoded before they are placed. A larger table holds the log's lock while the rest is encoded.
_GROUP_BYTES = 8 << 20


def append_table(appender: Appender, table: pa.Table | pa.RecordBatch, expect_offset: int | None) -> range:
    """Encode and place the rows of a table, all of them or none, and return their offsets."""
    encoder = appender.encoders.take()
    try:
        batches = encoder.table(table, min(BATCH_BYTES, appender.config.segment_bytes // 2 + 1))
        group, more = _next_group(batches)
        if more:
            return _place_groups(appender, group, batches, expect_offset)
        return _place_group(appender, group, expect_offset)
    finally:
        appender.encoders.give_back(encoder)


def _place_groups(appender: Appender, group: bytearray, batches: Iterator[Encoded], expect_offset: int | None) -> range:
    with appender.appending() as first:
        placed = _place_group(appender, group, expect_offset)
        more = True
        while more:
            group, more = _next_group(batches)
            if group:
                placed = _place_group(appender, group, None)
        return range(first, placed.stop)


def _place_group(appender: Appender, group: bytearray, expect_offset: int | None) -> range:
    if not group:
        raise InvalidRecord("no record to append")
    return appender.place_rows(memoryview(group), rows_of(memoryview(group)), expect_offset)


def _next_group(batches: Iterator[Encoded]) -> tuple[bytearray, bool]:
    """Return the next batches, contiguous and of limited size, and whether more may follow."""
    group = bytearray()
    for batch in batches:
        group += batch.data
        if len(group) >= _GROUP_BYTES:
            return group, True
    return group, False
