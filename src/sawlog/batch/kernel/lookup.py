"""Compiled fast path that reads one record, or one page of batches, from a buffer.

Every function returns None when the common case does not hold: the record is damaged, compressed, missing, or not where
the index places it. The caller then takes the slow path (`sawlog.log.lookup`), which reports the reason.
"""

from sawlog.batch.cyshim import cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_GET_SIZE
else:
    from .batches import header_is_sound, seek_batch
    from .declarations import (
        CELL_SHIFT,
        COMPRESSION_MASK,
        CONTROL_BIT,
        HEADER_BYTES,
        LENGTH_END,
        MOST_DELTA,
        PLAIN_CELL,
        TRANSACTIONAL_BIT,
    )
    from .fields import ExtentFields, LookupFields, SegmentSetFields
    from .files import MappedFields
    from .primitives import crc32c_of, get16, get32, get32s, get64
    from .records import Record, find_record


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_marked(bits: cython.p_uchar, cells: cython.longlong, n: cython.longlong) -> cython.bint:
    """Return True if bit `n` is set in a bitmap of `cells` bits."""
    return n < cells and (bits[n >> 3] & (1 << (n & 7))) != 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def mark_cell(bits: cython.p_uchar, cells: cython.longlong, n: cython.longlong) -> cython.void:
    if n < cells:
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
def find_indexed(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    offset: cython.longlong,
    least_offset: cython.longlong,
    dense: cython.bint,
    wanted: cython.longlong,
) -> cython.Py_ssize_t:
    """Return the position of the batch that contains `offset`, searching from `start`; negative to fall back. `wanted`
    is the last offset that the index expects of the first batch, or -1."""
    if end - start < HEADER_BYTES or (wanted >= 0 and last_of(b, start) != wanted):
        return -1
    return seek_batch(b, start, end, offset, least_offset, dense)


@cython.cfunc
def crc_was_checked(large: object, cell: cython.longlong) -> cython.bint:
    """Like `is_marked`, for a bitmap in any buffer."""
    if cython.compiled and type(large) is bytearray:
        bits: cython.p_uchar = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(large))
        return is_marked(bits, 8 * PyByteArray_GET_SIZE(large), cell)
    return cell >> 3 < len(large) and (large[cell >> 3] & (1 << (cell & 7))) != 0


