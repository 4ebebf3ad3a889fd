"""Batch headers: going from one to the next, finding one, writing one, and which of them get an index entry.

The numbers that are added to a position are the byte positions in the drawing of `header.py`.
"""

from sawlog.batch.cyshim import cython

if not cython.compiled:
    from .declarations import (
        ABORT_MARKER,
        ATTRIBUTES,
        BASE,
        BASE_SEQUENCE,
        BASE_TIME,
        BODY,
        BODY_END,
        COMMIT_MARKER,
        COMPRESSION_MASK,
        CONTROL_BIT,
        COUNT,
        CRC,
        HEADER_BYTES,
        LAST,
        LEADER_EPOCH,
        LEAST_RECORD,
        LENGTH_END,
        MARKER,
        MARKER_SHIFT,
        MAX_TIME,
        OTHER_MARKER,
        POSITION,
        PRODUCER_EPOCH,
        PRODUCER_ID,
        ROW_WIDTH,
        SCAN_BAD,
        SCAN_END,
        SCAN_MORE,
        SCAN_SHORT,
        SIZE,
        TRANSACTIONAL_BIT,
        Fields,
    )
    from .primitives import crc32c_of, get16, get32, get32s, get64, put32, put64
    from .walk import parse_record


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def header_is_sound(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, least_offset: cython.longlong
) -> cython.bint:
    """Return True if the 61 bytes at `p` can be a batch header; the batch itself may be incomplete."""
    length: cython.longlong = get32s(b, p + 8)
    attributes: cython.int = get16(b, p + 21)
    delta: cython.longlong = get32s(b, p + 23)
    count: cython.longlong = get32s(b, p + 57)
    base: cython.longlong = get64(b, p)
    if b[p + 16] != 2 or length < HEADER_BYTES - LENGTH_END or (attributes & COMPRESSION_MASK) > 4:
        return False
    if base < least_offset or base < 0 or delta < 0 or base >> 62 != 0:
        return False
    if count < 0 or count > delta + 1:
        return False
    # A record takes at least seven bytes. For compressed records this cannot be checked here.
    return (attributes & COMPRESSION_MASK) != 0 or count <= (length - HEADER_BYTES + LENGTH_END) // LEAST_RECORD


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def marker_of(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t, attributes: cython.int
) -> cython.longlong:
    """Return the type of a control batch: ABORT_MARKER, COMMIT_MARKER or OTHER_MARKER, and above MARKER_SHIFT the
    coordinator's epoch. The key is [version i16][type i16], the value [version i16][coordinator epoch i32]."""
    record: Fields
    said: cython.longlong = OTHER_MARKER
    kind: cython.int
    if not cython.compiled:
        record = Fields()
    if (attributes & COMPRESSION_MASK) != 0 or parse_record(b, p, end, cython.address(record)) < 0:
        return OTHER_MARKER
    if record.key_size < 4 or (attributes & TRANSACTIONAL_BIT) == 0:
        return OTHER_MARKER
    kind = get16(b, record.key_at + 2)
    if kind == 0:
        said = ABORT_MARKER
    elif kind == 1:
        said = COMMIT_MARKER
    if said != OTHER_MARKER and record.value_size >= 6 and get32s(b, record.value_at + 2) > 0:
        said |= cython.cast(cython.longlong, get32s(b, record.value_at + 2)) << MARKER_SHIFT
    return said


