"""Fields of a log's objects that the kernel uses within one call: an append (`placing`), a read or a page (`lookup`).

The classes of `sawlog.log` derive from these classes, set the fields and document them. Compiled, they are C fields,
which the kernel reads without an attribute lookup; interpreted, they are ordinary attributes. The kernel changes a
field only under the lock, and in the order, that its class requires.

Python looks up the other attributes of a class with a C base slowly unless they are in `__slots__` (measured in 3.11:
20 ns instead of 3). `__dict__` is for any others.
"""

from sawlog.batch.cyshim import cython

if not cython.compiled:
    from .slots import Slots
    from .sparse import SparseIndex


@cython.cclass
class LookupFields:
    """Fields of `log.index.Lookup`, an open segment."""

    storage = cython.declare(object, visibility="public")
    index = cython.declare(SparseIndex, visibility="public")
    _large = cython.declare(bytearray, visibility="public")
    _small = cython.declare(bytearray, visibility="public")
    _firsts = cython.declare(object, visibility="public")
    _landmarks = cython.declare(dict, visibility="public")
    _step = cython.declare(cython.longlong, visibility="public")


@cython.cclass
class ExtentFields:
    """Fields of `log.batches.Extent`: the offsets and bytes that a segment covers."""

    __dict__: dict
    __weakref__: object
    base_offset = cython.declare(object, visibility="public")
    tail = cython.declare(tuple, visibility="public")
    sealed = cython.declare(cython.bint, visibility="public")
    dense = cython.declare(cython.bint, visibility="public")
    _open = cython.declare(LookupFields, visibility="public")


@cython.cclass
class SegmentSetFields:
    """Fields of `log.segments.SegmentSet`."""

    __dict__: dict
    __weakref__: object
    lowest_offset = cython.declare(object, visibility="public")
    visible_offset = cython.declare(object, visibility="public")
    maybe_undecided = cython.declare(cython.bint, visibility="public")
    _list = cython.declare(tuple, visibility="public")
    _newest = cython.declare(object, visibility="public")
    waiting = cython.declare(cython.longlong, visibility="public")


@cython.cclass
class DurabilityFields:
    """Fields of `log.durability.Durability`: the ends of a log, which every append moves and publishes."""

    __dict__: dict
    __weakref__: object
    written = cython.declare(tuple, visibility="public")
    synced = cython.declare(tuple, visibility="public")
    epoch = cython.declare(cython.longlong, visibility="public")
    failure = cython.declare(object, visibility="public")
    publishes_written = cython.declare(cython.bint, visibility="public")
    _segments = cython.declare(SegmentSetFields, visibility="public")
    #: The mapped file that publishes the visible offset; if None, `_store` publishes it.
    _slots = cython.declare(Slots, visibility="public")
    _store = cython.declare(object, visibility="public")

    def advance(self, written: tuple) -> object:
        """Record the end of a complete append."""
        self.move_written(written)

    @cython.cfunc
    def move_written(self, written: tuple) -> object:
        """As `advance`, for a call from the kernel."""
        self.written = written
        if self.publishes_written:
            self.show(written[0])
        return None

    def _publish(self, offset: object) -> object:
        """Make the records below `offset` visible to all readers, together with the leader epoch."""
        self.show(offset)

    @cython.cfunc
    def show(self, offset: object) -> object:
        """As `_publish`, for a call from the kernel."""
        segments: SegmentSetFields = self._segments
        slots: Slots = self._slots
        segments.visible_offset = offset
        if slots is not None:
            slots.put(offset, self.epoch)
        else:
            self._store(offset, self.epoch)
        if segments.waiting:
            readers: object = segments
            readers.wake()
        return None


@cython.cclass
class ActiveSegmentFields:
    """Fields of `log.active_segment.ActiveSegment`."""

    __dict__: dict
    __weakref__: object
    segment = cython.declare(ExtentFields, visibility="public")
    unfinished = cython.declare(object, visibility="public")
    _room = cython.declare(tuple, visibility="public")


@cython.cclass
class AppenderFields:
    """Fields of `log.appender.Appender`."""

    __dict__: dict
    __weakref__: object
    closed = cython.declare(cython.bint, visibility="public")
    block = cython.declare(object, visibility="public")
