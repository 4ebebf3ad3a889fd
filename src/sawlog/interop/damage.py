"""What was found wrong in another system's log, and what was done about it.

A `Finding` has a kind, a file, a position and a sentence. Four things can come of one:

* *mended*: what is wrong can be had from elsewhere (an index, mostly); no record is missing;
* *cut*: bytes behind the last whole record are left out, as after a crash in the middle of an append;
* *missing*: offsets that no file holds; they are a gap in what is read, and in what is made of it;
* *lost*: a record, or a stretch of bytes that held some, is there and cannot be read.

Reading goes on over the first three and says so in the report. At the fourth it raises the error of that kind, unless
the log was opened with `damage="skip"`; nothing is left out without a line in the report.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from ..errors import (
    BaseMismatch,
    ChecksumMismatch,
    ForeignDamage,
    IndexGap,
    IndexSizeMismatch,
    MissingRecords,
    NoBase,
    OffsetsOutOfOrder,
    TornFile,
    UnreadableRecord,
)

Outcome = Literal["mended", "cut", "missing", "lost"]

#: More findings than this are not kept: a log that is wrong everywhere must not fill the memory.
_MOST = 10_000


class Kind(Enum):
    """What can be wrong; the value is how it is called in reports, and `error` what it raises."""

    #: The index does not say where it begins; only the file's name does.
    NO_BASE = "no base"
    #: A file's name says one first offset and its content another.
    BASE_MISMATCH = "base mismatch"
    #: The mark of the first offset stands in an index more than once.
    SECOND_MARKER = "second base marker"
    #: There is no index beside a file that should have one, or no data beside an index.
    MISSING_FILE = "missing file"
    #: The index ends in the middle of an entry.
    TORN_INDEX = "torn index"
    #: The index ends in zeros: it was not closed in order.
    PADDED_INDEX = "padded index"
    #: The index knows of records that are not in the data.
    INDEX_AHEAD = "index ahead of data"
    #: The data holds records that the index does not know.
    INDEX_BEHIND = "index behind data"
    #: Entries of the index point at something else than a record.
    BAD_INDEX = "bad index"
    #: The data ends in the middle of a record.
    TORN_TAIL = "torn tail"
    #: The data ends in zeros.
    ZERO_TAIL = "zeros at the end"
    #: Bytes that belong to no record.
    ORPHAN_BYTES = "orphan bytes"
    #: Offsets go back to an earlier one; the records get new ones.
    RESTART = "offsets restart"
    #: One record says another offset than its neighbours do.
    BAD_OFFSET = "bad offset"
    #: Offsets leave some out.
    GAP = "offset gap"
    #: Records that were not in the files yet when the log was copied before.
    LATE = "came later"
    #: A record whose checksum or length is not what was written down.
    CHECKSUM = "checksum mismatch"
    #: A record, or a frame around one, that cannot be.
    UNREADABLE = "unreadable record"
    #: Records that may not be on the other servers of a cluster.
    UNREPLICATED = "not replicated"
    #: Something that is not part of the log, and was left alone.
    STRANGER = "not part of the log"

    @property
    def error(self) -> type[ForeignDamage]:
        """What is raised for it."""
        return _ERRORS.get(self, ForeignDamage)


_ERRORS: dict[Kind, type[ForeignDamage]] = {
    Kind.NO_BASE: NoBase,
    Kind.BASE_MISMATCH: BaseMismatch,
    Kind.SECOND_MARKER: IndexSizeMismatch,
    Kind.MISSING_FILE: MissingRecords,
    Kind.TORN_INDEX: IndexSizeMismatch,
    Kind.PADDED_INDEX: IndexSizeMismatch,
    Kind.INDEX_AHEAD: IndexSizeMismatch,
    Kind.INDEX_BEHIND: IndexSizeMismatch,
    Kind.BAD_INDEX: IndexGap,
    Kind.TORN_TAIL: TornFile,
    Kind.ZERO_TAIL: TornFile,
    Kind.ORPHAN_BYTES: IndexGap,
    Kind.RESTART: OffsetsOutOfOrder,
    Kind.BAD_OFFSET: OffsetsOutOfOrder,
    Kind.GAP: MissingRecords,
    Kind.CHECKSUM: ChecksumMismatch,
    Kind.UNREADABLE: UnreadableRecord,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was not as it should be."""

    kind: Kind
    #: The file, as a path below the log's directory or as it was given.
    file: str
    #: The byte where it begins.
    position: int
    #: What it was, and what was done: one sentence without a full stop.
    detail: str
    outcome: Outcome = "mended"
    #: How many bytes of the file are concerned, where that is known.
    size_bytes: int = 0
    #: The offset of the (next) record concerned, where that is known.
    offset: int | None = None

    def error(self, path: str) -> ForeignDamage:
        """The same as an error, for a log in `path`."""
        return self.kind.error(f"{self.kind.value}: {self.detail}", f"{path}/{self.file}", self.position, self.offset)

    def __str__(self) -> str:
        return f"{self.file} at byte {self.position}: {self.kind.value}: {self.detail}"


class ForeignReport:
    """All findings of one log, in the order in which they were made; each once, however often it is met."""

    def __init__(self) -> None:
        self._found: dict[tuple[Kind, str, int], Finding] = {}
        #: Whether there was more to note than is kept.
        self.truncated = False

    def add(self, finding: Finding) -> None:
        """Note one."""
        key = finding.kind, finding.file, finding.position
        if len(self._found) < _MOST:
            self._found.setdefault(key, finding)
        elif key not in self._found:
            self.truncated = True

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them."""
        return tuple(self._found.values())

    @property
    def lost(self) -> tuple[Finding, ...]:
        """Those that cost records."""
        return tuple(finding for finding in self._found.values() if finding.outcome == "lost")

    @property
    def ok(self) -> bool:
        """Whether there was nothing to find."""
        return not self._found

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self._found)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<ForeignReport {len(self)} findings, {len(self.lost)} of them lost records>"
