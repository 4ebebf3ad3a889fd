"""Finds laminarmq records that have no entry in the index, by the metadata at their start.

A store has no frames, but the metadata of a record holds its index, and laminarmq numbers records consecutively. If the
beginning of record 57 is known, the record ends where `[metadata length][metadata with index 58]` begins: at least nine
bytes that are known in advance.

laminarmq takes the next index from the size of its index file. The file is written later than the store, so after a
kill laminarmq reuses the indices of the records that have no entry, and appends their successors at the end of the
store. Records without an entry are therefore a sequence of runs, which all begin with the same index:

    [57][58][59][60 ...torn][57][58][59 ...torn][57][58] ...
                            ^ killed and restarted

The last record of a run is followed by no successor. Its end is unknown, so it may be torn.

A value may contain anything, including the beginning of a record. If that leaves more than one plausible sequence of
records, the bytes between the two nearest boundaries that are in all of these sequences are reported as unclear.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from .numbering import MAX_OFFSET, Numbers

#: Returns the index in the metadata of a record, or None if it has none; `ValueError` if it cannot be decoded.
Decoder = Callable[[bytes], int | None]

_LENGTH_BYTES = 4
#: A sequence of records is plausible if it has at most this many records fewer than the longest one.
_SLACK = 1
#: How many occurrences of the next index are considered as the next record.
_MOST_SUCCESSORS = 8


class Heads(Protocol):
    """What records begin with: the length of the metadata, and the metadata."""

    #: Its size in bytes.
    size: int

    def all_in(self, data: bytes) -> tuple[Numbers, Numbers]:
        """The positions where a record may begin, in order, and the index that each of them has."""


class PlainHeads:
    """Those of `MetaWithIdx<(), u32>` and `<(), u64>`."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._prefix = re.compile(re.escape((1 + width).to_bytes(_LENGTH_BYTES, "little") + b"\1"), re.DOTALL)
        self.size = _LENGTH_BYTES + 1 + width

    def all_in(self, data: bytes) -> tuple[Numbers, Numbers]:
        """By the bytes before the index, which are constant."""
        end = max(len(data) - self._width, 0)
        found = np.array([match.end() for match in self._prefix.finditer(data, 0, end)], np.int64)
        columns = found[:, None] + np.arange(self._width)
        raw = np.frombuffer(data, np.uint8)[columns] if len(found) else np.zeros((0, self._width), np.uint8)
        indices = raw.reshape(-1).view(f"<u{self._width}")
        known = indices < MAX_OFFSET
        return found[known] - _LENGTH_BYTES - 1, indices[known].astype(np.int64)


class DecodedHeads:
    """The prefix of other metadata, of one length, that the decoder understands."""

    def __init__(self, metadata_bytes: int, decoder: Decoder) -> None:
        self._decoder = decoder
        self._length = metadata_bytes.to_bytes(_LENGTH_BYTES, "little")
        self.size = _LENGTH_BYTES + metadata_bytes

    def all_in(self, data: bytes) -> tuple[Numbers, Numbers]:
        """The decoder is called wherever the length occurs."""
        positions, indices = [], []
        at = data.find(self._length)
        while 0 <= at <= len(data) - self.size:
            index = decoded(self._decoder, data[at + _LENGTH_BYTES : at + self.size])
            if index is not None and 0 <= index < MAX_OFFSET:
                positions.append(at)
                indices.append(index)
            at = data.find(self._length, at + 1)
        return np.array(positions, np.int64), np.array(indices, np.int64)


def decoded(decoder: Decoder, metadata: bytes) -> int | None:
    """The result of a decoder, -1 if it does not understand the metadata."""
    try:
        return decoder(metadata)
    except (ValueError, LookupError, ArithmeticError):
        return -1


def head_index(data: bytes, decoder: Decoder | None) -> int | None:
    """The index in the metadata of the record that these bytes begin with; None if it has none."""
    size = int.from_bytes(data[:_LENGTH_BYTES], "little")
    metadata = data[_LENGTH_BYTES : _LENGTH_BYTES + size]
    if len(metadata) < size:
        return None
    if decoder is not None:
        index = decoded(decoder, metadata)
        return None if index == -1 else index
    return int.from_bytes(metadata[1:], "little") if size in (5, 9) and metadata[0] == 1 else None


def heads_at(data: bytes, indices: Collection[int], decoder: Decoder | None) -> Heads | None:
    """The prefix of the record that these bytes begin with, if it has one of these indices."""
    if head_index(data, decoder) not in indices:
        return None
    size = int.from_bytes(data[:_LENGTH_BYTES], "little")
    return PlainHeads(size - 1) if decoder is None else DecodedHeads(size, decoder)


def heads_after(data: bytes, indices: Collection[int]) -> tuple[int, Heads] | None:
    """The first position where a record with one of these indices may begin, and its prefix. Not for other metadata."""
    nearest: tuple[int, Heads] | None = None
    for heads in (PlainHeads(4), PlainHeads(8)):
        positions, found = heads.all_in(data)
        at = np.flatnonzero(np.isin(found, list(indices)))
        if len(at) and (nearest is None or int(positions[at[0]]) < nearest[0]):
            nearest = int(positions[at[0]]), heads
    return nearest


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """What some bytes begin with, up to `end`."""

    #: Complete records: where they begin, and their sizes.
    starts: Numbers
    lengths: Numbers
    #: The last record of each run that is followed by another run: where it begins, and where the next run does.
    last: tuple[tuple[int, int], ...]
    #: How many bytes this covers.
    end: int
    #: The end of the bytes from `end` on in which the boundaries of records are unknown; None if they are known.
    unclear: int | None = None
    #: The index of the record that begins there; None if that is the end.
    resumes: int | None = None


