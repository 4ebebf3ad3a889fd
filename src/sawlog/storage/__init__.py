"""Where bytes are stored: files, memory, mappings, all behind one small interface.

`Storage` is a sequence of bytes that grows at its end; `Directory` is where storages are created, found and replaced by
name. Everything above works with any pair that keeps the promises in `interface.py`; `sawlog.testing` has a test suite
for that. Only this package talks to the operating system.
"""

from .file import FileDirectory, FileStorage
from .interface import Directory, Lock, Published, Storage
from .locks import SharedHold
from .mapped import MappedStorage
from .memory import MemoryDirectory, MemoryStorage
from .published import open_published

__all__ = [
    "Directory",
    "FileDirectory",
    "FileStorage",
    "Lock",
    "MappedStorage",
    "MemoryDirectory",
    "MemoryStorage",
    "Published",
    "SharedHold",
    "Storage",
    "open_published",
]
