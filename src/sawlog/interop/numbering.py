"""Which offset a record gets if the one stored by its system may be wrong.

Offsets are kept. Where they are not consecutive, the neighbours decide what happened:

* one record differs, and the next continues as if it had not: its number is damaged (`BAD_OFFSET`);
* numbers jump forward and continue from there: some are missing (`GAP`), and stay missing;
* numbers go back: the system lost its position and started again (`RESTART`). The records get new offsets after the
  previous ones, and so do all that follow in the same way: no record is lost, and none is read twice;
* none of these: the bytes are not a record.

How much evidence is needed depends on how trustworthy a number is: `CHECKED` is covered by a checksum, `PARSED` comes
from a record that parses, `BARE` is eight bytes that could be anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from .damage import Kind, Outcome

Numbers = npt.NDArray[np.int64]

#: A larger jump is treated as damage, not as missing offsets.
MAX_JUMP = 2**44
#: Offsets of all logs are below this.
MAX_OFFSET = 2**62


class Trust(IntEnum):
    """How much a number can be trusted."""

    BARE = 0
    PARSED = 1
    CHECKED = 2


@dataclass(frozen=True, slots=True)
class Count:
    """The state of the numbering: the last number of a record in this segment, and the next offset."""

    stored: int
    next_offset: int

    def skip(self, count: int = 1) -> Count:
        """The state after that many more records."""
        return Count(self.stored + count, self.next_offset + count)


@dataclass(frozen=True, slots=True)
class Oddity:
    """Something about the number of one of the records."""

    index: int
    kind: Kind
    detail: str
    offset: int
    outcome: Outcome = "mended"


@dataclass(frozen=True, slots=True, eq=False)
class Numbered:
    """Offsets for the first `len(offsets)` records; `bad` if the next bytes are not a record."""

    offsets: Numbers
    count: Count
    oddities: tuple[Oddity, ...] = ()
    bad: bool = False

    def first(self, count: int, stored: Numbers, before: Count) -> Numbered:
        """Those of the first `count` of these records (at least one); `stored` and `before` as given to `assign`."""
        oddities = tuple(odd for odd in self.oddities if odd.index < count)
        shift = before.next_offset - before.stored - 1
        for odd in oddities:
            if odd.kind is Kind.RESTART:
                shift = odd.offset - int(stored[odd.index])
        last = int(self.offsets[count - 1])
        return Numbered(self.offsets[:count], Count(last - shift, last + 1), oddities)


def assign(stored: Numbers, count: Count, *, base: int, trust: Trust, final: bool, loose: bool = False) -> Numbered:
    """Assign offsets to records with these numbers, which follow those counted so far.

    `base` is the first offset of the segment, where some systems start again; `final` means that nothing follows in it.
    A record that cannot be judged without its successor is left for the next call. With `loose` a jump at the first
    record is accepted: the bytes before it could not be read.
    """
    total = len(stored)
    shift = count.next_offset - count.stored - 1
    expected = np.arange(count.stored + 1, count.stored + 1 + total, dtype=np.int64)
    if bool((stored == expected).all()):
        return Numbered(stored + shift if shift else stored, count.skip(total))
    return _Judge(stored, count, base, trust, final, loose).decide()


class _Judge:
    """The slow path: from one number that does not follow to the next."""

    def __init__(self, stored: Numbers, count: Count, base: int, trust: Trust, final: bool, loose: bool) -> None:
        self.stored, self.base, self.trust, self.final, self.loose = stored, base, trust, final, loose
        self.offsets: Numbers = np.empty(len(stored), np.int64)
        self.last, self.shift = count.stored, count.next_offset - count.stored - 1
        self.at = 0
        self.oddities: list[Oddity] = []
        self.bad = False

    def decide(self) -> Numbered:
        before = np.concatenate((np.array([self.last], np.int64), self.stored[:-1]))
        for i in np.flatnonzero(self.stored != before + 1).tolist():
            self._regular(i)
            if int(self.stored[i]) != self.last + 1 and not self._judge(i):
                break
        else:
            self._regular(len(self.stored))
        return Numbered(
            self.offsets[: self.at], Count(self.last, self.last + 1 + self.shift), tuple(self.oddities), self.bad
        )

    def _regular(self, until: int) -> None:
        """The records up to `until` are consecutive."""
        count = until - self.at
        if count > 0:
            first = self.last + 1 + self.shift
            self.offsets[self.at : until] = np.arange(first, first + count, dtype=np.int64)
            self.last += count
            self.at = until

    def _judge(self, i: int) -> bool:
        """Decide about record `i`; False if the run ends before it."""
        said, wanted = int(self.stored[i]), self.last + 1
        successor = int(self.stored[i + 1]) if i + 1 < len(self.stored) else None
        if successor is None and not self.final and i > 0:
            return False
        borne_out = self.trust == Trust.CHECKED or successor == said + 1 or (self.loose and i == 0)
        alone = self.trust != Trust.CHECKED and successor == wanted + 1
        possible = wanted < said <= wanted + MAX_JUMP and said + self.shift < MAX_OFFSET
        if not alone and possible and borne_out:
            self._note(i, Kind.GAP, f"offsets jump from {wanted - 1} to {said}", said + self.shift, "missing")
            self._take(said, self.shift)
        elif not alone and 0 <= said < wanted and (borne_out or said == self.base or self.trust >= Trust.PARSED):
            given = wanted + self.shift
            what = f"offset {said} is repeated" if said == self.last else f"offsets go back from {self.last} to {said}"
            self._note(i, Kind.RESTART, f"{what}; the records get offsets from {given} on", given)
            self._take(said, given - said)
        elif alone or self.trust >= Trust.PARSED or (successor is None and self.final):
            given = wanted + self.shift
            self._note(i, Kind.BAD_OFFSET, f"a record has offset {said % 2**64}, its neighbours imply {wanted}", given)
            self._take(wanted, self.shift)
        else:
            self.bad = True
            return False
        return True

    def _take(self, number: int, shift: int) -> None:
        self.last, self.shift = number, shift
        self.offsets[self.at] = number + shift
        self.at += 1

    def _note(self, i: int, kind: Kind, detail: str, offset: int, outcome: Outcome = "mended") -> None:
        if not (self.loose and i == 0 and kind is Kind.GAP):
            self.oddities.append(Oddity(i, kind, detail, offset, outcome))
