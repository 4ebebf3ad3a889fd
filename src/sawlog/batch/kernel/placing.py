"""Placing a batch at the end of a log: patch its offset, write it, index it, count it as written.

`Placer` is the only implementation, for every storage and every durability policy. `append`, `append_stream` and
`place` do everything in one call if the log is ready and the batch is known to fit. Otherwise they return -1, and
`Appender` prepares the log (recovers an unfinished append, checks the producer, rotates, reserves blocks) and calls
`write`.

Compiled, no signal handler runs within the kernel, but one may run in the Python methods that it calls, and a write may
fail. So the previous end of the segment is recorded in `ActiveSegment.unfinished` until the batch counts as written. An
exception leaves it there, and `Appender` recovers: immediately, or at the next use of the log.
"""

from sawlog.batch.cyshim import cython

if not cython.compiled:
    from .builder import SMALL_CRC_BYTES, BatchBuilder, Encoded, gather_chunks, now_ms
    from .declarations import MOST_DELTA, TIMESTAMP_TYPE_BIT
    from .fields import (
        ActiveSegmentFields,
        AppenderFields,
        DurabilityFields,
        ExtentFields,
        FileFields,
        LookupFields,
        write_at,
    )
    from .primitives import put32, put64
    from .records import MAX_TIMESTAMP

#: Upper bound on the bytes of a one-record batch besides key and value.
_FRAME_BYTES = 128


