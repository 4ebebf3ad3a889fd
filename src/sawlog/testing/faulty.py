"""`FaultyDirectory`: a directory whose calls fail on demand, for tests of code that builds on a log.

```python
directory = FaultyDirectory(MemoryDirectory())
log = Log.open(directory)
directory.arm(Fault(operations={"sync"}, names="*.log"))      # the next fsync of a segment fails with EIO
```

It passes every call to the wrapped directory, records it in `calls`, and fails the calls that match an armed `Fault`.
The fault model:

- A call fails with an errno of your choice, as the error that the real storages raise for it:
  `SyncFailed` from `sync`, `StorageFull` for a full disk, `StorageError` for the rest.
- It fails *once* (then the device works again) or *forever* (every later matching call fails too).
- You choose what reached the device before the error: *nothing*; *part* of the bytes of an `append` (as on a full
  disk: a short write, then the error), which are then rolled back, or not (the error says `torn`); or *all* of it
  (renamed, removed, replaced or created; only the report of success was lost). A `create` or `replace` that fails
  after everything was done is one whose last step failed, the fsync of the directory: that is `SyncFailed`.
- A failed `sync` makes nothing durable and, as on Linux, the next one reports success. Check `calls` to detect a log
  that retries; there is no second error.

Not in this model: power cuts (unsynced bytes are kept), bit rot, misdirected writes, and calls that never return.
Closing handles and reading the size of an open storage cannot fail.

Threads: as safe as the wrapped directory; a lock protects the call counter and the decision to fail.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from errno import EIO
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from ..errors import StorageError, SyncFailed
from ..storage import Directory, Storage
from ..storage.interface import Buffer
from ..storage.system import storage_error

P = ParamSpec("P")
T = TypeVar("T")

#: Calls that change something, so that "all" differs from "nothing".
_CHANGES = frozenset(
    {"append", "create", "make_child", "move", "remove", "remove_child", "rename", "replace", "truncate", "write_at"}
)
_LOOKS = frozenset(
    {
        *("child", "children", "exists", "identity", "names", "open", "open_sealed", "open_shared"),
        *("published", "read", "size", "view"),
    }
)
#: Calls that can fail. Calls on a directory as a whole (`names`, `sync`, `dispose`) have the empty name.
OPERATIONS = _CHANGES | _LOOKS | {"claim", "dispose", "lock", "sync"}
#: For these, "all" means that the last step failed, the fsync of the directory.
_END_IN_SYNC = frozenset({"create", "make_child", "replace"})


@dataclass(frozen=True, slots=True)
class Call:
    """A recorded call: the method, and the file's name ("" for the directory itself)."""

    operation: str
    name: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: the call that fails, how, and how often."""

    #: Number of the matching call that fails, counted from now; 1 is the next one.
    number: int = 1
    #: The errno of the error.
    errno: int = EIO
    #: Methods that match; None is all of `OPERATIONS`.
    operations: Collection[str] | None = None
    #: Shell pattern of the names that match.
    names: str = "*"
    #: Fail every later matching call as well.
    forever: bool = False
    #: How much of the call takes effect. "part" is for `append`; other calls then do nothing.
    effect: Literal["nothing", "part", "all"] = "part"
    #: Whether the part of an `append` that was written can be rolled back.
    undo: bool = True

    def __post_init__(self) -> None:
        if unknown := set(self.operations or ()) - OPERATIONS:
            raise ValueError(f"unknown operation {sorted(unknown)}; use some of {sorted(OPERATIONS)}")
        if self.number < 1:
            raise ValueError(f"calls are counted from 1, not from {self.number}")

    def matches(self, call: Call) -> bool:
        return (self.operations is None or call.operation in self.operations) and fnmatchcase(call.name, self.names)

    def error(self, call: Call, path: str) -> StorageError:
        """Return the error that the real storages would raise."""
        if call.operation == "sync" or (call.operation in _END_IN_SYNC and self.effect == "all"):
            return SyncFailed(self.errno, f"injected: {os.strerror(self.errno)} while syncing {path}")
        cause = OSError(self.errno, f"injected: {os.strerror(self.errno)}")
        made = storage_error(cause, call.operation, path)
        made.__cause__ = cause
        return made


def _forwarded(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that makes the same call of `inner`, or fails. It records the name of the storage, or, for a
    directory, the first argument."""
    operation = method.__name__

    def forward(self: Any, /, *arguments: P.args, **keywords: P.kwargs) -> T:
        top: FaultyDirectory = self.directory if isinstance(self, FaultyFile) else self
        name = self.name if isinstance(self, FaultyFile) else str(arguments[0]) if arguments else ""
        call: Callable[[], T] = partial(getattr(self.inner, operation), *arguments, **keywords)
        return top.perform(operation, name, call)

    return forward


