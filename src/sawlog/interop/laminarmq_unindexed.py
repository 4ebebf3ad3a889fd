"""Find laminarmq records that have no entry in the index, by the metadata at their start.

A store has no frames, but the metadata of a record holds its index, and laminarmq numbers records consecutively. If the
beginning of record 57 is known, the record ends where `[metadata length][metadata with index 58]` begins: at least nine
bytes that are known in advance.

laminarmq takes the next index from the size of its index file. The file is written later than the store, so after a
kill laminarmq reuses the indices of the records that have no entry, and appends their successors at the end of the
store. Records without an entry are therefore a sequence of runs, which all begin with the same index:

    [57][58][59][60 ...torn][57][58][59 ...torn][57][58] ...
                            ^ killed and restarted

The last record of a run has no successor. Its end is unknown, so it may be torn.

A value may contain anything, including the beginning of a record. If that leaves more than one plausible sequence of
records, the bytes between the two nearest boundaries that are in all of these sequences are reported as unclear.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .foreign import Decoder
from .records import MAX_OFFSET, Numbers

_LENGTH_BYTES = 4
#: A sequence of records is plausible if it has at most this many records fewer than the longest one.
_SLACK = 1
#: Maximum number of occurrences of the next index that are considered as the next record.
_MAX_SUCCESSORS = 8


# --- heads: the length of the metadata, and the metadata


class HeadSearch:
    """A search for heads with metadata of one size: that of `MetaWithIdx<(), u32>` (5 bytes) or `<(), u64>` (9 bytes),
    or any size with a decoder."""

    def __init__(self, metadata_bytes: int, decoder: Decoder | None = None) -> None:
        self._decoder = decoder
        self._length = metadata_bytes.to_bytes(_LENGTH_BYTES, "little")
        #: Size of a head in bytes.
        self.size = _LENGTH_BYTES + metadata_bytes

    def all_in(self, data: bytes) -> tuple[Numbers, Numbers]:
        """Return the positions of possible heads, in order, and the index in each of them."""
        positions, indices = self._plain(data) if self._decoder is None else self._decoded(data, self._decoder)
        known = indices < MAX_OFFSET
        return positions[known], indices[known].astype(np.int64)

    def _plain(self, data: bytes) -> tuple[Numbers, np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]]:
        """Search for the bytes before the index, which are constant."""
        width = self.size - _LENGTH_BYTES - 1
        end = max(len(data) - width, 0)
        prefix = re.compile(re.escape(self._length + b"\1"), re.DOTALL)
        found = np.array([match.end() for match in prefix.finditer(data, 0, end)], np.int64)
        columns = found[:, None] + np.arange(width)
        raw = np.frombuffer(data, np.uint8)[columns] if len(found) else np.zeros((0, width), np.uint8)
        return found - _LENGTH_BYTES - 1, raw.reshape(-1).view(f"<u{width}")

    def _decoded(self, data: bytes, decoder: Decoder) -> tuple[Numbers, Numbers]:
        """Call the decoder wherever the length occurs."""
        positions, indices = [], []
        at = data.find(self._length)
        while 0 <= at <= len(data) - self.size:
            index = decode(decoder, data[at + _LENGTH_BYTES : at + self.size])
            if index is not None and 0 <= index < MAX_OFFSET:
                positions.append(at)
                indices.append(index)
            at = data.find(self._length, at + 1)
        return np.array(positions, np.int64), np.array(indices, np.int64)


def decode(decoder: Decoder, metadata: bytes) -> int | None:
    """Call a decoder; return -1 if it rejects the metadata."""
    try:
        return decoder(metadata)
    except (ValueError, LookupError, ArithmeticError):
        return -1


def index_in_head(data: bytes, decoder: Decoder | None) -> int | None:
    """Return the index in the metadata of the record at the beginning of `data`; None if it has none."""
    size = int.from_bytes(data[:_LENGTH_BYTES], "little")
    metadata = data[_LENGTH_BYTES : _LENGTH_BYTES + size]
    if len(metadata) < size:
        return None
    if decoder is not None:
        index = decode(decoder, metadata)
        return None if index == -1 else index
    return int.from_bytes(metadata[1:], "little") if size in (5, 9) and metadata[0] == 1 else None


def heads_at(data: bytes, indices: Collection[int], decoder: Decoder | None) -> HeadSearch | None:
    """Return a search for heads like that of the record at the beginning of `data`, if it has one of these indices."""
    if index_in_head(data, decoder) not in indices:
        return None
    return HeadSearch(int.from_bytes(data[:_LENGTH_BYTES], "little"), decoder)


def first_head(data: bytes, indices: Collection[int]) -> int | None:
    """Return the first position where a record with one of these indices may begin. Without a decoder only."""
    nearest: int | None = None
    for search in (HeadSearch(5), HeadSearch(9)):
        positions, found = search.all_in(data)
        at = np.flatnonzero(np.isin(found, list(indices)))
        if len(at) and (nearest is None or int(positions[at[0]]) < nearest):
            nearest = int(positions[at[0]])
    return nearest


# --- records


@dataclass(frozen=True, slots=True, eq=False)
class Unindexed:
    """The records at the beginning of a buffer, up to `end`."""

    #: Positions and sizes of the complete records.
    starts: Numbers
    lengths: Numbers
    #: The last record of each run that is followed by another run: its position, and that of the next run.
    last: tuple[tuple[int, int], ...]
    #: Number of bytes covered.
    end: int
    #: End of the bytes after `end` in which the boundaries of records are unknown; None if there are none.
    unclear: int | None = None
    #: Index of the record after these bytes; None if the buffer ends there.
    resumes: int | None = None


def find_unindexed(data: bytes, heads: HeadSearch, restarts: Collection[int], *, final: bool) -> Unindexed | None:
    """Return the records at the beginning of `data`; None if more bytes are needed, or none of them is complete.

    Runs begin with one of the indices in `restarts`. `final` means that no more bytes follow, so that the end of the
    last record is unknown.
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

    def covered(end: int, unclear: int | None = None, resumes: int | None = None) -> Unindexed:
        return Unindexed(np.array(starts, np.int64), np.array(lengths, np.int64), tuple(last), end, unclear, resumes)

    unclear: int | None = None  # start of the bytes in which boundaries are unknown
    for one, following in pairwise(sure):
        start, end, index = int(positions[one]), int(positions[following]), int(indices[following])
        in_order, restarted = index == int(indices[one]) + 1, index in restarts
        # In order and a restart: where a damaged index leaves several possible restarts, the record may be torn.
        if chain.is_unclear(one, following) or (in_order and restarted):
            unclear = start if unclear is None else unclear
        elif unclear is not None:
            return covered(unclear, start, int(indices[one]))
        elif in_order:
            starts.append(start)
            lengths.append(end - start)
        else:
            last.append((start, end))
    end = int(positions[sure[-1]])
    if final and chain.is_unclear(sure[-1], len(positions)):
        return covered(end if unclear is None else unclear, len(data))
    if unclear is not None:
        return covered(unclear, end, int(indices[sure[-1]]))
    return covered(end) if end else None


