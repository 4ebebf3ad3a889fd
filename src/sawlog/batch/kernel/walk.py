"""One record in a buffer, and the walk from record to record that every reader of batches takes.

    walk = walk_row(rows, q)
    while walk.left > 0:
        if not step(b, cython.address(walk)):
            break
        ...  # walk.record says where key, value and headers are
    if walk.left > 0 or walk.at != walk.end:
        ...  # a record does not parse, or there is something after the last one

A `Walk` is a C struct of the loop that uses it, and `step` gets its address: whether the compiler inlines it or not, it
costs little. Passed by value, it made a loop four times as slow wherever the compiler did not inline the call.
Interpreted, a `Walk` is an object, and `cython.address` of it is the object.
"""

from sawlog.batch.cyshim import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
else:
    from .declarations import (
        ATTRIBUTES,
        BASE,
        BASE_TIME,
        BODY,
        BODY_END,
        COUNT,
        LAST,
        LEAST_LENGTH,
        LEAST_RECORD,
        MAX_TIME,
        ROW_WIDTH,
        TIMESTAMP_TYPE_BIT,
        Fields,
        Walk,
    )
    from .primitives import add64, get_varint


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def parse_record(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t, record: cython.pointer(Fields)
) -> cython.Py_ssize_t:
    """Return the end of the record at `p` and write the positions of its parts to `record`; -1 if it does not parse.
    Everything except the content of the headers is checked."""
    length: cython.longlong
    klen: cython.longlong
    vlen: cython.longlong
    headers: cython.longlong
    length, p = get_varint(b, p, end)
    if p > end or length < LEAST_LENGTH or length > end - p:
        return -1
    end = p + cython.cast(cython.Py_ssize_t, length)
    record.time_delta, p = get_varint(b, p + 1, end)
    record.delta, p = get_varint(b, p, end)
    klen, p = get_varint(b, p, end)
    if p > end or klen < -1 or klen > end - p:
        return -1
    record.key_at = p
    record.key_size = cython.cast(cython.Py_ssize_t, klen)
    if klen > 0:
        p += cython.cast(cython.Py_ssize_t, klen)
    vlen, p = get_varint(b, p, end)
    if p > end or vlen < -1 or vlen > end - p:
        return -1
    record.value_at = p
    record.value_size = cython.cast(cython.Py_ssize_t, vlen)
    if vlen > 0:
        p += cython.cast(cython.Py_ssize_t, vlen)
    headers, p = get_varint(b, p, end)
    # A header takes at least two bytes; without headers the record ends here.
    if p > end or headers < 0 or headers > (end - p) // 2 or (headers == 0 and p != end):
        return -1
    record.headers_at = p
    record.header_count = cython.cast(cython.Py_ssize_t, headers)
    record.end = end
    return end


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def skip_record(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the end of the record at `p` according to its length; -1 if that is impossible."""
    length: cython.longlong
    length, p = get_varint(b, p, end)
    if p > end or length < LEAST_LENGTH or length > end - p:
        return -1
    return p + cython.cast(cython.Py_ssize_t, length)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def walk_body(at: cython.Py_ssize_t, end: cython.Py_ssize_t, count: cython.longlong, most: cython.longlong) -> Walk:
    """Return a walk over `count` records whose offset deltas increase, up to `most`."""
    walk: Walk
    if not cython.compiled:
        walk = Walk()
    walk.at = at
    walk.end = end
    walk.left = count
    walk.most = most
    walk.previous = -1
    walk.base = 0
    walk.base_time = 0
    walk.max_time = 0
    walk.log_time = False
    return walk


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def walk_row(rows: cython.const[cython.longlong][:, ::1], q: cython.Py_ssize_t) -> Walk:
    """Return a walk over the records of the batch in row `q`. `check_rows` has checked that it is inside the buffer."""
    walk: Walk = walk_body(
        cython.cast(cython.Py_ssize_t, rows[q, BODY]),
        cython.cast(cython.Py_ssize_t, rows[q, BODY_END]),
        rows[q, COUNT],
        rows[q, LAST] - rows[q, BASE],
    )
    walk.base = rows[q, BASE]
    walk.base_time = rows[q, BASE_TIME]
    walk.max_time = rows[q, MAX_TIME]
    walk.log_time = (rows[q, ATTRIBUTES] & TIMESTAMP_TYPE_BIT) != 0
    return walk


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def step(b: cython.const[cython.uchar][::1], walk: cython.pointer(Walk)) -> cython.bint:
    """Go to the next record. Returns False, and the walk stays where it is, if the bytes do not parse or the offset
    cannot be the next one."""
    end: cython.Py_ssize_t = parse_record(b, walk.at, walk.end, cython.address(walk.record))
    if end < 0 or walk.record.delta <= walk.previous or walk.record.delta > walk.most:
        return False
    walk.previous = walk.record.delta
    walk.at = end
    walk.left -= 1
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def offset_of(walk: cython.pointer(Walk)) -> cython.longlong:
    return walk.base + walk.record.delta


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def time_of(walk: cython.pointer(Walk)) -> cython.longlong:
    return walk.max_time if walk.log_time else add64(walk.base_time, walk.record.time_delta)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def parse_header(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.Py_ssize_t, cython.Py_ssize_t, cython.Py_ssize_t, cython.Py_ssize_t, cython.Py_ssize_t]:
    """Return (end of header or -1, key at, key length, value at, value length); a header's key is never null."""
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
    """Return a tuple of (str, bytes or None); None if the bytes do not parse."""
    kpos: cython.Py_ssize_t
    klen: cython.Py_ssize_t
    vpos: cython.Py_ssize_t
    vlen: cython.Py_ssize_t
    found: list = []
    for _ in range(n):
        p, kpos, klen, vpos, vlen = parse_header(b, p, end)
        if p < 0:
            return None
        # Kafka's header keys are UTF-8; other bytes survive a round trip thanks to "surrogateescape".
        found.append((to_bytes(b, kpos, klen).decode("utf-8", "surrogateescape"), to_bytes(b, vpos, vlen)))
    return tuple(found) if p == end else None


@cython.cfunc
def check_rows(
    b: cython.const[cython.uchar][::1],
    rows: cython.const[cython.longlong][:, ::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
) -> tuple[cython.Py_ssize_t, cython.Py_ssize_t]:
    """Return (records, bytes of bodies) of these rows; raise ValueError if one is outside the buffer or implausible."""
    q: cython.Py_ssize_t
    records: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = 0
    good: cython.bint = 0 <= first <= last <= rows.shape[0] and rows.shape[1] >= ROW_WIDTH
    if good:
        for q in range(first, last):
            if not (0 <= rows[q, BODY] <= rows[q, BODY_END] <= b.shape[0]):
                good = False
                break
            if not (0 <= rows[q, COUNT] <= (rows[q, BODY_END] - rows[q, BODY]) // LEAST_RECORD):
                good = False
                break
            records += cython.cast(cython.Py_ssize_t, rows[q, COUNT])
            size += cython.cast(cython.Py_ssize_t, rows[q, BODY_END] - rows[q, BODY])
    if not good:
        raise ValueError("rows outside the buffer")
    return records, size


@cython.cfunc
def check_room(room: cython.Py_ssize_t, needed: cython.Py_ssize_t) -> object:
    if room < needed:
        raise ValueError("the records would go outside a buffer that is too small")
    return None
