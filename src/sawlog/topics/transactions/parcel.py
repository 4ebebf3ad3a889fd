"""`Parcel`: finished batches for one partition, gathered until they are written elsewhere or committed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from ...batch.build import Encoded
from ...storage.interface import Buffer
from .intent import Piece


class OwnFile(Protocol):
    """A staged file for the batches of one partition."""

    @property
    def size_bytes(self) -> int:
        """How many bytes were written to it, if more can be."""

    def write(self, batches: Buffer) -> Piece:
        """Append finished batches."""


class Parcel:
    """Batches in memory, and where those are that were moved. For one thread at a time."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._size_bytes = 0
        self._held_count = 0
        self._pieces: list[Piece] = []
        self._count = 0

    def add(self, batch: Encoded) -> None:
        """Add a finished batch. It is copied: its buffer is used again."""
        self._held.append(bytes(batch.data))
        self._size_bytes += len(batch.data)
        self._count += batch.count
        self._held_count += batch.count

    def move(self, write: Callable[[bytes], Piece]) -> None:
        """Move everything in memory elsewhere; `write` returns where it is."""
        if self._held:
            self._pieces.append(write(b"".join(self._held)))
            self._held, self._size_bytes, self._held_count = [], 0, 0

    def move_alone(self, file: OwnFile) -> None:
        """Move everything in memory to a file that contains nothing else."""
        if not self._held:
            return
        count, made = self._held_count, file.write(b"".join(self._held))
        if made.position:
            before = self._pieces.pop()
            count, made = count + before.count, before.joined(made)
        self._pieces.append(replace(made, count=count))
        self._held, self._size_bytes, self._held_count = [], 0, 0

    @property
    def count(self) -> int:
        """The number of records."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """How many bytes are in memory."""
        return self._size_bytes

    @property
    def data(self) -> bytes:
        """What is in memory."""
        return b"".join(self._held)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Where the rest is."""
        return tuple(self._pieces)
