"""How many records each key has, without the GIL: what a query that groups by key needs, and no column of keys.

Two tables with a row for each slot of a hash table, and one more, the last, for records without a key:

```
table    FIRST_WORD  the first 8 bytes of the key, as a big-endian number; of a long key its hash
         SECOND_WORD the next 8, after the last byte zeros; of a long key where it begins in `store`
         SIZE_PLUS_ONE  the length of the key; 0: the slot is free. A key of more than 16 bytes is long.
         RECORDS     how many records
ranges   FIRST_OFFSET, LAST_OFFSET, OLDEST, NEWEST; without rows if they are not wanted
```

The number of slots is a power of two, at most half of which are used. A key that does not get a slot within MOST_PROBES
stops the counting as a full table does: so nobody slows it down with keys that he has chosen for their hashes.
"""

from sawlog.batch.cyshim import cython

if cython.compiled:
    from cython.cimports.libc.string import memcmp
else:
    from .declarations import (
        COUNTED_WIDTH,
        FIRST_OFFSET,
        FIRST_WORD,
        INLINE_BYTES,
        LAST_OFFSET,
        MOST_PROBES,
        NEWEST,
        OLDEST,
        RANGE_WIDTH,
        RECORDS,
        SECOND_WORD,
        SIZE_PLUS_ONE,
        Walk,
    )
    from .primitives import copy, get32, get64
    from .walk import check_rows, offset_of, step, time_of, walk_row


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def word_of(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.ulonglong:
    """Up to 8 bytes as a big-endian number, with zeros after them."""
    i: cython.Py_ssize_t
    x: cython.ulonglong = 0
    if n == 8:
        if cython.compiled:
            return cython.cast(cython.ulonglong, get64(b, p))
        return int.from_bytes(b[p : p + 8], "big")
    if n >= 4:  # two loads, of which the bytes in the middle are the same
        x = cython.cast(cython.ulonglong, get32(b, p)) << 32
        return x | (cython.cast(cython.ulonglong, get32(b, p + n - 4)) << (64 - 8 * n))
    for i in range(n):
        x = x | (cython.cast(cython.ulonglong, b[p + i]) << (56 - 8 * i))
    return x


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def mixed(hashed: cython.ulonglong, word: cython.ulonglong) -> cython.ulonglong:
    """The hash with another word. Its upper bits depend on all bits of both; the lower ones need not."""
    x: cython.ulonglong = hashed ^ word
    if cython.compiled:
        x = x * cython.cast(cython.ulonglong, 0x9FB21C651E98DF25)
    else:
        x = (x * 0x9FB21C651E98DF25) & 0xFFFFFFFFFFFFFFFF
    return x ^ (x >> 32)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def shift_of(slots: cython.Py_ssize_t) -> cython.int:
    """How far a hash is shifted to be the number of a slot."""
    shift: cython.int = 64
    while slots > 1:
        slots = slots >> 1
        shift -= 1
    return shift


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def hash_of_long(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t, seed: cython.ulonglong
) -> cython.ulonglong:
    while n > 8:
        seed = mixed(seed, word_of(b, p, 8))
        p += 8
        n -= 8
    return mixed(seed, word_of(b, p, n))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_stored(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
    store: cython.const[cython.uchar][::1],
    stored: cython.Py_ssize_t,
    where: cython.ulonglong,
) -> cython.bint:
    """Whether a long key is the one at `where` in the store."""
    at: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, where)
    if (where >> 63) != 0 or at > stored - n:
        return False
    if cython.compiled:
        return memcmp(cython.address(b[p]), cython.address(store[at]), n) == 0
    return bytes(b[p : p + n]) == bytes(store[at : at + n])


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def note_range(
    ranges: cython.longlong[:, ::1],
    at: cython.Py_ssize_t,
    fresh: cython.bint,
    offset: cython.longlong,
    time: cython.longlong,
) -> cython.void:
    if fresh or offset < ranges[at, FIRST_OFFSET]:
        ranges[at, FIRST_OFFSET] = offset
    if fresh or offset > ranges[at, LAST_OFFSET]:
        ranges[at, LAST_OFFSET] = offset
    if fresh or time < ranges[at, OLDEST]:
        ranges[at, OLDEST] = time
    if fresh or time > ranges[at, NEWEST]:
        ranges[at, NEWEST] = time


