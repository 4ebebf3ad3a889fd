"""File contents on the simulated disk: the cached bytes that processes see, the bytes on the device, pending writes.

`disk` decides which pending writes reach the device.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..storage.interface import Buffer

_LEAST_BUFFER_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Write:
    """A pending write. Without data it is a truncation: the file ends at `position`."""

    number: int
    position: int
    data: bytes | None
    #: Where the device stores the bytes instead, if misdirected.
    astray: tuple[File, int] | None = None

    def apply(self, content: bytearray, start: int = 0, end: int = 1 << 62) -> None:
        """Apply the part of this write between two positions to `content`."""
        if self.data is None:
            if len(content) > self.position:
                content[max(self.position, start) : min(len(content), end)] = bytes(
                    max(0, min(len(content), end) - max(self.position, start))
                )
            return
        first, last = max(self.position, start), min(self.position + len(self.data), end)
        if first < last:
            if len(content) < last:
                content.extend(bytes(last - len(content)))
            content[first:last] = self.data[first - self.position : last - self.position]

    def size_after(self, size: int) -> int:
        """Return the size of the file after this write."""
        return self.position if self.data is None else max(size, self.position + len(self.data))


class File:
    """The contents of a file: cached bytes, bytes on the device, and pending writes."""

    __slots__ = ("buffer", "differs", "durable", "pending", "size")

    def __init__(self, content: Buffer = b"") -> None:
        #: As in `MemoryStorage`: replaced when it grows or is truncated, so that views stay valid.
        self.buffer = bytearray(content)
        self.size = len(content)
        self.durable = bytearray(content)
        self.pending: list[Write] = []
        #: Set if the cache and the device differ for good: a write was lost or misdirected.
        self.differs = False

    def write(self, write: Write) -> None:
        assert write.data is not None
        end = write.position + len(write.data)
        if end > len(self.buffer):
            grown = bytearray(max(end, 2 * len(self.buffer), _LEAST_BUFFER_BYTES))
            grown[: self.size] = memoryview(self.buffer)[: self.size]
            self.buffer = grown
        self.buffer[write.position : end] = write.data
        self.size = max(self.size, end)
        self.pending.append(write)

    def cut(self, write: Write) -> None:
        kept = bytearray(max(write.position, _LEAST_BUFFER_BYTES))
        kept[: min(write.position, self.size)] = memoryview(self.buffer)[: min(write.position, self.size)]
        self.buffer, self.size = kept, write.position
        self.pending.append(write)

    def settle(self) -> None:
        """Apply all pending writes to the device, as fsync does."""
        for write in self.pending:
            if write.astray is not None:
                other, position = write.astray
                Write(write.number, position, write.data).apply(other.durable)
                self.differs = other.differs = True
                continue
            write.apply(self.durable)
            set_size(self.durable, write.size_after(len(self.durable)))
        self.pending.clear()

    def lose(self) -> None:
        """Discard all pending writes, as a failed fsync does."""
        self.differs = self.differs or bool(self.pending)
        self.pending.clear()


def set_size(content: bytearray, size: int) -> None:
    if len(content) > size:
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))