@cython.final
@cython.cclass
class Placer:
    """Places the batches of one `Appender`."""

    appender: AppenderFields
    active: ActiveSegmentFields
    durability: DurabilityFields
    builder: BatchBuilder
    #: The log's lock, and the lock held while a stream is read.
    lock: object
    acquire: object
    release: object
    streaming: object
    is_streaming: object
    recover: object
    settle: object
    note_producer: object
    append_time: cython.bint
    reserves: cython.bint
    short_bytes: cython.longlong
    most_bytes: cython.longlong
    most_unsynced: cython.longlong
    #: Words that processes share which take turns, and the index of the one that is set if another process waits.
    words: cython.const[cython.uint][::1]
    wanted_at: cython.Py_ssize_t
    enabled = cython.declare(cython.bint, visibility="public")
    #: Number of batches placed without help from `Appender`.
    placed = cython.declare(cython.longlong, visibility="readonly")
    __weakref__: object

    def __init__(self, appender, builder, append_time, most_record_bytes, most_unsynced, short_bytes):
        """`builder` must not be shared. `most_record_bytes` limits a record if above 0; below 0, nothing is encoded
        here. Appends wait for the disk once `most_unsynced` bytes are not synced, unless that is below 0. A stream of
        more than `short_bytes` is not appended here."""
        self.appender = appender
        self.active = appender.active
        self.durability = appender.durability
        self.builder = builder
        self.lock = appender.lock
        self.acquire = appender.lock.acquire
        self.release = appender.lock.release
        self.streaming = appender.streaming
        self.is_streaming = appender.streaming.locked
        self.recover = appender.recover
        self.settle = appender.settle
        self.note_producer = appender.note_producer
        self.append_time = append_time
        #: Appends that wait for the disk do not reserve blocks: writing into reserved blocks then measured slower.
        self.reserves = most_unsynced != 0
        # Streams are exempt from the record limit, but everything encoded here is subject to it.
        self.short_bytes = short_bytes if most_record_bytes == 0 else -1
        self.most_bytes = min(SMALL_CRC_BYTES, self.builder.max_total) - _FRAME_BYTES
        if most_record_bytes < 0 or 0 < most_record_bytes < self.most_bytes:
            self.most_bytes = most_record_bytes
        self.most_unsynced = most_unsynced
        self.words = None
        self.wanted_at = 0
        self.enabled = True
        self.placed = 0

    def after_fork(self):
        """Place nothing in a forked child: the log belongs to the parent."""
        self.enabled = False

    def watch(self, words, wanted_at):
        """Leave appends to `Appender` while the word at this index is not 0. `words` may be None."""
        self.words = words
        self.wanted_at = wanted_at

    def pause(self):
        """Place nothing until `resume`. The caller holds the lock."""
        self.enabled = False

    def resume(self):
        """Place batches again. The caller holds the lock."""
        self.enabled = True

    # --- one call

    def append(self, value, key, headers, timestamp, expect_offset):
        """Append a record, block as the durability policy requires, and return the offset; -1 if `Appender` has to
        prepare the log or encode the record."""
        size: cython.longlong = 0
        offset: cython.longlong = -1
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
        if cython.compiled:  # no signal handler runs between the two statements, and a `with` costs 0.1 µs more
            self.acquire()
            try:
                if self._may_append(expect_offset):
                    offset = self._append(value, key, stamp)
            finally:
                self.release()
        else:
            with self.lock:
                if self._may_append(expect_offset):
                    offset = self._append(value, key, stamp)
        if offset >= 0 and self._must_sync():
            self.settle(offset + 1)
        return offset

    def append_stream(self, source, short_bytes, max_bytes, key, headers, timestamp, expect_offset):
        """As `append`, for a value of up to `short_bytes` from an iterator of bytes, which is read under the log's
        lock. Instead of -1, return what `gather_chunks` has taken from the iterator, or None if nothing was taken."""
        offset: cython.longlong = -1
        most: cython.longlong = min(self.short_bytes, cython.cast(cython.longlong, short_bytes))
        size: cython.longlong
        stamp: cython.longlong = self._stamp(key, headers, timestamp, expect_offset)
        if max_bytes is not None:
            if type(max_bytes) is not int or max_bytes < 0:
                return None
            if max_bytes < most:
                most = max_bytes
        if stamp < -1 or most < 0:
            return None
        with self.lock:
            if not self._may_append(expect_offset):
                return None
            with self.streaming:
                taken: tuple = gather_chunks(source, cython.cast(cython.Py_ssize_t, most + 1))
            if not taken[2]:
                return taken
            held: list = taken[0]
            value: bytes = held[0] if len(held) == 1 else b"".join(held)
            size = len(value)
            if key is not None:
                size += len(cython.cast(bytes, key))
            if size <= self.most_bytes and self._is_ready():
                offset = self._append(value, key, stamp)
            if offset < 0:
                return taken
        if self._must_sync():
            self.settle(offset + 1)
        return offset

    def place(self, batch: Encoded, placement):
        """Place an encoded batch without a producer, without waiting for the disk, and return its first offset; -1 if
        `Appender` has to prepare the log. `placement` receives the offsets, as in `Appender.place`."""
        offset: cython.longlong
        if not self.enabled:
            return -1
        with self.lock:
            if not self._is_ready() or self.is_streaming() or (placement is not None and placement.placed is not None):
                return -1
            offset = self._place(batch, placement, None, False)
            self.placed += offset >= 0
            return offset

    def write(self, batch: Encoded, placement, producer, forced):
        """As `place`, for `Appender`, which holds the lock and has prepared the log. Batches of a `producer` are
        recorded in its state. `forced`: there is room for the batch."""
        return self._place(batch, placement, producer, forced)

    def must_sync(self):
        """Return True if the policy requires an append to wait for the disk now."""
        return self._must_sync()

    # --- conditions

    @cython.cfunc
    @cython.inline
    def _stamp(self, key: object, headers: object, timestamp: object, expect_offset: object) -> cython.longlong:
        """Return the timestamp of a record, -1 for the current time, or less if `Appender` has to encode it."""
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
        """Return True if the log is ready, no stream is being read, and the next offset is the expected one, if given.
        The caller holds the lock."""
        return (
            self._is_ready()
            and not self.is_streaming()
            and (expect_offset is None or expect_offset == self.active.segment.tail[0])
        )

    @cython.cfunc
    @cython.inline
    def _is_ready(self) -> cython.bint:
        """Return True if the log is open and nothing has to precede the next append."""
        return (
            self.enabled
            and not self.appender.closed
            and (self.words is None or self.words[self.wanted_at] == 0)
            and self.appender.block is None
            and self.active.unfinished is None
            and self.durability.failure is None
        )

    @cython.cfunc
    @cython.inline
    def _has_room(self, size: cython.longlong, count: cython.longlong, newest: cython.longlong) -> cython.bint:
        """Return True if a batch is known to fit into the active segment and its reserved blocks."""
        segment: ExtentFields = self.active.segment
        opened: LookupFields = segment._open
        roomy: tuple = self.active._room
        before: tuple = segment.tail
        offset: cython.longlong = before[0]
        position: cython.longlong = before[1]
        base: cython.longlong = segment.base_offset
        if (
            opened is None
            or roomy[0] is not segment
            or position + size > roomy[1]
            or newest > roomy[2]
            or offset + count - base > MOST_DELTA
        ):
            return False
        if isinstance(opened.storage, FileFields):
            file: FileFields = opened.storage
            return file._size == position and (not self.reserves or position + size <= file._reserved)
        return True

    @cython.cfunc
    @cython.inline
    def _must_sync(self) -> cython.bint:
        segment: ExtentFields
        unsynced: cython.longlong
        if self.most_unsynced <= 0:
            return self.most_unsynced == 0
        segment = self.active.segment
        unsynced = segment.tail[1]
        if self.durability.synced[1] == segment.base_offset:  # a segment is synced before the next one begins
            unsynced -= self.durability.synced[2]
        return unsynced >= self.most_unsynced

    # --- placing

    @cython.cfunc
    def _append(self, value: object, key: object, stamp: cython.longlong) -> cython.longlong:
        builder: BatchBuilder = self.builder
        now: cython.longlong = now_ms() if stamp < 0 or self.append_time else stamp
        builder.reset_fields()
        builder._add(value, key, None, now if stamp < 0 else stamp)
        builder.seal(TIMESTAMP_TYPE_BIT if self.append_time else 0, now if self.append_time else -1, -1, -1, -1)
        if not self._has_room(builder.position, 1, now):
            return -1
        self.placed += 1
        return self._put(builder.view, builder.buffer, builder.position, 1, now, None, None)

    @cython.cfunc
    def _place(self, batch: Encoded, placement: object, producer: object, forced: cython.bint) -> cython.longlong:
        b: cython.uchar[::1] = batch.data
        if not forced and not self._has_room(len(b), batch.count, batch.max_timestamp):
            return -1
        return self._put(b, batch.data, len(b), batch.count, batch.max_timestamp, placement, producer)

    @cython.cfunc
    def _put(
        self,
        b: cython.uchar[::1],
        buffer: object,
        size: cython.longlong,
        count: cython.longlong,
        newest: cython.longlong,
        placement: object,
        producer: object,
    ) -> cython.longlong:
        """Assign the next offsets to the batch at the start of a buffer, write it, and count it as written unless a
        block is open. There is room for it. If this raises, the append has been rolled back, or will be before the next
        one."""
        active: ActiveSegmentFields = self.active
        segment: ExtentFields = active.segment
        before: tuple = segment.tail
        offset: cython.longlong = before[0]
        position: cython.longlong = before[1]
        end: object = offset + count
        end_position: object = position + size
        put64(b, 0, offset)
        put32(b, 12, self.durability.epoch)
        active.unfinished = before if placement is None else (before[0], before[1], placement)
        try:
            self._write(segment._open, b, buffer, size, position)
            segment.tail = (end, end_position)
            segment._open.index.note(offset + count - 1, position, size, newest)
            if producer is not None:
                self.note_producer(producer, offset, offset + count - 1)
            if placement is not None:
                placement.placed = range(offset, end)
            if self.appender.block is None:
                self.durability.move_written((end, segment.base_offset, end_position))
        except BaseException as error:
            self.recover(error)
            raise
        active.unfinished = None
        return offset

    @cython.cfunc
    def _write(
        self,
        opened: LookupFields,
        b: cython.uchar[::1],
        buffer: object,
        size: cython.longlong,
        position: cython.longlong,
    ) -> object:
        """Write the first `size` bytes of a buffer, passed as `b` and `buffer`, at the end of the file."""
        storage: object = opened.storage
        if isinstance(storage, FileFields):
            file: FileFields = storage
            if file._size == position:
                file._size = position + size  # any part of a write that raises may be in the file
                if write_at(file, b, buffer, cython.cast(cython.Py_ssize_t, size), position) == size:
                    return None
                file._size = position
        # Another kind of storage, or a short or failed write, which the file repeats or reports.
        at = storage.append(memoryview(buffer)[:size])
        assert at == position, f"the segment ended at {at}, not at {position}: another process writes to it"
        return None
