"""Fields of objects that the kernel uses within one call: an append (`placing`), a read or a page (`lookup`).

The classes of `sawlog.log` and `sawlog.storage` derive from these classes, set the fields and document them. Compiled,
they are C fields, which the kernel reads without an attribute lookup; interpreted, they are ordinary attributes. The
kernel changes a field only under the lock, and in the order, that its class requires.

Python looks up the other attributes of a class with a C base slowly unless they are in `__slots__` (measured in 3.11:
20 ns instead of 3). `__dict__` is for any others.

`write_at` is the one system call by which an append writes: only this unit touches the operating system, and only
through a descriptor that `sawlog.storage` has opened and owns. Encoding, placing and writing a record in one call of
the kernel needs all three in one module (ADR 19). It reports whether a write succeeded; the general path of an append
handles failures.
"""

import os

from sawlog.batch.cyshim import cython

if cython.compiled:
    from cython.cimports.posix.unistd import pwrite
else:
    from .slots import Slots
    from .sparse import SparseIndex

#: The real `os.pwrite`. If a test has replaced it, to record calls or to make them fail, the replacement is called.
_SYSTEMS_OWN = os.pwrite


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


# --- files


@cython.cclass
class DescriptorFields:
    """Fields of `storage.system.Handle`, which closes the descriptor."""

    #: -1 before it is opened (an interrupt may stop a constructor) and after it is closed.
    fd = cython.declare(cython.int, visibility="public")

    def __cinit__(self):
        self.fd = -1


if not cython.compiled:
    DescriptorFields.fd = -1


@cython.cclass
class MappedFields:
    """Fields of `storage.mapped.MappedStorage` and `storage.file.FileStorage`: a mapped file, or its beginning."""

    __dict__: dict
    __weakref__: object
    #: First bytes of the file, or None: one view for Python, one for the kernel.
    mapping = cython.declare(object, visibility="readonly")
    mapped: cython.const[cython.uchar][::1]

    def use_mapping(self, view: object) -> object:
        """Use this buffer for the first bytes of the file; None for no mapping."""
        self.mapping = None
        self.mapped = view
        self.mapping = view
        return None


@cython.cclass
class FileFields(MappedFields):
    """Fields of `storage.file.FileStorage`, which documents them."""

    _handle = cython.declare(DescriptorFields, visibility="public")
    _size = cython.declare(cython.longlong, visibility="public")
    _reserved = cython.declare(cython.longlong, visibility="public")


@cython.cfunc
def write_at(
    file: FileFields,
    b: cython.uchar[::1],
    buffer: object,
    size: cython.Py_ssize_t,
    position: cython.longlong,
) -> cython.Py_ssize_t:
    """Write the first `size` bytes of a buffer, passed as `b` and `buffer`, and return the number of bytes written,
    below 0 on failure. Other threads run meanwhile, but no signal handler."""
    written: cython.Py_ssize_t
    if cython.compiled and os.pwrite is _SYSTEMS_OWN:
        fd: cython.int = file._handle.fd
        start: cython.p_uchar = cython.address(b[0])
        with cython.nogil:
            written = pwrite(fd, start, size, position)
        return written
    try:
        return os.pwrite(file._handle.fd, memoryview(buffer)[:size], position)
    except OSError:
        return -1