def scan_batches(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    soft_end: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    least_offset: cython.longlong,
    rows: cython.longlong[:, ::1],
    dense: cython.bint = False,
):
    """Walk over batch headers and fill one row for each. Returns (number of rows, position, reason to stop, True if a
    batch is part of a transaction or a control batch).

    Accepts batches that start before `soft_end` and end at or before `end`, whose offsets start at `least_offset` or
    later and increase. With `dense`, each must begin exactly where the previous one ended: no CRC covers the base
    offset, so a flipped bit in it would go unnoticed. With a `least_offset` of -1 the first batch may begin anywhere;
    without `dense`, so may all others. SCAN_MORE: `soft_end` was reached or the rows are full; SCAN_END: exactly at
    `end`; SCAN_SHORT: the last batch is incomplete; SCAN_BAD: there is no such batch at this position.

    The content of a control batch is not a record: its row has no records, and MARKER has its type.
    """
    p: cython.Py_ssize_t = start
    n: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t = rows.shape[0]
    size: cython.Py_ssize_t
    why: cython.int = SCAN_MORE
    attributes: cython.int
    met: cython.int = 0
    if start < 0 or end < 0 or end > b.shape[0] or rows.shape[1] < ROW_WIDTH:
        raise ValueError("range outside the buffer")
    with cython.nogil:
        while n < room:
            if p >= end:
                why = SCAN_END
                break
            if p >= soft_end:
                break
            if end - p < HEADER_BYTES:
                why = SCAN_SHORT
                break
            if not header_is_sound(b, p, least_offset) or (dense and least_offset >= 0 and get64(b, p) != least_offset):
                why = SCAN_BAD
                break
            size = LENGTH_END + cython.cast(cython.Py_ssize_t, get32s(b, p + 8))
            if size > end - p:
                why = SCAN_SHORT
                break
            rows[n, POSITION] = p
            rows[n, SIZE] = size
            rows[n, BASE] = get64(b, p)
            rows[n, LAST] = rows[n, BASE] + get32s(b, p + 23)
            rows[n, COUNT] = get32s(b, p + 57)
            attributes = get16(b, p + 21)
            met |= attributes
            rows[n, ATTRIBUTES] = attributes
            rows[n, BASE_TIME] = get64(b, p + 27)
            rows[n, MAX_TIME] = get64(b, p + 35)
            rows[n, PRODUCER_ID] = get64(b, p + 43)
            rows[n, PRODUCER_EPOCH] = get16(b, p + 51)
            rows[n, BASE_SEQUENCE] = get32s(b, p + 53)
            rows[n, CRC] = get32(b, p + 17)
            rows[n, BODY] = p + HEADER_BYTES
            rows[n, BODY_END] = p + size
            rows[n, LEADER_EPOCH] = get32s(b, p + 12)
            rows[n, MARKER] = 0
            if attributes & CONTROL_BIT:
                rows[n, MARKER] = marker_of(b, p + HEADER_BYTES, p + size, attributes)
                rows[n, COUNT] = 0
                rows[n, BODY] = p + size
            if dense or least_offset >= 0:
                least_offset = rows[n, LAST] + 1
            p += size
            n += 1
    return n, p, why, (met & (TRANSACTIONAL_BIT | CONTROL_BIT)) != 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def seek_batch(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    offset: cython.longlong,
    least_offset: cython.longlong,
    dense: cython.bint,
) -> cython.Py_ssize_t:
    """Do the work of `find_batch`, for a checked range."""
    size: cython.Py_ssize_t
    last: cython.longlong
    while p < end:
        if end - p < HEADER_BYTES or not header_is_sound(b, p, least_offset):
            return -2 - p
        if dense and least_offset >= 0 and get64(b, p) != least_offset:
            return -2 - p
        size = LENGTH_END + cython.cast(cython.Py_ssize_t, get32s(b, p + 8))
        if size > end - p:
            return -2 - p
        last = get64(b, p) + get32s(b, p + 23)
        if last >= offset:
            return p
        least_offset = last + 1
        p += size
    return -1


def find_batch(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    offset: cython.longlong,
    least_offset: cython.longlong = -1,
    dense: cython.bint = False,
):
    """Return the position of the first batch whose last offset is `offset` or higher; -1 if there is none, or
    -2 - position of the first place without a complete batch. `least_offset` and `dense` as in `scan_batches`."""
    if start < 0 or end < 0 or end > b.shape[0]:
        raise ValueError("range outside the buffer")
    return seek_batch(b, start, end, offset, least_offset, dense)


def find_header(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    least_offset: cython.longlong,
):
    """Return the next position after damage where a complete batch may start, or -1. The caller checks its CRC."""
    p: cython.Py_ssize_t = start
    found: cython.Py_ssize_t = -1
    if start < 0 or end < 0 or end > b.shape[0]:
        raise ValueError("range outside the buffer")
    with cython.nogil:
        while end - p >= HEADER_BYTES:
            if b[p + 16] == 2 and header_is_sound(b, p, least_offset) and get32s(b, p + 8) <= end - p - LENGTH_END:
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
    """Write a batch header at `p`, without the CRC, which is computed last (`patch_crc`)."""
    if p < 0 or b.shape[0] - p < HEADER_BYTES:
        raise ValueError("range outside the buffer")
    put64(b, p, base_offset)
    put32(b, p + 8, size - LENGTH_END)
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
    if p < 0 or b.shape[0] - p < HEADER_BYTES:
        raise ValueError("range outside the buffer")
    put32(b, p + 17, crc)


