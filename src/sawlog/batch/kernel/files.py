"""The end of a file that grows: what `sawlog.storage` knows of it, and the one call by which an append writes there.

The only unit that touches the operating system, and only through a descriptor that `sawlog.storage` has opened and
owns: encoding, placing and writing a record in one call of the kernel needs all three in one module (ADR 19). Whether a
write succeeded is all that is known here; what to do if it did not is the ordinary append's business.

Also a file that is mapped, for those who read it.
"""

import os

from sawlog.batch.cyshim import cython

if cython.compiled:
    from cython.cimports.posix.unistd import pwrite

#: What `os.pwrite` is. Where somebody has replaced it, to record or to fail calls, the replacement is called.
_SYSTEMS_OWN = os.pwrite


@cython.cclass
class DescriptorFields:
    """Of `storage.handle.Handle`, which closes it."""

    #: -1 when it is closed, and before it is set: an interrupt may stop a constructor.
    fd = cython.declare(cython.int, visibility="public")

    def __cinit__(self):
        self.fd = -1


if not cython.compiled:
    DescriptorFields.fd = -1


@cython.cclass
class MappedFields:
    """Of `storage.mapped.MappedStorage` and `storage.file.FileStorage`: a file, or its beginning, in memory."""

    __dict__: dict
    __weakref__: object
    #: The first bytes of the file, or None; for Python and for the kernel.
    mapping = cython.declare(object, visibility="readonly")
    mapped: cython.const[cython.uchar][::1]

    def use_mapping(self, view: object) -> object:
        """From now on the first bytes of the file are in this buffer, or (None) in none."""
        self.mapping = None
        self.mapped = view
        self.mapping = view
        return None


@cython.cclass
class FileFields(MappedFields):
    """Of `storage.file.FileStorage`, which says what they mean."""

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
    """Write the first `size` bytes of a buffer, which is given twice, and return how many were written; less than 0 if
    that failed. Other threads run meanwhile, but no signal handler."""
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
