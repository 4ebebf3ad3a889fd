"""Numbers in a buffer: fixed size, varints, bits, copies, and the CRC of a few bytes.

Nothing here checks a range: the caller has done so. Everything except the tables is inlined into the loop that uses it.
"""

from array import array

from sawlog.batch.cyshim import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy
else:
    from crc32c import crc32c


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def get16(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.int:
    if cython.compiled:
        return sawlog_get16(cython.address(b[p]))
    x: cython.int = (b[p] << 8) | b[p + 1]
    return x - 65536 if x >= 32768 else x


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def get32(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.longlong:
    """Unsigned."""
    if cython.compiled:
        return sawlog_get32(cython.address(b[p]))
    return (b[p] << 24) | (b[p + 1] << 16) | (b[p + 2] << 8) | b[p + 3]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def get32s(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.longlong:
    if cython.compiled:
        return cython.cast(cython.int, sawlog_get32(cython.address(b[p])))
    x: cython.longlong = get32(b, p)
    return (x & 0x7FFFFFFF) - ((x >> 31) << 31)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def get64(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.longlong:
    if cython.compiled:
        return sawlog_get64(cython.address(b[p]))
    return get32s(b, p) * 4294967296 + get32(b, p + 4)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def add64(a: cython.longlong, b: cython.longlong) -> cython.longlong:
    """Return a + b, wrapping around as in two's complement, both in C and in Python."""
    if cython.compiled:
        return cython.cast(cython.longlong, cython.cast(cython.ulonglong, a) + cython.cast(cython.ulonglong, b))
    return ((a + b + 2**63) & (2**64 - 1)) - 2**63


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def sub64(a: cython.longlong, b: cython.longlong) -> cython.longlong:
    """Return a - b, wrapping around. Not add64(a, -b): the smallest number has no negative."""
    if cython.compiled:
        return cython.cast(cython.longlong, cython.cast(cython.ulonglong, a) - cython.cast(cython.ulonglong, b))
    return ((a - b + 2**63) & (2**64 - 1)) - 2**63


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put32(b: cython.uchar[::1], p: cython.Py_ssize_t, x: cython.longlong) -> cython.void:
    if cython.compiled:
        sawlog_put32(cython.address(b[p]), cython.cast(cython.uint, x))
    else:
        b[p] = (x >> 24) & 255
        b[p + 1] = (x >> 16) & 255
        b[p + 2] = (x >> 8) & 255
        b[p + 3] = x & 255


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put64(b: cython.uchar[::1], p: cython.Py_ssize_t, x: cython.longlong) -> cython.void:
    if cython.compiled:
        sawlog_put64(cython.address(b[p]), cython.cast(cython.ulonglong, x))
    else:
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
    """Return (value, next position). A next position after `end` means an incomplete number, or more than ten bytes."""
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


def crc_tables(polynomial):
    """Build the tables for slicing by eight: entry k * 256 + v is the effect of byte v on a CRC k bytes later."""
    tables = array("I", bytes(4 * 2048))
    for i in range(256):
        x = i
        for _ in range(8):
            x = (x >> 1) ^ (polynomial if x & 1 else 0)
        tables[i] = x
    for i in range(256):
        x = tables[i]
        for k in range(1, 8):
            x = tables[x & 255] ^ (x >> 8)
            tables[k * 256 + i] = x
    return tables


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
    """Compute the CRC of the bytes from `p` to `end` with the tables of its polynomial. For a record or two, a call
    into another package would cost more."""
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


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def crc32c_of(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.longlong:
    """Compute the CRC-32C of the bytes from `p` to `end`, at least one (see crc32c.h). For a small batch, a call into
    another package would cost more."""
    if cython.compiled:
        return sawlog_crc32c(cython.address(b[p]), cython.cast(cython.size_t, end - p))
    return crc32c(b[p:end])
