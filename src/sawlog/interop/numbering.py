"""Which offset a record gets, where its own system wrote one down that may be wrong.

Offsets are kept. Where they do not follow each other, the neighbours decide what happened:

* one record says something else, and the next goes on as if it had not: its number is damaged (`BAD_OFFSET`);
* numbers jump forward, and go on from there: some are missing (`GAP`), and stay missing;
* numbers go back: the system forgot where it was and began again (`RESTART`). The records get new offsets behind the
  ones before them, and so do all that follow in the same way: no record is lost, and none is read twice;
* nothing of the kind: what stands there is no record.

How much the neighbours have to say depends on how much a number can be trusted: `CHECKED` is under a checksum,
`PARSED` comes from a record that parses, `BARE` is eight bytes that could be anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from .damage import Kind, Outcome

Numbers = npt.NDArray[np.int64]

#: More offsets than this are missing in no log: such a jump is damage.
MAX_JUMP = 2**44
#: No log goes as far as this.
MAX_OFFSET = 2**62


class Trust(IntEnum):
    """How much a number can be trusted."""

    BARE = 0
    PARSED = 1
    CHECKED = 2


@dataclass(frozen=True, slots=True)
class Count:
    """Where the numbering is: the last number that a record of this segment had, and the offset that comes next."""

    stored: int
    following: int

    def skip(self, count: int = 1) -> Count:
        """As if so many more records had been seen."""
        return Count(self.stored + count, self.following + count)


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
    """Offsets for the first `len(offsets)` records; `bad` if the one behind them is none."""

    offsets: Numbers
    count: Count
    oddities: tuple[Oddity, ...] = ()
    bad: bool = False

    def first(self, count: int, stored: Numbers, before: Count) -> Numbered:
        """Of the first `count` of these records, which is at least one; `stored` and `before` as given to `assign`."""
        oddities = tuple(odd for odd in self.oddities if odd.index < count)
        shift = before.following - before.stored - 1
        for odd in oddities:
            if odd.kind is Kind.RESTART:
                shift = odd.offset - int(stored[odd.index])
        last = int(self.offsets[count - 1])
        return Numbered(self.offsets[:count], Count(last - shift, last + 1), oddities)


def assign(stored: Numbers, count: Count, *, base: int, trust: Trust, final: bool, loose: bool = False) -> Numbered:
    """Offsets for records with these numbers, which stand behind what was counted so far.

    `base` is the first offset of the segment, where some systems begin again; `final` says that nothing follows in it.
    A record that cannot be judged because its successor is not among these is left for the next call. With `loose` a
    jump at the first one is as it should be: what lies before it could not be read.
    """
    total = len(stored)
    shift = count.following - count.stored - 1
    expected = np.arange(count.stored + 1, count.stored + 1 + total, dtype=np.int64)
    if bool((stored == expected).all()):
        return Numbered(stored + shift if shift else stored, count.skip(total))
    return _Judge(stored, count, base, trust, final, loose).decide()


class _Judge:
    """The slow way: from one number that does not follow to the next."""

    def __init__(self, stored: Numbers, count: Count, base: int, trust: Trust, final: bool, loose: bool) -> None:
        self.stored, self.base, self.trust, self.final, self.loose = stored, base, trust, final, loose
        self.offsets: Numbers = np.empty(len(stored), np.int64)
        self.last, self.shift = count.stored, count.following - count.stored - 1
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
        """The records up to `until` follow each other."""
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
            what = f"offset {said} once more" if said == self.last else f"offsets go back from {self.last} to {said}"
            self._note(i, Kind.RESTART, f"{what}; the records get {given} and the ones behind it", given)
            self._take(said, given - said)
        elif alone or self.trust >= Trust.PARSED or (successor is None and self.final):
            given = wanted + self.shift
            self._note(i, Kind.BAD_OFFSET, f"a record says offset {said % 2**64}, its neighbours say {wanted}", given)
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
