"""Reads one record, or one page of batches, from a log: `FastReader`.

Every function returns None when the common case does not hold: the record is damaged, compressed, missing, or not where
the index places it. `sawlog.log.index` and `sawlog.log.reader` then read it in general steps, or report the reason.
"""

from array import array

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
    from .fields import ExtentFields, LookupFields, MappedFields, SegmentSetFields
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


_NO_CELLS = array("H")
#: Bytes read in addition to the size of a page: the index leads to a batch slightly before the requested one.
_PAGE_MARGIN_BYTES = 16 << 10


@cython.final
@cython.cclass
class FastReader:
    """Reads single records and pages of batches: the offset is looked up among the segments, then in the sparse index
    of its segment, then in the mapping or in a copy of the bytes in between.

    Every method returns None when that does not lead to the result: the offset is not visible or not local, a batch is
    damaged or not where the index places it, the segments change meanwhile. `Reader` then finds out why. `StorageError`
    and `CorruptBatch` are raised as they occur; `Reader` checks whether the segments have changed."""

    segments: SegmentSetFields
    place: tuple
    topic: object
    partition: cython.int
    keeps: cython.bint
    max_decompressed_bytes: object

    def __init__(self, segments, topic, partition, keeps, max_decompressed_bytes):
        """`topic` and `partition` are set in every record. `keeps`: segments stay mapped after a read."""
        self.segments = segments
        self.place = (topic, partition)
        self.topic = topic
        self.partition = partition
        self.keeps = keeps
        self.max_decompressed_bytes = max_decompressed_bytes

    @cython.cfunc
    def _segment_of(self, offset: cython.longlong) -> ExtentFields:
        low: cython.Py_ssize_t = 0
        middle: cython.Py_ssize_t
        first: cython.longlong
        every: tuple = self.segments._list[0]
        bases: list = self.segments._list[1]
        high: cython.Py_ssize_t = len(bases)
        while high - low > 1:
            middle = (low + high) >> 1
            first = bases[middle]
            if first <= offset:
                low = middle
            else:
                high = middle
        return every[low]

    @cython.cfunc
    def _opened(self, segment: ExtentFields) -> LookupFields:
        """Return the open file of a segment. This reference keeps it open."""
        if segment.sealed and self.segments._newest is not segment:
            self.segments.use(segment)
        opened: LookupFields = segment._open
        return segment._load() if opened is None else opened

    def read(self, offset, committed):
        """Return the record at an offset; None to fall back."""
        segments: SegmentSetFields = self.segments
        end: object = segments.visible_offset
        if segments.maybe_undecided and committed:  # read after the visible end: see `SegmentSet.end`
            end = segments.transaction_view.stable(end)
        if type(offset) is not int or not segments.lowest_offset <= offset < end:
            return None
        wanted: cython.longlong = offset
        segment: ExtentFields = self._segment_of(wanted)
        opened: LookupFields = self._opened(segment)
        start: cython.longlong
        stop: cython.longlong
        check: cython.longlong
        start, stop, check = opened.index.find(wanted, segment.tail[1])
        found: object = None
        view: object = None
        mapping: object = None
        file: MappedFields = None
        if isinstance(opened.storage, MappedFields):
            file = opened.storage
            mapping = file.mapping  # this reference keeps it mapped
        if start < stop and mapping is not None and stop <= len(mapping):
            found = record_in(
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
        elif start < stop:
            view = opened.storage.view(start, stop - start)
            found = read_fast(
                view,
                wanted,
                -1 if start else segment.base_offset,
                segment.dense,
                check,
                start,
                opened._large,
                opened._landmarks,
                opened._step,
            )
        if found is None:
            transactions: object = segments.transaction_view if committed else None
            found = opened.read(segment, offset, self.max_decompressed_bytes, transactions, view)
        if not self.keeps:
            segments.done(segment)
        if found is None:
            return None
        record: Record = found
        if record.offset != wanted:
            return None
        record.topic = self.topic
        record.partition = self.partition
        return record

    def page(self, offset, max_bytes, committed):
        """Return the fields of a `Fetched`: the batches from the one that contains `offset`, up to `max_bytes` but at
        least one, one buffer for each segment; the offset after them; the last stable offset; the aborted transactions;
        the offset; the place. None to fall back."""
        segments: SegmentSetFields = self.segments
        stable: object = segments.visible_offset
        last: object = stable
        if segments.maybe_undecided:  # read after the visible end: see `SegmentSet.end`
            stable = segments.transaction_view.stable(stable)
            last = stable if committed else last
        if type(offset) is not int or not segments.lowest_offset <= offset < last:
            return None
        if type(max_bytes) is not int or not 0 <= max_bytes <= MOST_DELTA:
            return None
        listed: object = segments._list
        end: cython.longlong = last
        following: cython.longlong = offset
        left: cython.Py_ssize_t = max_bytes if max_bytes else 1
        special: cython.bint = False
        buffers: tuple = ()
        segment: ExtentFields
        opened: LookupFields
        found: tuple
        while True:
            segment = self._segment_of(following)
            opened = self._opened(segment)
            if buffers and (segment.base_offset != following or segments._list is not listed):
                return None
            found = self._part(segment, opened, following, end, left, len(buffers) > 0, True)
            if found is None:
                return None
            if found[0] is None:
                break
            buffers += (found[0],)
            following = found[1]
            special = special or found[3]
            left -= len(found[0])
            if not found[2] or following >= end or left <= 0:
                break
        if following > end:  # a truncation that is not complete will cut the last batch through
            return None
        aborted: tuple = ()
        if special and committed:
            ended: list = segments.transaction_view.aborted(offset, following - 1)
            aborted = tuple([(each.producer_id, each.first_offset) for each in ended])
        return buffers, following, stable, aborted, offset, self.place

    def part(self, offset, max_bytes, end_offset):
        """Return the part of a page that is in the first segment and below `end_offset`: (batches, True if the segment
        ends there, segment and position unless they are mapped); None to fall back. Verifies every checksum, so that a
        scan finds damage that occurred after an earlier read. Includes batches of transactions."""
        segments: SegmentSetFields = self.segments
        visible: object = segments.visible_offset
        if type(offset) is not int or not segments.lowest_offset <= offset < visible:
            return None
        if type(max_bytes) is not int or not 0 < max_bytes <= MOST_DELTA:
            return None
        segment: ExtentFields = self._segment_of(offset)
        opened: LookupFields = self._opened(segment)
        found: tuple = self._part(segment, opened, offset, min(end_offset, visible), max_bytes, False, False)
        if found is None:
            return None
        return found[0], found[2], None if found[4] < 0 else (segment, found[4])

    @cython.cfunc
    def _part(
        self,
        segment: ExtentFields,
        opened: LookupFields,
        wanted: cython.longlong,
        end: cython.longlong,
        max_bytes: cython.Py_ssize_t,
        continues: cython.bint,
        remembers: cython.bint,
    ) -> tuple:
        """Return (the batches of a page in one segment, next offset, True if the segment ends there, True if one of
        them is transactional, position or -1 if they are mapped). If it `continues` a page and the first batch does not
        fit, the batches are None. `remembers`: skip checksums that were verified before."""
        tail: tuple = segment.tail
        covered: cython.longlong = tail[0]
        size: cython.longlong = tail[1]
        limit: cython.longlong
        following: cython.longlong = -1
        start: cython.longlong
        stop: cython.longlong
        check: cython.longlong
        first: cython.Py_ssize_t = -1
        last: cython.Py_ssize_t = 0
        short: cython.bint = False
        special: cython.bint = False
        free: cython.bint = False
        large: bytearray = opened._large
        small: bytearray = opened._small
        firsts: object = opened._firsts
        cells: cython.longlong = 0
        origin: cython.longlong = 0
        found: object
        batches: object = None
        file: MappedFields = None
        start, stop, check = opened.index.find(wanted, size)
        if segment.sealed and remembers:
            cells = min(8 * len(large), 8 * len(small), len(firsts))
            if cells << CELL_SHIFT < size:
                opened.grow_memory(size)
                large, small, firsts = opened._large, opened._small, opened._firsts
                cells = min(8 * len(large), 8 * len(small), len(firsts))
        if isinstance(opened.storage, MappedFields):
            file = opened.storage
            batches = file.mapping  # this reference keeps it mapped
        if batches is not None and len(batches) - start >= HEADER_BYTES:
            b: cython.const[cython.uchar][::1] = file.mapped if cython.compiled else batches
            limit = min(size, len(batches))
            if continues and get32s(b, cython.cast(cython.Py_ssize_t, start) + 8) > max_bytes - LENGTH_END:
                return None, wanted, False, False, -1
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
            if limit >= size and first < 0:
                return None
            if short and following < end and limit < size:
                first = -1
        if first < 0:  # not mapped completely: the bytes are copied or downloaded, so read no more than needed
            free = segment.sealed and opened.views_are_free
            stop = size if free else min(size, start + max_bytes + _PAGE_MARGIN_BYTES)
            if not free and end < covered:
                stop = min(stop, opened.index.find(end - 1, size)[1])
            if start >= stop:
                return None
            batches = opened.storage.view(start, stop - start)
            found = page_fast(
                batches,
                wanted,
                end,
                max_bytes,
                -1 if start else segment.base_offset,
                segment.dense,
                check,
                start,
                large if cells else bytearray(),
                small if cells else bytearray(),
                firsts if cells else _NO_CELLS,
            )
            if found is None:
                return None
            first, last, following, short, special = found
            if short and following < end and stop < size:
                return None
            if continues and last - first > max_bytes:
                return None, wanted, False, False, -1
            origin = start
            file = None
        if segment.sealed and (following > covered or (origin + last >= size and following < covered)):
            return None
        if not self.keeps:
            self.segments.done(segment)
        position: cython.longlong = origin + first if file is None else -1
        return batches[first:last], following, origin + last >= size, special, position
