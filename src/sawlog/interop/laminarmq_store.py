"""laminarmq's stores without their index: finds where records begin by the metadata at their start.

A store has no frames, but the metadata contains the record's index, which is the previous one plus one. So if the
beginning of record 57 is known, it ends where `[metadata length][metadata with index 58]` begins: at least nine bytes
that are known in advance. The end of the last record in a store cannot be found this way, and the record may be torn.
If the expected bytes occur in several places (a value may contain anything), the boundary between the two records is
unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

#: Returns the index in the metadata of a record, or None if it has none; `ValueError` if it cannot be decoded.
Decoder = Callable[[bytes], int | None]

_LENGTH_BYTES = 4


class Heads(Protocol):
    """What records begin with: the length of the metadata, and the metadata."""

    #: Its size in bytes.
    size: int

    def find(self, data: bytes, index: int, start: int, end: int | None = None) -> int:
        """Where, from `start` to `end`, the record with that index begins; -1 if it does not."""


class PlainHeads:
    """Those of `MetaWithIdx<(), u32>` and `<(), u64>`."""

    def __init__(self, width: int) -> None:
        self._width = width
        self.size = _LENGTH_BYTES + 1 + width

    def find(self, data: bytes, index: int, start: int, end: int | None = None) -> int:
        """All bytes of the prefix are known in advance."""
        if index >= 1 << (8 * self._width):
            return -1
        head = (1 + self._width).to_bytes(_LENGTH_BYTES, "little") + b"\1" + index.to_bytes(self._width, "little")
        return data.find(head, start, len(data) if end is None else end)


class DecodedHeads:
    """The prefix of other metadata, of one length, that the decoder understands."""

    def __init__(self, metadata_bytes: int, decoder: Decoder) -> None:
        self._decoder = decoder
        self._length = metadata_bytes.to_bytes(_LENGTH_BYTES, "little")
        self.size = _LENGTH_BYTES + metadata_bytes

    def find(self, data: bytes, index: int, start: int, end: int | None = None) -> int:
        """The decoder is called wherever the length occurs."""
        last = len(data) if end is None else end
        at = data.find(self._length, start, last)
        while 0 <= at <= last - self.size:
            if decoded(self._decoder, data[at + _LENGTH_BYTES : at + self.size]) == index:
                return at
            at = data.find(self._length, at + 1, last)
        return -1


def decoded(decoder: Decoder, metadata: bytes) -> int | None:
    """The result of a decoder, -1 if it does not understand the metadata."""
    try:
        return decoder(metadata)
    except (ValueError, LookupError, ArithmeticError):
        return -1


def heads_at(data: bytes, index: int, decoder: Decoder | None) -> Heads | None:
    """The prefix of the record that these bytes begin with, if it has that index."""
    size = int.from_bytes(data[:_LENGTH_BYTES], "little")
    made: Heads | None = None
    if decoder is not None:
        made = DecodedHeads(size, decoder) if 0 < size <= len(data) - _LENGTH_BYTES else None
    elif size in (5, 9):
        made = PlainHeads(size - 1)
    return made if made is not None and made.find(data, index, 0, made.size) == 0 else None


@dataclass(frozen=True, slots=True)
class Stretch:
    """What was found at the beginning of some bytes: where records begin, and how much of that is certain."""

    #: Where complete records begin, and where the last of them ends.
    bounds: tuple[int, ...]
    #: If there are none: the end of the two records whose boundary is unknown; None if that is not the reason.
    unclear: int | None = None


def stretch(data: bytes, index: int, heads: Heads, *, final: bool) -> Stretch | None:
    """The complete records that these bytes begin with, the first of which has that index; None if more bytes are
    needed.

    `final` means that nothing follows in the store: then the last record is the rest.
    """
    bounds = [0]
    while (at := heads.find(data, index + len(bounds), bounds[-1] + heads.size)) >= 0:
        bounds.append(at)
    known = len(bounds) if final else len(bounds) - 1  # how many have only one possible boundary
    sure = 1
    while sure < known:
        end = bounds[sure + 1] if sure + 1 < len(bounds) else len(data)
        if heads.find(data, index + sure, bounds[sure] + 1, end) >= 0:
            break
        sure += 1
    if sure == 1 and known > 1:
        return Stretch((), bounds[2] if len(bounds) > 2 else len(data))
    return Stretch(tuple(bounds[:sure])) if sure > 1 or final else None