class _Chain:
    """Decides which possible heads begin a record: the first one, and those in every plausible sequence from there."""

    def __init__(self, positions: Numbers, indices: Numbers, head_bytes: int, restarts: Collection[int]) -> None:
        self._positions, self._indices = positions.tolist(), indices.tolist()
        self._head_bytes, self._restarts = head_bytes, restarts
        restarting = np.isin(indices, list(restarts))
        follows = (indices[1:] == indices[:-1] + 1) | restarting[1:]
        self._regular = bool((follows & (np.diff(positions) >= head_bytes)).all())
        #: Heads by index, and heads that may begin a run.
        self._by_index: dict[int, list[int]] = {}
        self._runs = np.flatnonzero(restarting).tolist()
        self._disputed: list[int] = []

    def sure(self) -> list[int]:
        """Return the numbers of these heads."""
        count = len(self._positions)
        if self._regular:
            return list(range(count))
        for number, index in enumerate(self._indices):
            self._by_index.setdefault(index, []).append(number)
        edges = [self._successors(number) for number in range(count)]
        after = [1] * count  # length of the longest sequence from each head
        for number in reversed(range(count)):
            after[number] += max((after[each] for each in edges[number]), default=0)
        before = [0] * count  # length of the longest sequence to each head; 0 if there is none
        before[0] = 1
        for number in range(count):
            if before[number]:
                for each in edges[number]:
                    before[each] = max(before[each], before[number] + 1)
        least = after[0] - _SLACK
        skipped = [0] * (count + 1)  # differences of the number of plausible sequences that skip each head
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
        """Return True if a record may begin between two heads."""
        at = bisect_left(self._disputed, one)
        return at < len(self._disputed) and self._disputed[at] < following

    def _successors(self, number: int) -> list[int]:
        """Return the heads that may follow: those of the next index, or of the next run unless that is after them."""
        index, least = self._indices[number], self._positions[number] + self._head_bytes
        same = self._by_index.get(index + 1, [])
        first = bisect_left(same, least, key=self._positions.__getitem__)
        found = same[first : first + _MAX_SUCCESSORS]
        run = bisect_left(self._runs, least, key=self._positions.__getitem__)
        if run < len(self._runs):
            begins = self._runs[run]
            until = self._positions[begins] - self._head_bytes
            if begins not in found and not (found and self._positions[found[0]] <= until):
                found.append(begins)
        return found
