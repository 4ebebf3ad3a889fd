"""Compiled fast path of `Appender.place`, which is its specification: one call places one batch at the end of a log.

It covers the common case: a file, a policy that does not wait, room in the segment and in its reserved blocks, no
waiter to wake, and nothing left over from an interrupt. Otherwise it returns -1 and the caller takes the general path.

Compiled, no signal handler runs during a call, so nothing has to be undone halfway. Only the write may fail or fall
short. The append is then recorded as unfinished, as if an interrupt had come during the write, and the next holder of
the lock, which is the caller on the general path, rolls it back. Interpreted, a signal handler may run between any two
lines, so the fast path is off, except in tests.
"""

from sawlog.batch.cyshim import cython

if not cython.compiled:
    from .builder import SMALL_CRC_BYTES, BatchBuilder, Encoded, gather_chunks, now_ms
    from .declarations import MOST_DELTA, TIMESTAMP_TYPE_BIT
    from .fields import (
        ActiveSegmentFields,
        AppendBlocksFields,
        AppenderFields,
        CommitFields,
        ExtentFields,
        LookupFields,
        SegmentSetFields,
        VisibleOffsetFields,
        WatermarksFields,
    )
    from .files import FileFields, write_at
    from .primitives import put32, put64
    from .records import MAX_TIMESTAMP
    from .slots import Slots
    from .sparse import SparseIndex

#: Upper bound on the bytes of a one-record batch besides key and value.
_FRAME_BYTES = 128


