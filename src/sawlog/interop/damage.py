"""What was found wrong in another system's log, and what was done about it.

A `Finding` has a kind, a file, a position and a sentence. Its outcome is one of four:

* *mended*: the information is available elsewhere (usually an index is wrong); no record is missing;
* *cut*: bytes after the last complete record, of the log or of a run before a restart, are left out, as after a crash
  during an append;
* *missing*: offsets that no file contains; they are a gap in what is read and in the copy;
* *lost*: a record, or a range of bytes that held records, is there but cannot be read.

Reading continues after the first three and reports them. The fourth raises the error of its kind, unless the log was
opened with `damage="skip"`. Nothing is left out without a line in the report.
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

#: At most this many findings are kept, so that a badly damaged log does not fill the memory.
_MOST = 10_000


class Kind(Enum):
    """What can be wrong. The value is its name in reports, and `error` is what it raises."""

    #: The index does not contain the first offset; only the file name does.
    NO_BASE = "no base"
    #: The file name and the content have different first offsets.
    BASE_MISMATCH = "base mismatch"
    #: The marker of the first offset occurs more than once in an index.
    SECOND_MARKER = "second base marker"
    #: An index is missing for a data file, or the data for an index.
    MISSING_FILE = "missing file"
    #: The index ends within an entry.
    TORN_INDEX = "torn index"
    #: The index ends in zeros: it was not closed cleanly.
    PADDED_INDEX = "padded index"
    #: The index has entries for records that are not in the data.
    INDEX_AHEAD = "index ahead of data"
    #: The data holds records that have no entry in the index.
    INDEX_BEHIND = "index behind data"
    #: Entries of the index do not point at a record.
    BAD_INDEX = "bad index"
    #: The data ends within a record.
    TORN_TAIL = "torn tail"
    #: The data ends in zeros.
    ZERO_TAIL = "zeros at the end"
    #: Bytes that belong to no record.
    ORPHAN_BYTES = "orphan bytes"
    #: Offsets go back to an earlier one; the records get new offsets.
    RESTART = "offsets restart"
    #: The offset of one record contradicts its neighbours.
    BAD_OFFSET = "bad offset"
    #: Some offsets are missing.
    GAP = "offset gap"
    #: Records that were not yet in the files when the log was copied earlier.
    LATE = "came later"
    #: The checksum or the length of a record is wrong.
    CHECKSUM = "checksum mismatch"
    #: A record, or the frame around it, that is invalid.
    UNREADABLE = "unreadable record"
    #: Records that may not be on the other servers of a cluster.
    UNREPLICATED = "not replicated"
    #: A transaction without its end: its records do not count until it is committed.
    OPEN_TRANSACTION = "open transaction"
    #: Something that is not part of the log; it was ignored.
    STRANGER = "not part of the log"

    @property
    def error(self) -> type[ForeignDamage]:
        """The error that is raised for it."""
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
    """One thing that is wrong."""

    kind: Kind
    #: The file, as a path below the log's directory or as it was given.
    file: str
    #: The byte where it begins.
    position: int
    #: What is wrong and what was done, as one sentence without a full stop.
    detail: str
    outcome: Outcome = "mended"
    #: How many bytes of the file are affected, if known.
    size_bytes: int = 0
    #: The offset of the affected (or next) record, if known.
    offset: int | None = None

    def error(self, path: str) -> ForeignDamage:
        """The finding as an error, for a log in `path`."""
        return self.kind.error(f"{self.kind.value}: {self.detail}", f"{path}/{self.file}", self.position, self.offset)

    def __str__(self) -> str:
        return f"{self.file} at byte {self.position}: {self.kind.value}: {self.detail}"


class ForeignReport:
    """All findings of one log, in the order of discovery, without duplicates."""

    def __init__(self) -> None:
        self._found: dict[tuple[Kind, str, int], Finding] = {}
        #: Whether there were more findings than are kept.
        self.truncated = False

    def add(self, finding: Finding) -> None:
        key = finding.kind, finding.file, finding.position
        if len(self._found) < _MOST:
            self._found.setdefault(key, finding)
        elif key not in self._found:
            self.truncated = True

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings."""
        return tuple(self._found.values())

    @property
    def lost(self) -> tuple[Finding, ...]:
        """The findings that cost records."""
        return tuple(finding for finding in self._found.values() if finding.outcome == "lost")

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self._found

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self._found)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<ForeignReport {len(self)} findings, {len(self.lost)} with lost records>"