@cython.cfunc
def check_counts(
    table: cython.const[cython.ulonglong][:, ::1],
    ranges: cython.const[cython.longlong][:, ::1],
    used: cython.longlong,
    stored: cython.Py_ssize_t,
    store: cython.Py_ssize_t,
) -> object:
    """ValueError unless the tables have their shapes, and what is used is inside of them."""
    slots: cython.Py_ssize_t = table.shape[0] - 1
    good: cython.bint = slots >= 8 and (slots & (slots - 1)) == 0 and table.shape[1] == COUNTED_WIDTH
    good = good and (ranges.shape[0] == 0 or ranges.shape[0] == slots + 1) and ranges.shape[1] == RANGE_WIDTH
    if not (good and 0 <= used <= slots // 2 and 0 <= stored <= store):
        raise ValueError("counts outside their tables")
    return None


def count_keys(
    b: cython.const[cython.uchar][::1],
    rows: cython.const[cython.longlong][:, ::1],
    place: tuple,
    limits: tuple,
    table: cython.ulonglong[:, ::1],
    ranges: cython.longlong[:, ::1],
    store: cython.uchar[::1],
    used: cython.longlong,
    stored: cython.Py_ssize_t,
    seed: cython.ulonglong,
):
    """Count the records with limits[0] <= offset < limits[1]. `place` is (the batch to begin with, how many of its
    records were counted before). `used` slots are in use, and `stored` bytes of `store`.

    Returns (batch, records of it that were counted, used, stored, whether that batch does not parse). It stops before a
    record whose key has no room: its caller comes again with larger tables, or empty ones. After a batch that does not
    parse, the counts mean nothing.
    """
    q: cython.Py_ssize_t = place[0]
    skip: cython.longlong = place[1]
    start: cython.longlong = limits[0]
    end: cython.longlong = limits[1]
    batches: cython.Py_ssize_t = rows.shape[0]
    slots: cython.Py_ssize_t = table.shape[0] - 1
    mask: cython.Py_ssize_t = slots - 1
    shift: cython.int = shift_of(slots)
    most: cython.longlong = slots // 2
    with_ranges: cython.bint = ranges.shape[0] > 0
    done: cython.longlong
    size: cython.Py_ssize_t
    at: cython.Py_ssize_t
    probes: cython.int
    first: cython.ulonglong
    second: cython.ulonglong
    hashed: cython.ulonglong
    marked: cython.ulonglong
    fresh: cython.bint
    full: cython.bint = False
    bad: cython.bint = False
    offset: cython.longlong
    walk: Walk
    check_counts(table, ranges, used, stored, store.shape[0])
    check_rows(b, rows, q, batches)
    with cython.nogil:
        while q < batches:
            walk = walk_row(rows, q)
            done = 0
            while walk.left > 0:
                if not step(b, cython.address(walk)):
                    bad = True
                    break
                offset = offset_of(cython.address(walk))
                done += 1
                if done <= skip or offset < start or offset >= end:
                    continue
                size = walk.record.key_size
                fresh = False
                at = slots
                if size < 0:
                    fresh = table[at, RECORDS] == 0
                else:
                    second = 0
                    if size <= 8:
                        first = word_of(b, walk.record.key_at, size)
                        hashed = mixed(mixed(seed, first), cython.cast(cython.ulonglong, size))
                    elif size <= INLINE_BYTES:
                        first = word_of(b, walk.record.key_at, 8)
                        second = word_of(b, walk.record.key_at + 8, size - 8)
                        hashed = mixed(mixed(seed, first), second)
                    else:
                        first = hash_of_long(b, walk.record.key_at, size, seed)
                        hashed = first
                    at = cython.cast(cython.Py_ssize_t, hashed >> shift)
                    marked = cython.cast(cython.ulonglong, size) + 1
                    probes = 0
                    while table[at, SIZE_PLUS_ONE] != 0 and probes < MOST_PROBES:
                        if table[at, SIZE_PLUS_ONE] == marked and table[at, FIRST_WORD] == first:
                            if size <= INLINE_BYTES:
                                if table[at, SECOND_WORD] == second:
                                    break
                            elif is_stored(b, walk.record.key_at, size, store, stored, table[at, SECOND_WORD]):
                                break
                        at = (at + 1) & mask
                        probes += 1
                    if probes == MOST_PROBES:
                        full = True
                    elif table[at, SIZE_PLUS_ONE] == 0:
                        full = used >= most or (size > INLINE_BYTES and store.shape[0] - stored < size)
                        fresh = True
                    if full:
                        done -= 1
                        break
                    if fresh:
                        if size > INLINE_BYTES:
                            second = cython.cast(cython.ulonglong, stored)
                            copy(store, stored, b, walk.record.key_at, size)
                            stored += size
                        table[at, FIRST_WORD] = first
                        table[at, SECOND_WORD] = second
                        table[at, SIZE_PLUS_ONE] = marked
                        used += 1
                table[at, RECORDS] = table[at, RECORDS] + 1
                if with_ranges:
                    note_range(ranges, at, fresh, offset, time_of(cython.address(walk)))
            if full:
                skip = done
                break
            if bad or walk.at != walk.end:
                bad = True
                break
            skip = 0
            q += 1
    return q, skip, used, stored, bad


def move_counts(
    table: cython.const[cython.ulonglong][:, ::1],
    ranges: cython.const[cython.longlong][:, ::1],
    larger: cython.ulonglong[:, ::1],
    larger_ranges: cython.longlong[:, ::1],
    seed: cython.ulonglong,
):
    """Move all counts to larger tables, which are zeroed. False if a key has no place within MOST_PROBES there."""
    at: cython.Py_ssize_t
    to: cython.Py_ssize_t
    k: cython.Py_ssize_t
    slots: cython.Py_ssize_t = table.shape[0] - 1
    mask: cython.Py_ssize_t = larger.shape[0] - 2
    shift: cython.int = shift_of(larger.shape[0] - 1)
    with_ranges: cython.bint = ranges.shape[0] > 0
    size: cython.Py_ssize_t
    hashed: cython.ulonglong
    probes: cython.int
    moved: cython.bint = True
    check_counts(table, ranges, 0, 0, 0)
    check_counts(larger, larger_ranges, 0, 0, 0)
    if larger.shape[0] < table.shape[0] or larger_ranges.shape[0] < ranges.shape[0]:
        raise ValueError("counts outside their tables")
    with cython.nogil:
        for at in range(slots + 1):
            to = larger.shape[0] - 1
            if at < slots:
                if table[at, SIZE_PLUS_ONE] == 0:
                    continue
                size = cython.cast(cython.Py_ssize_t, table[at, SIZE_PLUS_ONE] - 1)
                hashed = table[at, FIRST_WORD]
                if size <= 8:
                    hashed = mixed(mixed(seed, hashed), cython.cast(cython.ulonglong, size))
                elif size <= INLINE_BYTES:
                    hashed = mixed(mixed(seed, hashed), table[at, SECOND_WORD])
                to = cython.cast(cython.Py_ssize_t, hashed >> shift)
                probes = 0
                while larger[to, SIZE_PLUS_ONE] != 0 and probes < MOST_PROBES:
                    to = (to + 1) & mask
                    probes += 1
                if probes == MOST_PROBES:
                    moved = False
                    break
            for k in range(COUNTED_WIDTH):
                larger[to, k] = table[at, k]
            if with_ranges:
                for k in range(RANGE_WIDTH):
                    larger_ranges[to, k] = ranges[at, k]
    return bool(moved)


def counted_keys(
    table: cython.const[cython.ulonglong][:, ::1],
    store: cython.const[cython.uchar][::1],
    offsets: cython.int[::1],
    data: cython.uchar[::1],
):
    """Copy the keys of all slots in use, in their order, to the buffers of an Arrow array. Returns (how many, their
    bytes); -1 instead of the bytes if `data` is too small."""
    at: cython.Py_ssize_t
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    where: cython.ulonglong
    filled: cython.Py_ssize_t = 0
    bad: cython.bint = False
    if table.shape[0] < 1 or table.shape[1] != COUNTED_WIDTH or offsets.shape[0] < 1:
        raise ValueError("counts outside their tables")
    offsets[0] = 0
    with cython.nogil:
        for at in range(table.shape[0] - 1):
            if table[at, SIZE_PLUS_ONE] == 0:
                continue
            if n + 1 >= offsets.shape[0] or table[at, SIZE_PLUS_ONE] - 1 > 0x7FFFFFFF:
                bad = True
                break
            size = cython.cast(cython.Py_ssize_t, table[at, SIZE_PLUS_ONE] - 1)
            if size > data.shape[0] - filled or size > 0x7FFFFFFF - filled:
                bad = True
                break
            if size > INLINE_BYTES:
                where = table[at, SECOND_WORD]
                if (where >> 63) != 0 or cython.cast(cython.Py_ssize_t, where) > store.shape[0] - size:
                    bad = True
                    break
                copy(data, filled, store, cython.cast(cython.Py_ssize_t, where), size)
            else:
                for i in range(size):
                    where = table[at, FIRST_WORD] if i < 8 else table[at, SECOND_WORD]
                    data[filled + i] = cython.cast(cython.uchar, (where >> (56 - 8 * (i & 7))) & 255)
            filled += size
            n += 1
            offsets[n] = cython.cast(cython.int, filled)
    if bad:
        raise ValueError("counts outside their tables")
    return n, filled
