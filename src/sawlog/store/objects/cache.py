r"""`BlockCache`: a cache on the local disk for blocks of a bucket, shared by all processes of a user.

```
<cache>/<store id>/<first two digits>/<hash of key, position, digest and size>
    b"sawlog block 2\n", the CRC-32C of what follows, its length; key, position and digest; then the bytes of the object
```

A block is identified by its content, not only by its location. A bucket that was copied or rolled back to an earlier
version keeps the store id and the commit numbers, but holds other records. So the cache key includes the digest that
the commit recorded for the extent (`Extent.digest`), and a block of another history is a miss. A lookup sends no
request.

A hit proves that the bucket once returned these bytes for this extent, not that it still does. Callers that must know
what the bucket holds now bypass the cache: `sawlog verify`, restores, replication, tiering and maintenance.

A damaged block is a miss and is deleted. Disk errors are misses as well: the cache raises no errors of its own.

Files appear complete (`rename`), so processes share them without locks. The modification time of a file records its
last use. A process that has written a certain amount scans all files and deletes the least recently used until the
cache is nine tenths full. A process that loses a file to another one's scan has a miss.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...batch.checksum import crc32c
from ...clock import Deadline, wall_s
from ...storage.forking import forkable

#: Default size of the cache.
CACHE_BYTES = 1 << 30
_MAGIC = b"sawlog block 2\n"
_HEAD = struct.Struct(">IQ")
#: Minimum disk usage of a file.
_LEAST_BYTES = 4096
#: A process scans for files to evict after writing this fraction of the maximum, and evicts down to that fraction.
_LOOK_EVERY, _FILLED = 1 / 16, 0.9
#: A modification time younger than this is not refreshed, so that a hit does not usually write.
_FRESH_S = 60.0
#: Nothing is written for this long after a disk error.
_PAUSE_S = 30.0


class _File(NamedTuple):
    """A cached block on disk."""

    used_s: float
    size_bytes: int
    path: str


def default_path() -> Path | None:
    """Return the path below the user's cache directory, or None if the user has no home, as in some containers."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "sawlog" / "blocks"
    except RuntimeError:
        return None


class BlockCache:
    """The cached blocks of one store. Safe for threads and for any number of processes."""

    def __init__(self, path: str | os.PathLike[str], store_id: str, max_bytes: int = CACHE_BYTES) -> None:
        self._root = os.fspath(path)
        self._place = os.path.join(self._root, store_id)
        self._max_bytes = max_bytes
        self._lock = forkable(threading.Lock())
        #: Bytes written since the last scan. Starts at the maximum, because the usage is unknown.
        self._written_bytes = max_bytes
        self._paused = Deadline(0.0)
        self.hits = self.misses = 0

    def get(self, key: str, position: int, digest: str, size_bytes: int) -> memoryview | None:
        """Return a copy of a block, or None on a miss."""
        data = memoryview(np.empty(size_bytes, np.uint8))  # a bytearray would be filled with zeros first
        return data if self.load(key, position, digest, data) else None

    def load(self, key: str, position: int, digest: str, data: memoryview) -> bool:
        """Fill a buffer with a block. On a miss return False; the content of the buffer is undefined then."""
        name = _named(key, position, digest)
        is_here = False
        with suppress(OSError, ValueError):
            is_here = _load(self._path(name, len(data)), name, data)
        if is_here:
            self.hits += 1
        else:
            self.misses += 1
        return is_here

    def has(self, key: str, position: int, digest: str, size_bytes: int) -> bool:
        return os.path.exists(self._path(_named(key, position, digest), size_bytes))

    def put(self, key: str, position: int, digest: str, data: bytes | bytearray | memoryview) -> None:
        """Cache a block. Best effort: failures are ignored."""
        size = max(len(data), _LEAST_BYTES)
        if size > self._max_bytes * _LOOK_EVERY or not self._paused.passed:
            return
        name = _named(key, position, digest)
        try:
            self._store(self._path(name, len(data)), name, data)
        except OSError:
            self._paused = Deadline(_PAUSE_S)
        with self._lock:
            self._written_bytes += size
            if self._written_bytes < self._max_bytes * _LOOK_EVERY:
                return
            self._written_bytes = 0
        self._make_room()

    def _path(self, name: bytes, size_bytes: int) -> str:
        hashed = hashlib.blake2b(b"%d " % size_bytes + name, digest_size=16).hexdigest()
        return f"{self._place}{os.sep}{hashed[:2]}{os.sep}{hashed[2:]}"

    def _store(self, path: str, name: bytes, data: bytes | bytearray | memoryview) -> None:
        folder = os.path.dirname(path)
        try:
            handle, temporary = tempfile.mkstemp(prefix=".", dir=folder)
        except FileNotFoundError:
            os.makedirs(self._root, mode=0o700, exist_ok=True)
            os.makedirs(folder, mode=0o700, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".", dir=folder)
        try:
            head = _MAGIC + _HEAD.pack(crc32c(data, crc32c(name)), len(data)) + name
            with os.fdopen(handle, "wb", buffering=0) as file:
                if file.write(head) != len(head) or file.write(data) != len(data):
                    raise OSError("not everything was written")
            os.rename(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    # --- eviction

    def _make_room(self) -> None:
        """Evict the least recently used blocks of all stores."""
        with suppress(OSError):
            files = sorted(_files(self._root))
            total = sum(each.size_bytes for each in files)
            if total <= self._max_bytes * (1 - _LOOK_EVERY):
                return
            for each in files:
                if total <= self._max_bytes * _FILLED - self._max_bytes * _LOOK_EVERY:
                    return
                with suppress(FileNotFoundError):
                    os.unlink(each.path)
                total -= each.size_bytes


def _files(root: str) -> Iterator[_File]:
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            with suppress(FileNotFoundError):
                found = os.stat(path)
                yield _File(found.st_mtime, max(found.st_size, _LEAST_BYTES), path)


def _named(key: str, position: int, digest: str) -> bytes:
    return f"{key} {position} {digest}\n".encode()


def _load(path: str, name: bytes, data: memoryview) -> bool:
    """Read a file into the buffer and return whether it was valid; delete it if not.

    The file is read rather than mapped: a mapped file that is truncated or unreadable would kill the process.
    """
    begin = len(_MAGIC) + _HEAD.size + len(name)
    head = bytearray(begin + 1)  # one byte more than expected, to detect a longer file
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        whole = os.readv(file, [memoryview(head)[:begin], data, memoryview(head)[begin:]]) == begin + len(data)
        used_s = os.fstat(file).st_mtime
    finally:
        os.close(file)
    crc, size = _HEAD.unpack_from(head, len(_MAGIC))
    is_right = whole and head.startswith(_MAGIC) and head.endswith(name + b"\0") and size == len(data)
    if not is_right or crc32c(data, crc32c(name)) != crc:
        os.unlink(path)
        return False
    if wall_s() - used_s > _FRESH_S:
        os.utime(path)
    return True
