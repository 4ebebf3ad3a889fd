# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Everything that is done per record: one file, in Cython's pure-Python mode, compiled or not.

What lives here: building a batch from Python objects (`BatchBuilder`) or from Arrow buffers (`encode_arrow`),
reading batch headers (`scan_batches`), finding a batch or a record (`find_batch`, `record_at`, `find_header`), and
taking batches apart into `Record` objects (`decode_records`) or Arrow buffers (`decode_columns`, `decode_views`,
`decode_headers`), finding the partition of a key (`partition_of`, `Dispatcher`) and what compaction keeps (`KeyMap`,
`keep_records`). The bytes are Kafka's RecordBatch v2, drawn in `header.py`. And two numbers that a log publishes to
readers in other processes at every append (`Slots`).

Promises. No input makes these functions read or write outside their buffers, loop for ever or crash: every length
is checked against what is left before it is used. What they find wrong they report by a return value, and the
Python around them turns it into an error with path and position. They check structure, not content: the CRC is the
caller's business. Nothing here does I/O, and nothing but a `RecordCursor` and `Slots` keeps a buffer after it returns.

Threads. The Arrow functions run without the GIL. A `BatchBuilder` is safe between threads only where the
interpreter's lock makes a compiled call atomic; `sawlog.log.write.writer` adds a lock where that does not hold.

Interpreted, the same code is some 20 to 200 times slower: a correctness fallback (see `sawlog.kernel_info()`).
"""

from __future__ import annotations

import time
from array import array

try:
    import cython
except ImportError:  # interpreted, and Cython is not installed
    from sawlog.batch.cyshim import cython

from sawlog.errors import InvalidRecordType

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
    from cython.cimports.libc.string import memcpy
    from cython.cimports.posix.time import CLOCK_REALTIME, clock_gettime, timespec

COMPILED = cython.compiled

HEADER_BYTES = 61
#: Columns of a row that `scan_batches` fills; `header.py` gives them names.
ROW_WIDTH = 16

#: Why `scan_batches` stopped.
SCAN_MORE, SCAN_END, SCAN_SHORT, SCAN_BAD = 0, 1, 2, 3

#: Beyond this a timestamp in milliseconds cannot be expressed in microseconds, which Arrow and Spark use.
MAX_TIMESTAMP = (2**63 - 1) // 1000


# ---------------------------------------------------------------------------------------------------------------------
# One record


@cython.final
@cython.freelist(1024)
@cython.no_gc
@cython.cclass
class Record:
    """One record: `offset`, `timestamp` (ms since 1970, -1 none), `key`, `value`, `headers`, `timestamp_type`.

    `key` and `value` are bytes or None; `headers` is a tuple of (str, bytes or None); `timestamp_type` is 0 where
    the producer set the time and 1 where the log did. `topic` and `partition` say where it was read, if it was read
    from a topic (else None and -1); they do not count when records are compared. Immutable, comparable, hashable.
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


def placed(record: Record, topic, partition):
    """The same record, with the place where it was read."""
    record.topic = topic
    record.partition = partition
    return record


def payload(what):
    """A key or value as bytes or None."""
    if what is None or type(what) is bytes:
        return what
    if isinstance(what, (bytes, bytearray, memoryview)):
        return bytes(memoryview(what))
    raise InvalidRecordType(f"keys and values are bytes or None, not {type(what).__name__}; encode it first")


def _short(value):
    if value is None or len(value) <= 48:
        return repr(value)
    return f"{bytes(value[:40])!r}…({len(value)} bytes)"


