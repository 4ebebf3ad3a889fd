"""Other systems' frames (`sawlog.interop`): a head of a fixed size that contains a length, then that many bytes."""

from sawlog.batch.cyshim import cython

if not cython.compiled:
    from .declarations import WALK_BAD, WALK_END, WALK_MORE, WALK_SHORT
    from .primitives import copy, crc_tables, get32, get64, get_varint, put64, small_crc
    from .walk import check_room

#: The polynomial of zlib, PNG and crc32fast.
_IEEE_TABLES = crc_tables(0xEDB88320)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def get_number(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, size: cython.int, big: cython.bint
) -> cython.longlong:
    """Return an unsigned number of 4 or 8 bytes; one that does not fit into 63 bits becomes negative."""
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
    """Walk over frames and write where the bytes after each head start, and their number. Returns (number of frames,
    position, reason to stop). `most` is the maximum length of a frame."""
    p: cython.Py_ssize_t = start
    n: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t = min(starts.shape[0], lengths.shape[0])
    length: cython.longlong
    why: cython.int = WALK_MORE
    if start < 0 or end > b.shape[0] or (length_size != 4 and length_size != 8):
        raise ValueError("range outside the buffer")
    if length_at < 0 or length_at + length_size > head_size:
        raise ValueError("range outside the buffer")
    with cython.nogil:
        while n < room:
            if p >= end:
                why = WALK_END
                break
            if end - p < head_size:
                why = WALK_SHORT
                break
            length = get_number(b, p + length_at, length_size, big)
            if length < 0 or length > most:
                why = WALK_BAD
                break
            if length > end - p - head_size:
                why = WALK_SHORT
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
    """Read the unsigned number of 4 or 8 bytes at each position plus `delta`; one above 63 bits becomes negative."""
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
    """Compute the CRC-32 (as in zlib) of each range of bytes."""
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
    """Copy ranges of bytes one after the other, as in an Arrow array of binary; returns the number of bytes."""
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
    """Read a varint of protobuf, without zig-zag; a number that does not fit into 63 bits becomes negative."""
    value: cython.longlong
    value, p = get_varint(b, p, end)
    if cython.compiled:
        z: cython.ulonglong = cython.cast(cython.ulonglong, value) << 1
        return cython.cast(cython.longlong, z if value >= 0 else ~z), p
    return ((((value << 1) ^ (value >> 63)) + 2**63) & (2**64 - 1)) - 2**63, p


def parse_messages(
    b: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    lengths: cython.const[cython.longlong][::1],
    value_starts: cython.longlong[::1],
    value_lengths: cython.longlong[::1],
    numbers: cython.longlong[:, ::1],
):
    """Parse protobuf messages {bytes 1; uint64 2; uint64 3; uint64 4}: the position of the bytes, and three numbers. A
    message with any other field does not parse, because that field would be lost. Returns the number of the first
    message that does not parse, or their number."""
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
        # No sign extension: this is the 64th bit of an unsigned number.
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
    """Write [length u64][protobuf message] for each value with its three numbers, and record where each starts. Returns
    the number of bytes. Numbers that are 0 and empty values are omitted, as protobuf does."""
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
    """Write each head of `head_size` bytes, followed by its value; returns the number of bytes."""
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