@cython.final
@cython.cclass
class FastAppender:
    """Fast path of one `Appender`; the fields are its parts."""

    appender: AppenderFields
    active: ActiveSegmentFields
    watermarks: WatermarksFields
    visible: VisibleOffsetFields
    commit: CommitFields
    blocks: AppendBlocksFields
    segments: SegmentSetFields
    builder: BatchBuilder
    #: The log's lock, and whether a stream is being appended.
    acquire: object
    release: object
    is_streaming: object
    begin_stream: object
    end_stream: object
    nobody: object
    append_time: cython.bint
    short_bytes: cython.longlong
    most_bytes: cython.longlong
    most_unsynced: cython.longlong
    enabled = cython.declare(cython.bint, visibility="public")
    #: Number of batches placed by the fast path.
    placed = cython.declare(cython.longlong, visibility="readonly")
    __weakref__: object

    def __init__(
        self,
        appender,
        visible,
        builder,
        nobody,
        append_time,
        most_record_bytes,
        most_unsynced,
        short_bytes,
    ):
        """`builder` must not be shared. `most_record_bytes` limits a record if above 0; below 0, nothing is encoded
        here. Appends wait for the disk once `most_unsynced` bytes are not synced, unless that is below 0. A stream of
        up to `short_bytes` is appended like any other record."""
        self.appender = appender
        self.active = appender.active
        self.watermarks = appender.watermarks
        self.visible = visible
        self.commit = appender.commit
        self.blocks = appender.blocks
        self.segments = appender.segments
        self.builder = builder
        self.acquire = appender.lock.acquire
        self.release = appender.lock.release
        self.is_streaming = appender.streaming.locked
        self.begin_stream = appender.streaming.acquire
        self.end_stream = appender.streaming.release
        self.nobody = nobody
        self.append_time = append_time
        # Streams are exempt from the record limit, but everything encoded here is subject to it.
        self.short_bytes = short_bytes if most_record_bytes == 0 else -1
        self.most_bytes = min(SMALL_CRC_BYTES, self.builder.max_total) - _FRAME_BYTES
        if most_record_bytes < 0 or 0 < most_record_bytes < self.most_bytes:
            self.most_bytes = most_record_bytes
        self.most_unsynced = most_unsynced
        self.enabled = True
        self.placed = 0

    def after_fork(self):
        """Turn the fast path off in a forked child: the log belongs to the parent."""
        self.enabled = False

    def append(self, value, key, headers, timestamp, expect_offset):
        """Append a record and return its offset; -1 if the general path is needed."""
        size: cython.longlong = 0
        stamp: cython.longlong = self._stamp(key, headers, timestamp, expect_offset)
        if stamp < -1:
            return -1
        if type(value) is bytes:
            size = len(cython.cast(bytes, value))
        elif value is not None:
            return -1
        if key is not None:
            size += len(cython.cast(bytes, key))
        if size > self.most_bytes:
            return -1
        self.acquire()
        try:
            if not self._may_append(expect_offset):
                return -1
            return self._append(value, key, stamp)
        finally:
            self.release()

    def append_stream(self, source, max_bytes, key, headers, timestamp, expect_offset):
        """Append a short record from an iterator of bytes and return its offset. If the general path is needed, return
        what `gather_chunks` has taken from the iterator, or None if nothing was taken. Holds the log's lock."""
        offset: cython.longlong = -1
        most: cython.longlong = self.short_bytes
        size: cython.longlong
        stamp: cython.longlong = self._stamp(key, headers, timestamp, expect_offset)
        if max_bytes is not None:
            if type(max_bytes) is not int or max_bytes < 0:
                return None
            if max_bytes < most:
                most = max_bytes
        if stamp < -1 or most < 0:
            return None
        self.acquire()
        try:
            if not self._may_append(expect_offset):
                return None
            self.begin_stream()
            try:
                taken: tuple = gather_chunks(source, cython.cast(cython.Py_ssize_t, most + 1))
            finally:
                self.end_stream()
            if not taken[2]:
                return taken
            held: list = taken[0]
            value: bytes = held[0] if len(held) == 1 else b"".join(held)
            size = len(value)
            if key is not None:
                size += len(cython.cast(bytes, key))
            if size <= self.most_bytes and self._is_ready():
                offset = self._append(value, key, stamp)
            return taken if offset < 0 else offset
        finally:
            self.release()

    @cython.cfunc
    @cython.inline
    def _stamp(self, key: object, headers: object, timestamp: object, expect_offset: object) -> cython.longlong:
        """Return the timestamp of a record, -1 for the current time, or less if the general path is needed."""
        if not self.enabled or not (headers is None or (type(headers) is tuple and len(headers) == 0)):
            return -2
        if (key is not None and type(key) is not bytes) or not (expect_offset is None or type(expect_offset) is int):
            return -2
        if timestamp is None:
            return -1
        if type(timestamp) is not int or not 0 <= timestamp <= MAX_TIMESTAMP:
            return -2
        return timestamp

    @cython.cfunc
    @cython.inline
    def _may_append(self, expect_offset: object) -> cython.bint:
        """As `_may_write`, and the next offset is the expected one if one is given."""
        return self._may_write() and (expect_offset is None or expect_offset == self.active.segment.tail[0])

    def place(self, batch: Encoded, placement):
        """Place an encoded batch without a producer and return its first offset; -1 if the general path is needed.
        `placement` receives the offsets, as in `Appender.place`."""
        offset: cython.longlong
        if not self.enabled:
            return -1
        b: cython.uchar[::1] = batch.data
        self.acquire()
        try:
            if not self._may_write() or (placement is not None and placement.placed is not None):
                return -1
            offset = self._write(b, batch.data, len(b), batch.count, batch.max_timestamp)
            if offset >= 0 and placement is not None:
                placement.placed = range(offset, offset + batch.count)
            return offset
        finally:
            self.release()

    @cython.cfunc
    @cython.inline
    def _may_write(self) -> cython.bint:
        """Whether the log is open, no stream is being appended, and nothing has to precede the next append. The caller
        holds the lock."""
        return self._is_ready() and not self.is_streaming()

    @cython.cfunc
    @cython.inline
    def _is_ready(self) -> cython.bint:
        return (
            not self.appender.closed
            and self.appender._unfinished is None
            and self.blocks.current is None
            and self.commit.failure is None
            and not self.active.needs_sync
            and self.segments.waiting == 0
        )

    @cython.cfunc
    def _append(self, value: object, key: object, stamp: cython.longlong) -> cython.longlong:
        builder: BatchBuilder = self.builder
        now: cython.longlong = now_ms() if stamp < 0 or self.append_time else stamp
        builder.reset_fields()
        builder._add(value, key, None, now if stamp < 0 else stamp)
        builder.seal(TIMESTAMP_TYPE_BIT if self.append_time else 0, now if self.append_time else -1, -1, -1, -1)
        return self._write(builder.view, builder.buffer, builder.position, 1, now)

    @cython.cfunc
    @cython.inline
    def _waits(self, base: cython.longlong, end_position: cython.longlong) -> cython.bint:
        """Whether an append that ends at this position has to wait for the disk."""
        synced: tuple
        if self.most_unsynced < 0:
            return False
        synced = self.watermarks.synced
        if synced[1] == base:
            end_position -= synced[2]
        return end_position >= self.most_unsynced

    @cython.cfunc
    def _write(
        self,
        b: cython.uchar[::1],
        buffer: object,
        size: cython.longlong,
        count: cython.longlong,
        newest: cython.longlong,
    ) -> cython.longlong:
        """Assign the next offsets to the batch at the start of a buffer, write it and count it as written."""
        active: ActiveSegmentFields = self.active
        segment: ExtentFields = active.segment
        opened: LookupFields = segment._open
        if opened is None or not isinstance(opened.storage, FileFields):
            return -1
        file: FileFields = opened.storage
        index: SparseIndex = opened.index
        before: tuple = segment.tail
        roomy: tuple = active._room
        offset: cython.longlong = before[0]
        position: cython.longlong = before[1]
        base: cython.longlong = segment.base_offset
        epoch: cython.longlong = self.watermarks.epoch
        end: cython.longlong = offset + count
        end_position: cython.longlong = position + size
        if (
            roomy[0] is not segment
            or end_position > roomy[1]
            or newest > roomy[2]
            or end - base > MOST_DELTA
            or end_position > file._reserved
            or file._size != position
            or self.visible.slots is None
            or self._waits(base, end_position)
        ):
            return -1
        # Allocate everything before the write, except for the index entry.
        following: object = end
        end_at: object = end_position
        tail: tuple = (following, end_at)
        written: tuple = (following, segment.base_offset, end_at)
        put64(b, 0, offset)
        put32(b, 12, epoch)
        try:
            if write_at(file, b, buffer, cython.cast(cython.Py_ssize_t, size), position) != size:
                self._mark_unfinished(segment, file, before, end, end_position)
                return -1
            file._size = end_position
            index.note(end - 1, position, size, newest)
        except BaseException:
            self._mark_unfinished(segment, file, before, end, end_position)
            raise
        segment.tail = tail
        self.watermarks.written = written
        self.segments.visible_offset = following
        slots: Slots = self.visible.slots
        if slots is not None:  # None if it was closed during the write
            slots.put(end, epoch)
        self.placed += 1
        return offset

    @cython.cfunc
    def _mark_unfinished(
        self,
        segment: ExtentFields,
        file: FileFields,
        before: tuple,
        end: cython.longlong,
        end_position: cython.longlong,
    ) -> object:
        """Record a failed write, any part of which may be in the file: the next holder of the lock rolls it back."""
        file._size = end_position
        self.appender._unfinished = (segment, before, (self.nobody, before[0], end - 1, None))
        return None
