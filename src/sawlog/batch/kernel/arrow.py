"""Arrow to batches and back, without the GIL: no Python object is created per record."""

from sawlog.batch.cyshim import cython

if not cython.compiled:
    from .declarations import BODY, BODY_END, LEAST_LENGTH, MAX_TIME, VIEW_BYTES, Walk
    from .primitives import add64, bit, copy, get_varint, put32le, put_varint, set_bit, varint_size
    from .walk import check_room, check_rows, offset_of, parse_header, step, time_of, walk_row


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
    """Encode rows `first` to `last` as records from position `start` on. Returns (next row, next position, base and
    largest timestamp).

    Stops when `limit` bytes are reached, or before a record for which `out` may be too small. `value` and `key` are
    (offsets, data, validity bitmap, index of row 0 in the three); `headers` is (list offsets, index of row 0 in them,
    keys, values). Empty buffers mean that a column is absent. An offset outside its data raises ValueError.
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
    """Write Arrow's 16-byte view: length, then up to 12 bytes inline, or 4 bytes, buffer 0 and the position in it. A
    null (`n` below 0) is empty."""
    at: cython.Py_ssize_t = r * VIEW_BYTES
    if n < 0:
        n = 0
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


def decode_columns(
    b: cython.const[cython.uchar][::1],
    rows: cython.const[cython.longlong][:, ::1],
    batches: cython.Py_ssize_t,
    origin: cython.Py_ssize_t,
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
    """Decode the records of many batches into Arrow's buffers.

    If `origin` is negative, keys and values are copied. Otherwise the data buffers receive views into the buffer,
    counted from `origin`, the offsets are not used, and nothing longer than 12 bytes is copied.

    Returns (-1, records, key bytes, value bytes, null keys, null values, number of headers). If a row does not parse,
    its number replaces the -1, and the rest is meaningless. The buffers must have room for the sum of the counts
    (bitmaps zeroed) and, for copied data, for the sum of the batches' bodies.
    """
    q: cython.Py_ssize_t
    r: cython.Py_ssize_t = 0
    bad: cython.Py_ssize_t = -1
    walk: Walk
    headers: cython.Py_ssize_t = 0
    keys: cython.Py_ssize_t = 0
    values: cython.Py_ssize_t = 0
    null_keys: cython.Py_ssize_t = 0
    null_values: cython.Py_ssize_t = 0
    total: cython.Py_ssize_t
    size: cython.Py_ssize_t
    views: cython.bint = origin >= 0
    total, size = check_rows(b, rows, 0, batches)
    check_room(offsets.shape[0], total)
    check_room(timestamps.shape[0], total)
    if views:
        for q in range(batches):
            if rows[q, BODY] < origin or rows[q, BODY_END] - origin > 0x7FFFFFFF:
                raise ValueError("rows outside what a view can point at")
        size = total * VIEW_BYTES
    else:
        check_room(0x7FFFFFFF, size)
    if with_key:
        check_room(key_data.shape[0], size)
        check_room(key_valid.shape[0] * 8, total)
        if not views:
            check_room(key_offsets.shape[0], total + 1)
            key_offsets[0] = 0
    if with_value:
        check_room(value_data.shape[0], size)
        check_room(value_valid.shape[0] * 8, total)
        if not views:
            check_room(value_offsets.shape[0], total + 1)
            value_offsets[0] = 0
    with cython.nogil:
        for q in range(batches):
            walk = walk_row(rows, q)
            while walk.left > 0:
                if not step(b, cython.address(walk)):
                    break
                headers += walk.record.header_count
                offsets[r] = offset_of(cython.address(walk))
                timestamps[r] = time_of(cython.address(walk))
                if with_key:
                    if walk.record.key_size < 0:
                        null_keys += 1
                    else:
                        set_bit(key_valid, r)
                    if views:
                        put_view(key_data, r, b, walk.record.key_at, walk.record.key_size, origin)
                    else:
                        copy(key_data, keys, b, walk.record.key_at, walk.record.key_size)
                        keys += walk.record.key_size if walk.record.key_size > 0 else 0
                        key_offsets[r + 1] = cython.cast(cython.int, keys)
                if with_value:
                    if walk.record.value_size < 0:
                        null_values += 1
                    else:
                        set_bit(value_valid, r)
                    if views:
                        put_view(value_data, r, b, walk.record.value_at, walk.record.value_size, origin)
                    else:
                        copy(value_data, values, b, walk.record.value_at, walk.record.value_size)
                        values += walk.record.value_size if walk.record.value_size > 0 else 0
                        value_offsets[r + 1] = cython.cast(cython.int, values)
                r += 1
            if walk.left > 0 or walk.at != walk.end:
                bad = q
                break
    return bad, r, keys, values, null_keys, null_values, headers


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

    Returns (-1 or the bad row, headers, name bytes, content bytes, null contents). The buffers must have the room that
    `decode_columns` counted.
    """
    q: cython.Py_ssize_t
    j: cython.Py_ssize_t
    at: cython.Py_ssize_t
    r: cython.Py_ssize_t = 0
    n: cython.Py_ssize_t = 0
    bad: cython.Py_ssize_t = -1
    kpos: cython.Py_ssize_t
    klen: cython.Py_ssize_t
    vpos: cython.Py_ssize_t
    vlen: cython.Py_ssize_t
    walk: Walk
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
            walk = walk_row(rows, q)
            while walk.left > 0:
                if not step(b, cython.address(walk)) or walk.record.header_count > room - n:
                    bad = q
                    break
                at = walk.record.headers_at
                for j in range(walk.record.header_count):
                    at, kpos, klen, vpos, vlen = parse_header(b, at, walk.record.end)
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
                if at != walk.record.end:
                    bad = q
                    break
                r += 1
                list_offsets[r] = cython.cast(cython.int, n)
            if bad >= 0:
                break
    return bad, n, names, contents, nulls


def oldest_times(
    b: cython.const[cython.uchar][::1],
    rows: cython.const[cython.longlong][:, ::1],
    batches: cython.Py_ssize_t,
    oldest: cython.longlong[::1],
):
    """Write the smallest timestamp of each batch to `oldest`: the header has only the first and the largest. For a
    batch without records it is the largest number there is.

    Goes from record to record by their lengths and looks at nothing else. Returns -1, or the number of the first row
    that does not parse.
    """
    q: cython.Py_ssize_t
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    left: cython.Py_ssize_t
    length: cython.longlong
    delta: cython.longlong
    behind: cython.Py_ssize_t
    least: cython.longlong
    bad: cython.Py_ssize_t = -1
    walk: Walk
    check_rows(b, rows, 0, batches)
    check_room(oldest.shape[0], batches)
    with cython.nogil:
        for q in range(batches):
            walk = walk_row(rows, q)
            at = walk.at
            end = walk.end
            left = cython.cast(cython.Py_ssize_t, walk.left)
            least = 0x7FFFFFFFFFFFFFFF
            if left == 0:
                oldest[q] = least
                continue
            if walk.log_time:
                oldest[q] = rows[q, MAX_TIME]
                continue
            while left > 0:
                length, at = get_varint(b, at, end)
                if at > end or length < LEAST_LENGTH or length > end - at:
                    break
                delta, behind = get_varint(b, at + 1, end)
                if behind > end:
                    break
                if delta < least:
                    least = delta
                at += cython.cast(cython.Py_ssize_t, length)
                left -= 1
            if left > 0 or at != end:
                bad = q
                break
            oldest[q] = add64(walk.base_time, least)
    return bad
