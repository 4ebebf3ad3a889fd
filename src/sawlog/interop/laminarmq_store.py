"""laminarmq's stores without their index: where records begin, by the metadata that each begins with.

A store has no frames, but the metadata holds the record's index, which is the one before plus one. So where record 57
is known to begin, it ends where `[metadata length][metadata with index 58]` stands: nine bytes or more that are known
in advance. The last record of a store ends nowhere in that sense, and may be torn. If what should stand in one place
stands in several (a value may hold anything), nobody can say where the two records around it begin and end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

#: The index in the metadata of a record, or None if it has none; `ValueError` if it is not understood.
Decoder = Callable[[bytes], int | None]

_LENGTH_BYTES = 4


class Heads(Protocol):
    """What records begin with: the length of the metadata, and the metadata."""

    #: How many bytes that are.
    size: int

    def find(self, data: bytes, index: int, start: int, end: int | None = None) -> int:
        """Where, from `start` to `end`, the record with that index begins; -1 if it does not."""


class PlainHeads:
    """Those of `MetaWithIdx<(), u32>` and `<(), u64>`."""

    def __init__(self, width: int) -> None:
        self._width = width
        self.size = _LENGTH_BYTES + 1 + width

    def find(self, data: bytes, index: int, start: int, end: int | None = None) -> int:
        """All of its bytes are known."""
        if index >= 1 << (8 * self._width):
            return -1
        head = (1 + self._width).to_bytes(_LENGTH_BYTES, "little") + b"\1" + index.to_bytes(self._width, "little")
        return data.find(head, start, len(data) if end is None else end)


class DecodedHeads:
    """Those with other metadata, of one length, that somebody can decode."""

    def __init__(self, metadata_bytes: int, decoder: Decoder) -> None:
        self._decoder = decoder
        self._length = metadata_bytes.to_bytes(_LENGTH_BYTES, "little")
        self.size = _LENGTH_BYTES + metadata_bytes

    def find(self, data: bytes, index: int, start: int, end: int | None = None) -> int:
        """Wherever the length stands, the decoder is asked."""
        last = len(data) if end is None else end
        at = data.find(self._length, start, last)
        while 0 <= at <= last - self.size:
            if decoded(self._decoder, data[at + _LENGTH_BYTES : at + self.size]) == index:
                return at
            at = data.find(self._length, at + 1, last)
        return -1


def decoded(decoder: Decoder, metadata: bytes) -> int | None:
    """What a decoder makes of metadata, -1 if it does not understand it."""
    try:
        return decoder(metadata)
    except (ValueError, LookupError, ArithmeticError):
        return -1


def heads_at(data: bytes, index: int, decoder: Decoder | None) -> Heads | None:
    """How the record looks that these bytes begin with, if it has that index."""
    size = int.from_bytes(data[:_LENGTH_BYTES], "little")
    made: Heads | None = None
    if decoder is not None:
        made = DecodedHeads(size, decoder) if 0 < size <= len(data) - _LENGTH_BYTES else None
    elif size in (5, 9):
        made = PlainHeads(size - 1)
    return made if made is not None and made.find(data, index, 0, made.size) == 0 else None


@dataclass(frozen=True, slots=True)
class Stretch:
    """What was found at the beginning of some bytes: where records begin, and how far that is certain."""

    #: Where whole records begin, and where the last of them ends.
    bounds: tuple[int, ...]
    #: If there are none: where the two records end that cannot be told apart; None if that is not it.
    unclear: int | None = None


def stretch(data: bytes, index: int, heads: Heads, *, final: bool) -> Stretch | None:
    """The whole records that these bytes begin with, the first of which has that index; None if more bytes are needed.

    `final` says that nothing follows in the store: then the last record is what is left.
    """
    bounds = [0]
    while (at := heads.find(data, index + len(bounds), bounds[-1] + heads.size)) >= 0:
        bounds.append(at)
    known = len(bounds) if final else len(bounds) - 1  # how many are known to stand in one place only
    sure = 1
    while sure < known:
        end = bounds[sure + 1] if sure + 1 < len(bounds) else len(data)
        if heads.find(data, index + sure, bounds[sure] + 1, end) >= 0:
            break
        sure += 1
    if sure == 1 and known > 1:
        return Stretch((), bounds[2] if len(bounds) > 2 else len(data))
    return Stretch(tuple(bounds[:sure])) if sure > 1 or final else None
