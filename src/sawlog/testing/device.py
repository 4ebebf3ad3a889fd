"""The device below `FaultyStorage`: the change counter, the capacity, and misdirected writes.

The module docstring of `disk` describes the model; nothing here crashes or fails by itself.

Every change goes through `Device.step`: one step for each system call of `FileDirectory` that changes something.
Truncating a file to its current size is not a step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .content import File, Write, set_size
from .folder import Folder, NameChange, Node, locate, walk

__all__ = [
    "Device",
    "File",
    "Folder",
    "Misdirection",
    "NameChange",
    "Node",
    "Step",
    "Write",
    "locate",
    "set_size",
    "walk",
]


@dataclass(frozen=True, slots=True)
class Step:
    """A disk change that is about to happen: a system call of `FileDirectory` that writes."""

    #: Counted from 1.
    number: int
    #: "create", "write", "truncate", "sync", "rename", "remove", "mkdir", "rmdir" or "move"
    call: str
    #: The file or directory.
    path: str

    def __str__(self) -> str:
        return f"{self.number} {self.call} {self.path}"


@dataclass(frozen=True, slots=True)
class Misdirection:
    """A pending misdirection: the file whose next write goes elsewhere, and the target."""

    names: str
    into: File | None
    shift_bytes: int


class Device:
    """State that all directories of one disk share."""

    def __init__(self, capacity_bytes: int | None) -> None:
        self.lock = threading.RLock()
        self.steps = 0
        self.capacity_bytes = capacity_bytes
        self.watch: Callable[[Step], None] | None = None
        self.misdirection: Misdirection | None = None
        self.root = Folder(self, "disk:")

    def step(self, call: str, path: str) -> None:
        """Count a change that is about to happen, and call `watch`."""
        self.steps += 1
        if self.watch is not None:
            self.watch(Step(self.steps, call, path))

    def room(self, wanted: int) -> int:
        """Return how many of these bytes the disk accepts."""
        if self.capacity_bytes is None:
            return wanted
        used = sum(node.size for _, node in walk(self.root) if isinstance(node, File))
        return max(0, min(wanted, self.capacity_bytes - used))

    def misdirected_to(self, path: str, position: int) -> tuple[File, int] | None:
        """Return the target of a misdirected write, if it is one."""
        found = self.misdirection
        if found is None or not fnmatchcase(path, f"*/{found.names}"):
            return None
        self.misdirection = None
        folder, name = locate(self.root, path.removeprefix(f"{self.root.path}/"))
        target = folder.find(name) if found.into is None else found.into
        return target, max(0, position + found.shift_bytes)
