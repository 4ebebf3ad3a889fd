"""The policy of crash recovery: possible findings, the action for each, and the report.

`RECOVERY_ACTIONS` is the whole policy of recovery as a table. A test covers every
entry. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ..clock import Stopwatch
from ..display import counted
from ..storage.counters import count


class Where(Enum):
    """Places where recovery finds damage."""

    TAIL_ABOVE_WATERMARK = "at the end of the last segment, above the durable watermark"
    TAIL_BELOW_WATERMARK = "in the last segment, below the durable watermark"
    TAIL_BELOW_VISIBLE = "in the last segment, below the visible end"
    BEGINNING = "the log begins after its recorded start"
    ALL_SEGMENTS = "no segment is left"
    SEALED_SEGMENT = "in a segment before the last"
    GAP_BETWEEN_SEGMENTS = "a segment ends before the next begins"
    OVERLAP_OF_SEGMENTS = "a segment continues after the beginning of the next"
    INDEX = "an index is missing, short, padded or contradicts the log"
    CHECKPOINT = "the checkpoint is missing or damaged"
    PRODUCERS = "the producers' state is missing or damaged"
    EPOCHS = "the leader epochs are missing or damaged"
    REMOTE = "the list of segments that are only in the replica is missing or damaged"
    TRUNCATION = "records were being truncated"
    SWAP = "segments were being replaced by a rewritten one"
    DAMAGED_SWAP = "a rewritten segment is damaged, and all segments that it was to replace exist"
    LEFTOVER = "a temporary or deleted file"
    STRANGER = "a file that does not belong to the log"


class Action(Enum):
    """Possible actions of recovery."""

    CUT_ASIDE = "save a copy, then cut"
    REPORT = "report as corruption, serve the rest, delete nothing"
    RESERVE = "report as lost, serve the rest, never reuse the offsets"
    FINISH = "finish what the crash interrupted"
    REBUILD = "rebuild from the log"
    SET_ASIDE = "report as corruption, set aside, continue with the old files"
    ASK = "ask the replica, until maintenance restores the file from there"
    REMOVE = "remove"
    IGNORE = "ignore"


#: (where, was the log closed cleanly) -> action. Complete: see tests/log/maintain/test_recovery_table.py.
RECOVERY_ACTIONS: Mapping[tuple[Where, bool], Action] = {
    (Where.TAIL_ABOVE_WATERMARK, False): Action.CUT_ASIDE,
    (Where.TAIL_ABOVE_WATERMARK, True): Action.REPORT,
    (Where.TAIL_BELOW_WATERMARK, False): Action.REPORT,
    (Where.TAIL_BELOW_WATERMARK, True): Action.REPORT,
    (Where.TAIL_BELOW_VISIBLE, False): Action.RESERVE,
    (Where.TAIL_BELOW_VISIBLE, True): Action.RESERVE,
    (Where.BEGINNING, False): Action.RESERVE,
    (Where.BEGINNING, True): Action.RESERVE,
    (Where.ALL_SEGMENTS, False): Action.RESERVE,
    (Where.ALL_SEGMENTS, True): Action.RESERVE,
    (Where.SEALED_SEGMENT, False): Action.REPORT,
    (Where.SEALED_SEGMENT, True): Action.REPORT,
    (Where.GAP_BETWEEN_SEGMENTS, False): Action.REPORT,
    (Where.GAP_BETWEEN_SEGMENTS, True): Action.REPORT,
    (Where.OVERLAP_OF_SEGMENTS, False): Action.FINISH,
    (Where.OVERLAP_OF_SEGMENTS, True): Action.REPORT,
    (Where.INDEX, False): Action.REBUILD,
    (Where.INDEX, True): Action.REBUILD,
    (Where.CHECKPOINT, False): Action.REBUILD,
    (Where.CHECKPOINT, True): Action.REBUILD,
    (Where.PRODUCERS, False): Action.REBUILD,
    (Where.PRODUCERS, True): Action.REBUILD,
    (Where.EPOCHS, False): Action.REBUILD,
    (Where.EPOCHS, True): Action.REBUILD,
    (Where.REMOTE, False): Action.ASK,
    (Where.REMOTE, True): Action.ASK,
    (Where.TRUNCATION, False): Action.FINISH,
    (Where.TRUNCATION, True): Action.REPORT,
    (Where.SWAP, False): Action.FINISH,
    (Where.SWAP, True): Action.FINISH,
    (Where.DAMAGED_SWAP, False): Action.SET_ASIDE,
    (Where.DAMAGED_SWAP, True): Action.SET_ASIDE,
    (Where.LEFTOVER, False): Action.REMOVE,
    (Where.LEFTOVER, True): Action.REMOVE,
    (Where.STRANGER, False): Action.IGNORE,
    (Where.STRANGER, True): Action.IGNORE,
}


#: Actions for lost or damaged data.
_MEANING_LOSS = (Action.REPORT, Action.RESERVE, Action.SET_ASIDE)


@dataclass(frozen=True, slots=True)
class RecoveryFinding:
    """A problem that recovery found, and its action."""

    where: Where
    action: Action
    detail: str

    def __str__(self) -> str:
        return f"{self.detail} ({self.where.value}): {self.action.value}"


@dataclass(slots=True)
class RecoveryReport:
    """Findings and actions of a recovery. As a boolean: true if nothing was lost or damaged."""

    #: True if the log is new, or was closed cleanly and still ended there.
    clean: bool = True
    #: Size of the torn tail that was cut off, and the files with its copies.
    truncated_bytes: int = 0
    torn_files: tuple[str, ...] = ()
    rebuilt_indexes: int = 0
    #: All problems, in the order in which they were found.
    findings: list[RecoveryFinding] = field(default_factory=list)
    duration_ms: float = 0.0

    def _note_duration(self, watch: Stopwatch) -> None:
        """Record the time that recovery took."""
        self.duration_ms = watch.elapsed_ms

    def _note_end(self, *, clean: bool) -> None:
        """Record whether the log was closed cleanly and still ended there."""
        self.clean = clean

    def _note_index(self) -> None:
        """Count a rebuilt index."""
        self.rebuilt_indexes += 1
        count("index_rebuilds")

    def _note_torn(self, size_bytes: int, file: str | None) -> None:
        """Count a torn tail that was cut off, and its copy; None if it had only zeros."""
        self.truncated_bytes += size_bytes
        count("recovery_truncated_bytes", size_bytes)
        if file is not None:
            self.torn_files += (file,)

    @property
    def corruption(self) -> tuple[RecoveryFinding, ...]:
        """Findings that mean lost or damaged data."""
        return tuple(each for each in self.findings if each.action in _MEANING_LOSS)

    def __bool__(self) -> bool:
        return not self.corruption

    def __str__(self) -> str:
        how = "closed cleanly" if self.clean else "not closed cleanly"
        lines = [f"{how}; {counted(len(self.findings), 'finding')} in {self.duration_ms:.1f} ms"]
        return "\n  ".join(lines + [str(each) for each in self.findings])
