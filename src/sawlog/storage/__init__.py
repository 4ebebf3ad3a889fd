"""Byte storage: files, mapped files and memory behind one small interface.

A `Storage` is an append-only sequence of bytes; a `Directory` creates, opens, replaces and deletes storages by name.
Everything above works with any pair that fulfils the contract in `interface.py`; `sawlog.testing` has a conformance
suite for it. Only this package talks to the operating system.
"""

from .file import FileDirectory, FileStorage
from .interface import Directory, Lock, Published, Storage
from .locks import SharedFileLock
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
    "SharedFileLock",
    "Storage",
    "open_published",
]
