"""Compaction: the last offset of every key, and copying the records that are kept."""

from sawlog.batch.cyshim import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy
else:
    from .declarations import (
        ATTRIBUTES,
        CONTROL_BIT,
        COUNT,
        HASH_HIGH,
        HASH_LOW,
        KEY_WIDTH,
        LEAST_RECORD,
        OFFSET_PLUS_ONE,
        Walk,
    )
    from .primitives import add64, copy, put_varint, sub64, varint_size
    from .walk import check_rows, offset_of, step, walk_row


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
    """Compute SipHash-1-3 with 128 bits of output, from its initial state. Without the secret, an attacker cannot find
    two keys with the same hash."""
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
    """Last offset of every key, in a table of fixed size. A key is identified by 128 bits of a keyed hash.

    `table` has three unsigned 64-bit columns: both halves of the hash, and the offset plus one (0: free). The number
    of its rows is a power of two. At most seven eighths of it are used. `secret` is 16 random bytes.
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
        if slots < 8 or slots & (slots - 1) or table.shape[1] != KEY_WIDTH:
            raise ValueError("a table has a power of two of rows and three columns")
        self.table = memoryview(table)  # interpreted, its elements are Python's integers; numpy's would wrap around
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
        """Return the slot of a key, or the free slot for it."""
        at: cython.ulonglong = low & self.mask
        while self.table[cython.cast(cython.Py_ssize_t, at), OFFSET_PLUS_ONE] != 0 and not (
            self.table[cython.cast(cython.Py_ssize_t, at), HASH_LOW] == low
            and self.table[cython.cast(cython.Py_ssize_t, at), HASH_HIGH] == high
        ):
            at = (at + 1) & self.mask
        return cython.cast(cython.Py_ssize_t, at)

    def note(self, b: cython.const[cython.uchar][::1], rows: cython.const[cython.longlong][:, ::1]):
        """Record the keys of complete batches. Returns (number of batches, True if the next one does not parse). Stops
        before a batch whose keys may not fit. Markers of transactions have no keys."""
        q: cython.Py_ssize_t
        n: cython.Py_ssize_t = rows.shape[0]
        at: cython.Py_ssize_t
        low: cython.ulonglong
        high: cython.ulonglong
        noted: cython.ulonglong
        bad: cython.bint = False
        done: cython.Py_ssize_t = 0
        walk: Walk
        check_rows(b, rows, 0, n)
        with cython.nogil:
            for q in range(n):
                if rows[q, COUNT] > self.most - self.count:
                    break
                walk = walk_row(rows, q)
                if rows[q, ATTRIBUTES] & CONTROL_BIT:
                    walk.left = 0
                while walk.left > 0:
                    walk.previous = -1  # the order does not matter here
                    if not step(b, cython.address(walk)):
                        bad = True
                        break
                    if walk.record.key_size >= 0:
                        low, high = sip_hash(
                            b, walk.record.key_at, walk.record.key_size, self.v0, self.v1, self.v2, self.v3
                        )
                        at = self._slot(low, high)
                        if self.table[at, OFFSET_PLUS_ONE] == 0:
                            self.table[at, HASH_LOW] = low
                            self.table[at, HASH_HIGH] = high
                            self.count += 1
                        noted = cython.cast(cython.ulonglong, offset_of(cython.address(walk)) + 1)
                        if self.table[at, OFFSET_PLUS_ONE] < noted:
                            self.table[at, OFFSET_PLUS_ONE] = noted
                if bad:
                    break
                done += 1
        return done, bad

    def last(self, key):
        """Return the last offset of a key; -1 if it was not recorded."""
        view: cython.const[cython.uchar][::1] = memoryview(key).cast("B")
        low: cython.ulonglong
        high: cython.ulonglong
        low, high = sip_hash(view, 0, len(view), self.v0, self.v1, self.v2, self.v3)
        return cython.cast(cython.longlong, self.table[self._slot(low, high), OFFSET_PLUS_ONE]) - 1


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
    """Copy the remaining records of the batches `first` to `last` into one batch. Returns (the row where it stopped,
    number of records, their end, base timestamp, largest timestamp, tombstones dropped, tombstones kept, True if the
    row does not parse). Stops after the batch that reached `limit`, and before one that `out` cannot hold.

    Dropped are records below `floor`, records whose key has a later offset in `keys` (or None), and tombstones below
    `forget`. Offsets and times become relative to `new_base` and `new_time`; if the new batch is `fresh`, its first
    record determines the time.
    """
    q: cython.Py_ssize_t = first
    start: cython.Py_ssize_t
    kept: cython.longlong = 0
    before: cython.longlong
    dropped: cython.longlong = 0
    left: cython.longlong = 0
    top: cython.longlong = -1
    offset: cython.longlong
    stamp: cython.longlong
    ts: cython.longlong
    delta: cython.longlong
    klen: cython.Py_ssize_t
    rest: cython.Py_ssize_t
    low: cython.ulonglong
    high: cython.ulonglong
    known: cython.bint = keys is not None
    bad: cython.bint = False
    walk: Walk
    check_rows(b, rows, first, last)
    if at < 0 or at > out.shape[0]:
        raise ValueError("range outside the buffer")
    with cython.nogil:
        while q < last and at < limit:
            walk = walk_row(rows, q)
            # Varints may become longer: the length by 4 bytes, time by 9, offset by 9; the rest is copied.
            if walk.left > (walk.end - walk.at) // LEAST_RECORD:
                bad = True
                break
            if out.shape[0] - at < (walk.end - walk.at) + 24 * walk.left:
                break
            start = at
            before = kept
            while walk.left > 0:
                if not step(b, cython.address(walk)):
                    break
                offset = offset_of(cython.address(walk))
                klen = walk.record.key_size
                if offset < floor:
                    continue
                if klen >= 0:
                    if known:
                        low, high = sip_hash(b, walk.record.key_at, klen, keys.v0, keys.v1, keys.v2, keys.v3)
                        if keys.table[keys._slot(low, high), OFFSET_PLUS_ONE] > cython.cast(
                            cython.ulonglong, offset + 1
                        ):
                            continue
                    if walk.record.value_size < 0:
                        if offset < forget:
                            dropped += 1
                            continue
                        left += 1
                stamp = add64(walk.base_time, walk.record.time_delta)
                if fresh:
                    new_time = stamp
                    fresh = False
                if kept == 0 or stamp > top:
                    top = stamp
                ts = sub64(stamp, new_time)
                delta = offset - new_base
                rest = walk.record.end - walk.record.key_at
                at = put_varint(out, at, 1 + varint_size(ts) + varint_size(delta) + varint_size(klen) + rest)
                out[at] = 0
                at = put_varint(out, at + 1, ts)
                at = put_varint(out, at, delta)
                at = put_varint(out, at, klen)
                copy(out, at, b, walk.record.key_at, rest)
                at += rest
                kept += 1
            if walk.left > 0 or walk.at != walk.end:
                bad = True
                at = start
                kept = before
                break
            q += 1
    return q, kept, at, new_time, top, dropped, left, bad
