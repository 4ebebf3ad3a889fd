"""One record, or one page of batches, out of a buffer: the usual case, in one call.

Each function answers if all is as usual, else gives None: a record that is damaged, compressed, missing or not where
the index says. Then the caller goes the long way, which says what is wrong.
"""

from sawlog.batch.cyshim import cython

if not cython.compiled:
    from .batches import header_is_sound, seek_batch
    from .declarations import (
        CELL_SHIFT,
        COMPRESSION_MASK,
        CONTROL_BIT,
        HEADER_BYTES,
        LENGTH_END,
        TRANSACTIONAL_BIT,
    )
    from .primitives import crc32c_of, get16, get32, get32s, get64
    from .records import find_record


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_marked(bits: cython.const[cython.uchar][::1], n: cython.longlong) -> cython.bint:
    return n >> 3 < len(bits) and (bits[n >> 3] & (1 << (n & 7))) != 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def mark_cell(bits: cython.uchar[::1], n: cython.longlong) -> cython.void:
    if n >> 3 < len(bits):
        bits[n >> 3] = bits[n >> 3] | (1 << (n & 7))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def last_of(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.longlong:
    return get64(b, p) + get32s(b, p + 23)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def find_whole(
    b: cython.const[cython.uchar][::1],
    end: cython.Py_ssize_t,
    offset: cython.longlong,
    least_offset: cython.longlong,
    dense: cython.bint,
    wanted: cython.longlong,
) -> cython.Py_ssize_t:
    """The position of the batch that has `offset`; negative if something is not as usual. `wanted` is the last offset
    that the first batch must have, or -1."""
    if end < HEADER_BYTES or (wanted >= 0 and last_of(b, 0) != wanted):
        return -1
    return seek_batch(b, 0, end, offset, least_offset, dense)


def read_usual(
    b: cython.const[cython.uchar][::1],
    offset: cython.longlong,
    least_offset: cython.longlong,
    dense: cython.bint,
    wanted: cython.longlong,
    origin: cython.longlong,
    large: cython.const[cython.uchar][::1],
    landmarks: dict,
    step: cython.longlong,
):
    """The record at `offset`, of a plain batch without gaps that is not part of a transaction. The checksum of a batch
    of at least a cell was compared before, says its bit in `large`; `landmarks` says where every `step`-th record of
    the batch at a position is."""
    p: cython.Py_ssize_t = find_whole(b, b.shape[0], offset, least_offset, dense, wanted)
    size: cython.Py_ssize_t
    base: cython.longlong
    skipped: cython.longlong = 0
    body: cython.Py_ssize_t = p + HEADER_BYTES
    starts: cython.const[cython.int][::1]
    found: object
    if p < 0:
        return None
    size = LENGTH_END + cython.cast(cython.Py_ssize_t, get32s(b, p + 8))
    base = get64(b, p)
    if get16(b, p + 21) & (COMPRESSION_MASK | TRANSACTIONAL_BIT | CONTROL_BIT):
        return None
    if get32s(b, p + 57) != get32s(b, p + 23) + 1:
        return None
    if size >> CELL_SHIFT:
        if not is_marked(large, (origin + p) >> CELL_SHIFT):
            return None
    elif crc32c_of(b, p + 21, p + size) != get32(b, p + 17):
        return None
    if offset - base > 2 * step:
        found = landmarks.get(origin + p)
        if found is None:
            return None
        starts = found
        skipped = (offset - base) // step * step
        if len(starts) <= skipped // step:
            return None
        body = p + starts[skipped // step]
        if body < p or body > p + size:
            return None
    found = find_record(
        b,
        body,
        p + size,
        get32s(b, p + 57),
        base,
        last_of(b, p),
        get16(b, p + 21),
        get64(b, p + 27),
        get64(b, p + 35),
        offset,
        skipped,
    )
    return None if found is False else found


def page_usual(
    b: cython.const[cython.uchar][::1],
    offset: cython.longlong,
    end_offset: cython.longlong,
    max_bytes: cython.Py_ssize_t,
    least_offset: cython.longlong,
    dense: cython.bint,
    wanted: cython.longlong,
    origin: cython.longlong,
    large: cython.uchar[::1],
    small: cython.uchar[::1],
):
    """The batches from the one that has `offset` on: (start, end, the offset after them, whether the buffer is too
    short for the next one, whether one of them is part of a transaction). As many as have up to `max_bytes` bytes, but
    at least one, and none from `end_offset` on.

    Their checksums are compared, except where it was done before: bit n of `large` is for the batch of at least a cell
    that starts in cell n of the file, bit n of `small` for all smaller ones that start there. The buffer begins at
    `origin` in the file. With empty bits nothing is remembered.
    """
    end: cython.Py_ssize_t = b.shape[0]
    start: cython.Py_ssize_t = find_whole(b, end, offset, least_offset, dense, wanted)
    p: cython.Py_ssize_t = start
    size: cython.Py_ssize_t
    following: cython.longlong = -1
    last: cython.Py_ssize_t = start
    cell: cython.longlong
    # The cell whose first batch was compared: the walk has come into it from another one.
    entered: cython.longlong = -1
    known: cython.bint = False
    short: cython.bint = False
    met: cython.int = 0
    if start < 0:
        return None
    if origin + start == 0:
        entered = 0
    with cython.nogil:
        while end - p >= HEADER_BYTES:
            size = LENGTH_END + cython.cast(cython.Py_ssize_t, get32s(b, p + 8))
            cell = (origin + p) >> CELL_SHIFT
            known = size >= HEADER_BYTES and is_marked(large if size >> CELL_SHIFT else small, cell)
            if not known:
                if p > start:
                    following = last_of(b, last) + 1
                if not header_is_sound(b, p, following) or (dense and following >= 0 and get64(b, p) != following):
                    break
            if get64(b, p) >= end_offset or (p > start and p + size - start > max_bytes):
                break
            if size > end - p:
                short = True
                break
            if not known:
                if crc32c_of(b, p + 21, p + size) != get32(b, p + 17):
                    break
                if size >> CELL_SHIFT:
                    mark_cell(large, cell)
            met |= get16(b, p + 21)
            last = p
            p += size
            if (origin + p) >> CELL_SHIFT != cell:
                if entered == cell:
                    mark_cell(small, cell)
                entered = (origin + p) >> CELL_SHIFT
        else:
            short = True
    if p == start:
        return None
    return start, p, last_of(b, last) + 1, short, (met & TRANSACTIONAL_BIT) != 0
