"""One batch placed at the end of a log, in one call: the usual case of `Appender.place`, which is its specification.

Usual means: a file, a policy that does not wait, room in the segment and in the blocks that were reserved, nobody to be
woken, nothing left over from an interrupt. Otherwise the caller is told so (-1), and takes the ordinary way.

Compiled, no signal handler runs during a call, so there is nothing to be undone halfway. Only the write may fail, or
write less than it should: then the append is recorded as unfinished, as if an interrupt had come during the write, and
the next holder of the lock rolls it back. That is the ordinary way, which the caller takes next. Interpreted, a handler
may run between any two lines, so this is switched off, except for tests.
"""

from sawlog.batch.cyshim import cython

if not cython.compiled:
    from .builder import SMALL_CRC_BYTES, BatchBuilder, Encoded, gather_chunks, now_ms
    from .declarations import MOST_DELTA, TIMESTAMP_TYPE_BIT
    from .fields import (
        ActiveFields,
        AppenderFields,
        CommitFields,
        ExtentFields,
        LookupFields,
        MarksFields,
        OpenAppendsFields,
        SegmentSetFields,
        VisibleFields,
    )
    from .files import FileFields, write_at
    from .primitives import put32, put64
    from .records import MAX_TIMESTAMP
    from .slots import Slots
    from .sparse import SparseIndex

#: More than a batch of one record has besides key and value.
_FRAME_BYTES = 128


@cython.final
@cython.cclass
class UsualAppends:
    """What is said above. `appender` and the others are the parts of one `Appender`."""

    appender: AppenderFields
    active: ActiveFields
    marks: MarksFields
    visible: VisibleFields
    commit: CommitFields
    blocks: OpenAppendsFields
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
    #: How many batches were placed here.
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
        """`builder` is used by nobody else. At most `most_record_bytes` are in a record, if that is above 0; if it is
        below, nothing is encoded here. Appends wait for the disk if `most_unsynced` bytes or more are not synced, if
        that is not below 0. A stream of up to `short_bytes` is appended like any other record."""
        self.appender = appender
        self.active = appender.active
        self.marks = appender.marks
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
        # A limit for records does not apply to streams, but to everything that is encoded here.
        self.short_bytes = short_bytes if most_record_bytes == 0 else -1
        self.most_bytes = min(SMALL_CRC_BYTES, self.builder.max_total) - _FRAME_BYTES
        if most_record_bytes < 0 or 0 < most_record_bytes < self.most_bytes:
            self.most_bytes = most_record_bytes
        self.most_unsynced = most_unsynced
        self.enabled = True
        self.placed = 0

    def after_fork(self):
        """In a forked child: the log is its parent's."""
        self.enabled = False

    def append(self, value, key, headers, timestamp, expect_offset):
        """Append a record and return its offset; -1 if something is not as usual."""
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
        """Append a record from an iterator of bytes, if it is a short one, and return its offset. Otherwise return what
        `gather_chunks` has taken from it, or None if nothing was taken. The log is locked meanwhile."""
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
        """The timestamp of a record, or -1 if it gets the current time; less if something is not as usual."""
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
        """As `_may_write`, and the next offset is the expected one."""
        return self._may_write() and (expect_offset is None or expect_offset == self.active.segment.tail[0])

    def place(self, batch: Encoded, answer):
        """Place a finished batch that has no producer and return its first offset; -1 if something is not as usual.
        `answer` gets the offsets, as in `Appender.place`."""
        offset: cython.longlong
        if not self.enabled:
            return -1
        b: cython.uchar[::1] = batch.data
        self.acquire()
        try:
            if not self._may_write() or (answer is not None and answer.placed is not None):
                return -1
            offset = self._write(b, batch.data, len(b), batch.count, batch.max_timestamp)
            if offset >= 0 and answer is not None:
                answer.placed = range(offset, offset + batch.count)
            return offset
        finally:
            self.release()

    @cython.cfunc
    @cython.inline
    def _may_write(self) -> cython.bint:
        """Whether the log is open, no stream is being appended, and nothing has to be done before the next append. The
        caller has the lock."""
        return self._is_ready() and not self.is_streaming()

    @cython.cfunc
    @cython.inline
    def _is_ready(self) -> cython.bint:
        return (
            not self.appender.closed
            and self.appender._unfinished is None
            and self.blocks.current is None
            and self.commit.failure is None
            and not self.active.cut_unsynced
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
        """Whether an append that ends there has to wait for the disk."""
        synced: tuple
        if self.most_unsynced < 0:
            return False
        synced = self.marks.synced
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
        """Give the batch at the beginning of a buffer the next offsets, write it and count it."""
        active: ActiveFields = self.active
        segment: ExtentFields = active.segment
        opened: LookupFields = segment._open
        if opened is None or not isinstance(opened.storage, FileFields):
            return -1
        file: FileFields = opened.storage
        index: SparseIndex = opened.index
        before: tuple = segment.tail
        roomy: tuple = active._roomy
        offset: cython.longlong = before[0]
        position: cython.longlong = before[1]
        base: cython.longlong = segment.base_offset
        epoch: cython.longlong = self.marks.epoch
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
        # Everything that may need memory comes before the write, except for the index.
        following: object = end
        end_at: object = end_position
        tail: tuple = (following, end_at)
        written: tuple = (following, segment.base_offset, end_at)
        put64(b, 0, offset)
        put32(b, 12, epoch)
        try:
            if write_at(file, b, buffer, cython.cast(cython.Py_ssize_t, size), position) != size:
                self._give_up(segment, file, before, end, end_position)
                return -1
            file._size = end_position
            index.note(end - 1, position, size, newest)
        except BaseException:
            self._give_up(segment, file, before, end, end_position)
            raise
        segment.tail = tail
        self.marks.written = written
        self.segments.visible_offset = following
        slots: Slots = self.visible.slots
        if slots is not None:  # not if it was closed during the write
            slots.put(end, epoch)
        self.placed += 1
        return offset

    @cython.cfunc
    def _give_up(
        self,
        segment: ExtentFields,
        file: FileFields,
        before: tuple,
        end: cython.longlong,
        end_position: cython.longlong,
    ) -> object:
        """The write has failed, and any part of it may be in the file: whoever has the lock next rolls it back."""
        file._size = end_position
        self.appender._unfinished = (segment, before, (self.nobody, before[0], end - 1, None))
        return None
