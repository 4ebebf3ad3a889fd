"""Extracts fields from many JSON texts without the GIL, in the common case.

The common case: the text is one object in strict JSON and UTF-8, each requested field occurs at most once and is null
or of the requested type, and requested strings have no escapes. Every other text is marked, and the caller parses it
with Python's parser. So this unit must be certain of the texts it accepts, but never has to diagnose the others.

The requested fields are a tree, one row of `nodes` each:

```
KIND    JSON_STRUCT, JSON_LONG, JSON_DOUBLE, JSON_BOOLEAN or JSON_STRING
SLOT    row of the results in `longs` or `doubles`
CHILD   first child of a struct; its children are adjacent
MANY    number of children
NAME    position of the name in `names`
SIZE    length of the name
```

Node 0 is the whole text. For each node and text `state` is JSON_ABSENT, JSON_PRESENT or JSON_NULL. A string becomes
two rows of `longs`: its position in `b` and its length.
"""

from sawlog.batch.cyshim import cython

if not cython.compiled:
    from .declarations import (
        JSON_ABSENT,
        JSON_BOOLEAN,
        JSON_CHILD,
        JSON_DEPTH,
        JSON_DIGITS,
        JSON_DOUBLE,
        JSON_KIND,
        JSON_LONG,
        JSON_MANY,
        JSON_NAME,
        JSON_NODE_WIDTH,
        JSON_NULL,
        JSON_PRESENT,
        JSON_SIZE,
        JSON_SLOT,
        JSON_STRING,
        JSON_STRUCT,
    )
    from .primitives import bit, copy


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def json_space(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the first position from `p` on that is not white space."""
    while p < end and (b[p] == 32 or b[p] == 10 or b[p] == 13 or b[p] == 9):
        p += 1
    return p


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def json_rune(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the position after the multi-byte character at `p`; -1 if it is not UTF-8."""
    c: cython.int = b[p]
    n: cython.Py_ssize_t
    i: cython.Py_ssize_t
    low: cython.int = 0x80
    high: cython.int = 0xBF
    if 0xC2 <= c <= 0xDF:
        n = 1
    elif 0xE0 <= c <= 0xEF:
        n = 2
        if c == 0xE0:
            low = 0xA0
        elif c == 0xED:
            high = 0x9F
    elif 0xF0 <= c <= 0xF4:
        n = 3
        if c == 0xF0:
            low = 0x90
        elif c == 0xF4:
            high = 0x8F
    else:
        return -1
    if end - p <= n or b[p + 1] < low or b[p + 1] > high:
        return -1
    for i in range(2, n + 1):
        if b[p + i] < 0x80 or b[p + i] > 0xBF:
            return -1
    return p + n + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def json_string(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the position of the closing quote of a string whose content begins at `p`; -1 if it has an escape or is
    not strict JSON in UTF-8."""
    c: cython.int
    while p < end:
        c = b[p]
        if c == 34:
            return p
        if c < 32 or c == 92:
            return -1
        if c < 128:
            p += 1
        else:
            p = json_rune(b, p, end)
            if p < 0:
                return -1
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def json_number(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the position after the number at `p`; -1 if it is not a number."""
    digits: cython.Py_ssize_t
    if p < end and b[p] == 45:
        p += 1
    digits = p
    while p < end and 48 <= b[p] <= 57:
        p += 1
    # With very many digits and an exponent it may be more than a double can hold: Python decides.
    if p == digits or (b[digits] == 48 and p - digits > 1) or p - digits > JSON_DIGITS:
        return -1
    if p < end and b[p] == 46:
        p += 1
        digits = p
        while p < end and 48 <= b[p] <= 57:
            p += 1
        if p == digits:
            return -1
    if p < end and (b[p] == 101 or b[p] == 69):
        p += 1
        if p < end and (b[p] == 43 or b[p] == 45):
            p += 1
        digits = p
        while p < end and 48 <= b[p] <= 57:
            p += 1
        # Three digits may be more than a double can hold: Python decides.
        if p == digits or p - digits > 2:
            return -1
    return p


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def json_word(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the position after true, false or null; -1 for anything else."""
    if end - p >= 4 and b[p] == 116 and b[p + 1] == 114 and b[p + 2] == 117 and b[p + 3] == 101:
        return p + 4
    if end - p >= 4 and b[p] == 110 and b[p + 1] == 117 and b[p + 2] == 108 and b[p + 3] == 108:
        return p + 4
    if end - p >= 5 and b[p] == 102 and b[p + 1] == 97 and b[p + 2] == 108 and b[p + 3] == 115 and b[p + 4] == 101:
        return p + 5
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def json_skip(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t, depth: cython.int
) -> cython.Py_ssize_t:
    """Return the position after any value at `p`; -1 if it is left to Python, or nested too deeply."""
    c: cython.int
    closing: cython.int
    if p >= end or depth <= 0:
        return -1
    c = b[p]
    if c == 34:
        p = json_string(b, p + 1, end)
        return p if p < 0 else p + 1
    if c == 45 or 48 <= c <= 57:
        return json_number(b, p, end)
    if c != 123 and c != 91:
        return json_word(b, p, end)
    closing = c + 2
    p = json_space(b, p + 1, end)
    if p < end and b[p] == closing:
        return p + 1
    while p < end:
        if closing == 125:
            if b[p] != 34:
                return -1
            p = json_string(b, p + 1, end)
            if p < 0:
                return -1
            p = json_space(b, p + 1, end)
            if p >= end or b[p] != 58:
                return -1
            p = json_space(b, p + 1, end)
        p = json_skip(b, p, end, depth - 1)
        if p < 0:
            return -1
        p = json_space(b, p, end)
        if p >= end:
            return -1
        if b[p] == closing:
            return p + 1
        if b[p] != 44:
            return -1
        p = json_space(b, p + 1, end)
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def json_long(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.bint]:
    """Return (the integer from `p` to `end`, True if it is one, of at most 18 digits)."""
    number: cython.longlong = 0
    negative: cython.bint = b[p] == 45
    if negative:
        p += 1
    if end - p > 18:
        return 0, False
    while p < end:
        if b[p] < 48 or b[p] > 57:
            return 0, False
        number = number * 10 + (b[p] - 48)
        p += 1
    return (-number if negative else number), True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def json_double(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.double, cython.bint]:
    """Return (the number from `p` to `end`, True if it is exact). It is exact if digits and power of ten are doubles
    without rounding: up to 15 digits, up to 22 of them after the point; one division then rounds correctly."""
    number: cython.longlong = 0
    digits: cython.Py_ssize_t = 0
    after: cython.Py_ssize_t = 0
    point: cython.bint = False
    negative: cython.bint = b[p] == 45
    power: cython.double = 1.0
    made: cython.double
    if negative:
        p += 1
    while p < end:
        if b[p] == 46:
            point = True
        elif 48 <= b[p] <= 57:
            number = number * 10 + (b[p] - 48)
            digits += 1
            if point:
                after += 1
        else:
            return 0.0, False
        if digits > 15:
            return 0.0, False
        p += 1
    while after > 0:
        power *= 10.0
        after -= 1
    made = cython.cast(cython.double, number) / power
    if negative and (point or number != 0):  # -0 is an integer in Python, and has no sign
        made = -made
    return made, True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def json_child(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    nodes: cython.const[cython.int][:, ::1],
    parent: cython.Py_ssize_t,
    guess: cython.Py_ssize_t,
    names: cython.const[cython.uchar][::1],
) -> cython.Py_ssize_t:
    """Return the field of a struct whose name is from `p` to `end`, or -1. Fields mostly have the order of the schema,
    so the search begins with a guess."""
    first: cython.Py_ssize_t = nodes[parent, JSON_CHILD]
    many: cython.Py_ssize_t = nodes[parent, JSON_MANY]
    tried: cython.Py_ssize_t
    node: cython.Py_ssize_t
    at: cython.Py_ssize_t
    i: cython.Py_ssize_t
    size: cython.Py_ssize_t = end - p
    for tried in range(many):
        node = first + guess
        guess = guess + 1 if guess + 1 < many else 0
        if nodes[node, JSON_SIZE] != size:
            continue
        at = nodes[node, JSON_NAME]
        i = 0
        while i < size and names[at + i] == b[p + i]:
            i += 1
        if i == size:
            return node
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def json_value(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    nodes: cython.const[cython.int][:, ::1],
    node: cython.Py_ssize_t,
    names: cython.const[cython.uchar][::1],
    row: cython.Py_ssize_t,
    state: cython.uchar[:, ::1],
    longs: cython.longlong[:, ::1],
    doubles: cython.double[:, ::1],
) -> cython.Py_ssize_t:
    """Read the value of a requested field at `p` and return the position after it; -1 if it is left to Python."""
    kind: cython.int = nodes[node, JSON_KIND]
    slot: cython.Py_ssize_t = nodes[node, JSON_SLOT]
    after: cython.Py_ssize_t
    good: cython.bint
    if p >= end or state[node, row] != JSON_ABSENT:
        return -1
    if b[p] == 110:
        state[node, row] = JSON_NULL
        return json_word(b, p, end)
    state[node, row] = JSON_PRESENT
    if kind == JSON_STRUCT:
        if b[p] != 123:
            return -1
        return json_object(b, p + 1, end, nodes, node, names, row, state, longs, doubles)
    if kind == JSON_STRING:
        if b[p] != 34:
            return -1
        after = json_string(b, p + 1, end)
        if after < 0:
            return -1
        longs[slot, row] = p + 1
        longs[slot + 1, row] = after - p - 1
        return after + 1
    if kind == JSON_BOOLEAN:
        longs[slot, row] = 1 if b[p] == 116 else 0
        return json_word(b, p, end)
    after = json_number(b, p, end)
    if after < 0:
        return -1
    if kind == JSON_LONG:
        longs[slot, row], good = json_long(b, p, after)
    else:
        doubles[slot, row], good = json_double(b, p, after)
    return after if good else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def json_object(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    nodes: cython.const[cython.int][:, ::1],
    node: cython.Py_ssize_t,
    names: cython.const[cython.uchar][::1],
    row: cython.Py_ssize_t,
    state: cython.uchar[:, ::1],
    longs: cython.longlong[:, ::1],
    doubles: cython.double[:, ::1],
) -> cython.Py_ssize_t:
    """Read an object whose brace is before `p` and return the position after it; -1 if it is left to Python."""
    after: cython.Py_ssize_t
    child: cython.Py_ssize_t
    guess: cython.Py_ssize_t = 0
    p = json_space(b, p, end)
    if p < end and b[p] == 125:
        return p + 1
    while p < end:
        if b[p] != 34:
            return -1
        after = json_string(b, p + 1, end)
        if after < 0:
            return -1
        child = json_child(b, p + 1, after, nodes, node, guess, names)
        p = json_space(b, after + 1, end)
        if p >= end or b[p] != 58:
            return -1
        p = json_space(b, p + 1, end)
        if child < 0:
            p = json_skip(b, p, end, JSON_DEPTH)
        else:
            guess = child - nodes[node, JSON_CHILD] + 1
            if guess == nodes[node, JSON_MANY]:
                guess = 0
            p = json_value(b, p, end, nodes, child, names, row, state, longs, doubles)
        if p < 0:
            return -1
        p = json_space(b, p, end)
        if p >= end:
            return -1
        if b[p] == 125:
            return p + 1
        if b[p] != 44:
            return -1
        p = json_space(b, p + 1, end)
    return -1


@cython.cfunc
def check_nodes(
    nodes: cython.const[cython.int][:, ::1],
    names: cython.const[cython.uchar][::1],
    state: cython.const[cython.uchar][:, ::1],
    longs: cython.const[cython.longlong][:, ::1],
    doubles: cython.const[cython.double][:, ::1],
    count: cython.Py_ssize_t,
) -> object:
    """Raise ValueError unless every node stays within its tables. Children follow their parent, so every walk ends."""
    k: cython.Py_ssize_t
    kind: cython.int
    slot: cython.Py_ssize_t
    many: cython.Py_ssize_t = nodes.shape[0]
    good: cython.bint = many > 0 and nodes.shape[1] >= JSON_NODE_WIDTH and state.shape[0] >= many
    good = good and state.shape[1] >= count and longs.shape[1] >= count and doubles.shape[1] >= count
    good = good and nodes[0, JSON_KIND] == JSON_STRUCT
    if good:
        for k in range(many):
            kind = nodes[k, JSON_KIND]
            slot = nodes[k, JSON_SLOT]
            if not (0 <= nodes[k, JSON_SIZE] and 0 <= nodes[k, JSON_NAME] <= names.shape[0] - nodes[k, JSON_SIZE]):
                good = False
            if kind == JSON_STRUCT:
                if not (k < nodes[k, JSON_CHILD] and 0 < nodes[k, JSON_MANY] <= many - nodes[k, JSON_CHILD]):
                    good = False
            elif kind == JSON_STRING:
                good = good and 0 <= slot < longs.shape[0] - 1
            elif kind == JSON_DOUBLE:
                good = good and 0 <= slot < doubles.shape[0]
            elif kind == JSON_LONG or kind == JSON_BOOLEAN:
                good = good and 0 <= slot < longs.shape[0]
            else:
                good = False
            if not good:
                break
    if not good:
        raise ValueError("fields outside their tables")
    return None


def json_fields(
    b: cython.const[cython.uchar][::1],
    offsets: cython.const[cython.int][::1],
    valid: cython.const[cython.uchar][::1],
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    nodes: cython.const[cython.int][:, ::1],
    names: cython.const[cython.uchar][::1],
    state: cython.uchar[:, ::1],
    longs: cython.longlong[:, ::1],
    doubles: cython.double[:, ::1],
    odd: cython.uchar[::1],
):
    """Read the requested fields of `count` texts, from text `first` of an Arrow array on, into `state` (zeroed),
    `longs` and `doubles`. `odd` gets 1 for each text that is left to Python. `valid` is Arrow's bitmap, empty if no
    text is null; a null has state JSON_NULL. Returns the number of odd texts."""
    i: cython.Py_ssize_t
    p: cython.Py_ssize_t
    end: cython.Py_ssize_t
    strange: cython.Py_ssize_t = 0
    bad: cython.bint = False
    nulls: cython.bint = valid.shape[0] > 0
    check_nodes(nodes, names, state, longs, doubles, count)
    if first < 0 or count < 0 or offsets.shape[0] <= first + count or odd.shape[0] < count:
        raise ValueError("texts outside their array")
    if nulls and valid.shape[0] * 8 < first + count:
        raise ValueError("texts outside their array")
    with cython.nogil:
        for i in range(count):
            odd[i] = 0
            if nulls and bit(valid, first + i) == 0:
                state[0, i] = JSON_NULL
                continue
            p = offsets[first + i]
            end = offsets[first + i + 1]
            if p < 0 or end < p or end > b.shape[0]:
                bad = True
                break
            p = json_space(b, p, end)
            if p < end and b[p] == 123:
                state[0, i] = JSON_PRESENT
                p = json_object(b, p + 1, end, nodes, 0, names, i, state, longs, doubles)
            else:
                p = -1
            if p >= 0:
                p = json_space(b, p, end)
            if p != end:
                odd[i] = 1
                strange += 1
    if bad:
        raise ValueError("an offset outside the data of an array")
    return strange


def gather_slices(
    b: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    sizes: cython.const[cython.longlong][::1],
    wanted: cython.const[cython.uchar][::1],
    count: cython.Py_ssize_t,
    offsets: cython.int[::1],
    data: cython.uchar[::1],
):
    """Copy parts of a buffer into an Arrow array; parts without a value become empty. Returns the number of bytes."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    bad: cython.bint = False
    if starts.shape[0] < count or sizes.shape[0] < count or wanted.shape[0] < count or offsets.shape[0] <= count:
        raise ValueError("pieces outside their tables")
    offsets[0] = 0
    with cython.nogil:
        for i in range(count):
            if wanted[i] == JSON_PRESENT:
                if starts[i] < 0 or sizes[i] < 0 or starts[i] > b.shape[0] - sizes[i] or sizes[i] > data.shape[0] - at:
                    bad = True
                    break
                copy(
                    data,
                    at,
                    b,
                    cython.cast(cython.Py_ssize_t, starts[i]),
                    cython.cast(cython.Py_ssize_t, sizes[i]),
                )
                at += cython.cast(cython.Py_ssize_t, sizes[i])
            offsets[i + 1] = cython.cast(cython.int, at)
    if bad:
        raise ValueError("pieces outside the buffer")
    return at
