"""Places batches at the offsets that they already have: batches of another log, copied unchanged.

An append gives a batch the next offsets by patching it. Here a batch keeps its base offset, leader epoch and everything
else, so that no byte of it changes; unless its epoch is below the log's current one, to which it is then raised,
because epochs never decrease. Each batch must still begin where the previous one ended: where offsets are missing
(compaction in another system drops whole batches), a batch without records represents them, as after our own
compaction. One represents up to two thousand million offsets, so a gap of 10**12 costs 28 KB; these are all in one
segment, which has no index entries for them. A gap of more than 2**44 is refused. Nothing is decoded, and nothing is
copied unless there is a gap before it.

An empty log can be told where to begin (`advance`): its only file, which is empty, is renamed. The new start is
recorded before that, so that a crash in between leaves an empty log that continues at the same offset. The first batch
of an empty log may begin before the log's start (its first records have been dropped): then the file begins where the
batch does, and what is below the log's start stays invisible.
"""

from __future__ import annotations

import numpy as np

from ...batch import kernel
from ...batch.checksum import crc32c
from ...batch.header import BASE, COUNT, HEADER_BYTES, LAST, LEADER_EPOCH, MAX_TIME, POSITION, SIZE, Rows
from ...errors import InvalidRecord, OffsetMismatch
from ..files.epochs import Epochs
from ..files.names import file_name
from ..segment.index import MAX_SPAN, SegmentIndex
from ..segment.segment import Segment
from .appender import Appender
from .incoming import rows_of

#: The maximum number of offsets that one batch without records represents.
_MOST_MISSING = 2**31 - 1
#: A larger gap is refused: a number is damaged, or mistyped.
_MOST_GAP = 2**44


def place_kept(appender: Appender, data: memoryview, rows: Rows, *, any_size: bool = False) -> range:
    """Place complete, checked batches at their offsets; all of them or none. Returns the offsets from the first to the
    last, with those that are missing before and between them. With `any_size` one that is larger than a segment should
    be becomes one alone: in a copy of a log whose segments were allowed to be larger before."""
    with appender.lock:
        appender.check_open()
        first = appender.segments.next_offset
        if not (int(rows[0, BASE]) < first <= int(rows[0, LAST]) and _is_empty(appender)):
            return _place(appender, data, rows, first, any_size=any_size)
        if not any_size:
            appender.check_sizes(rows)
        _rename(appender, int(rows[0, BASE]))
        try:
            return _place(appender, data, rows, first, any_size=any_size)
        except BaseException:
            if appender.commit.failure is None and _is_empty(appender):
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
    """The same batches, in epochs that never decrease; epochs that are new to the log begin, durably."""
    wanted = np.maximum.accumulate(np.maximum(rows[:, LEADER_EPOCH], appender.marks.epoch))
    low = np.flatnonzero(rows[:, LEADER_EPOCH] != wanted)
    if len(low):
        data, rows = memoryview(bytearray(data)), rows.copy()
        rows[:, LEADER_EPOCH] = wanted
        for position, base, epoch in rows[low][:, (POSITION, BASE, LEADER_EPOCH)].tolist():
            kernel.patch_place(data, position, base, epoch)
    if wanted[-1] > appender.marks.epoch:
        appender.history.begin_epoch(appender.segments.epochs.begun_by(rows))
    return data, rows


def advance(appender: Appender, offset: int, leader_epoch: int = 0) -> int:
    """Let the next record have this offset and return how many offsets are skipped. They never hold a record."""
    with appender.lock:
        appender.check_open()
        following = appender.segments.next_offset
        if offset < following:
            raise OffsetMismatch(offset, following)
        if offset > following:
            if _is_empty(appender):
                with appender.exclusive():
                    appender.history.move_start(offset)
                    _rename(appender, offset)
            else:
                data = fillers(following, offset, -1, leader_epoch)
                place_kept(appender, memoryview(data), rows_of(memoryview(data)))
    return offset - following


def retract_epochs(appender: Appender, epoch: int) -> None:
    """Forget the leader epochs after `epoch` that have no batch. One begins whenever a log was not closed cleanly,
    since what was lost may have been read; but a copy gets the same records again, in the epochs that they have."""
    with appender.lock:
        appender.check_open()
        epochs, end = appender.segments.epochs, appender.segments.next_offset
        later = [first for number, first in epochs.entries if number > epoch]
        if later and min(later) >= end:
            kept = tuple(each for each in epochs.entries if each[0] <= epoch)
            appender.history.begin_epoch(Epochs(kept or ((epoch, appender.segments.lowest_offset),)))


def _is_empty(appender: Appender) -> bool:
    if appender.segments.remote is not None:
        return False  # its first records are elsewhere, and the next ones follow them
    return len(appender.segments.all) == 1 and not appender.segments.active.size


def _rename(appender: Appender, base: int) -> None:
    """Let the only segment, which is empty, begin here."""
    directory, old = appender.directory, appender.segments.active
    with appender.exclusive():
        # If a watermark referred to a later file, its absence would be a loss.
        appender.history.retreat(base, (base, base, 0), appender.segments.epochs)
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
            appender.commit.fail(error)  # only reopening can tell which name the file has now
            raise
        appender.end_change()
        old.unload()


def _without_gaps(data: memoryview, rows: Rows, following: int) -> tuple[memoryview, Rows]:
    """The same batches, with batches without records wherever offsets are missing."""
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
    made = memoryview(b"".join([*parts, data[begin:end]]))  # in one go: growing it costs ten times as much
    return made, rows_of(made)


def fillers(start: int, end: int, timestamp: int, epoch: int) -> bytearray:
    """Batches without records for these offsets. If there are several, they have no timestamp: an index could not say
    where it is."""
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
    """Write as many of the batches from `start` on as fit into one segment; returns the first that did not."""
    config, segment = appender.config, appender.segments.active
    offset, size = segment.tail
    sizes = size + np.cumsum(rows[start:, SIZE])
    fits = (sizes <= config.segment_bytes) & (
        (rows[start:, LAST] - segment.base_offset < MAX_SPAN) | (rows[start:, COUNT] == 0)
    )
    # Not by age, as in an append: the source decided that, and how long its segments are.
    if size and (not fits[0] or segment.index.size_bytes + 12 > config.max_index_bytes):
        appender.active.rotate()
        return start
    run = rows[start : start + max(int(fits.sum()), 1)]
    begin, end = int(run[0, POSITION]), int(run[-1, POSITION] + run[-1, SIZE])
    assert int(run[0, BASE]) == offset, f"a batch at {run[0, BASE]} in a log that ends at {offset}"
    segment.storage.reserve(end - begin)  # whatever the policy: nobody waits for the disk here
    appender.active.put(segment, data[begin:end], int(run[-1, LAST]) + 1)
    segment.index.add_rows(run, size - begin)
    appender.note_rows(run)
    return start + len(run)
