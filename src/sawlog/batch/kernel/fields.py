"""Fields of the objects of a log that one call of the kernel uses: an append (`placing`), a read or a page (`lookup`).

The classes of `sawlog.log` derive from these, give the fields their values and say what they mean. Compiled, they are C
fields, which this module finds without looking up a name; interpreted, they are ordinary attributes. A field that is
changed here is changed under the lock, and in the order, that its class asks for.

Python finds the other attributes of a class with a base in C slowly, unless they are in `__slots__` (measured in 3.11:
20 ns instead of 3). `__dict__` is for any others.
"""

from sawlog.batch.cyshim import cython

if not cython.compiled:
    from .slots import Slots
    from .sparse import SparseIndex


@cython.cclass
class LookupFields:
    """Of `log.segment.lookup.Lookup`: an open segment."""

    storage = cython.declare(object, visibility="public")
    index = cython.declare(SparseIndex, visibility="public")
    _large = cython.declare(bytearray, visibility="public")
    _small = cython.declare(bytearray, visibility="public")
    _firsts = cython.declare(object, visibility="public")
    _landmarks = cython.declare(dict, visibility="public")
    _step = cython.declare(cython.longlong, visibility="public")


@cython.cclass
class ExtentFields:
    """Of `log.segment.extent.Extent`: what a segment covers."""

    __dict__: dict
    __weakref__: object
    base_offset = cython.declare(object, visibility="public")
    tail = cython.declare(tuple, visibility="public")
    sealed = cython.declare(cython.bint, visibility="public")
    dense = cython.declare(cython.bint, visibility="public")
    _open = cython.declare(LookupFields, visibility="public")


@cython.cclass
class SegmentSetFields:
    """Of `log.segment.segments.SegmentSet`."""

    __dict__: dict
    __weakref__: object
    lowest_offset = cython.declare(object, visibility="public")
    visible_offset = cython.declare(object, visibility="public")
    unsettled = cython.declare(cython.bint, visibility="public")
    _list = cython.declare(tuple, visibility="public")
    _newest = cython.declare(object, visibility="public")
    waiting = cython.declare(cython.longlong, visibility="public")


@cython.cclass
class VisibleFields:
    """Of `log.write.visible.VisibleEnd`: where the visible end is published, if that is a mapped file."""

    __dict__: dict
    __weakref__: object
    slots = cython.declare(Slots, visibility="public")


@cython.cclass
class MarksFields:
    """Of `log.write.marks.Marks`: the ends of a log."""

    __dict__: dict
    __weakref__: object
    written = cython.declare(tuple, visibility="public")
    synced = cython.declare(tuple, visibility="public")
    epoch = cython.declare(cython.longlong, visibility="public")


@cython.cclass
class CommitFields:
    """Of `log.write.commit.GroupCommit`."""

    __dict__: dict
    __weakref__: object
    failure = cython.declare(object, visibility="public")


@cython.cclass
class OpenAppendsFields:
    """Of `log.write.appending.OpenAppends`."""

    __dict__: dict
    __weakref__: object
    current = cython.declare(object, visibility="public")


@cython.cclass
class ActiveFields:
    """Of `log.write.active.Active`: the segment that is written to."""

    __dict__: dict
    __weakref__: object
    segment = cython.declare(ExtentFields, visibility="public")
    cut_unsynced = cython.declare(cython.bint, visibility="public")
    _roomy = cython.declare(tuple, visibility="public")


@cython.cclass
class AppenderFields:
    """Of `log.write.appender.Appender`."""

    __dict__: dict
    __weakref__: object
    closed = cython.declare(cython.bint, visibility="public")
    _unfinished = cython.declare(object, visibility="public")