# ---------------------------------------------------------------------------------------------------------------------
# Numbers in a buffer


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def get16(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.int:
    x: cython.int = (b[p] << 8) | b[p + 1]
    return x - 65536 if x >= 32768 else x


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def get32(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.longlong:
    """Unsigned."""
    a: cython.longlong = b[p]
    c: cython.longlong = b[p + 1]
    d: cython.longlong = b[p + 2]
    return (a << 24) | (c << 16) | (d << 8) | b[p + 3]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def get32s(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.longlong:
    x: cython.longlong = get32(b, p)
    return (x & 0x7FFFFFFF) - ((x >> 31) << 31)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def get64(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.longlong:
    if cython.compiled:
        high: cython.ulonglong = get32(b, p)
        low: cython.ulonglong = get32(b, p + 4)
        return cython.cast(cython.longlong, (high << 32) | low)
    return get32s(b, p) * 4294967296 + get32(b, p + 4)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def add64(a: cython.longlong, b: cython.longlong) -> cython.longlong:
    """a + b, wrapping as two's complement does, in C and in Python alike."""
    if cython.compiled:
        return cython.cast(cython.longlong, cython.cast(cython.ulonglong, a) + cython.cast(cython.ulonglong, b))
    return ((a + b + 2**63) & (2**64 - 1)) - 2**63


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def sub64(a: cython.longlong, b: cython.longlong) -> cython.longlong:
    """a - b, wrapping likewise; add64(a, -b) would not do, because the smallest number has no negative."""
    if cython.compiled:
        return cython.cast(cython.longlong, cython.cast(cython.ulonglong, a) - cython.cast(cython.ulonglong, b))
    return ((a - b + 2**63) & (2**64 - 1)) - 2**63


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put32(b: cython.uchar[::1], p: cython.Py_ssize_t, x: cython.longlong) -> cython.void:
    b[p] = (x >> 24) & 255
    b[p + 1] = (x >> 16) & 255
    b[p + 2] = (x >> 8) & 255
    b[p + 3] = x & 255


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put64(b: cython.uchar[::1], p: cython.Py_ssize_t, x: cython.longlong) -> cython.void:
    put32(b, p, x >> 32)
    put32(b, p + 4, x)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put32le(b: cython.uchar[::1], p: cython.Py_ssize_t, x: cython.longlong) -> cython.void:
    b[p] = x & 255
    b[p + 1] = (x >> 8) & 255
    b[p + 2] = (x >> 16) & 255
    b[p + 3] = (x >> 24) & 255


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def copy(
    dst: cython.uchar[::1],
    d: cython.Py_ssize_t,
    src: cython.const[cython.uchar][::1],
    s: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
) -> cython.void:
    if n > 0:
        if cython.compiled:
            memcpy(cython.address(dst[d]), cython.address(src[s]), n)
        else:
            dst[d : d + n] = src[s : s + n]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def bit(bitmap: cython.const[cython.uchar][::1], i: cython.Py_ssize_t) -> cython.int:
    return (bitmap[i >> 3] >> (i & 7)) & 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def set_bit(bitmap: cython.uchar[::1], i: cython.Py_ssize_t) -> cython.void:
    bitmap[i >> 3] = bitmap[i >> 3] | (1 << (i & 7))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def zigzag(x: cython.longlong) -> cython.ulonglong:
    if x >= 0:
        return cython.cast(cython.ulonglong, x) * 2
    return cython.cast(cython.ulonglong, -(x + 1)) * 2 + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def varint_size(x: cython.longlong) -> cython.Py_ssize_t:
    z: cython.ulonglong = zigzag(x)
    n: cython.Py_ssize_t = 3
    if z < 128:
        return 1
    if z < 16384:
        return 2
    z = z >> 14
    while z >= 128:
        z = z >> 7
        n += 1
    return n


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_varint(b: cython.uchar[::1], p: cython.Py_ssize_t, x: cython.longlong) -> cython.Py_ssize_t:
    z: cython.ulonglong = zigzag(x)
    if z < 128:
        b[p] = cython.cast(cython.uchar, z)
        return p + 1
    while z >= 128:
        b[p] = cython.cast(cython.uchar, (z & 127) | 128)
        z = z >> 7
        p += 1
    b[p] = cython.cast(cython.uchar, z)
    return p + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def get_varint(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """(value, next position). A next position beyond `end` means: cut short, or longer than ten bytes."""
    x: cython.ulonglong
    z: cython.ulonglong = 0
    shift: cython.int = 0
    while p < end and shift < 64:
        x = b[p]
        p += 1
        if shift == 63 and x > 1:
            break
        z = z | ((x & 127) << shift)
        if x < 128:
            if z & 1:
                return -1 - cython.cast(cython.longlong, z >> 1), p
            return cython.cast(cython.longlong, z >> 1), p
        shift += 7
    return 0, end + 1


# ---------------------------------------------------------------------------------------------------------------------
# One record in a buffer


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def parse_record(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[
    cython.Py_ssize_t,
    cython.longlong,
    cython.longlong,
    cython.Py_ssize_t,
    cython.Py_ssize_t,
    cython.Py_ssize_t,
    cython.Py_ssize_t,
    cython.Py_ssize_t,
    cython.Py_ssize_t,
]:
    """(end of record or -1, timestamp delta, offset delta, key at, key length, value at, value length,
    headers at, header count); a length of -1 is null. Everything but the headers' insides is checked."""
    length: cython.longlong
    ts: cython.longlong
    delta: cython.longlong
    klen: cython.longlong
    vlen: cython.longlong
    headers: cython.longlong
    kpos: cython.Py_ssize_t
    vpos: cython.Py_ssize_t
    rend: cython.Py_ssize_t
    length, p = get_varint(b, p, end)
    if p > end or length < 6 or length > end - p:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    rend = p + cython.cast(cython.Py_ssize_t, length)
    ts, p = get_varint(b, p + 1, rend)
    delta, p = get_varint(b, p, rend)
    klen, kpos = get_varint(b, p, rend)
    if kpos > rend or klen < -1 or klen > rend - kpos:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    p = kpos
    if klen > 0:
        p += cython.cast(cython.Py_ssize_t, klen)
    vlen, vpos = get_varint(b, p, rend)
    if vpos > rend or vlen < -1 or vlen > rend - vpos:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    p = vpos
    if vlen > 0:
        p += cython.cast(cython.Py_ssize_t, vlen)
    headers, p = get_varint(b, p, rend)
    # A header takes at least two bytes; without headers the record ends here.
    if p > rend or headers < 0 or headers > (rend - p) // 2 or (headers == 0 and p != rend):
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    return (
        rend,
        ts,
        delta,
        kpos,
        cython.cast(cython.Py_ssize_t, klen),
        vpos,
        cython.cast(cython.Py_ssize_t, vlen),
        p,
        cython.cast(cython.Py_ssize_t, headers),
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def parse_header(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.Py_ssize_t, cython.Py_ssize_t, cython.Py_ssize_t, cython.Py_ssize_t, cython.Py_ssize_t]:
    """(end of header or -1, key at, key length, value at, value length); a header's key is never null."""
    klen: cython.longlong
    vlen: cython.longlong
    kpos: cython.Py_ssize_t
    vpos: cython.Py_ssize_t
    klen, kpos = get_varint(b, p, end)
    if kpos > end or klen < 0 or klen > end - kpos:
        return -1, 0, 0, 0, 0
    vlen, vpos = get_varint(b, kpos + cython.cast(cython.Py_ssize_t, klen), end)
    if vpos > end or vlen < -1 or vlen > end - vpos:
        return -1, 0, 0, 0, 0
    p = vpos
    if vlen > 0:
        p += cython.cast(cython.Py_ssize_t, vlen)
    return p, kpos, cython.cast(cython.Py_ssize_t, klen), vpos, cython.cast(cython.Py_ssize_t, vlen)


@cython.cfunc
@cython.inline
def to_bytes(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t) -> object:
    if n < 0:
        return None
    if n == 0:
        return b""
    if cython.compiled:
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, cython.address(b[p])), n)
    return bytes(b[p : p + n])


@cython.cfunc
def to_headers(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> object:
    """A tuple of (str, bytes or None), or None where the bytes do not parse."""
    kpos: cython.Py_ssize_t
    klen: cython.Py_ssize_t
    vpos: cython.Py_ssize_t
    vlen: cython.Py_ssize_t
    found: list = []
    for _ in range(n):
        p, kpos, klen, vpos, vlen = parse_header(b, p, end)
        if p < 0:
            return None
        # Kafka's header keys are UTF-8; what is not comes back byte for byte through "surrogateescape".
        found.append((to_bytes(b, kpos, klen).decode("utf-8", "surrogateescape"), to_bytes(b, vpos, vlen)))
    return tuple(found) if p == end else None


# ---------------------------------------------------------------------------------------------------------------------
# Batch headers


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def header_is_sound(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, least_offset: cython.longlong
) -> cython.bint:
    """Whether the 61 bytes at `p` can be a batch header; the batch may still be cut short."""
    length: cython.longlong = get32s(b, p + 8)
    attributes: cython.int = get16(b, p + 21)
    delta: cython.longlong = get32s(b, p + 23)
    count: cython.longlong = get32s(b, p + 57)
    base: cython.longlong = get64(b, p)
    if b[p + 16] != 2 or length < 49 or (attributes & 7) > 4:
        return False
    if base < least_offset or base < 0 or delta < 0 or base >> 62 != 0:
        return False
    if count < 0 or count > delta + 1:
        return False
    # A record takes at least seven bytes. Compressed, that cannot be told from here.
    return (attributes & 7) != 0 or count <= (length - 49) // 7


@cython.cfunc
def check_rows(
    b: cython.const[cython.uchar][::1],
    rows: cython.const[cython.longlong][:, ::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
) -> tuple[cython.Py_ssize_t, cython.Py_ssize_t]:
    """(records, bytes of bodies) of these rows; ValueError unless all of them lie in the buffer and can be true."""
    q: cython.Py_ssize_t
    records: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = 0
    good: cython.bint = 0 <= first <= last <= rows.shape[0] and rows.shape[1] >= 16
    if good:
        for q in range(first, last):
            if not (0 <= rows[q, 12] <= rows[q, 13] <= b.shape[0]):
                good = False
                break
            if not (0 <= rows[q, 4] <= (rows[q, 13] - rows[q, 12]) // 7):
                good = False
                break
            records += cython.cast(cython.Py_ssize_t, rows[q, 4])
            size += cython.cast(cython.Py_ssize_t, rows[q, 13] - rows[q, 12])
    if not good:
        raise ValueError("rows outside the buffer")
    return records, size


@cython.cfunc
def check_room(room: cython.Py_ssize_t, needed: cython.Py_ssize_t) -> object:
    if room < needed:
        raise ValueError("the records would go outside a buffer that is too small")
    return None


def scan_batches(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    soft_end: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    least_offset: cython.longlong,
    rows: cython.longlong[:, ::1],
    dense: cython.bint = False,
):
    """Hop from batch header to batch header and fill one row each: (rows filled, position, why it stopped).

    Takes batches that start before `soft_end` and lie wholly before `end`, whose offsets begin at or above
    `least_offset` and go up; with `dense` each has to begin exactly where the one before ended, because a flipped
    bit in the base offset, which no CRC covers, must not pass. With a `least_offset` of -1 nothing is asked of the
    first batch, and without `dense` nothing of any. SCAN_MORE: `soft_end` or the rows were used up; SCAN_END:
    exactly at `end`; SCAN_SHORT: the last batch is not all there; SCAN_BAD: what stands there is no such batch.
    """
    p: cython.Py_ssize_t = start
    n: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t = rows.shape[0]
    size: cython.Py_ssize_t
    why: cython.int = 0
    if start < 0 or end < 0 or end > b.shape[0] or rows.shape[1] < 16:
        raise ValueError("range outside the buffer")
    with cython.nogil:
        while n < room:
            if p >= end:
                why = 1
                break
            if p >= soft_end:
                break
            if end - p < 61:
                why = 2
                break
            if not header_is_sound(b, p, least_offset) or (dense and least_offset >= 0 and get64(b, p) != least_offset):
                why = 3
                break
            size = 12 + cython.cast(cython.Py_ssize_t, get32s(b, p + 8))
            if size > end - p:
                why = 2
                break
            rows[n, 0] = p
            rows[n, 1] = size
            rows[n, 2] = get64(b, p)
            rows[n, 3] = rows[n, 2] + get32s(b, p + 23)
            rows[n, 4] = get32s(b, p + 57)
            rows[n, 5] = get16(b, p + 21)
            rows[n, 6] = get64(b, p + 27)
            rows[n, 7] = get64(b, p + 35)
            rows[n, 8] = get64(b, p + 43)
            rows[n, 9] = get16(b, p + 51)
            rows[n, 10] = get32s(b, p + 53)
            rows[n, 11] = get32(b, p + 17)
            rows[n, 12] = p + 61
            rows[n, 13] = p + size
            rows[n, 14] = get32s(b, p + 12)
            rows[n, 15] = 0
            if dense or least_offset >= 0:
                least_offset = rows[n, 3] + 1
            p += size
            n += 1
    return n, p, why


def find_batch(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    offset: cython.longlong,
    least_offset: cython.longlong = -1,
    dense: cython.bint = False,
):
    """The position of the first batch whose last offset is at or above `offset`; -1 at the end, -2 - position
    where something stands that is no whole batch. `least_offset` and `dense` as in `scan_batches`."""
    p: cython.Py_ssize_t = start
    size: cython.Py_ssize_t
    last: cython.longlong
    if start < 0 or end < 0 or end > b.shape[0]:
        raise ValueError("range outside the buffer")
    while p < end:
        if end - p < 61 or not header_is_sound(b, p, least_offset):
            return -2 - p
        if dense and least_offset >= 0 and get64(b, p) != least_offset:
            return -2 - p
        size = 12 + cython.cast(cython.Py_ssize_t, get32s(b, p + 8))
        if size > end - p:
            return -2 - p
        last = get64(b, p) + get32s(b, p + 23)
        if last >= offset:
            return p
        least_offset = last + 1
        p += size
    return -1


def find_header(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    least_offset: cython.longlong,
):
    """After damage: the next position where a whole batch may start, or -1. The caller checks its CRC."""
    p: cython.Py_ssize_t = start
    found: cython.Py_ssize_t = -1
    if start < 0 or end < 0 or end > b.shape[0]:
        raise ValueError("range outside the buffer")
    with cython.nogil:
        while end - p >= 61:
            if b[p + 16] == 2 and header_is_sound(b, p, least_offset) and get32s(b, p + 8) <= end - p - 12:
                found = p
                break
            p += 1
    return found


@cython.ccall
def write_header(
    b: cython.uchar[::1],
    p: cython.Py_ssize_t,
    base_offset: cython.longlong,
    size: cython.longlong,
    leader_epoch: cython.longlong,
    attributes: cython.int,
    last_delta: cython.longlong,
    base_timestamp: cython.longlong,
    max_timestamp: cython.longlong,
    producer_id: cython.longlong,
    producer_epoch: cython.int,
    base_sequence: cython.longlong,
    count: cython.longlong,
) -> object:
    """Write a batch header at `p`, all but the CRC, which comes last (`patch_crc`)."""
    if p < 0 or b.shape[0] - p < 61:
        raise ValueError("range outside the buffer")
    put64(b, p, base_offset)
    put32(b, p + 8, size - 12)
    put32(b, p + 12, leader_epoch)
    b[p + 16] = 2
    put32(b, p + 17, 0)
    b[p + 21] = (attributes >> 8) & 255
    b[p + 22] = attributes & 255
    put32(b, p + 23, last_delta)
    put64(b, p + 27, base_timestamp)
    put64(b, p + 35, max_timestamp)
    put64(b, p + 43, producer_id)
    b[p + 51] = (producer_epoch >> 8) & 255
    b[p + 52] = producer_epoch & 255
    put32(b, p + 53, base_sequence)
    put32(b, p + 57, count)


def patch_crc(b: cython.uchar[::1], p: cython.Py_ssize_t, crc: cython.longlong):
    """Store the CRC of the batch that starts at `p`."""
    if p < 0 or b.shape[0] - p < 61:
        raise ValueError("range outside the buffer")
    put32(b, p + 17, crc)


def patch_place(
    b: cython.uchar[::1], p: cython.Py_ssize_t, base_offset: cython.longlong, leader_epoch: cython.longlong
):
    """Give the finished batch at `p` its place in a log: the two fields that the CRC does not cover."""
    if p < 0 or b.shape[0] - p < 61:
        raise ValueError("range outside the buffer")
    put64(b, p, base_offset)
    put32(b, p + 12, leader_epoch)


# ---------------------------------------------------------------------------------------------------------------------
# Objects to batch


@cython.cfunc
def now_ms() -> cython.longlong:
    if cython.compiled:
        t: timespec
        clock_gettime(CLOCK_REALTIME, cython.address(t))
        return cython.cast(cython.longlong, t.tv_sec) * 1000 + t.tv_nsec // 1000000
    return time.time_ns() // 1000000


@cython.final
@cython.freelist(64)
@cython.cclass
class Encoded:
    """A finished batch that has no place in a log yet."""

    data = cython.declare(object, visibility="readonly")
    count = cython.declare(cython.longlong, visibility="readonly")
    base_timestamp = cython.declare(cython.longlong, visibility="readonly")
    max_timestamp = cython.declare(cython.longlong, visibility="readonly")

    def __init__(self, data, count, base_timestamp, max_timestamp):
        self.data = data
        self.count = count
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp


#: Up to here the kernel's own CRC is quicker than a call.
SMALL_CRC_BYTES = 512


@cython.final
@cython.cclass
class BatchBuilder:
    """Encodes records one after the other into one growing buffer, behind room for a header.

    `add` refuses bad input with an error from `refuse` and leaves the batch as it was. When the encoded bytes reach
    `limit` after an `add`, `on_full()` is called, which is expected to `take` it.
    """

    buffer = cython.declare(object, visibility="readonly")
    view: cython.uchar[::1]
    capacity: cython.Py_ssize_t
    position = cython.declare(cython.Py_ssize_t, visibility="readonly")
    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    base_timestamp = cython.declare(cython.longlong, visibility="readonly")
    max_timestamp = cython.declare(cython.longlong, visibility="readonly")
    closed: cython.bint
    limit: cython.Py_ssize_t
    max_record: cython.longlong
    max_total: cython.Py_ssize_t
    on_full: object
    refuse: object
    tables: cython.const[cython.uint][::1]
    taken = cython.declare(object, visibility="public")

    def __init__(self, refuse, limit=0, on_full=None, max_record=0, max_total=2147483647, capacity=4096):
        self.refuse = refuse
        self.taken = None
        self.closed = False
        self.limit = limit
        self.on_full = on_full
        self.max_record = max_record
        self.max_total = max_total
        self.capacity = capacity if capacity > 61 else 61
        self.buffer = bytearray(self.capacity)
        self.view = self.buffer
        self.tables = _CRC_TABLES
        self.reset_fields()

    def reset(self):
        """Forget all records; keep the buffer."""
        self.reset_fields()

    def take(self, buffer, close=False):
        """Go on with an empty batch in another buffer. Gives what was there: (buffer, where the records in it end,
        how many, first timestamp, largest timestamp). Atomic: no other thread's record falls between, and an interrupt
        that comes before the caller has its answer finds that in `taken`. With `close` no record is taken from then on.
        """
        if len(buffer) < 61:
            raise ValueError("a batch needs a buffer of 61 bytes or more")
        view: cython.uchar[::1] = buffer
        ending: cython.bint = close
        old: object = self.buffer
        position: cython.Py_ssize_t = self.position
        count: cython.Py_ssize_t = self.count
        base: cython.longlong = self.base_timestamp
        top: cython.longlong = self.max_timestamp
        self.buffer = buffer
        self.view = view
        self.capacity = view.shape[0] if cython.compiled else len(buffer)
        self.reset_fields()
        self.closed = self.closed or ending
        self.taken = (old, position, count, base, top)
        return self.taken

    @cython.cfunc
    def reset_fields(self) -> cython.void:
        self.position = 61
        self.count = 0
        self.base_timestamp = -1
        self.max_timestamp = -1

    @cython.cfunc
    def _grow(self, need: cython.Py_ssize_t) -> object:
        """A new, larger buffer instead of a resized one: somebody may still hold a view of the old."""
        wanted: cython.Py_ssize_t = self.position + need
        if wanted < self.capacity * 2:
            wanted = self.capacity * 2
        grown: object = bytearray(wanted)
        view: cython.uchar[::1] = grown
        if self.position > wanted:  # somebody else added meanwhile: look again
            return None
        if cython.compiled:
            memcpy(cython.address(view[0]), cython.address(self.view[0]), self.position)
        else:
            view[: self.position] = self.view[: self.position]
        self.buffer = grown
        self.view = view
        self.capacity = wanted
        return None

    @cython.cfunc
    def _bytes(self, what: object, name: object) -> object:
        """The slow path of a value that is not exactly bytes."""
        if what is None or type(what) is bytes:
            return what
        if isinstance(what, (bytes, bytearray, memoryview)):
            try:
                # Exactly bytes from here on: a subclass may lie about its length.
                return bytes(memoryview(what))
            except ValueError:  # a memoryview that was released
                pass
        raise self.refuse("type", name, what)

    @cython.cfunc
    def _check_timestamp(self, timestamp: object) -> cython.longlong:
        if isinstance(timestamp, bool) or not isinstance(timestamp, int):
            raise self.refuse("timestamp_type", "timestamp", timestamp)
        if not 0 <= timestamp <= 9223372036854775:
            raise self.refuse("timestamp", "timestamp", timestamp)
        return timestamp

    @cython.cfunc
    def _encode_headers(self, headers: object) -> object:
        """The headers as (key bytes, value bytes or None), checked."""
        pairs: list = []
        if isinstance(headers, dict):
            headers = headers.items()
        try:
            for name, value in headers:
                if not isinstance(name, str):
                    raise self.refuse("header_key", "header key", name)
                try:
                    encoded = str.encode(name, "utf-8", "surrogateescape")
                except UnicodeEncodeError:
                    raise self.refuse("header_key", "header key", name) from None
                pairs.append((encoded, self._bytes(value, "header value")))
        except (TypeError, ValueError) as error:
            if type(error) is TypeError or type(error) is ValueError:
                raise self.refuse("headers", "headers", headers) from None
            raise
        return pairs

    @cython.cfunc
    def _add(self, value: object, key: object, headers: object, timestamp: cython.longlong) -> object:
        klen: cython.Py_ssize_t = -1
        vlen: cython.Py_ssize_t = -1
        hlen: cython.Py_ssize_t
        p: cython.Py_ssize_t
        body: cython.longlong
        payload: cython.longlong = 0
        header_bytes: cython.longlong = 0
        need: cython.longlong
        before: cython.Py_ssize_t
        i: cython.Py_ssize_t
        nheaders: cython.Py_ssize_t = 0
        delta: cython.longlong
        pairs: object = None
        # The caller's code first: it may be slow, raise, or even come back here.
        if headers is not None and not (type(headers) is tuple and len(headers) == 0):
            pairs = self._encode_headers(headers)
            nheaders = len(pairs)
        if type(value) is not bytes:
            value = self._bytes(value, "value")
        if type(key) is not bytes:
            key = self._bytes(key, "key")
        if value is not None:
            vlen = PyBytes_GET_SIZE(value) if cython.compiled else len(value)
            payload += vlen
        if key is not None:
            klen = PyBytes_GET_SIZE(key) if cython.compiled else len(key)
            payload += klen
        for i in range(nheaders):
            name, content = pairs[i]
            hlen = len(name)
            header_bytes += varint_size(hlen) + hlen
            payload += hlen
            hlen = -1 if content is None else len(content)
            header_bytes += varint_size(hlen) + (0 if hlen < 0 else hlen)
            payload += 0 if hlen < 0 else hlen
        if self.max_record > 0 and payload > self.max_record:
            raise self.refuse("too_large", payload, self.max_record)
        # From here on nothing runs Python code, so that records of several threads do not mix; but growing may.
        while True:
            if self.closed:
                raise self.refuse("closed", "writer", None)
            delta = timestamp - self.base_timestamp if self.count > 0 else 0
            body = 1 + varint_size(delta) + varint_size(self.count) + varint_size(klen) + varint_size(vlen)
            body += varint_size(nheaders) + header_bytes
            if klen > 0:
                body += klen
            if vlen > 0:
                body += vlen
            need = varint_size(body) + body
            if self.position + need > self.max_total:
                before = self.count
                if before > 0 and self.on_full is not None:
                    self.on_full()
                    if self.count < before:
                        continue
                raise self.refuse("batch_too_large", self.position + need, self.max_total)
            if self.capacity - self.position >= need:
                break
            self._grow(need)
        view = self.view
        p = put_varint(view, self.position, body)
        view[p] = 0
        p = put_varint(view, p + 1, delta)
        p = put_varint(view, p, self.count)
        p = put_varint(view, p, klen)
        if klen > 0:
            if cython.compiled:
                memcpy(cython.address(view[p]), PyBytes_AS_STRING(key), klen)
            else:
                view[p : p + klen] = key
            p += klen
        p = put_varint(view, p, vlen)
        if vlen > 0:
            if cython.compiled:
                memcpy(cython.address(view[p]), PyBytes_AS_STRING(value), vlen)
            else:
                view[p : p + vlen] = value
            p += vlen
        p = put_varint(view, p, nheaders)
        if nheaders > 0:
            p = self._put_headers(pairs, p)
        if self.count == 0:
            self.base_timestamp = timestamp
            self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.count += 1
        self.position = p
        return None

    @cython.cfunc
    def _put_headers(self, pairs: object, p: cython.Py_ssize_t) -> cython.Py_ssize_t:
        for name, content in pairs:
            p = self._put_bytes(name, p)
            p = self._put_bytes(content, p)
        return p

    @cython.cfunc
    def _put_bytes(self, what: object, p: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """A length and that many bytes; `what` is exactly bytes, or None."""
        n: cython.Py_ssize_t = -1
        if what is not None:
            n = PyBytes_GET_SIZE(what) if cython.compiled else len(what)
        p = put_varint(self.view, p, n)
        if n > 0:
            if cython.compiled:
                memcpy(cython.address(self.view[p]), PyBytes_AS_STRING(what), n)
            else:
                self.view[p : p + n] = what
            p += n
        return p

    def add(self, value, key=None, headers=(), timestamp=None):
        """Encode one record; the clock gives the time where none is given."""
        self._add(value, key, headers, now_ms() if timestamp is None else self._check_timestamp(timestamp))
        if self.limit > 0 and self.position >= self.limit and self.on_full is not None:
            self.on_full()

    def finish(self, attributes, max_timestamp, producer_id, producer_epoch, sequence, crc):
        """The batch of all records so far, uncompressed, with its header; `crc` is the function for a large one. A
        `max_timestamp` of -1 is that of the records. It is valid until the builder is used again."""
        end: cython.Py_ssize_t = self.position
        top: cython.longlong = self.max_timestamp if max_timestamp < 0 else max_timestamp
        whole: object = memoryview(self.buffer)
        data: object = whole[:end]
        write_header(
            self.view if cython.compiled else whole,
            0,
            0,
            end,
            0,
            attributes,
            self.count - 1,
            self.base_timestamp,
            top,
            producer_id,
            producer_epoch,
            sequence,
            self.count,
        )
        if end <= SMALL_CRC_BYTES:
            put32(self.view, 17, small_crc(self.view, 21, end, self.tables))
        else:
            put32(self.view, 17, crc(data[21:]))
        return Encoded(data, self.count, self.base_timestamp, top)

    def extend(self, records):
        """Encode many records: bytes, `Record`s, dicts, or tuples in the order of `add`'s parameters."""
        now: cython.longlong = now_ms()
        time: cython.longlong
        n: cython.Py_ssize_t
        fields: tuple
        for item in records:
            if type(item) is bytes:
                self._add(item, None, None, now)
            elif type(item) is tuple and 1 <= len(item) <= 4:
                fields = item
                n = len(fields)
                time = now
                if n > 3 and fields[3] is not None:
                    time = self._check_timestamp(fields[3])
                self._add(fields[0], fields[1] if n > 1 else None, fields[2] if n > 2 else None, time)
            elif isinstance(item, Record):
                time = now if item.timestamp < 0 else self._check_timestamp(item.timestamp)
                self._add(item.value, item.key, item.headers, time)
            elif isinstance(item, dict):
                unknown = item.keys() - _FIELDS
                if unknown:
                    raise self.refuse("fields", "record", unknown)
                given = item.get("timestamp")
                time = now if given is None else self._check_timestamp(given)
                self._add(item.get("value"), item.get("key"), item.get("headers"), time)
            elif item is None or isinstance(item, (bytes, bytearray, memoryview)):
                self._add(item, None, None, now)
            else:
                raise self.refuse("type", "record", item)


_FIELDS = frozenset(("value", "key", "headers", "timestamp"))


# ---------------------------------------------------------------------------------------------------------------------
# Arrow to batch


def encode_arrow(
    out: cython.uchar[::1],
    start: cython.Py_ssize_t,
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    now: cython.longlong,
    timestamps: cython.const[cython.longlong][::1],
    value: tuple,
    key: tuple,
    headers: tuple,
):
    """Encode rows `first` to `last` as records from `start` on: (row, position, base and max timestamp).

    Stops where `limit` bytes are reached, or before a record that the rest of `out` may not hold. `value` and `key`
    are (offsets, data, validity bitmap, index of row 0 in the three); `headers` is (list offsets, index of row 0 in
    them, key part, value part). Empty buffers stand for what is absent. An
    offset outside its data raises ValueError.
    """
    value_offsets: cython.const[cython.int][::1] = value[0]
    value_data: cython.const[cython.uchar][::1] = value[1]
    value_valid: cython.const[cython.uchar][::1] = value[2]
    value_at: cython.Py_ssize_t = value[3]
    key_offsets: cython.const[cython.int][::1] = key[0]
    key_data: cython.const[cython.uchar][::1] = key[1]
    key_valid: cython.const[cython.uchar][::1] = key[2]
    key_at: cython.Py_ssize_t = key[3]
    list_offsets: cython.const[cython.int][::1] = headers[0]
    list_at: cython.Py_ssize_t = headers[1]
    name_offsets: cython.const[cython.int][::1] = headers[2][0]
    name_data: cython.const[cython.uchar][::1] = headers[2][1]
    name_at: cython.Py_ssize_t = headers[2][3]
    content_offsets: cython.const[cython.int][::1] = headers[3][0]
    content_data: cython.const[cython.uchar][::1] = headers[3][1]
    content_valid: cython.const[cython.uchar][::1] = headers[3][2]
    content_at: cython.Py_ssize_t = headers[3][3]
    has_value: cython.bint = value_offsets.shape[0] > 0
    has_key: cython.bint = key_offsets.shape[0] > 0
    has_time: cython.bint = timestamps.shape[0] > 0
    has_headers: cython.bint = list_offsets.shape[0] > 0
    value_nulls: cython.bint = value_valid.shape[0] > 0
    key_nulls: cython.bint = key_valid.shape[0] > 0
    content_nulls: cython.bint = content_valid.shape[0] > 0
    capacity: cython.Py_ssize_t = out.shape[0]
    value_room: cython.longlong = value_data.shape[0]
    key_room: cython.longlong = key_data.shape[0]
    name_room: cython.longlong = name_data.shape[0]
    content_room: cython.longlong = content_data.shape[0]
    names: cython.Py_ssize_t = name_offsets.shape[0]
    contents: cython.Py_ssize_t = content_offsets.shape[0]
    content_bits: cython.Py_ssize_t = content_valid.shape[0] * 8
    bad: cython.bint = False
    p: cython.Py_ssize_t = start
    i: cython.Py_ssize_t = first
    h: cython.Py_ssize_t
    h0: cython.Py_ssize_t = 0
    h1: cython.Py_ssize_t = 0
    vpos: cython.Py_ssize_t = 0
    vlen: cython.longlong
    kpos: cython.Py_ssize_t = 0
    klen: cython.longlong
    npos: cython.Py_ssize_t
    nlen: cython.longlong
    body: cython.longlong
    ts: cython.longlong
    base: cython.longlong = now
    top: cython.longlong = now
    if start < 0 or start > capacity or first < 0 or value_at < 0 or key_at < 0 or list_at < 0:
        raise ValueError("rows outside the buffers")
    if name_at < 0 or content_at < 0 or limit <= 0 or last >> 40 != 0:
        raise ValueError("rows outside the buffers")
    if has_time:
        check_room(timestamps.shape[0], last)
    if has_value:
        check_room(value_offsets.shape[0], value_at + last + 1)
    if has_key:
        check_room(key_offsets.shape[0], key_at + last + 1)
    if has_headers:
        check_room(list_offsets.shape[0], list_at + last + 1)
    if value_nulls:
        check_room(value_valid.shape[0] * 8, value_at + last)
    if key_nulls:
        check_room(key_valid.shape[0] * 8, key_at + last)
    with cython.nogil:
        while i < last and p - start < limit:
            ts = timestamps[i] if has_time else now
            if i == first:
                base = ts
                top = ts
            vlen = -1
            if has_value and not (value_nulls and bit(value_valid, value_at + i) == 0):
                vpos = value_offsets[value_at + i]
                vlen = value_offsets[value_at + i + 1] - vpos
                bad = bad or vpos < 0 or vlen < 0 or vlen > value_room - vpos
            klen = -1
            if has_key and not (key_nulls and bit(key_valid, key_at + i) == 0):
                kpos = key_offsets[key_at + i]
                klen = key_offsets[key_at + i + 1] - kpos
                bad = bad or kpos < 0 or klen < 0 or klen > key_room - kpos
            body = 1 + varint_size(ts - base) + varint_size(i - first) + varint_size(klen) + varint_size(vlen)
            if klen > 0:
                body += klen
            if vlen > 0:
                body += vlen
            if has_headers:
                h0 = list_offsets[list_at + i]
                h1 = list_offsets[list_at + i + 1]
                if h0 < 0 or h1 < h0 or name_at + h1 >= names or content_at + h1 >= contents:
                    bad = True
                    break
                if content_nulls and content_at + h1 > content_bits:
                    bad = True
                    break
                for h in range(h0, h1):
                    npos = name_offsets[name_at + h]
                    nlen = name_offsets[name_at + h + 1] - npos
                    bad = bad or npos < 0 or nlen < 0 or nlen > name_room - npos
                    body += varint_size(nlen) + nlen
                    nlen = -1
                    if not (content_nulls and bit(content_valid, content_at + h) == 0):
                        npos = content_offsets[content_at + h]
                        nlen = content_offsets[content_at + h + 1] - npos
                        bad = bad or npos < 0 or nlen < 0 or nlen > content_room - npos
                    body += varint_size(nlen) + (nlen if nlen > 0 else 0)
            body += varint_size(h1 - h0)
            if bad or body + 5 > capacity - p:
                break
            if ts > top:
                top = ts
            p = put_varint(out, p, body)
            out[p] = 0
            p = put_varint(out, p + 1, ts - base)
            p = put_varint(out, p, i - first)
            p = put_varint(out, p, klen)
            if klen > 0:
                copy(out, p, key_data, kpos, cython.cast(cython.Py_ssize_t, klen))
                p += cython.cast(cython.Py_ssize_t, klen)
            p = put_varint(out, p, vlen)
            if vlen > 0:
                copy(out, p, value_data, vpos, cython.cast(cython.Py_ssize_t, vlen))
                p += cython.cast(cython.Py_ssize_t, vlen)
            p = put_varint(out, p, h1 - h0)
            for h in range(h0, h1):
                npos = name_offsets[name_at + h]
                nlen = name_offsets[name_at + h + 1] - npos
                p = put_varint(out, p, nlen)
                copy(out, p, name_data, npos, cython.cast(cython.Py_ssize_t, nlen))
                p += cython.cast(cython.Py_ssize_t, nlen)
                nlen = -1
                npos = 0
                if not (content_nulls and bit(content_valid, content_at + h) == 0):
                    npos = content_offsets[content_at + h]
                    nlen = content_offsets[content_at + h + 1] - npos
                p = put_varint(out, p, nlen)
                if nlen > 0:
                    copy(out, p, content_data, npos, cython.cast(cython.Py_ssize_t, nlen))
                    p += cython.cast(cython.Py_ssize_t, nlen)
            i += 1
    if bad:
        raise ValueError("an offset outside the data of an array")
    return i, p, base, top


# ---------------------------------------------------------------------------------------------------------------------
# Batch to objects


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

    Gives back -1, or the number of the first row whose records do not parse; those before it are in `found`.
    """
    q: cython.Py_ssize_t
    i: cython.longlong
    p: cython.Py_ssize_t
    rend: cython.Py_ssize_t
    body_end: cython.Py_ssize_t
    ts: cython.longlong
    delta: cython.longlong
    previous: cython.longlong
    most: cython.longlong
    offset: cython.longlong
    kpos: cython.Py_ssize_t
    klen: cython.Py_ssize_t
    vpos: cython.Py_ssize_t
    vlen: cython.Py_ssize_t
    hpos: cython.Py_ssize_t
    hcount: cython.Py_ssize_t
    appended: cython.bint
    record: Record
    headers: object
    check_rows(b, rows, first, last)
    for q in range(first, last):
        p = rows[q, 12]
        body_end = rows[q, 13]
        most = rows[q, 3] - rows[q, 2]
        appended = (rows[q, 5] & 8) != 0
        previous = -1
        for i in range(rows[q, 4]):
            rend, ts, delta, kpos, klen, vpos, vlen, hpos, hcount = parse_record(b, p, body_end)
            if rend < 0 or delta <= previous or delta > most:
                return q
            previous = delta
            offset = rows[q, 2] + delta
            p = rend
            if offset < start:
                continue
            if offset >= end:
                return -1
            headers = ()
            if hcount > 0:
                headers = to_headers(b, hpos, rend, hcount)
                if headers is None:
                    return q
            record = Record.__new__(Record)
            record.offset = offset
            record.timestamp = rows[q, 7] if appended else add64(rows[q, 6], ts)
            record.timestamp_type = 1 if appended else 0
            record.key = to_bytes(b, kpos, klen)
            record.value = to_bytes(b, vpos, vlen)
            record.headers = headers
            record.topic = None
            record.partition = -1
            found.append(record)
        if p != body_end:
            return q
    return -1


@cython.final
@cython.cclass
class RecordCursor:
    """Gives the `Record`s of checked batches one by one, so that each is made where the one before it was freed.

    After the last one, `bad` is -1, or the number of the row whose records do not parse; `following` is the offset
    behind the last record that was given. Another thread may `stop` it: it then ends before its next record.
    `leader_epoch` is that of the first batch; a log gives out cursors over batches of one epoch each.
    """

    view: cython.const[cython.uchar][::1]
    rows: cython.const[cython.longlong][:, ::1]
    q: cython.Py_ssize_t
    batches: cython.Py_ssize_t
    p: cython.Py_ssize_t
    body_end: cython.Py_ssize_t
    left: cython.longlong
    base: cython.longlong
    most: cython.longlong
    previous: cython.longlong
    base_time: cython.longlong
    max_time: cython.longlong
    appended: cython.bint
    start: cython.longlong
    end: cython.longlong
    topic: object
    partition: cython.int
    bad = cython.declare(cython.Py_ssize_t, visibility="readonly")
    following = cython.declare(cython.longlong, visibility="readonly")
    stopped = cython.declare(cython.bint, visibility="readonly")
    leader_epoch = cython.declare(cython.longlong, visibility="readonly")

    def __init__(self, view, rows, start, end, topic=None, partition=-1):
        check_rows(view, rows, 0, rows.shape[0])
        self.leader_epoch = rows[0, 14] if rows.shape[0] else -1
        self.view = view
        self.rows = rows
        self.batches = self.rows.shape[0]
        self.q = -1
        self.left = 0
        self.p = 0
        self.body_end = 0
        self.start = start
        self.end = end
        self.bad = -1
        self.following = start
        self.topic = topic
        self.partition = partition
        self.stopped = False

    def __iter__(self):
        return self

    def stop(self):
        """Give no more records."""
        self.stopped = True

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _next_batch(self) -> cython.bint:
        """Whether there is one more batch, and the one before it ended where it should."""
        if self.p != self.body_end:
            self.bad = self.q
            return False
        self.q += 1
        if self.q >= self.batches:
            return False
        # Checked again: the rows are the caller's, and may have been filled anew since.
        if not (0 <= self.rows[self.q, 12] <= self.rows[self.q, 13] <= self.view.shape[0]):
            self.bad = self.q
            return False
        self.p = self.rows[self.q, 12]
        self.body_end = self.rows[self.q, 13]
        self.left = self.rows[self.q, 4]
        self.base = self.rows[self.q, 2]
        self.most = self.rows[self.q, 3] - self.base
        self.base_time = self.rows[self.q, 6]
        self.max_time = self.rows[self.q, 7]
        self.appended = (self.rows[self.q, 5] & 8) != 0
        self.previous = -1
        return True

    def __next__(self):
        rend: cython.Py_ssize_t
        ts: cython.longlong
        delta: cython.longlong
        kpos: cython.Py_ssize_t
        klen: cython.Py_ssize_t
        vpos: cython.Py_ssize_t
        vlen: cython.Py_ssize_t
        hpos: cython.Py_ssize_t
        hcount: cython.Py_ssize_t
        record: Record
        headers: object
        if self.stopped:
            raise StopIteration
        while True:
            if self.left == 0:
                if self.bad >= 0 or not self._next_batch():
                    raise StopIteration
                continue
            rend, ts, delta, kpos, klen, vpos, vlen, hpos, hcount = parse_record(self.view, self.p, self.body_end)
            if rend < 0 or delta <= self.previous or delta > self.most:
                self.bad = self.q
                self.left = 0
                raise StopIteration
            self.left -= 1
            self.previous = delta
            self.p = rend
            if self.base + delta >= self.start:
                break
        if self.base + delta >= self.end:
            self.left = 0
            self.batches = 0
            self.p = self.body_end
            raise StopIteration
        headers = ()
        if hcount > 0:
            headers = to_headers(self.view, hpos, rend, hcount)
            if headers is None:
                self.bad = self.q
                self.left = 0
                raise StopIteration
        record = Record.__new__(Record)
        record.offset = self.base + delta
        record.timestamp = self.max_time if self.appended else add64(self.base_time, ts)
        record.timestamp_type = 1 if self.appended else 0
        record.key = to_bytes(self.view, kpos, klen)
        record.value = to_bytes(self.view, vpos, vlen)
        record.headers = headers
        record.topic = self.topic
        record.partition = self.partition
        self.following = record.offset + 1
        return record


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
    """The first `Record` at or above `offset` in one batch's records; None if there is none, False if they do not
    parse. In a batch without gaps the records before it are hopped over by their lengths alone. `body` is where
    record number `first` starts."""
    p: cython.Py_ssize_t = body
    i: cython.longlong = first
    length: cython.longlong
    rend: cython.Py_ssize_t
    ts: cython.longlong
    delta: cython.longlong
    wanted: cython.longlong = offset - base_offset
    kpos: cython.Py_ssize_t
    klen: cython.Py_ssize_t
    vpos: cython.Py_ssize_t
    vlen: cython.Py_ssize_t
    hpos: cython.Py_ssize_t
    hcount: cython.Py_ssize_t
    record: Record
    if body < 0 or end < body or end > b.shape[0]:
        raise ValueError("range outside the buffer")
    # How far an offset can be ahead of its record's number: the gaps that compaction may have left.
    slack: cython.longlong = last_offset - base_offset + 1 - count
    if slack == 0:
        while i < wanted and i < count:
            length, p = get_varint(b, p, end)
            if p > end or length < 6 or length > end - p:
                return False
            p += cython.cast(cython.Py_ssize_t, length)
            i += 1
    while i < count:
        rend, ts, delta, kpos, klen, vpos, vlen, hpos, hcount = parse_record(b, p, end)
        if rend < 0 or delta < i or delta > i + slack:
            return False
        if delta >= wanted:
            headers: object = ()
            if hcount > 0:
                headers = to_headers(b, hpos, rend, hcount)
                if headers is None:
                    return False
            record = Record.__new__(Record)
            record.offset = base_offset + delta
            record.timestamp = max_timestamp if attributes & 8 else add64(base_timestamp, ts)
            record.timestamp_type = 1 if attributes & 8 else 0
            record.key = to_bytes(b, kpos, klen)
            record.value = to_bytes(b, vpos, vlen)
            record.headers = headers
            record.topic = None
            record.partition = -1
            return record
        p = rend
        i += 1
    return None if p == end else False


def landmarks(
    b: cython.const[cython.uchar][::1],
    body: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
    step: cython.longlong,
    found: cython.int[::1],
):
    """Where every `step`-th record starts, into `found`; False if the records do not parse."""
    p: cython.Py_ssize_t = body
    i: cython.longlong
    length: cython.longlong
    if body < 0 or end < body or end > b.shape[0] or step < 1 or found.shape[0] < count // step + 1:
        raise ValueError("range outside the buffer")
    for i in range(count):
        if i % step == 0:
            found[i // step] = cython.cast(cython.int, p)
        length, p = get_varint(b, p, end)
        if p > end or length < 6 or length > end - p:
            return False
        p += cython.cast(cython.Py_ssize_t, length)
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
    """The offset of the first record at or above offset `start` that is not older than `timestamp`; -1 if there is
    none, -2 if the records do not parse."""
    p: cython.Py_ssize_t = body
    i: cython.longlong
    previous: cython.longlong = -1
    rend: cython.Py_ssize_t
    ts: cython.longlong
    delta: cython.longlong
    kpos: cython.Py_ssize_t
    klen: cython.Py_ssize_t
    vpos: cython.Py_ssize_t
    vlen: cython.Py_ssize_t
    hpos: cython.Py_ssize_t
    hcount: cython.Py_ssize_t
    if body < 0 or end < body or end > b.shape[0]:
        raise ValueError("range outside the buffer")
    for i in range(count):
        rend, ts, delta, kpos, klen, vpos, vlen, hpos, hcount = parse_record(b, p, end)
        if rend < 0 or delta <= previous or delta > 0x7FFFFFFF:
            return -2
        previous = delta
        if base_offset + delta >= start and add64(base_timestamp, ts) >= timestamp:
            return base_offset + delta
        p = rend
    return -1


# ---------------------------------------------------------------------------------------------------------------------
# Batch to Arrow


def decode_columns(
    b: cython.const[cython.uchar][::1],
    rows: cython.const[cython.longlong][:, ::1],
    batches: cython.Py_ssize_t,
    offsets: cython.longlong[::1],
    timestamps: cython.longlong[::1],
    key_offsets: cython.int[::1],
    key_data: cython.uchar[::1],
    key_valid: cython.uchar[::1],
    value_offsets: cython.int[::1],
    value_data: cython.uchar[::1],
    value_valid: cython.uchar[::1],
    with_key: cython.bint,
    with_value: cython.bint,
):
    """Copy the records of many batches into Arrow's buffers.

    Gives (-1, records, key bytes, value bytes, null keys, null values, headers in all), or the number of the first
    row that does not parse in place of -1; what counts then is only that. The caller provides room for the sum of
    counts (bitmaps zeroed) and, in the data buffers, for the sum of the batches' bodies.
    """
    q: cython.Py_ssize_t
    i: cython.longlong
    p: cython.Py_ssize_t
    r: cython.Py_ssize_t = 0
    bad: cython.Py_ssize_t = -1
    rend: cython.Py_ssize_t
    body_end: cython.Py_ssize_t
    ts: cython.longlong
    delta: cython.longlong
    previous: cython.longlong
    kpos: cython.Py_ssize_t
    klen: cython.Py_ssize_t
    vpos: cython.Py_ssize_t
    vlen: cython.Py_ssize_t
    hpos: cython.Py_ssize_t
    hcount: cython.Py_ssize_t
    headers: cython.Py_ssize_t = 0
    keys: cython.Py_ssize_t = 0
    values: cython.Py_ssize_t = 0
    null_keys: cython.Py_ssize_t = 0
    null_values: cython.Py_ssize_t = 0
    appended: cython.bint
    total: cython.Py_ssize_t
    size: cython.Py_ssize_t
    total, size = check_rows(b, rows, 0, batches)
    check_room(offsets.shape[0], total)
    check_room(timestamps.shape[0], total)
    check_room(0x7FFFFFFF, size)
    if with_key:
        check_room(key_offsets.shape[0], total + 1)
        check_room(key_data.shape[0], size)
        check_room(key_valid.shape[0] * 8, total)
    if with_value:
        check_room(value_offsets.shape[0], total + 1)
        check_room(value_data.shape[0], size)
        check_room(value_valid.shape[0] * 8, total)
    if with_key:
        key_offsets[0] = 0
    if with_value:
        value_offsets[0] = 0
    with cython.nogil:
        for q in range(batches):
            p = rows[q, 12]
            body_end = rows[q, 13]
            appended = (rows[q, 5] & 8) != 0
            previous = -1
            for i in range(rows[q, 4]):
                rend, ts, delta, kpos, klen, vpos, vlen, hpos, hcount = parse_record(b, p, body_end)
                if rend < 0 or delta <= previous or delta > rows[q, 3] - rows[q, 2]:
                    bad = q
                    break
                previous = delta
                p = rend
                headers += hcount
                offsets[r] = rows[q, 2] + delta
                timestamps[r] = rows[q, 7] if appended else add64(rows[q, 6], ts)
                if with_key:
                    if klen < 0:
                        null_keys += 1
                    else:
                        set_bit(key_valid, r)
                        copy(key_data, keys, b, kpos, klen)
                        keys += klen
                    key_offsets[r + 1] = cython.cast(cython.int, keys)
                if with_value:
                    if vlen < 0:
                        null_values += 1
                    else:
                        set_bit(value_valid, r)
                        copy(value_data, values, b, vpos, vlen)
                        values += vlen
                    value_offsets[r + 1] = cython.cast(cython.int, values)
                r += 1
            if bad >= 0:
                break
            if p != body_end:
                bad = q
                break
    return bad, r, keys, values, null_keys, null_values, headers


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_view(
    views: cython.uchar[::1],
    r: cython.Py_ssize_t,
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
    origin: cython.Py_ssize_t,
) -> cython.void:
    """Arrow's 16-byte view: length, then up to 12 bytes inline, or 4 bytes, buffer 0 and the place in it."""
    at: cython.Py_ssize_t = r * 16
    put32le(views, at, n)
    if n <= 12:
        put32le(views, at + 4, 0)
        put32le(views, at + 8, 0)
        put32le(views, at + 12, 0)
        copy(views, at + 4, b, p, n)
    else:
        put32le(views, at + 8, 0)
        copy(views, at + 4, b, p, 4)
        put32le(views, at + 12, p - origin)


def decode_views(
    b: cython.const[cython.uchar][::1],
    rows: cython.const[cython.longlong][:, ::1],
    batches: cython.Py_ssize_t,
    origin: cython.Py_ssize_t,
    offsets: cython.longlong[::1],
    timestamps: cython.longlong[::1],
    key_views: cython.uchar[::1],
    key_valid: cython.uchar[::1],
    value_views: cython.uchar[::1],
    value_valid: cython.uchar[::1],
    with_key: cython.bint,
    with_value: cython.bint,
):
    """As `decode_columns`, but keys and values become views into the buffer, counted from `origin`; nothing longer
    than 12 bytes is copied."""
    q: cython.Py_ssize_t
    i: cython.longlong
    p: cython.Py_ssize_t
    r: cython.Py_ssize_t = 0
    bad: cython.Py_ssize_t = -1
    rend: cython.Py_ssize_t
    body_end: cython.Py_ssize_t
    ts: cython.longlong
    delta: cython.longlong
    previous: cython.longlong
    kpos: cython.Py_ssize_t
    klen: cython.Py_ssize_t
    vpos: cython.Py_ssize_t
    vlen: cython.Py_ssize_t
    hpos: cython.Py_ssize_t
    hcount: cython.Py_ssize_t
    headers: cython.Py_ssize_t = 0
    null_keys: cython.Py_ssize_t = 0
    null_values: cython.Py_ssize_t = 0
    appended: cython.bint
    total: cython.Py_ssize_t
    size: cython.Py_ssize_t
    total, size = check_rows(b, rows, 0, batches)
    check_room(offsets.shape[0], total)
    check_room(timestamps.shape[0], total)
    for q in range(batches):
        if origin < 0 or rows[q, 12] < origin or rows[q, 13] - origin > 0x7FFFFFFF:
            raise ValueError("rows outside what a view can point at")
    if with_key:
        check_room(key_views.shape[0] // 16, total)
        check_room(key_valid.shape[0] * 8, total)
    if with_value:
        check_room(value_views.shape[0] // 16, total)
        check_room(value_valid.shape[0] * 8, total)
    with cython.nogil:
        for q in range(batches):
            p = rows[q, 12]
            body_end = rows[q, 13]
            appended = (rows[q, 5] & 8) != 0
            previous = -1
            for i in range(rows[q, 4]):
                rend, ts, delta, kpos, klen, vpos, vlen, hpos, hcount = parse_record(b, p, body_end)
                if rend < 0 or delta <= previous or delta > rows[q, 3] - rows[q, 2]:
                    bad = q
                    break
                previous = delta
                p = rend
                headers += hcount
                offsets[r] = rows[q, 2] + delta
                timestamps[r] = rows[q, 7] if appended else add64(rows[q, 6], ts)
                if with_key:
                    if klen < 0:
                        null_keys += 1
                        put_view(key_views, r, b, 0, 0, 0)
                    else:
                        set_bit(key_valid, r)
                        put_view(key_views, r, b, kpos, klen, origin)
                if with_value:
                    if vlen < 0:
                        null_values += 1
                        put_view(value_views, r, b, 0, 0, 0)
                    else:
                        set_bit(value_valid, r)
                        put_view(value_views, r, b, vpos, vlen, origin)
                r += 1
            if bad >= 0:
                break
            if p != body_end:
                bad = q
                break
    return bad, r, 0, 0, null_keys, null_values, headers


def decode_headers(
    b: cython.const[cython.uchar][::1],
    rows: cython.const[cython.longlong][:, ::1],
    batches: cython.Py_ssize_t,
    list_offsets: cython.int[::1],
    name_offsets: cython.int[::1],
    name_data: cython.uchar[::1],
    content_offsets: cython.int[::1],
    content_data: cython.uchar[::1],
    content_valid: cython.uchar[::1],
):
    """Copy the record headers of many batches, already checked by `decode_columns`, into Arrow's buffers.

    Gives (-1 or bad row, headers, name bytes, content bytes, null contents); room as `decode_columns` counted it.
    """
    q: cython.Py_ssize_t
    i: cython.longlong
    j: cython.Py_ssize_t
    p: cython.Py_ssize_t
    at: cython.Py_ssize_t
    r: cython.Py_ssize_t = 0
    n: cython.Py_ssize_t = 0
    bad: cython.Py_ssize_t = -1
    rend: cython.Py_ssize_t
    body_end: cython.Py_ssize_t
    ts: cython.longlong
    delta: cython.longlong
    kpos: cython.Py_ssize_t
    klen: cython.Py_ssize_t
    vpos: cython.Py_ssize_t
    vlen: cython.Py_ssize_t
    hpos: cython.Py_ssize_t
    hcount: cython.Py_ssize_t
    room: cython.Py_ssize_t = content_offsets.shape[0] - 1
    names: cython.Py_ssize_t = 0
    contents: cython.Py_ssize_t = 0
    nulls: cython.Py_ssize_t = 0
    total: cython.Py_ssize_t
    size: cython.Py_ssize_t
    total, size = check_rows(b, rows, 0, batches)
    check_room(list_offsets.shape[0], total + 1)
    check_room(name_offsets.shape[0], room + 1)
    check_room(content_offsets.shape[0], 1)
    check_room(0x7FFFFFFF, size)
    if room > 0:
        check_room(name_data.shape[0], size)
        check_room(content_data.shape[0], size)
        check_room(content_valid.shape[0] * 8, room)
    list_offsets[0] = 0
    name_offsets[0] = 0
    content_offsets[0] = 0
    with cython.nogil:
        for q in range(batches):
            p = rows[q, 12]
            body_end = rows[q, 13]
            for i in range(rows[q, 4]):
                rend, ts, delta, kpos, klen, vpos, vlen, hpos, hcount = parse_record(b, p, body_end)
                if rend < 0 or hcount > room - n:
                    bad = q
                    break
                at = hpos
                for j in range(hcount):
                    at, kpos, klen, vpos, vlen = parse_header(b, at, rend)
                    if at < 0:
                        bad = q
                        break
                    copy(name_data, names, b, kpos, klen)
                    names += klen
                    if vlen < 0:
                        nulls += 1
                    else:
                        set_bit(content_valid, n)
                        copy(content_data, contents, b, vpos, vlen)
                        contents += vlen
                    n += 1
                    name_offsets[n] = cython.cast(cython.int, names)
                    content_offsets[n] = cython.cast(cython.int, contents)
                if bad >= 0:
                    break
                if at != rend:
                    bad = q
                    break
                p = rend
                r += 1
                list_offsets[r] = cython.cast(cython.int, n)
            if bad >= 0:
                break
    return bad, n, names, contents, nulls


# ---------------------------------------------------------------------------------------------------------------------
# CRC-32C of small batches: a call into the crc32c package costs more than the checksum of a record or two

_CRC_TABLES = array("I", bytes(4 * 2048))


def _fill_crc_tables():
    """Entry k * 256 + v: what byte v contributes k bytes further on. Slicing by eight, Castagnoli's polynomial."""
    for i in range(256):
        x = i
        for _ in range(8):
            x = (x >> 1) ^ (0x82F63B78 if x & 1 else 0)
        _CRC_TABLES[i] = x
    for i in range(256):
        x = _CRC_TABLES[i]
        for k in range(1, 8):
            x = _CRC_TABLES[x & 255] ^ (x >> 8)
            _CRC_TABLES[k * 256 + i] = x


_fill_crc_tables()


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def small_crc(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    t: cython.const[cython.uint][::1],
) -> cython.longlong:
    x: cython.ulonglong = 0
    low: cython.ulonglong
    x = x ^ 0x7FFFFFFF | (cython.cast(cython.ulonglong, 1) << 31)
    while end - p >= 8:
        low = x ^ b[p] ^ (cython.cast(cython.ulonglong, b[p + 1]) << 8)
        low = low ^ (cython.cast(cython.ulonglong, b[p + 2]) << 16) ^ (cython.cast(cython.ulonglong, b[p + 3]) << 24)
        x = t[1792 + (low & 255)] ^ t[1536 + ((low >> 8) & 255)] ^ t[1280 + ((low >> 16) & 255)] ^ t[1024 + (low >> 24)]
        x = x ^ t[768 + b[p + 4]] ^ t[512 + b[p + 5]] ^ t[256 + b[p + 6]] ^ t[b[p + 7]]
        p += 8
    while p < end:
        x = t[(x ^ b[p]) & 255] ^ (x >> 8)
        p += 1
    x = x ^ 0x7FFFFFFF ^ (cython.cast(cython.ulonglong, 1) << 31)
    return cython.cast(cython.longlong, x)


def check_small(
    b: cython.const[cython.uchar][::1],
    rows: cython.const[cython.longlong][:, ::1],
    first: cython.Py_ssize_t,
    limit: cython.longlong,
):
    """Compare the CRCs of batches of up to `limit` bytes, from row `first` on: (the row where it stopped, whether
    because its CRC is wrong). Else it stopped at a larger batch, or behind the last row."""
    q: cython.Py_ssize_t = first
    n: cython.Py_ssize_t = rows.shape[0]
    wrong: cython.bint = False
    tables: cython.const[cython.uint][::1] = _CRC_TABLES
    if first < 0 or rows.shape[1] < 16:
        raise ValueError("rows outside the buffer")
    with cython.nogil:
        while q < n and rows[q, 1] <= limit:
            if rows[q, 0] < 0 or rows[q, 1] < 61 or rows[q, 1] > b.shape[0] - rows[q, 0]:
                wrong = True
                break
            if (
                small_crc(
                    b,
                    cython.cast(cython.Py_ssize_t, rows[q, 0] + 21),
                    cython.cast(cython.Py_ssize_t, rows[q, 0] + rows[q, 1]),
                    tables,
                )
                != rows[q, 11]
            ):
                wrong = True
                break
            q += 1
    return q, wrong


# ---------------------------------------------------------------------------------------------------------------------
# Index


def select_entries(
    rows: cython.const[cython.longlong][:, ::1],
    batches: cython.Py_ssize_t,
    interval: cython.longlong,
    since: cython.longlong,
    chosen: cython.longlong[::1],
):
    """Which batches get an index entry: (how many, bytes since the last). Their row numbers go to `chosen`.

    Kafka's rule: a batch is entered if more than `interval` bytes came before it since the last that was.
    """
    q: cython.Py_ssize_t
    n: cython.Py_ssize_t = 0
    if batches < 0 or batches > rows.shape[0] or rows.shape[1] < 16 or batches > chosen.shape[0]:
        raise ValueError("rows outside the buffer")
    with cython.nogil:
        for q in range(batches):
            if since > interval:
                chosen[n] = q
                n += 1
                since = 0
            since += rows[q, 1]
    return n, since


def head_of(
    b: cython.const[cython.uchar][::1],
    body: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
    wanted: cython.longlong,
):
    """The records of one batch with an offset delta below `wanted`: (how many, where they end, largest timestamp
    delta among them); a count of -1 if they do not parse."""
    p: cython.Py_ssize_t = body
    i: cython.longlong = 0
    previous: cython.longlong = -1
    top: cython.longlong = 0
    rend: cython.Py_ssize_t
    ts: cython.longlong
    delta: cython.longlong
    kpos: cython.Py_ssize_t
    klen: cython.Py_ssize_t
    vpos: cython.Py_ssize_t
    vlen: cython.Py_ssize_t
    hpos: cython.Py_ssize_t
    hcount: cython.Py_ssize_t
    if body < 0 or end < body or end > b.shape[0]:
        raise ValueError("range outside the buffer")
    while i < count:
        rend, ts, delta, kpos, klen, vpos, vlen, hpos, hcount = parse_record(b, p, end)
        if rend < 0 or delta <= previous or delta > 0x7FFFFFFF:
            return -1, p, top
        previous = delta
        if delta >= wanted:
            break
        if i == 0 or ts > top:
            top = ts
        p = rend
        i += 1
    return i, p, top


# ---------------------------------------------------------------------------------------------------------------------
# Which partition a key belongs to


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def times32(x: cython.ulonglong, y: cython.ulonglong) -> cython.ulonglong:
    """x * y modulo 2**32; both are below it."""
    if cython.compiled:
        return cython.cast(cython.ulonglong, cython.cast(cython.uint, x * y))
    return (x * y) & 0xFFFFFFFF


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def murmur(b: cython.pointer(cython.const[cython.uchar]), n: cython.Py_ssize_t) -> cython.ulonglong:
    """MurmurHash2 with Kafka's seed, as 32 unsigned bits. Interpreted, `b` is bytes."""
    m: cython.ulonglong = 0x5BD1E995
    h: cython.ulonglong = 0x1747B28C
    k: cython.ulonglong
    p: cython.Py_ssize_t = 0
    h = (h | (cython.cast(cython.ulonglong, 1) << 31)) ^ cython.cast(cython.ulonglong, n)  # the seed is 0x9747B28C
    while n - p >= 4:
        k = b[p]
        k = k | (cython.cast(cython.ulonglong, b[p + 1]) << 8)
        k = k | (cython.cast(cython.ulonglong, b[p + 2]) << 16)
        k = k | (cython.cast(cython.ulonglong, b[p + 3]) << 24)
        k = times32(k, m)
        k = k ^ (k >> 24)
        h = times32(h, m) ^ times32(k, m)
        p += 4
    if n - p >= 3:
        h = h ^ (cython.cast(cython.ulonglong, b[p + 2]) << 16)
    if n - p >= 2:
        h = h ^ (cython.cast(cython.ulonglong, b[p + 1]) << 8)
    if n - p >= 1:
        h = times32(h ^ b[p], m)
    h = times32(h ^ (h >> 13), m)
    return h ^ (h >> 15)


@cython.cfunc
@cython.inline
def murmur_of(key: object) -> cython.longlong:
    """Of a key that is exactly bytes."""
    if cython.compiled:
        return cython.cast(
            cython.longlong,
            murmur(
                cython.cast(cython.pointer(cython.const[cython.uchar]), PyBytes_AS_STRING(key)), PyBytes_GET_SIZE(key)
            ),
        )
    return murmur(key, len(key))


def murmur2(key):
    """The number that Kafka's own client derives from a key, as a signed 32-bit integer."""
    h: cython.longlong = murmur_of(key if type(key) is bytes else bytes(memoryview(key)))
    return h - 4294967296 if h >= 2147483648 else h


def partition_of(key, partitions):
    """The partition that Kafka's own client sends a key to."""
    most: cython.longlong = partitions
    if most < 1:
        raise ValueError("a topic has at least one partition")
    return (murmur_of(key if type(key) is bytes else bytes(memoryview(key))) & 0x7FFFFFFF) % most


def partitions_of(
    offsets: cython.const[cython.longlong][::1],
    data: cython.const[cython.uchar][::1],
    valid: cython.const[cython.uchar][::1],
    first_bit: cython.Py_ssize_t,
    partitions: cython.longlong,
    without_key: cython.int,
    found: cython.int[::1],
):
    """The partition of every key of an Arrow column (64-bit offsets); `without_key` for those that are null."""
    i: cython.Py_ssize_t
    h: cython.longlong
    rows: cython.Py_ssize_t = found.shape[0]
    has_nulls: cython.bint = valid.shape[0] > 0
    if partitions < 1 or offsets.shape[0] < rows + 1 or first_bit < 0:
        raise ValueError("the keys would go outside a buffer that is too small")
    if has_nulls and (first_bit + rows + 7) >> 3 > valid.shape[0]:
        raise ValueError("the keys would go outside a buffer that is too small")
    for i in range(rows):
        if offsets[i] < 0 or offsets[i + 1] < offsets[i] or offsets[i + 1] > data.shape[0]:
            raise ValueError("the keys would go outside a buffer that is too small")
    with cython.nogil:
        for i in range(rows):
            if has_nulls and not bit(valid, first_bit + i):
                found[i] = without_key
                continue
            if cython.compiled:
                h = cython.cast(
                    cython.longlong,
                    murmur(
                        cython.address(data[offsets[i]]) if offsets[i + 1] > offsets[i] else cython.NULL,
                        cython.cast(cython.Py_ssize_t, offsets[i + 1] - offsets[i]),
                    ),
                )
            else:
                h = murmur(bytes(data[offsets[i] : offsets[i + 1]]), offsets[i + 1] - offsets[i])
            found[i] = cython.cast(cython.int, (h & 0x7FFFFFFF) % partitions)


@cython.final
@cython.cclass
class Dispatcher:
    """Gives each record to the builder of its partition: by key as Kafka's client does; without a key to one that
    stays the same until `sticky_bytes` of values went there, then `choose()` says which is next.

    `builders` is a list with a `BatchBuilder` for each partition.
    """

    builders: list
    partitions: cython.longlong
    sticky: cython.Py_ssize_t
    used: cython.longlong
    sticky_bytes: cython.longlong
    choose: object
    keyed: cython.bint

    def __init__(self, builders, sticky_bytes, choose, keyed=False):
        self.builders = list(builders)
        for builder in self.builders:
            if not isinstance(builder, BatchBuilder):
                raise TypeError("builders are BatchBuilders")
        self.partitions = len(self.builders)
        if self.partitions < 1:
            raise ValueError("a topic has at least one partition")
        self.sticky_bytes = sticky_bytes
        self.choose = choose
        self.keyed = keyed
        self.used = 0
        self.sticky = 0
        self._next()

    @cython.cfunc
    def _next(self) -> object:
        chosen: cython.Py_ssize_t = self.choose()
        if not 0 <= chosen < self.partitions:
            raise ValueError("there is no such partition")
        self.sticky = chosen
        self.used = 0
        return None

    def add(self, value, key=None, headers=(), timestamp=None):
        """Encode one record into the batch of its partition."""
        at: cython.Py_ssize_t
        builder: BatchBuilder
        if key is None:
            at = self.sticky
            builder = self.builders[at]
            if self.keyed:
                raise builder.refuse("keyless", "key", None)
            builder.add(value, key, headers, timestamp)
            self.used += 1 if value is None else len(value)
            if self.used >= self.sticky_bytes:
                self._next()
            return
        if type(key) is not bytes:
            builder = self.builders[0]
            key = builder._bytes(key, "key")
        at = cython.cast(cython.Py_ssize_t, (murmur_of(key) & 0x7FFFFFFF) % self.partitions)
        builder = cython.cast(BatchBuilder, self.builders[at])
        builder._add(value, key, headers, now_ms() if timestamp is None else builder._check_timestamp(timestamp))
        if builder.limit > 0 and builder.position >= builder.limit and builder.on_full is not None:
            builder.on_full()


# ---------------------------------------------------------------------------------------------------------------------
# Keys that were written again: what compaction needs to know


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def plus64(x: cython.ulonglong, y: cython.ulonglong) -> cython.ulonglong:
    if cython.compiled:
        return x + y
    return (x + y) & 0xFFFFFFFFFFFFFFFF


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def rotate64(x: cython.ulonglong, n: cython.int) -> cython.ulonglong:
    if cython.compiled:
        return (x << n) | (x >> (64 - n))
    return ((x << n) | (x >> (64 - n))) & 0xFFFFFFFFFFFFFFFF


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def sip_round(
    v0: cython.ulonglong, v1: cython.ulonglong, v2: cython.ulonglong, v3: cython.ulonglong
) -> tuple[cython.ulonglong, cython.ulonglong, cython.ulonglong, cython.ulonglong]:
    v0 = plus64(v0, v1)
    v1 = rotate64(v1, 13) ^ v0
    v0 = rotate64(v0, 32)
    v2 = plus64(v2, v3)
    v3 = rotate64(v3, 16) ^ v2
    v0 = plus64(v0, v3)
    v3 = rotate64(v3, 21) ^ v0
    v2 = plus64(v2, v1)
    v1 = rotate64(v1, 17) ^ v2
    v2 = rotate64(v2, 32)
    return v0, v1, v2, v3


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def sip_hash(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
    v0: cython.ulonglong,
    v1: cython.ulonglong,
    v2: cython.ulonglong,
    v3: cython.ulonglong,
) -> tuple[cython.ulonglong, cython.ulonglong]:
    """SipHash-1-3 with 128 bits of output, from its initial state: two keys that share it are not to be met, also if
    somebody looks for them."""
    m: cython.ulonglong
    low: cython.ulonglong
    shift: cython.int
    end: cython.Py_ssize_t = p + n
    while end - p >= 8:
        m = 0
        if cython.compiled:
            memcpy(cython.address(m), cython.address(b[p]), 8)
        else:
            m = int.from_bytes(b[p : p + 8], "little")
        v3 = v3 ^ m
        v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
        v0 = v0 ^ m
        p += 8
    m = cython.cast(cython.ulonglong, n & 255) << 56
    shift = 0
    while p < end:
        m = m | (cython.cast(cython.ulonglong, b[p]) << shift)
        shift += 8
        p += 1
    v3 = v3 ^ m
    v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    v0 = v0 ^ m
    v2 = v2 ^ 0xEE
    v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 = v1 ^ 0xDD
    v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    return low, v0 ^ v1 ^ v2 ^ v3


@cython.final
@cython.cclass
class KeyMap:
    """The last offset of every key, in a table of fixed size. A key is known by 128 bits of a keyed hash.

    `table` has three unsigned 64-bit columns: both halves of the hash, and the offset plus one (0: free). The number
    of its rows is a power of two. It is never filled to more than seven eighths. `secret` is 16 random bytes.
    """

    table: cython.ulonglong[:, ::1]
    mask: cython.ulonglong
    v0: cython.ulonglong
    v1: cython.ulonglong
    v2: cython.ulonglong
    v3: cython.ulonglong
    most: cython.longlong
    count = cython.declare(cython.longlong, visibility="readonly")

    def __init__(self, table, secret):
        slots: cython.Py_ssize_t = table.shape[0]
        if slots < 8 or slots & (slots - 1) or table.shape[1] != 3:
            raise ValueError("a table has a power of two of rows and three columns")
        self.table = table
        self.mask = slots - 1
        self.most = slots // 8 * 7
        low = int.from_bytes(secret[:8], "little")
        high = int.from_bytes(secret[8:16], "little")
        self.v0 = low ^ 0x736F6D6570736575
        self.v1 = high ^ 0x646F72616E646F6D ^ 0xEE
        self.v2 = low ^ 0x6C7967656E657261
        self.v3 = high ^ 0x7465646279746573
        self.count = 0

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _slot(self, low: cython.ulonglong, high: cython.ulonglong) -> cython.Py_ssize_t:
        """Where a key stands, or would stand."""
        at: cython.ulonglong = low & self.mask
        while self.table[cython.cast(cython.Py_ssize_t, at), 2] != 0 and not (
            self.table[cython.cast(cython.Py_ssize_t, at), 0] == low
            and self.table[cython.cast(cython.Py_ssize_t, at), 1] == high
        ):
            at = (at + 1) & self.mask
        return cython.cast(cython.Py_ssize_t, at)

    def note(self, b: cython.const[cython.uchar][::1], rows: cython.const[cython.longlong][:, ::1]):
        """Take note of the keys of whole batches: (how many batches, whether the next does not parse). It stops before
        a batch whose keys may not fit. Markers of transactions have no keys to speak of."""
        q: cython.Py_ssize_t
        i: cython.longlong
        n: cython.Py_ssize_t = rows.shape[0]
        p: cython.Py_ssize_t
        end: cython.Py_ssize_t
        at: cython.Py_ssize_t
        rend: cython.Py_ssize_t
        ts: cython.longlong
        delta: cython.longlong
        kpos: cython.Py_ssize_t
        klen: cython.Py_ssize_t
        vpos: cython.Py_ssize_t
        vlen: cython.Py_ssize_t
        hpos: cython.Py_ssize_t
        hcount: cython.Py_ssize_t
        low: cython.ulonglong
        high: cython.ulonglong
        bad: cython.bint = False
        done: cython.Py_ssize_t = 0
        check_rows(b, rows, 0, n)
        with cython.nogil:
            for q in range(n):
                if rows[q, 4] > self.most - self.count:
                    break
                p = cython.cast(cython.Py_ssize_t, rows[q, 12])
                end = cython.cast(cython.Py_ssize_t, rows[q, 13])
                i = 0 if rows[q, 5] & 32 == 0 else rows[q, 4]
                while i < rows[q, 4]:
                    rend, ts, delta, kpos, klen, vpos, vlen, hpos, hcount = parse_record(b, p, end)
                    if rend < 0 or delta < 0 or delta > rows[q, 3] - rows[q, 2]:
                        bad = True
                        break
                    if klen >= 0:
                        low, high = sip_hash(b, kpos, klen, self.v0, self.v1, self.v2, self.v3)
                        at = self._slot(low, high)
                        if self.table[at, 2] == 0:
                            self.table[at, 0] = low
                            self.table[at, 1] = high
                            self.count += 1
                        if self.table[at, 2] < cython.cast(cython.ulonglong, rows[q, 2] + delta + 1):
                            self.table[at, 2] = cython.cast(cython.ulonglong, rows[q, 2] + delta + 1)
                    p = rend
                    i += 1
                if bad:
                    break
                done += 1
        return done, bad

    def last(self, key):
        """The last offset of a key; -1 if it was not noted."""
        view: cython.const[cython.uchar][::1] = memoryview(key).cast("B")
        low: cython.ulonglong
        high: cython.ulonglong
        low, high = sip_hash(view, 0, len(view), self.v0, self.v1, self.v2, self.v3)
        return cython.cast(cython.longlong, self.table[self._slot(low, high), 2]) - 1


def keep_records(
    b: cython.const[cython.uchar][::1],
    rows: cython.const[cython.longlong][:, ::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    keys: KeyMap | None,
    floor: cython.longlong,
    forget: cython.longlong,
    out: cython.uchar[::1],
    at: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    new_base: cython.longlong,
    new_time: cython.longlong,
    fresh: cython.bint,
):
    """Copy the records of the batches `first` to `last` that are still wanted into one: (the row where it stopped,
    how many, where they end, base timestamp, largest timestamp, tombstones dropped, tombstones kept, whether the row
    does not parse). It stops behind the batch that reached `limit`, and before one that `out` has no room for.

    Not wanted are records below `floor`, records whose key `keys` (or None) knows at a later offset, and tombstones
    below `forget`. Offsets and times become relative to `new_base` and `new_time`; if the other batch is `fresh`, the
    first record gives its time.
    """
    q: cython.Py_ssize_t = first
    p: cython.Py_ssize_t
    end: cython.Py_ssize_t
    start: cython.Py_ssize_t
    i: cython.longlong
    kept: cython.longlong = 0
    before: cython.longlong
    dropped: cython.longlong = 0
    left: cython.longlong = 0
    top: cython.longlong = -1
    previous: cython.longlong
    offset: cython.longlong
    stamp: cython.longlong
    rend: cython.Py_ssize_t
    ts: cython.longlong
    delta: cython.longlong
    kpos: cython.Py_ssize_t
    klen: cython.Py_ssize_t
    vpos: cython.Py_ssize_t
    vlen: cython.Py_ssize_t
    hpos: cython.Py_ssize_t
    hcount: cython.Py_ssize_t
    low: cython.ulonglong
    high: cython.ulonglong
    size: cython.longlong
    known: cython.bint = keys is not None
    bad: cython.bint = False
    check_rows(b, rows, first, last)
    if at < 0 or at > out.shape[0]:
        raise ValueError("range outside the buffer")
    with cython.nogil:
        while q < last and at < limit:
            p = cython.cast(cython.Py_ssize_t, rows[q, 12])
            end = cython.cast(cython.Py_ssize_t, rows[q, 13])
            # Numbers may become larger: the length by 4 bytes, time by 9, offset by 9; the rest is copied.
            if rows[q, 4] > (end - p) // 7 or out.shape[0] - at < (end - p) + 24 * rows[q, 4]:
                bad = rows[q, 4] > (end - p) // 7
                break
            start = at
            before = kept
            previous = -1
            i = 0
            while i < rows[q, 4]:
                rend, ts, delta, kpos, klen, vpos, vlen, hpos, hcount = parse_record(b, p, end)
                if rend < 0 or delta <= previous or delta > rows[q, 3] - rows[q, 2]:
                    bad = True
                    break
                previous = delta
                p = rend
                i += 1
                offset = rows[q, 2] + delta
                if offset < floor:
                    continue
                if klen >= 0:
                    if known:
                        low, high = sip_hash(b, kpos, klen, keys.v0, keys.v1, keys.v2, keys.v3)
                        if keys.table[keys._slot(low, high), 2] > cython.cast(cython.ulonglong, offset + 1):
                            continue
                    if vlen < 0:
                        if offset < forget:
                            dropped += 1
                            continue
                        left += 1
                stamp = add64(rows[q, 6], ts)
                if fresh:
                    new_time = stamp
                    fresh = False
                if kept == 0 or stamp > top:
                    top = stamp
                ts = sub64(stamp, new_time)
                delta = offset - new_base
                size = 1 + varint_size(ts) + varint_size(delta) + varint_size(klen) + (rend - kpos)
                at = put_varint(out, at, size)
                out[at] = 0
                at = put_varint(out, at + 1, ts)
                at = put_varint(out, at, delta)
                at = put_varint(out, at, klen)
                copy(out, at, b, kpos, rend - kpos)
                at += rend - kpos
                kept += 1
            if bad or p != end:
                bad = True
                at = start
                kept = before
                break
            q += 1
    return q, kept, at, new_time, top, dropped, left, bad


# ---------------------------------------------------------------------------------------------------------------------
# Other systems' frames (`sawlog.interop`): a head of a fixed size with a length in it, then so many bytes

#: Why `walk_frames` stopped: no more room for results; exactly at the end; a frame that is not all there; a length
#: that cannot be.
WALK_MORE, WALK_END, WALK_SHORT, WALK_BAD = 0, 1, 2, 3

_IEEE_TABLES = array("I", bytes(4 * 2048))


def _fill_ieee_tables():
    """As `_fill_crc_tables`, for the polynomial of zlib, PNG and crc32fast."""
    for i in range(256):
        x = i
        for _ in range(8):
            x = (x >> 1) ^ (0xEDB88320 if x & 1 else 0)
        _IEEE_TABLES[i] = x
    for i in range(256):
        x = _IEEE_TABLES[i]
        for k in range(1, 8):
            x = _IEEE_TABLES[x & 255] ^ (x >> 8)
            _IEEE_TABLES[k * 256 + i] = x


_fill_ieee_tables()


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def get_number(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, size: cython.int, big: cython.bint
) -> cython.longlong:
    """An unsigned number of 4 or 8 bytes; what does not fit into 63 bits comes out negative."""
    x: cython.longlong = 0
    high: cython.longlong = 0
    if big:
        return get32(b, p) if size == 4 else get64(b, p)
    x = (cython.cast(cython.longlong, b[p + 3]) << 24) | (b[p + 2] << 16) | (b[p + 1] << 8) | b[p]
    if size == 4:
        return x
    high = (cython.cast(cython.longlong, b[p + 7]) << 24) | (b[p + 6] << 16) | (b[p + 5] << 8) | b[p + 4]
    if cython.compiled:
        return cython.cast(cython.longlong, (cython.cast(cython.ulonglong, high) << 32) | x)
    return ((high & 0x7FFFFFFF) - ((high >> 31) << 31)) * 4294967296 + x


def walk_frames(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    head_size: cython.int,
    length_at: cython.int,
    length_size: cython.int,
    big: cython.bint,
    most: cython.longlong,
    starts: cython.longlong[::1],
    lengths: cython.longlong[::1],
):
    """Hop from frame to frame and note where the bytes behind each head start and how many they are: (frames, position,
    why it stopped). `most` is the longest that a frame can be."""
    p: cython.Py_ssize_t = start
    n: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t = min(starts.shape[0], lengths.shape[0])
    length: cython.longlong
    why: cython.int = 0
    if start < 0 or end > b.shape[0] or (length_size != 4 and length_size != 8):
        raise ValueError("range outside the buffer")
    if length_at < 0 or length_at + length_size > head_size:
        raise ValueError("range outside the buffer")
    with cython.nogil:
        while n < room:
            if p >= end:
                why = 1
                break
            if end - p < head_size:
                why = 2
                break
            length = get_number(b, p + length_at, length_size, big)
            if length < 0 or length > most:
                why = 3
                break
            if length > end - p - head_size:
                why = 2
                break
            starts[n] = p + head_size
            lengths[n] = length
            p += head_size + cython.cast(cython.Py_ssize_t, length)
            n += 1
    return n, p, why


def numbers_at(
    b: cython.const[cython.uchar][::1],
    positions: cython.const[cython.longlong][::1],
    delta: cython.longlong,
    size: cython.int,
    big: cython.bint,
    out: cython.longlong[::1],
):
    """The unsigned number of 4 or 8 bytes at each of the positions, plus `delta`; one too large comes out negative."""
    n: cython.Py_ssize_t = positions.shape[0]
    i: cython.Py_ssize_t
    at: cython.longlong
    bad: cython.bint = False
    if size != 4 and size != 8:
        raise ValueError("range outside the buffer")
    check_room(out.shape[0], n)
    with cython.nogil:
        for i in range(n):
            at = positions[i] + delta
            if at < 0 or at > b.shape[0] - size:
                bad = True
                break
            out[i] = get_number(b, cython.cast(cython.Py_ssize_t, at), size, big)
    if bad:
        raise ValueError("a position outside the buffer")


def crc32_of(
    b: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    lengths: cython.const[cython.longlong][::1],
    out: cython.longlong[::1],
):
    """CRC-32 (the one of zlib) of each stretch of bytes."""
    n: cython.Py_ssize_t = starts.shape[0]
    i: cython.Py_ssize_t
    bad: cython.bint = False
    tables: cython.const[cython.uint][::1] = _IEEE_TABLES
    check_room(min(lengths.shape[0], out.shape[0]), n)
    with cython.nogil:
        for i in range(n):
            if starts[i] < 0 or lengths[i] < 0 or lengths[i] > b.shape[0] - starts[i]:
                bad = True
                break
            out[i] = small_crc(
                b,
                cython.cast(cython.Py_ssize_t, starts[i]),
                cython.cast(cython.Py_ssize_t, starts[i] + lengths[i]),
                tables,
            )
    if bad:
        raise ValueError("bytes outside the buffer")


def gather(
    b: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    lengths: cython.const[cython.longlong][::1],
    offsets: cython.int[::1],
    out: cython.uchar[::1],
):
    """Copy stretches of bytes back to back, as an Arrow array of binary has them; how many bytes."""
    n: cython.Py_ssize_t = starts.shape[0]
    i: cython.Py_ssize_t
    p: cython.Py_ssize_t = 0
    bad: cython.bint = False
    check_room(lengths.shape[0], n)
    check_room(offsets.shape[0], n + 1)
    with cython.nogil:
        offsets[0] = 0
        for i in range(n):
            if starts[i] < 0 or lengths[i] < 0 or lengths[i] > b.shape[0] - starts[i] or lengths[i] > out.shape[0] - p:
                bad = True
                break
            copy(out, p, b, cython.cast(cython.Py_ssize_t, starts[i]), cython.cast(cython.Py_ssize_t, lengths[i]))
            p += cython.cast(cython.Py_ssize_t, lengths[i])
            if p > 2147483647:
                bad = True
                break
            offsets[i + 1] = cython.cast(cython.int, p)
    if bad:
        raise ValueError("bytes outside a buffer")
    return p


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def get_plain_varint(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """As `get_varint`, without zig-zag, as protobuf has it; what does not fit into 63 bits comes out negative."""
    x: cython.ulonglong
    z: cython.ulonglong = 0
    shift: cython.int = 0
    while p < end and shift < 64:
        x = b[p]
        p += 1
        if shift == 63 and x > 1:
            break
        z = z | ((x & 127) << shift)
        if x < 128:
            if cython.compiled:
                return cython.cast(cython.longlong, z), p
            return ((z + 2**63) & (2**64 - 1)) - 2**63, p
        shift += 7
    return 0, end + 1


def parse_messages(
    b: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    lengths: cython.const[cython.longlong][::1],
    value_starts: cython.longlong[::1],
    value_lengths: cython.longlong[::1],
    numbers: cython.longlong[:, ::1],
):
    """Take protobuf messages {bytes 1; uint64 2; uint64 3; uint64 4} apart: where the bytes lie, and the three numbers.
    A message with any other field does not parse: what is in it would be lost. Gives the first that does not, or how
    many there are."""
    n: cython.Py_ssize_t = starts.shape[0]
    i: cython.Py_ssize_t = 0
    p: cython.Py_ssize_t
    end: cython.Py_ssize_t
    tag: cython.longlong
    x: cython.longlong
    good: cython.bint = True
    outside: cython.bint = False
    check_room(min(lengths.shape[0], value_starts.shape[0], value_lengths.shape[0], numbers.shape[0]), n)
    check_room(numbers.shape[1], 3)
    with cython.nogil:
        while i < n:
            if starts[i] < 0 or lengths[i] < 0 or lengths[i] > b.shape[0] - starts[i]:
                outside = True
                break
            p = cython.cast(cython.Py_ssize_t, starts[i])
            end = cython.cast(cython.Py_ssize_t, starts[i] + lengths[i])
            value_starts[i] = p
            value_lengths[i] = 0
            numbers[i, 0] = 0
            numbers[i, 1] = 0
            numbers[i, 2] = 0
            while p < end:
                tag, p = get_plain_varint(b, p, end)
                if p > end or (tag != 10 and tag != 16 and tag != 24 and tag != 32):
                    good = False
                    break
                x, p = get_plain_varint(b, p, end)
                if p > end:
                    good = False
                    break
                if tag == 16:
                    numbers[i, 0] = x
                elif tag == 24:
                    numbers[i, 1] = x
                elif tag == 32:
                    numbers[i, 2] = x
                else:
                    if x < 0 or x > end - p:
                        good = False
                        break
                    value_starts[i] = p
                    value_lengths[i] = x
                    p += cython.cast(cython.Py_ssize_t, x)
            if not good:
                break
            i += 1
    if outside:
        raise ValueError("bytes outside the buffer")
    return i


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def plain_varint_size(x: cython.longlong) -> cython.Py_ssize_t:
    n: cython.Py_ssize_t = 1
    if x < 0:
        return 10
    while x >= 128:
        x = x >> 7
        n += 1
    return n


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_plain_varint(b: cython.uchar[::1], p: cython.Py_ssize_t, x: cython.longlong) -> cython.Py_ssize_t:
    k: cython.int = 0
    while k < 9 and (x < 0 or x >= 128):
        b[p] = cython.cast(cython.uchar, (x & 127) | 128)
        # The sign must not be drawn along: it is the 64th bit of an unsigned number.
        x = (x >> 7) + (cython.cast(cython.longlong, 1) << 57) if x < 0 else x >> 7
        p += 1
        k += 1
    b[p] = cython.cast(cython.uchar, x & 127)
    return p + 1


def put_messages(
    out: cython.uchar[::1],
    value_offsets: cython.const[cython.int][::1],
    value_at: cython.Py_ssize_t,
    value_data: cython.const[cython.uchar][::1],
    numbers: cython.const[cython.longlong][:, ::1],
    positions: cython.longlong[::1],
):
    """Write [length u64][protobuf message] for each value with its three numbers, and note where each starts; how many
    bytes in all. Numbers that are 0 and values that are empty are left out, as protobuf does."""
    n: cython.Py_ssize_t = numbers.shape[0]
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    p: cython.Py_ssize_t = 0
    vpos: cython.longlong
    vlen: cython.longlong
    body: cython.longlong
    bad: cython.bint = False
    check_room(value_offsets.shape[0], value_at + n + 1)
    check_room(positions.shape[0], n)
    check_room(numbers.shape[1], 3)
    if value_at < 0:
        raise ValueError("bytes outside a buffer")
    with cython.nogil:
        for i in range(n):
            vpos = value_offsets[value_at + i]
            vlen = value_offsets[value_at + i + 1] - vpos
            if vpos < 0 or vlen < 0 or vlen > value_data.shape[0] - vpos:
                bad = True
                break
            body = 1 + plain_varint_size(vlen) + vlen if vlen > 0 else 0
            for k in range(3):
                if numbers[i, k] != 0:
                    body += 1 + plain_varint_size(numbers[i, k])
            if body > out.shape[0] - p - 8:
                bad = True
                break
            positions[i] = p
            put64(out, p, body)
            p += 8
            if vlen > 0:
                out[p] = 10
                p = put_plain_varint(out, p + 1, vlen)
                copy(
                    out,
                    p,
                    value_data,
                    cython.cast(cython.Py_ssize_t, vpos),
                    cython.cast(cython.Py_ssize_t, vlen),
                )
                p += cython.cast(cython.Py_ssize_t, vlen)
            for k in range(3):
                if numbers[i, k] != 0:
                    out[p] = cython.cast(cython.uchar, 16 + 8 * k)
                    p = put_plain_varint(out, p + 1, numbers[i, k])
    if bad:
        raise ValueError("bytes outside a buffer")
    return p


def weave(
    out: cython.uchar[::1],
    heads: cython.const[cython.uchar][::1],
    head_size: cython.Py_ssize_t,
    value_offsets: cython.const[cython.int][::1],
    value_at: cython.Py_ssize_t,
    value_data: cython.const[cython.uchar][::1],
    count: cython.Py_ssize_t,
):
    """Write each head of `head_size` bytes and the value that belongs to it, back to back; how many bytes in all."""
    i: cython.Py_ssize_t
    p: cython.Py_ssize_t = 0
    vpos: cython.longlong
    vlen: cython.longlong
    bad: cython.bint = False
    if count < 0 or head_size < 0 or head_size > 64 or value_at < 0:
        raise ValueError("bytes outside a buffer")
    check_room(heads.shape[0], head_size * count)
    check_room(value_offsets.shape[0], value_at + count + 1)
    with cython.nogil:
        for i in range(count):
            vpos = value_offsets[value_at + i]
            vlen = value_offsets[value_at + i + 1] - vpos
            if vpos < 0 or vlen < 0 or vlen > value_data.shape[0] - vpos or head_size + vlen > out.shape[0] - p:
                bad = True
                break
            copy(out, p, heads, i * head_size, head_size)
            p += head_size
            copy(out, p, value_data, cython.cast(cython.Py_ssize_t, vpos), cython.cast(cython.Py_ssize_t, vlen))
            p += cython.cast(cython.Py_ssize_t, vlen)
    if bad:
        raise ValueError("bytes outside a buffer")
    return p


# ---------------------------------------------------------------------------------------------------------------------
# Two numbers that one process writes and others read


#: Two slots of 32 bytes: sequence, first number, second number, check; each 8 bytes, big endian.
SLOTS_BYTES = 64


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def slot_check(
    secret: cython.ulonglong, sequence: cython.ulonglong, first: cython.ulonglong, second: cython.ulonglong
) -> cython.ulonglong:
    for _ in range(4):
        secret, sequence, first, second = sip_round(secret, sequence, first, second)
    return secret ^ sequence ^ first ^ second


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def unsigned64(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.ulonglong:
    if cython.compiled:
        return cython.cast(cython.ulonglong, get64(b, p))
    return get64(b, p) & 0xFFFFFFFFFFFFFFFF


@cython.final
@cython.cclass
class Slots:
    """Two numbers from 0 on in a buffer that several processes share, without a lock.

    The writer fills the slot with the lower sequence and computes its check last, so that at every moment, also when
    the writer is killed between two bytes, the other slot is whole. A check that was made with another secret is wrong.
    """

    view: cython.const[cython.uchar][::1]
    room: cython.uchar[::1]
    secret: cython.ulonglong

    def __init__(self, buffer, secret, writable):
        if len(buffer) != SLOTS_BYTES:
            raise ValueError("the buffer of two slots has 64 bytes")
        self.view = buffer
        self.room = buffer if writable else None
        self.secret = secret

    @cython.cfunc
    @cython.exceptval(check=False)
    def _sequence(self, p: cython.Py_ssize_t) -> cython.ulonglong:
        """The sequence of a slot; 0 if it is not whole."""
        found: cython.ulonglong = unsigned64(self.view, p)
        check: cython.ulonglong = slot_check(
            self.secret, found, unsigned64(self.view, p + 8), unsigned64(self.view, p + 16)
        )
        return found if check == unsigned64(self.view, p + 24) else 0

    def load(self):
        """(first, second), or None if nothing was stored with this secret, or a writer is in the middle of it."""
        p: cython.Py_ssize_t = 0
        first: cython.longlong
        second: cython.longlong
        one: cython.ulonglong = self._sequence(0)
        two: cython.ulonglong = self._sequence(32)
        wanted: cython.ulonglong = one
        if two > one:
            wanted = two
            p = 32
        if wanted == 0:
            return None
        first = get64(self.view, p + 8)
        second = get64(self.view, p + 16)
        if self._sequence(p) != wanted:  # overwritten since it was looked at
            return None
        return first, second

    def repeat(self):
        """Let the other slot have the same numbers: from then on damage to one of them changes nothing."""
        found = self.load()
        one: cython.ulonglong = self._sequence(0)
        two: cython.ulonglong = self._sequence(32)
        if found is None or (
            one > 0
            and two > 0
            and get64(self.view, 8) == get64(self.view, 40)
            and get64(self.view, 16) == get64(self.view, 48)
        ):
            return
        self._store(found[0], found[1], one, two)

    def store(self, first: cython.longlong, second: cython.longlong):
        """Replace both numbers, at one moment."""
        one: cython.ulonglong = self._sequence(0)
        two: cython.ulonglong = self._sequence(32)
        now: cython.Py_ssize_t = 32 if two > one else 0
        if (one > 0 or two > 0) and get64(self.view, now + 8) == first and get64(self.view, now + 16) == second:
            return
        self._store(first, second, one, two)

    @cython.cfunc
    def _store(
        self, first: cython.longlong, second: cython.longlong, one: cython.ulonglong, two: cython.ulonglong
    ) -> object:
        """Into the older slot; `one` and `two` are the sequences of both."""
        sequence: cython.ulonglong = (one if one > two else two) + 1
        p: cython.Py_ssize_t = 0 if two > one else 32
        check: cython.ulonglong
        if self.room is None:
            raise ValueError("these slots are only read")
        check = slot_check(
            self.secret, sequence, cython.cast(cython.ulonglong, first), cython.cast(cython.ulonglong, second)
        )
        put64(self.room, p, sequence)
        put64(self.room, p + 8, first)
        put64(self.room, p + 16, second)
        put64(self.room, p + 24, check)
