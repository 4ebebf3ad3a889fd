"""The device below `FaultyStorage`: files and names as all processes see them, as the device has them, and between.

The model is described in the docstring of `disk`; nothing here crashes or fails by itself.

Every change goes through `Device.step`, one for each system call that `FileDirectory` would make and that changes
something: not for truncating a file to its current size.
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
    """One change of the disk that is about to happen: a system call of `FileDirectory` that writes."""

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
    """Which file's next write goes elsewhere, and where."""

    names: str
    into: File | None
    shift_bytes: int


class Device:
    """What all directories of one disk share."""

    def __init__(self, capacity_bytes: int | None) -> None:
        self.lock = threading.RLock()
        self.steps = 0
        self.capacity_bytes = capacity_bytes
        self.watch: Callable[[Step], None] | None = None
        self.misdirection: Misdirection | None = None
        self.root = Folder(self, "disk:")

    def step(self, call: str, path: str) -> None:
        """Called before each change."""
        self.steps += 1
        if self.watch is not None:
            self.watch(Step(self.steps, call, path))

    def room(self, wanted: int) -> int:
        """How many of these bytes the disk accepts."""
        if self.capacity_bytes is None:
            return wanted
        used = sum(node.size for _, node in walk(self.root) if isinstance(node, File))
        return max(0, min(wanted, self.capacity_bytes - used))

    def led_astray(self, path: str, position: int) -> tuple[File, int] | None:
        """Where a write goes instead."""
        found = self.misdirection
        if found is None or not fnmatchcase(path, f"*/{found.names}"):
            return None
        self.misdirection = None
        folder, name = locate(self.root, path.removeprefix(f"{self.root.path}/"))
        target = folder.find(name) if found.into is None else found.into
        return target, max(0, position + found.shift_bytes)
