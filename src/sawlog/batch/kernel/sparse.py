"""The sparse index of a growing segment: `SparseIndex`, the part of `SegmentIndex` that every append and read uses."""

from array import array
from bisect import bisect_left

from sawlog.batch.cyshim import cython

if cython.compiled:
    from cython.cimports.cpython import array as carray


@cython.cclass
class SparseIndex:
    """Positions by offset and offsets by time, extended batch by batch. One thread adds, any number of threads look up.

    Readers search `offsets`, then read `positions`, so the latter is filled first; likewise `times` and `time_offsets`.
    """

    offsets = cython.declare(object, visibility="public")
    positions = cython.declare(object, visibility="public")
    times = cython.declare(object, visibility="public")
    time_offsets = cython.declare(object, visibility="public")
    #: The timestamp of the first batch, from which the segment's age is counted. -1 while empty.
    first_timestamp = cython.declare(cython.longlong, visibility="public")
    max_timestamp = cython.declare(cython.longlong, visibility="public")
    max_timestamp_offset = cython.declare(cython.longlong, visibility="public")
    base_offset = cython.declare(cython.longlong, visibility="readonly")
    interval_bytes = cython.declare(cython.longlong, visibility="readonly")
    #: Bytes since the last batch that has an entry.
    since_bytes = cython.declare(cython.longlong, visibility="public")

    def __init__(self, base_offset: cython.longlong, interval_bytes: cython.longlong):
        self.base_offset = base_offset
        self.interval_bytes = interval_bytes
        self.since_bytes = 0
        self.offsets = array("I")
        self.positions = array("I")
        self.times = array("q")
        self.time_offsets = array("I")
        self.first_timestamp = -1
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset

    def add(
        self,
        last_offset: cython.longlong,
        position: cython.longlong,
        size_bytes: cython.longlong,
        max_timestamp: cython.longlong,
    ):
        """Add one batch that was placed at `position`. Kafka's rule: it gets an entry if more than `interval_bytes`
        were added since the last batch that has one."""
        self.note(last_offset, position, size_bytes, max_timestamp)

    @cython.cfunc
    def note(
        self,
        last_offset: cython.longlong,
        position: cython.longlong,
        size_bytes: cython.longlong,
        max_timestamp: cython.longlong,
    ) -> object:
        """As `add`, for a call from the kernel."""
        if self.since_bytes > self.interval_bytes:
            # An interrupt between the two leaves one position too many, which must not displace the next one.
            del self.positions[len(self.offsets) :]
            self.positions.append(position)
            self.offsets.append(last_offset - self.base_offset)
            self.note_time()
            self.since_bytes = 0
        self.since_bytes += size_bytes
        if self.first_timestamp < 0:
            self.first_timestamp = max_timestamp
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        return None

    def enter_time(self) -> object:
        """Add the largest timestamp so far, unless it has an entry."""
        self.note_time()

    @cython.cfunc
    def note_time(self) -> object:
        """As `enter_time`, for a call from the kernel."""
        if self.max_timestamp >= 0 and (not self.times or self.max_timestamp > self.times[len(self.times) - 1]):
            del self.time_offsets[len(self.times) :]
            self.time_offsets.append(self.max_timestamp_offset - self.base_offset)
            self.times.append(self.max_timestamp)
        return None

    @cython.cfunc
    def find(
        self, offset: cython.longlong, end: cython.longlong
    ) -> tuple[cython.longlong, cython.longlong, cython.longlong]:
        """As `bounds`, for a call from the kernel."""
        wanted: cython.longlong = offset - self.base_offset
        if cython.compiled:
            offsets: carray.array = self.offsets
            positions: carray.array = self.positions
            count: cython.Py_ssize_t = min(len(offsets), len(positions))
            low: cython.Py_ssize_t = 0
            high: cython.Py_ssize_t = count
            middle: cython.Py_ssize_t
            while low < high:
                middle = (low + high) >> 1
                if offsets.data.as_uints[middle] < wanted:
                    low = middle + 1
                else:
                    high = middle
            if low + 1 < count:
                end = positions.data.as_uints[low + 1]
            if low < count and offsets.data.as_uints[low] == wanted:
                return positions.data.as_uints[low], end, offset
            if low == 0:
                return 0, end, -1
            return positions.data.as_uints[low - 1], end, self.base_offset + offsets.data.as_uints[low - 1]
        at = bisect_left(self.offsets, wanted)
        if at + 1 < len(self.offsets):
            end = self.positions[at + 1]
        if at < len(self.offsets) and self.offsets[at] == wanted:
            return self.positions[at], end, offset
        if at == 0:
            return 0, end, -1
        return self.positions[at - 1], end, self.base_offset + self.offsets[at - 1]

    def bounds(self, offset: cython.longlong, end: cython.longlong):
        """Return (from, to, check): the batch with `offset` is in this range of positions, at most up to `end`.
        `check` is the last offset that the batch at `from` must have if the index is right, or -1 if `from` is the
        segment's start."""
        return self.find(offset, end)