class FaultyDirectory:
    """A directory that passes calls to another one and fails on demand."""

    def __init__(self, inner: Directory) -> None:
        self.inner = inner
        self.path = inner.path
        #: Prefix of names in `calls`: "name/" for a child, "name/other/" for its child.
        self.prefix = ""
        #: The topmost directory, which records calls and holds the fault for all directories below it.
        self.top = self
        #: Every call so far, oldest first, including failed ones.
        self.calls: list[Call] = []
        #: Indexes in `calls` of the calls that were failed.
        self.failed: list[int] = []
        #: Callback before each call, without a lock held: it may wait, inspect, or raise another error.
        self.before: Callable[[Call], None] | None = None
        self._fault: Fault | None = None
        self._matched = 0
        self._lock = threading.Lock()

    def arm(self, fault: Fault) -> None:
        """Count matching calls from now on, and fail as specified. Replaces an earlier fault."""
        with self._lock:
            self._fault, self._matched = fault, 0

    def disarm(self) -> None:
        with self._lock:
            self._fault = None

    def _enter(self, operation: str, name: str) -> tuple[Fault, StorageError] | None:
        """Record a call and return the fault for it, if any."""
        if self.top is not self:
            return self.top._enter(operation, self.prefix + name)
        call = Call(operation, name)
        if self.before is not None:
            self.before(call)
        with self._lock:
            self.calls.append(call)
            fault = self._fault
            if fault is None or not fault.matches(call):
                return None
            self._matched += 1
            if self._matched < fault.number or (self._matched > fault.number and not fault.forever):
                return None
            self.failed.append(len(self.calls) - 1)
        return fault, fault.error(call, f"{self.path}/{name}" if name else self.path)

    def perform(self, operation: str, name: str, call: Callable[[], T], failed: Callable[[], None] | None = None) -> T:
        """Execute a call, or fail it before or after it takes effect; `failed` notifies the storage."""
        failing = self._enter(operation, name)
        if failing is None:
            return call()
        fault, error = failing
        if fault.effect == "all" and operation in _CHANGES:
            with self._failing_at_the_end(operation):
                call()
        elif failed is not None:
            failed()
        raise error

    def _failing_at_the_end(self, operation: str) -> AbstractContextManager[None]:
        """On a simulated disk, keep name changes pending during a call whose last step, the directory fsync, fails."""
        doubting: Callable[[], AbstractContextManager[None]] = getattr(self.inner, "doubting", nullcontext)
        return doubting() if operation in _END_IN_SYNC else nullcontext()

    def perform_append(self, storage: Storage, data: Buffer) -> int:
        """Append, possibly stopping halfway, with or without a rollback."""
        failing = self._enter("append", storage.name)
        if failing is None:
            return storage.append(data)
        fault, error = failing
        position = storage.size
        reached = {"nothing": 0, "part": len(data) // 2, "all": len(data)}[fault.effect]
        if reached:
            storage.append(memoryview(data)[:reached])
            if fault.undo:
                storage.truncate(position)
            error.torn = not fault.undo
        raise error

    # --- the directory's calls

    names = _forwarded(Directory.names)
    children = _forwarded(Directory.children)
    remove_child = _forwarded(Directory.remove_child)
    exists = _forwarded(Directory.exists)
    size = _forwarded(Directory.size)
    identity = _forwarded(Directory.identity)
    read = _forwarded(Directory.read)
    replace = _forwarded(Directory.replace)
    #: Creating published numbers can fail; storing and loading them cannot.
    published = _forwarded(Directory.published)
    #: Recorded under the old name.
    rename = _forwarded(Directory.rename)
    remove = _forwarded(Directory.remove)
    lock = _forwarded(Directory.lock)
    dispose = _forwarded(Directory.dispose)

    def child(self, name: str, *, create: bool = False) -> Directory:
        """Return a child directory, whose calls are counted and failed here."""
        operation = "make_child" if create and name not in self.inner.children() else "child"
        made = FaultyDirectory(self.perform(operation, name, lambda: self.inner.child(name, create=create)))
        made.prefix, made.top = f"{self.prefix}{name}/", self.top
        return made

    def move(self, name: str, target: Directory, new: str) -> None:
        inner = target.inner if isinstance(target, FaultyDirectory) else target
        self.perform("move", name, lambda: self.inner.move(name, inner, new))

    def link(self, name: str, target: Directory, new: str) -> None:
        inner = target.inner if isinstance(target, FaultyDirectory) else target
        self.perform("link", name, lambda: self.inner.link(name, inner, new))

    def stamp(self) -> object:
        """Return None, so that every check is a real call that can fail."""
        return None

    def create(self, name: str) -> Storage:
        """Create a storage. One that fails after taking effect exists and is closed."""
        made: list[Storage] = []
        try:
            self.perform("create", name, lambda: made.append(self.inner.create(name)))
        except BaseException:
            for storage in made:
                storage.close()
            raise
        return FaultyFile(self, made[0])

    def open(self, name: str) -> Storage:
        return FaultyFile(self, self.perform("open", name, lambda: self.inner.open(name)))

    def open_shared(self, name: str) -> Storage:
        return FaultyFile(self, self.perform("open_shared", name, lambda: self.inner.open_shared(name)))

    def open_sealed(self, name: str) -> Storage:
        return FaultyFile(self, self.perform("open_sealed", name, lambda: self.inner.open_sealed(name)))

    def sync(self) -> None:
        self.perform("sync", "", self.inner.sync, getattr(self.inner, "sync_failed", None))

    def close(self) -> None:
        """Give up the handle; cannot fail."""
        self.inner.close()


class FaultyFile:
    """A storage of a `FaultyDirectory`."""

    def __init__(self, directory: FaultyDirectory, inner: Storage) -> None:
        self.name = inner.name
        self.views_are_free = bool(getattr(inner, "views_are_free", False))
        self.inner = inner
        self.directory = directory

    @property
    def size(self) -> int:
        return self.inner.size

    def append(self, data: Buffer) -> int:
        return self.directory.perform_append(self.inner, data)

    write_at = _forwarded(Storage.write_at)
    read = _forwarded(Storage.read)
    view = _forwarded(Storage.view)
    truncate = _forwarded(Storage.truncate)
    claim = _forwarded(Storage.claim)

    def sync(self) -> None:
        self.directory.perform("sync", self.name, self.inner.sync, getattr(self.inner, "sync_failed", None))

    def refresh(self) -> None:
        """Cannot fail."""
        self.inner.refresh()

    def reserve(self, size_bytes: int) -> None:
        """A hint; cannot fail."""
        self.inner.reserve(size_bytes)

    def release(self) -> None:
        """A hint; cannot fail."""
        self.inner.release()

    def forget(self, position: int, size: int) -> None:
        """A hint; cannot fail."""
        self.inner.forget(position, size)

    def close(self) -> None:
        """Give up the handle; cannot fail."""
        self.inner.close()

    def remove(self) -> None:
        self.inner.close()
        self.directory.remove(self.name)
