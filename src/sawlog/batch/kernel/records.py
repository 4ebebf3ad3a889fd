"""Records as objects: `Record`, and decoding batches into them: all at once, one by one, or a single one."""

from sawlog.batch.cyshim import cython
from sawlog.display import record_html
from sawlog.errors import InvalidRecordType

if not cython.compiled:
    from .batches import header_is_sound
    from .declarations import (
        BODY,
        BODY_END,
        COMPRESSION_MASK,
        CONTROL_BIT,
        HEADER_BYTES,
        LEADER_EPOCH,
        LENGTH_END,
        MOST_DELTA,
        TIMESTAMP_TYPE_BIT,
        TRANSACTIONAL_BIT,
        Walk,
    )
    from .primitives import add64, crc32c_of, get16, get32, get32s, get64
    from .walk import (
        check_rows,
        offset_of,
        parse_header,
        skip_record,
        step,
        time_of,
        to_bytes,
        to_headers,
        walk_body,
        walk_row,
    )

#: Largest timestamp in milliseconds that fits into the microseconds of Arrow and Spark.
MAX_TIMESTAMP = (2**63 - 1) // 1000
#: Below this, parsing takes less time than letting other threads run meanwhile and waiting for them afterwards.
_LITTLE_BYTES = 65536


@cython.final
@cython.freelist(1024)
@cython.no_gc
@cython.cclass
class Record:
    """One record. Immutable, comparable, hashable.

    Record(value=None, key=None, headers=(), timestamp=None, offset=-1, timestamp_type=0, topic=None, partition=-1)

        offset: int                                  its number in its partition; -1: none
        timestamp: int                               milliseconds since 1970; -1: none
        timestamp_type: int                          0 where the producer set the time, 1 where the log did
        key: bytes | None
        value: bytes | None
        headers: tuple[tuple[str, bytes | None], ...]
        topic: str | None                            where it was read; None if not from a topic
        partition: int                               where it was read; -1 if not from a topic

    `topic` and `partition` are ignored when records are compared.
    """

    offset = cython.declare(cython.longlong, visibility="readonly")
    timestamp = cython.declare(cython.longlong, visibility="readonly")
    timestamp_type = cython.declare(cython.int, visibility="readonly")
    key = cython.declare(object, visibility="readonly")
    value = cython.declare(object, visibility="readonly")
    headers = cython.declare(object, visibility="readonly")
    topic = cython.declare(object, visibility="readonly")
    partition = cython.declare(cython.int, visibility="readonly")

    def __init__(
        self, value=None, key=None, headers=(), timestamp=None, offset=-1, timestamp_type=0, topic=None, partition=-1
    ):
        self.value = payload(value)
        self.key = payload(key)
        self.headers = headers if type(headers) is tuple else tuple(headers)
        self.timestamp = -1 if timestamp is None else timestamp
        self.offset = offset
        self.timestamp_type = timestamp_type
        self.topic = topic
        self.partition = partition

    def _fields(self):
        return (self.value, self.key, self.headers, self.timestamp, self.offset, self.timestamp_type)

    def __reduce__(self):
        return (Record, (*self._fields(), self.topic, self.partition))

    def __eq__(self, other):
        return isinstance(other, Record) and self._fields() == other._fields()

    def __hash__(self):
        return hash(self._fields())

    def __repr__(self):
        key = "" if self.key is None else f", key={_short(self.key)}"
        headers = f", headers={self.headers!r}" if self.headers else ""
        place = f"topic={self.topic!r}, partition={self.partition}, " if self.topic is not None else ""
        return (
            f"Record({place}offset={self.offset}, timestamp={self.timestamp}{key}, value={_short(self.value)}{headers})"
        )

    def _repr_html_(self):
        return record_html(self)


async def handed_out(step):
    """Yield records for `async for`: await `step` for one cursor after the other, until it returns None. Compiled,
    because an async generator is resumed for every record."""
    while True:
        cursor = await step()
        if cursor is None:
            return
        for record in cursor:
            yield record


def placed(record: Record, topic, partition):
    """Set topic and partition of a record and return it."""
    record.topic = topic
    record.partition = partition
    return record


def payload(what):
    """Convert a key or value to bytes; None stays None. Raises `InvalidRecordType` for anything that is not
    bytes-like."""
    if what is None or type(what) is bytes:
        return what
    if isinstance(what, (bytes, bytearray, memoryview)):
        return bytes(memoryview(what))
    raise InvalidRecordType(f"keys and values are bytes or None, not {type(what).__name__}; encode it first")


def _short(value):
    if value is None or len(value) <= 48:
        return repr(value)
    return f"{bytes(value[:40])!r}…({len(value)} bytes)"