def patch_place(
    b: cython.uchar[::1], p: cython.Py_ssize_t, base_offset: cython.longlong, leader_epoch: cython.longlong
):
    """Set base offset and leader epoch of the finished batch at `p`: the two fields that the CRC does not cover."""
    if p < 0 or b.shape[0] - p < HEADER_BYTES:
        raise ValueError("range outside the buffer")
    put64(b, p, base_offset)
    put32(b, p + 12, leader_epoch)


def sole_batch(b: cython.const[cython.uchar][::1]):
    """Return the header of a batch that fills the buffer: (attributes, records, last offset delta, largest
    timestamp, producer id, its epoch, first sequence number, CRC); None if the buffer is not exactly one batch."""
    size: cython.Py_ssize_t = b.shape[0]
    if size < HEADER_BYTES or not header_is_sound(b, 0, -1) or get32s(b, 8) != size - LENGTH_END:
        return None
    return (
        get16(b, 21),
        get32s(b, 57),
        get32s(b, 23),
        get64(b, 35),
        get64(b, 43),
        get16(b, 51),
        get32s(b, 53),
        get32(b, 17),
    )


def check_small(
    b: cython.const[cython.uchar][::1],
    rows: cython.const[cython.longlong][:, ::1],
    first: cython.Py_ssize_t,
    limit: cython.longlong,
):
    """Verify the CRCs of batches of up to `limit` bytes, from row `first` on. Returns (the row where it stopped,
    True if that row's CRC is wrong). If False, it stopped at a larger batch, or after the last row."""
    q: cython.Py_ssize_t = first
    n: cython.Py_ssize_t = rows.shape[0]
    wrong: cython.bint = False
    if first < 0 or rows.shape[1] < ROW_WIDTH:
        raise ValueError("rows outside the buffer")
    with cython.nogil:
        while q < n and rows[q, SIZE] <= limit:
            if rows[q, POSITION] < 0 or rows[q, SIZE] < HEADER_BYTES or rows[q, SIZE] > b.shape[0] - rows[q, POSITION]:
                wrong = True
                break
            if (
                crc32c_of(
                    b,
                    cython.cast(cython.Py_ssize_t, rows[q, POSITION] + 21),
                    cython.cast(cython.Py_ssize_t, rows[q, POSITION] + rows[q, SIZE]),
                )
                != rows[q, CRC]
            ):
                wrong = True
                break
            q += 1
    return q, wrong


def any_attribute(rows: cython.const[cython.longlong][:, ::1], mask: cython.longlong):
    """Return True if any of these batches has a bit of the mask set in its attributes."""
    q: cython.Py_ssize_t
    if rows.shape[1] < ROW_WIDTH:
        raise ValueError("rows outside the buffer")
    for q in range(rows.shape[0]):
        if rows[q, ATTRIBUTES] & mask:
            return True
    return False


def select_entries(
    rows: cython.const[cython.longlong][:, ::1],
    batches: cython.Py_ssize_t,
    interval: cython.longlong,
    since: cython.longlong,
    chosen: cython.longlong[::1],
):
    """Choose which batches get an index entry. Returns (their number, bytes since the last one) and writes their row
    numbers to `chosen`.

    Kafka's rule: a batch gets an entry if more than `interval` bytes were written since the last batch that got one.
    """
    q: cython.Py_ssize_t
    n: cython.Py_ssize_t = 0
    if batches < 0 or batches > rows.shape[0] or rows.shape[1] < ROW_WIDTH or batches > chosen.shape[0]:
        raise ValueError("rows outside the buffer")
    with cython.nogil:
        for q in range(batches):
            if since > interval:
                chosen[n] = q
                n += 1
                since = 0
            since += rows[q, SIZE]
    return n, since


def checksum(b: cython.const[cython.uchar][::1], by_table: cython.bint = False):
    """Return the CRC-32C of a buffer as the kernel computes it, with or without the processor's instruction."""
    if b.shape[0] == 0:
        return 0
    if cython.compiled and by_table:
        return sawlog_crc_by_table(0xFFFFFFFF, cython.address(b[0]), b.shape[0]) ^ 0xFFFFFFFF
    return crc32c_of(b, 0, b.shape[0])