@cython.cfunc
def landmark_at(starts: object, n: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return landmark `n`; -1 if there are fewer."""
    if n >= len(starts):
        return -1
    if cython.compiled and isinstance(starts, carray.array):
        known: carray.array = starts
        return known.data.as_ints[n]
    return starts[n]


@cython.cfunc
def record_in(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    origin: cython.longlong,
    offset: cython.longlong,
    least_offset: cython.longlong,
    dense: cython.bint,
    wanted: cython.longlong,
    large: object,
    landmarks: dict,
    step: cython.longlong,
) -> object:
    """Like `read_fast`, within bytes `start` to `end` of the buffer."""
    p: cython.Py_ssize_t = find_indexed(b, start, end, offset, least_offset, dense, wanted)
    size: cython.Py_ssize_t
    base: cython.longlong
    skipped: cython.longlong = 0
    body: cython.Py_ssize_t = p + HEADER_BYTES
    at: cython.Py_ssize_t
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
        if not crc_was_checked(large, (origin + p) >> CELL_SHIFT):
            return None
    elif crc32c_of(b, p + 21, p + size) != get32(b, p + 17):
        return None
    if offset - base > 2 * step:
        found = landmarks.get(origin + p)
        if found is None:
            return None
        skipped = (offset - base) // step * step
        at = landmark_at(found, cython.cast(cython.Py_ssize_t, skipped // step))
        if at < 0 or at > size:
            return None
        body = p + at
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


def read_fast(
    b: cython.const[cython.uchar][::1],
    offset: cython.longlong,
    least_offset: cython.longlong,
    dense: cython.bint,
    wanted: cython.longlong,
    origin: cython.longlong,
    large: object,
    landmarks: dict,
    step: cython.longlong,
):
    """Return the record at `offset` of an uncompressed, non-transactional batch without gaps. A batch of at least one
    cell must have its bit set in `large`: its checksum was verified before. `landmarks` maps the position of a batch to
    the positions of every `step`-th record."""
    return record_in(b, 0, b.shape[0], origin, offset, least_offset, dense, wanted, large, landmarks, step)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def remember_first(
    firsts: cython.pointer(cython.ushort), cell: cython.longlong, position: cython.longlong
) -> cython.void:
    """Record where the first batch of a cell starts within it."""
    firsts[cell] = cython.cast(cython.ushort, (firsts[cell] & PLAIN_CELL) | (position + 1))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def hop_over(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    origin: cython.longlong,
    firsts: cython.pointer(cython.ushort),
    cells: cython.longlong,
) -> cython.Py_ssize_t:
    """Return the position to which the walk of a page that ends at or before `end` can skip from `p`: the checksums of
    all batches in between were verified before, none of them is transactional, and the batch there fits into the page.
    Returns `p` if nothing can be skipped."""
    cell: cython.longlong = (origin + p) >> CELL_SHIFT
    target: cython.longlong = cell
    last: cython.longlong = ((origin + end) >> CELL_SHIFT) - 1
    there: cython.Py_ssize_t
    while target < last and target < cells and firsts[target] & PLAIN_CELL:
        target += 1
    target -= 1
    if target <= cell:
        return p
    there = cython.cast(cython.Py_ssize_t, (target << CELL_SHIFT) + (firsts[target] & ~PLAIN_CELL) - 1 - origin)
    if get32s(b, there + 8) < HEADER_BYTES - LENGTH_END or (get32s(b, there + 8) + LENGTH_END) >> CELL_SHIFT:
        return p
    return there


@cython.cfunc
def page_in(
    b: cython.const[cython.uchar][::1],
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    origin: cython.longlong,
    offset: cython.longlong,
    end_offset: cython.longlong,
    max_bytes: cython.Py_ssize_t,
    least_offset: cython.longlong,
    dense: cython.bint,
    wanted: cython.longlong,
    whole: cython.bint,
    large: cython.p_uchar,
    small: cython.p_uchar,
    firsts: cython.pointer(cython.ushort),
    cells: cython.longlong,
) -> tuple[cython.Py_ssize_t, cython.Py_ssize_t, cython.longlong, cython.bint, cython.bint]:
    """Like `page_fast`, within bytes `begin` to `end` of the buffer, with bitmaps of `cells` bits. Returns a negative
    start instead of None. `whole`: no batch in the buffer is at or after `end_offset`."""
    start: cython.Py_ssize_t = find_indexed(b, begin, end, offset, least_offset, dense, wanted)
    p: cython.Py_ssize_t = start
    size: cython.Py_ssize_t
    following: cython.longlong = -1
    last: cython.Py_ssize_t = start
    cell: cython.longlong
    # The cell whose first batch was verified: the walk entered it from the previous cell.
    entered: cython.longlong = -1
    known: cython.bint = False
    short: cython.bint = False
    special: cython.bint = False
    # True while no transactional batch was found in the cell.
    plain: cython.bint = True
    hopped: cython.bint = False
    there: cython.Py_ssize_t
    furthest: cython.Py_ssize_t = start + max_bytes if max_bytes < end - start else end
    if start < 0:
        return -1, 0, 0, False, False
    if origin + start == 0:
        entered = 0
    with cython.nogil:
        while end - p >= HEADER_BYTES:
            size = LENGTH_END + cython.cast(cython.Py_ssize_t, get32s(b, p + 8))
            cell = (origin + p) >> CELL_SHIFT
            known = size >= HEADER_BYTES and is_marked(large if size >> CELL_SHIFT else small, cells, cell)
            if not known:
                following = -1
                if p > start and last >= 0:
                    following = last_of(b, last) + 1
                if not header_is_sound(b, p, following) or (dense and following >= 0 and get64(b, p) != following):
                    break
            if (not whole and get64(b, p) >= end_offset) or (p > start and p + size - start > max_bytes):
                break
            if size > end - p:
                short = True
                break
            if not known:
                if crc32c_of(b, p + 21, p + size) != get32(b, p + 17):
                    break
                if size >> CELL_SHIFT:
                    mark_cell(large, cells, cell)
            if get16(b, p + 21) & TRANSACTIONAL_BIT:
                special, plain = True, False
            last = p
            p += size
            if (origin + p) >> CELL_SHIFT != cell:
                if entered == cell:
                    mark_cell(small, cells, cell)
                    if plain and cell < cells:
                        firsts[cell] |= PLAIN_CELL
                entered = (origin + p) >> CELL_SHIFT
                if entered < cells:
                    remember_first(firsts, entered, (origin + p) & ((1 << CELL_SHIFT) - 1))
                plain = True
                if whole and not hopped:
                    there = hop_over(b, p, furthest, origin, firsts, cells)
                    if there > p:
                        p, last, hopped = there, -1, True
                        entered = (origin + p) >> CELL_SHIFT
        else:
            short = True
    if p == start or last < 0:
        return -1, 0, 0, False, False
    return start, p, last_of(b, last) + 1, short, special


def page_fast(
    b: cython.const[cython.uchar][::1],
    offset: cython.longlong,
    end_offset: cython.longlong,
    max_bytes: cython.Py_ssize_t,
    least_offset: cython.longlong,
    dense: cython.bint,
    wanted: cython.longlong,
    origin: cython.longlong,
    large: bytearray,
    small: bytearray,
    firsts: object,
    whole: cython.bint = False,
):
    """Return the batches from the one that contains `offset`: (start, end, next offset, True if the buffer is too short
    for the next batch, True if one of them is transactional). They add up to at most `max_bytes`, but are at least one,
    and none starts at or after `end_offset`.

    Verifies checksums and remembers which were right, in units of cells of the file. Bit n of `large` stands for the
    batch of at least one cell that starts in cell n, bit n of `small` for all smaller batches that start there.
    `firsts[n]` is 1 + the position within cell n where its first batch starts (0: unknown), with PLAIN_CELL set if all
    its batches were verified and none is transactional. The buffer begins at byte `origin` of the file. Nothing is
    remembered if these buffers are empty. `whole`: no batch in the buffer is at or after `end_offset`.
    """
    start: cython.Py_ssize_t
    end: cython.Py_ssize_t
    next_offset: cython.longlong
    short: cython.bint
    special: cython.bint
    cells: cython.longlong = min(8 * len(large), 8 * len(small), len(firsts))
    if cython.compiled:
        numbers: carray.array = firsts
        start, end, next_offset, short, special = page_in(
            b,
            0,
            b.shape[0],
            origin,
            offset,
            end_offset,
            max_bytes,
            least_offset,
            dense,
            wanted,
            whole,
            cython.cast(cython.p_uchar, PyByteArray_AS_STRING(large)),
            cython.cast(cython.p_uchar, PyByteArray_AS_STRING(small)),
            numbers.data.as_ushorts,
            cells,
        )
    else:
        start, end, next_offset, short, special = page_in(
            b,
            0,
            len(b),
            origin,
            offset,
            end_offset,
            max_bytes,
            least_offset,
            dense,
            wanted,
            whole,
            large,
            small,
            firsts,
            cells,
        )
    return None if start < 0 else (start, end, next_offset, short, special)


@cython.final
@cython.cclass
class FastReader:
    """Compiled fast path of a log's reader, for the common case: the offset is visible, no transaction can be open, and
    the segment is mapped and has the batch where the index places it. `Reader.read` and `Reader.fetch` are the
    specification."""

    segments: SegmentSetFields
    place: tuple
    topic: object
    partition: cython.int
    keeps: cython.bint

    def __init__(self, segments, topic, partition, keeps):
        """`topic` and `partition` are set in every record. `keeps`: segments stay mapped after a read."""
        self.segments = segments
        self.place = (topic, partition)
        self.topic = topic
        self.partition = partition
        self.keeps = keeps

    @cython.cfunc
    def _opened(self, wanted: object) -> ExtentFields:
        """Return the segment that contains an offset, open and mapped; None to fall back."""
        segments: SegmentSetFields = self.segments
        offset: cython.longlong
        low: cython.Py_ssize_t = 0
        middle: cython.Py_ssize_t
        first: cython.longlong
        if type(wanted) is not int or not segments.lowest_offset <= wanted < segments.visible_offset or not self.keeps:
            return None
        if segments.maybe_undecided:  # read after the visible end: see `SegmentSet.end`
            return None
        offset = wanted
        every: tuple = segments._list[0]
        bases: list = segments._list[1]
        high: cython.Py_ssize_t = len(bases)
        while high - low > 1:
            middle = (low + high) >> 1
            first = bases[middle]
            if first <= offset:
                low = middle
            else:
                high = middle
        found: ExtentFields = every[low]
        if found.sealed and segments._newest is not found:
            segments.use(found)
        opened: LookupFields = found._open
        if opened is None or not isinstance(opened.storage, MappedFields):
            return None
        return found

    def read(self, offset):
        """Return the record at an offset; None to fall back."""
        segment: ExtentFields = self._opened(offset)
        if segment is None:
            return None
        opened: LookupFields = segment._open
        file: MappedFields = opened.storage
        wanted: cython.longlong = offset
        start: cython.longlong
        stop: cython.longlong
        check: cython.longlong
        start, stop, check = opened.index.find(wanted, segment.tail[1])
        mapping: object = file.mapping  # this reference keeps it mapped
        if mapping is None or start >= stop or stop > len(mapping):
            return None
        found: object = record_in(
            file.mapped if cython.compiled else mapping,
            cython.cast(cython.Py_ssize_t, start),
            cython.cast(cython.Py_ssize_t, stop),
            0,
            wanted,
            -1 if start else segment.base_offset,
            segment.dense,
            check,
            opened._large,
            opened._landmarks,
            opened._step,
        )
        if found is None:
            return None
        record: Record = found
        if record.offset != wanted:
            return None
        record.topic = self.topic
        record.partition = self.partition
        return record

    def page(self, offset, max_bytes):
        """Return the fields of a `Fetched`: the batches from the one that contains `offset`, up to `max_bytes` but at
        least one, the offset after them, the visible end, no aborted transactions, the offset, and the place. A page
        that crosses into the next segment has one buffer for each. None to fall back, as for transactional batches."""
        segment: ExtentFields = self._opened(offset)
        if segment is None or type(max_bytes) is not int or not 0 < max_bytes <= MOST_DELTA:
            return None
        visible: object = self.segments.visible_offset
        listed: object = self.segments._list
        end: cython.longlong = visible
        left: cython.Py_ssize_t = max_bytes
        found: tuple = self._part(segment, offset, end, left, False, True)
        if found is None:
            return None
        buffers: tuple = (found[0],)
        following: cython.longlong = found[1]
        while found[2] and following < end:  # the segment has ended before the page
            left -= len(buffers[len(buffers) - 1])
            if left <= 0:
                break
            segment = self._opened(found[1])
            if segment is None or segment.base_offset != following or self.segments._list is not listed:
                return None
            found = self._part(segment, following, end, left, True, True)
            if found is None:
                return None
            if found[0] is None:
                break
            buffers += (found[0],)
            following = found[1]
        return buffers, following, visible, (), offset, self.place

    def part(self, offset, max_bytes, end_offset):
        """Return the part of a page that is in the first segment and below `end_offset`: (buffer, next offset, True if
        the segment ends there); None to fall back. Verifies every checksum, so that a scan finds damage that occurred
        after an earlier read."""
        segment: ExtentFields = self._opened(offset)
        if segment is None or type(max_bytes) is not int or not 0 < max_bytes <= MOST_DELTA:
            return None
        visible: object = self.segments.visible_offset
        return self._part(segment, offset, min(end_offset, visible), max_bytes, False, False)

    @cython.cfunc
    def _part(
        self,
        segment: ExtentFields,
        wanted: cython.longlong,
        end: cython.longlong,
        max_bytes: cython.Py_ssize_t,
        continues: cython.bint,
        remembers: cython.bint,
    ) -> tuple:
        """Return (the batches of a page in one segment, next offset, True if the segment ends there). If it `continues`
        a page and the first batch does not fit, the buffer is None. `remembers`: skip checksums that were verified
        before."""
        opened: LookupFields = segment._open
        file: MappedFields = opened.storage
        tail: tuple = segment.tail
        covered: cython.longlong = tail[0]
        size: cython.longlong = tail[1]
        limit: cython.longlong = size
        following: cython.longlong
        start: cython.longlong
        stop: cython.longlong
        check: cython.longlong
        first: cython.Py_ssize_t
        last: cython.Py_ssize_t
        short: cython.bint
        special: cython.bint
        large: bytearray = opened._large
        small: bytearray = opened._small
        firsts: object = opened._firsts
        cells: cython.longlong = 0
        start, stop, check = opened.index.find(wanted, size)
        mapping: object = file.mapping  # this reference keeps it mapped
        if mapping is None:
            return None
        b: cython.const[cython.uchar][::1] = file.mapped if cython.compiled else mapping
        if limit > len(mapping):
            limit = len(mapping)
        if segment.sealed and remembers:
            cells = min(8 * len(large), 8 * len(small), len(firsts))
            if cells << CELL_SHIFT < size:
                return None  # the slow path allocates the bitmaps
        if limit - start < HEADER_BYTES:
            return None
        if continues and get32s(b, cython.cast(cython.Py_ssize_t, start) + 8) > max_bytes - LENGTH_END:
            return None, wanted, False
        first, last, following, short, special = page_in(
            b,
            cython.cast(cython.Py_ssize_t, start),
            cython.cast(cython.Py_ssize_t, limit),
            0,
            wanted,
            end,
            max_bytes,
            -1 if start else segment.base_offset,
            segment.dense,
            check,
            end >= covered,
            cython.cast(cython.p_uchar, PyByteArray_AS_STRING(large)) if cython.compiled else large,
            cython.cast(cython.p_uchar, PyByteArray_AS_STRING(small)) if cython.compiled else small,
            cython.cast(carray.array, firsts).data.as_ushorts if cython.compiled else firsts,
            cells,
        )
        if first < 0 or special or (short and following < end and limit < size):
            return None
        if segment.sealed and (following > covered or (last >= size and following < covered)):
            return None
        return mapping[first:last], following, last >= size