@cython.cfunc
@cython.inline
def record_of(
    b: cython.const[cython.uchar][::1], walk: cython.pointer(Walk), topic: object, partition: cython.int
) -> object:
    """Return the current `Record` of the walk; None if its headers do not parse."""
    record: Record
    headers: object = ()
    if walk.record.header_count > 0:
        headers = to_headers(b, walk.record.headers_at, walk.record.end, walk.record.header_count)
        if headers is None:
            return None
    record = Record.__new__(Record)
    record.offset = offset_of(walk)
    record.timestamp = time_of(walk)
    record.timestamp_type = 1 if walk.log_time else 0
    record.key = to_bytes(b, walk.record.key_at, walk.record.key_size)
    record.value = to_bytes(b, walk.record.value_at, walk.record.value_size)
    record.headers = headers
    record.topic = topic
    record.partition = partition
    return record


def decode_records(
    b: cython.const[cython.uchar][::1],
    rows: cython.const[cython.longlong][:, ::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    start: cython.longlong,
    end: cython.longlong,
    found: list,
):
    """Append the `Record`s of batches `first` to `last` with start <= offset < end to `found`.

    Returns -1, or the number of the first row whose records do not parse; those before it are in `found`.
    """
    q: cython.Py_ssize_t
    walk: Walk
    offset: cython.longlong
    record: object
    check_rows(b, rows, first, last)
    for q in range(first, last):
        walk = walk_row(rows, q)
        while walk.left > 0:
            if not step(b, cython.address(walk)):
                return q
            offset = offset_of(cython.address(walk))
            if offset < start:
                continue
            if offset >= end:
                return -1
            record = record_of(b, cython.address(walk), None, -1)
            if record is None:
                return q
            found.append(record)
        if walk.at != walk.end:
            return q
    return -1


@cython.final
@cython.cclass
class RecordCursor:
    """Yields the `Record`s of checked batches one by one, so that each uses the memory that the previous one has freed.

    After the last one, `bad` is -1, or the number of the row whose records do not parse; `next_offset` is the offset
    after the last record that was returned. Another thread may `stop` it: it then ends before its next record.
    `leader_epoch` is that of the first batch; the cursors of a log cover batches of one epoch each.

    A cursor made by `page_cursor` has no rows: it reads the headers of the batches itself, and ends before the first
    one that is not plain or belongs to another epoch. `position` is where that batch starts, or the end of the buffer.
    Its `bad` is 0 if the records of the batch at `position` do not parse, or its checksum is wrong.
    """

    view: cython.const[cython.uchar][::1]
    rows: cython.const[cython.longlong][:, ::1]
    q: cython.Py_ssize_t
    batches: cython.Py_ssize_t
    walk: Walk
    start: cython.longlong
    end: cython.longlong
    topic: object
    partition: cython.int
    has_rows: cython.bint
    checks: cython.bint
    position = cython.declare(cython.Py_ssize_t, visibility="readonly")
    bad = cython.declare(cython.Py_ssize_t, visibility="readonly")
    next_offset = cython.declare(cython.longlong, visibility="readonly")
    stopped = cython.declare(cython.bint, visibility="readonly")
    leader_epoch = cython.declare(cython.longlong, visibility="readonly")

    def __init__(self, view, rows, start, end, topic=None, partition=-1):
        check_rows(view, rows, 0, rows.shape[0])
        self.rows = rows
        self.has_rows = True
        self.checks = False
        self._begin(view, start, end, topic, partition)
        self.batches = self.rows.shape[0]
        self.leader_epoch = rows[0, LEADER_EPOCH] if rows.shape[0] else -1

    @cython.cfunc
    def _begin(
        self,
        view: cython.const[cython.uchar][::1],
        start: cython.longlong,
        end: cython.longlong,
        topic: object,
        partition: cython.int,
    ) -> object:
        self.view = view
        self.position = 0
        self.q = -1
        self.walk = walk_body(0, 0, 0, 0)
        self.start = start
        self.end = end
        self.bad = -1
        self.next_offset = start
        self.topic = topic
        self.partition = partition
        self.stopped = False
        return None

    def __iter__(self):
        return self

    def stop(self):
        """Return no more records."""
        self.stopped = True

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _next_batch(self) -> cython.bint:
        """Advance to the next batch; return False if there is none or the previous one did not end where it should."""
        if self.walk.at != self.walk.end:
            self.bad = self.q
            return False
        if not self.has_rows:
            return self._next_plain()
        self.q += 1
        if self.q >= self.batches:
            return False
        # Checked again: the rows belong to the caller, and may have been overwritten since.
        if not (0 <= self.rows[self.q, BODY] <= self.rows[self.q, BODY_END] <= self.view.shape[0]):
            self.bad = self.q
            return False
        self.walk = walk_row(self.rows, self.q)
        return True

    @cython.cfunc
    @cython.exceptval(check=False)
    def _next_plain(self) -> cython.bint:
        """Advance to the next batch of the buffer if it is plain and of the same epoch."""
        p: cython.Py_ssize_t = self.position
        if self.q == 0:
            p = self.walk.end
            self.position = p
        if not is_plain(self.view, p) or get32s(self.view, p + 12) != self.leader_epoch:
            return False
        end: cython.Py_ssize_t = p + LENGTH_END + cython.cast(cython.Py_ssize_t, get32s(self.view, p + 8))
        self.q = 0
        if self.checks and crc32c_of(self.view, p + 21, end) != get32(self.view, p + 17):
            self.bad = 0
            return False
        self.walk = walk_body(
            p + HEADER_BYTES,
            end,
            get32s(self.view, p + 57),
            get32s(self.view, p + 23),
        )
        self.walk.base = get64(self.view, p)
        self.walk.base_time = get64(self.view, p + 27)
        self.walk.max_time = get64(self.view, p + 35)
        self.walk.log_time = (get16(self.view, p + 21) & TIMESTAMP_TYPE_BIT) != 0
        return True

    def __next__(self):
        offset: cython.longlong
        record: object
        if self.stopped:
            raise StopIteration
        while True:
            if self.walk.left == 0:
                if self.bad >= 0 or not self._next_batch():
                    raise StopIteration
                continue
            if not step(self.view, cython.address(self.walk)):
                self.bad = self.q
                self.walk.left = 0
                raise StopIteration
            offset = offset_of(cython.address(self.walk))
            if offset >= self.start:
                break
        if offset >= self.end:
            self.batches = 0
            self.position = self.view.shape[0]
            self.walk = walk_body(0, 0, 0, 0)
            self.walk.at = self.walk.end = self.position
            raise StopIteration
        record = record_of(self.view, cython.address(self.walk), self.topic, self.partition)
        if record is None:
            self.bad = self.q
            self.walk.left = 0
            raise StopIteration
        self.next_offset = offset + 1
        return record


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_plain(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.bint:
    """Return True if a complete batch starts at `p` that is neither compressed nor transactional and has a record for
    each of its offsets."""
    if p < 0 or b.shape[0] - p < HEADER_BYTES or not header_is_sound(b, p, 0):
        return False
    if get16(b, p + 21) & (COMPRESSION_MASK | TRANSACTIONAL_BIT | CONTROL_BIT):
        return False
    return get32s(b, p + 57) == get32s(b, p + 23) + 1 and get32s(b, p + 8) <= b.shape[0] - p - LENGTH_END


def page_cursor(
    b: cython.const[cython.uchar][::1],
    start: cython.longlong,
    end: cython.longlong,
    topic: object = None,
    partition: cython.int = -1,
    check: cython.bint = False,
):
    """Return a `RecordCursor` over the plain batches at the beginning of a buffer, up to the first that is not plain or
    has another leader epoch; None if the first is not plain. With `check` it verifies their checksums."""
    if not is_plain(b, 0):
        return None
    cursor: RecordCursor = RecordCursor.__new__(RecordCursor)
    cursor.has_rows = False
    cursor.checks = check
    cursor.batches = 0
    cursor.leader_epoch = get32s(b, 12)
    cursor._begin(b, start, end, topic, partition)
    return cursor


@cython.cfunc
def find_record(
    b: cython.const[cython.uchar][::1],
    body: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
    base_offset: cython.longlong,
    last_offset: cython.longlong,
    attributes: cython.int,
    base_timestamp: cython.longlong,
    max_timestamp: cython.longlong,
    offset: cython.longlong,
    first: cython.longlong,
) -> object:
    """Do the work of `record_at`, for a checked range."""
    p: cython.Py_ssize_t = body
    i: cython.longlong = first
    wanted: cython.longlong = offset - base_offset
    walk: Walk
    record: object
    # Maximum distance of an offset from its record's number: the records that compaction removed.
    slack: cython.longlong = last_offset - base_offset + 1 - count
    if slack == 0:
        while i < wanted and i < count:
            p = skip_record(b, p, end)
            if p < 0:
                return False
            i += 1
    walk = walk_body(p, end, count - i, slack)
    walk.base = base_offset
    walk.base_time = base_timestamp
    walk.max_time = max_timestamp
    walk.log_time = (attributes & TIMESTAMP_TYPE_BIT) != 0
    while i < count:
        walk.previous = i - 1
        walk.most = i + slack
        if not step(b, cython.address(walk)):
            return False
        if walk.record.delta >= wanted:
            record = record_of(b, cython.address(walk), None, -1)
            return False if record is None else record
        i += 1
    return None if walk.at == end else False


def record_at(
    b: cython.const[cython.uchar][::1],
    body: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
    base_offset: cython.longlong,
    last_offset: cython.longlong,
    attributes: cython.int,
    base_timestamp: cython.longlong,
    max_timestamp: cython.longlong,
    offset: cython.longlong,
    first: cython.longlong = 0,
):
    """Return the first `Record` at or above `offset` in one batch's records; None if there is none, False if they do
    not parse. In a batch without gaps, the records before it are skipped by their lengths alone. `body` is where
    record number `first` starts."""
    if body < 0 or end < body or end > b.shape[0]:
        raise ValueError("range outside the buffer")
    return find_record(
        b, body, end, count, base_offset, last_offset, attributes, base_timestamp, max_timestamp, offset, first
    )


def landmarks(
    b: cython.const[cython.uchar][::1],
    body: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
    step: cython.longlong,
    found: cython.int[::1],
):
    """Write the start of every `step`-th record to `found`; return False if the records do not parse."""
    p: cython.Py_ssize_t = body
    i: cython.longlong
    if body < 0 or end < body or end > b.shape[0] or step < 1 or found.shape[0] < count // step + 1:
        raise ValueError("range outside the buffer")
    for i in range(count):
        if i % step == 0:
            found[i // step] = cython.cast(cython.int, p)
        p = skip_record(b, p, end)
        if p < 0:
            return False
    return True


def record_after(
    b: cython.const[cython.uchar][::1],
    body: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
    base_offset: cython.longlong,
    base_timestamp: cython.longlong,
    start: cython.longlong,
    timestamp: cython.longlong,
):
    """Return the offset of the first record at or above offset `start` that is not older than `timestamp`; -1 if there
    is none, -2 if the records do not parse."""
    walk: Walk
    if body < 0 or end < body or end > b.shape[0]:
        raise ValueError("range outside the buffer")
    walk = walk_body(body, end, count, MOST_DELTA)
    while walk.left > 0:
        if not step(b, cython.address(walk)):
            return -2
        if base_offset + walk.record.delta >= start and add64(base_timestamp, walk.record.time_delta) >= timestamp:
            return base_offset + walk.record.delta
    return -1


def head_of(
    b: cython.const[cython.uchar][::1],
    body: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
    wanted: cython.longlong,
    base_timestamp: cython.longlong = 0,
):
    """Return (number, end, largest timestamp) of the records of one batch with an offset delta below `wanted`; a number
    of -1 if they do not parse."""
    p: cython.Py_ssize_t = body
    i: cython.longlong = 0
    top: cython.longlong = 0
    stamp: cython.longlong
    walk: Walk
    if body < 0 or end < body or end > b.shape[0]:
        raise ValueError("range outside the buffer")
    walk = walk_body(body, end, count, MOST_DELTA)
    while i < count:
        if not step(b, cython.address(walk)):
            return -1, p, top
        if walk.record.delta >= wanted:
            break
        stamp = add64(base_timestamp, walk.record.time_delta)
        if i == 0 or stamp > top:
            top = stamp
        p = walk.at
        i += 1
    return i, p, top


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def body_parses(
    b: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, count: cython.longlong, most: cython.longlong
) -> cython.bint:
    """Do the work of `records_parse`."""
    j: cython.Py_ssize_t
    at: cython.Py_ssize_t
    kpos: cython.Py_ssize_t
    klen: cython.Py_ssize_t
    vpos: cython.Py_ssize_t
    vlen: cython.Py_ssize_t
    walk: Walk = walk_body(start, b.shape[0], count, most)
    while walk.left > 0:
        if not step(b, cython.address(walk)):
            return False
        at = walk.record.headers_at
        for j in range(walk.record.header_count):
            at, kpos, klen, vpos, vlen = parse_header(b, at, walk.record.end)
            if at < 0:
                return False
        if at != walk.record.end:
            return False
    return walk.at == walk.end


def records_parse(
    b: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, count: cython.longlong, most: cython.longlong
):
    """Return True if the buffer from `start` on consists of `count` records, with headers that parse, whose offset
    deltas increase up to `most`."""
    parse: cython.bint
    if start < 0 or start > b.shape[0] or count < 0:
        raise ValueError("range outside the buffer")
    if b.shape[0] < _LITTLE_BYTES:
        return bool(body_parses(b, start, count, most))
    with cython.nogil:
        parse = body_parses(b, start, count, most)
    return bool(parse)