def stretch(data: bytes, heads: Heads, restarts: Collection[int], *, final: bool) -> Stretch | None:
    """The records that these bytes begin with; None if more bytes are needed, or none of them is complete.

    Runs begin with one of the indices in `restarts`. `final` means that no more bytes follow: then the end of the last
    record is unknown.
    """
    positions, indices = heads.all_in(data)
    begins = (*restarts, int(indices[0]))
    possible = (indices >= min(begins)) & (indices <= max(begins) + len(indices))
    positions, indices = positions[possible], indices[possible]
    # A head that was torn within its index seems to continue in the head of the next run.
    torn = np.append((np.diff(positions) < heads.size) & np.isin(indices[1:], list(restarts)), False)
    positions, indices = positions[~torn], indices[~torn]
    chain = _Chain(positions, indices, heads.size, restarts)
    sure = [at for at in chain.sure() if final or positions[at] <= len(data) // 2]
    starts: list[int] = []
    lengths: list[int] = []
    last = [(0, int(positions[0]))] if positions[0] else []
    unclear: int | None = None  # where the bytes begin in which boundaries are unknown
    for one, following in pairwise(sure):
        start, end, index = int(positions[one]), int(positions[following]), int(indices[following])
        in_order, restarted = index == int(indices[one]) + 1, index in restarts
        # In order, and restarted: where a damaged index leaves several possible restarts, the record may be torn.
        if chain.is_unclear(one, following) or (in_order and restarted):
            unclear = start if unclear is None else unclear
        elif unclear is not None:
            return _covered(starts, lengths, last, unclear, start, int(indices[one]))
        elif in_order:
            starts.append(start)
            lengths.append(end - start)
        else:
            last.append((start, end))
    end = int(positions[sure[-1]])
    if final and chain.is_unclear(sure[-1], len(positions)):
        return _covered(starts, lengths, last, end if unclear is None else unclear, len(data))
    if unclear is not None:
        return _covered(starts, lengths, last, unclear, end, int(indices[sure[-1]]))
    return _covered(starts, lengths, last, end) if end else None


def _covered(
    starts: list[int],
    lengths: list[int],
    last: list[tuple[int, int]],
    end: int,
    unclear: int | None = None,
    resumes: int | None = None,
) -> Stretch:
    return Stretch(np.array(starts, np.int64), np.array(lengths, np.int64), tuple(last), end, unclear, resumes)


class _Chain:
    """Decides which of the places where a record may begin are beginnings of records: the first one, and those that are
    in every plausible sequence from there."""

    def __init__(self, positions: Numbers, indices: Numbers, head_bytes: int, restarts: Collection[int]) -> None:
        self._positions, self._indices = positions.tolist(), indices.tolist()
        self._head_bytes, self._restarts = head_bytes, restarts
        restarting = np.isin(indices, list(restarts))
        follows = (indices[1:] == indices[:-1] + 1) | restarting[1:]
        self._regular = bool((follows & (np.diff(positions) >= head_bytes)).all())
        #: Where each index occurs, and where runs may begin.
        self._places: dict[int, list[int]] = {}
        self._runs = np.flatnonzero(restarting).tolist()
        self._disputed: list[int] = []

    def sure(self) -> list[int]:
        """The numbers of these places."""
        count = len(self._positions)
        if self._regular:
            return list(range(count))
        for number, index in enumerate(self._indices):
            self._places.setdefault(index, []).append(number)
        edges = [self._successors(number) for number in range(count)]
        after = [1] * count  # the length of the longest sequence from here
        for number in reversed(range(count)):
            after[number] += max((after[each] for each in edges[number]), default=0)
        before = [0] * count  # and to here; 0 if there is none
        before[0] = 1
        for number in range(count):
            if before[number]:
                for each in edges[number]:
                    before[each] = max(before[each], before[number] + 1)
        least = after[0] - _SLACK
        skipped = [0] * (count + 1)
        for number in range(count):
            if not before[number]:
                continue
            for each in edges[number]:
                if before[number] + after[each] >= least:
                    skipped[number + 1] += 1
                    skipped[each] -= 1
            if not edges[number] and before[number] >= least:
                skipped[number + 1] += 1
        total, sure = 0, []
        for number in range(count):
            total += skipped[number]
            if total == 0:
                sure.append(number)
            elif before[number] and before[number] + after[number] - 1 >= least:
                self._disputed.append(number)
        return sure

    def is_unclear(self, one: int, following: int) -> bool:
        """Whether a record may begin between two places."""
        at = bisect_left(self._disputed, one)
        return at < len(self._disputed) and self._disputed[at] < following

    def _successors(self, number: int) -> list[int]:
        """The places of records that may follow: of the next index, or of the next run unless that is after them."""
        index, least = self._indices[number], self._positions[number] + self._head_bytes
        places = self._places.get(index + 1, [])
        first = bisect_left(places, least, key=self._positions.__getitem__)
        found = places[first : first + _MOST_SUCCESSORS]
        run = bisect_left(self._runs, least, key=self._positions.__getitem__)
        if run < len(self._runs):
            begins = self._runs[run]
            until = self._positions[begins] - self._head_bytes
            if begins not in found and not (found and self._positions[found[0]] <= until):
                found.append(begins)
        return found
