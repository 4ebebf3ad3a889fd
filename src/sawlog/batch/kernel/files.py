"""The end of a growing file, and the one system call by which an append writes there; also mapped files, for reading.

This is the only unit that touches the operating system, and only through a descriptor that `sawlog.storage` has opened
and owns: encoding, placing and writing a record in one call of the kernel needs all three in one module (ADR 19). It
reports whether a write succeeded; the general path of an append handles failures.
"""

import os

from sawlog.batch.cyshim import cython

if cython.compiled:
    from cython.cimports.posix.unistd import pwrite

#: The real `os.pwrite`. If a test has replaced it, to record calls or to make them fail, the replacement is called.
_SYSTEMS_OWN = os.pwrite


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
