"""The checkpoint: the durable watermark, the start of the log, and whether it was closed cleanly.

A small text file with a checksum (`sawlog.storage.checksummed`):

```
sawlog checkpoint 1
{"clean": false, "durable_offset": 1200, "segment": 1000, "position": 23600, "log_start": 0,
 "leader_epoch": 3, "epochs_crc": 519183525, "sealed": [1, 31044]}
crc32c 1c291ca3
```

(In the file the JSON is on one line.)

    durable_offset   the watermark: every record below it was fsynced when this was written, and its batch ends at byte
                     `position` of segment `segment`. Bad bytes below it are corruption, never a torn tail. It may be
                     lower than what is actually durable, never higher
    clean            the log ended exactly there
    log_start        first offset that is not trimmed
    leader_epoch     the current one
    epochs_crc       CRC-32C of `leader-epoch-checkpoint` (see epochs.py). Version 0.2 wrote neither of the two, and can
                     read a checkpoint that has them
    undecided        present and true if a transaction was open that began before that segment
    sealed           number of segments before it and the sum of their sizes, so that opening notices a missing or
                     shorter one without reading them
    remote           present and true if a part of the log is only in its replica: the file `remote` then exists, and
                     opening notices if it is missing

A log that is written in turns (`sawlog.log.shared`) also records its end in a note in the lock file
(`TurnNote`). Everything below the note's `next_offset` was synced, so a log that ends earlier has lost records.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from ..batch.text import parse_json
from ..errors import CorruptFile
from ..storage import Directory
from ..storage.checksummed import LINE, TitledFile, parsing
from .epochs import load_epochs
from .files import CHECKPOINT
from .lock import read_lock_note

T = TypeVar("T", int, bool)

_FILE = TitledFile("the checkpoint", "sawlog checkpoint 1")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Contents of the checkpoint; see the module docstring."""

    clean: bool
    durable_offset: int
    segment: int
    position: int
    log_start: int
    #: None: written by version 0.2.
    leader_epoch: int | None = None
    epochs_crc: int | None = None
    undecided: bool = False
    #: (number, bytes) of the segments before `segment`; None: written by an earlier version.
    sealed: tuple[int, int] | None = None
    #: True if the file `remote` must exist. False does not say that it must not.
    remote: bool = False

    def encode(self) -> bytes:
        """Return the contents of the file."""
        fields = asdict(self)
        if not self.undecided:
            del fields["undecided"]
        if self.sealed is None:
            del fields["sealed"]
        if not self.remote:
            del fields["remote"]
        return _FILE.encode_fields(fields)

    def at(self, offset: int, segment: int, position: int) -> Checkpoint:
        """Return a copy with another durable end."""
        return replace(self, clean=False, durable_offset=offset, segment=segment, position=position)

    def end_without_segment(self, *, known: bool) -> int:
        """Return the least end of the log if the file of `segment` is missing. It existed when this was written, and
        may have had records since: at least its first offset counts as lost, unless the log was closed cleanly or
        something else says where it ended (`known`)."""
        return self.durable_offset if self.clean or known else max(self.durable_offset, self.segment + 1)

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """Parse the contents of the file; `CorruptFile` unless every byte is valid."""
        found = _FILE.decode_fields(data)
        with parsing(_FILE.what):
            return cls(
                clean=_as(bool, found["clean"]),
                durable_offset=_as(int, found["durable_offset"]),
                segment=_as(int, found["segment"]),
                position=_as(int, found["position"]),
                log_start=_as(int, found["log_start"]),
                leader_epoch=_as_optional(found.get("leader_epoch")),
                epochs_crc=_as_optional(found.get("epochs_crc")),
                undecided=_as(bool, found.get("undecided", False)),
                sealed=_as_pair(found.get("sealed")),
                remote=_as(bool, found.get("remote", False)),
            )


def _as(kind: type[T], value: object) -> T:
    if type(value) is not kind or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is not {kind.__name__}, or out of range")
    return value


def _as_optional(value: object) -> int | None:
    return None if value is None else _as(int, value)


def _as_pair(value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{value!r} is not a pair of numbers")
    return _as(int, value[0]), _as(int, value[1])


def load(directory: Directory) -> Checkpoint | None:
    """Load the checkpoint; None if there is none, `CorruptFile` if it is damaged."""
    data = _FILE.find(directory, CHECKPOINT)
    return None if data is None else Checkpoint.decode(data)


def last_epoch(directory: Directory) -> int:
    """Return the latest leader epoch of a log that is not open. Damaged files are ignored."""
    found = [0]
    with suppress(CorruptFile):
        saved = load(directory)
        found.append(0 if saved is None else saved.leader_epoch or 0)
    with suppress(CorruptFile):
        epochs = load_epochs(directory)
        found.append(0 if epochs is None else epochs.current)
    return max(found)


def store(directory: Directory, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint, durably."""
    directory.replace(CHECKPOINT, checkpoint.encode())


@dataclass(frozen=True, slots=True)
class TurnNote:
    """End of the log when a turn ended; everything below it was synced."""

    shape: str
    segment: int
    position: int
    next_offset: int

    def encode(self) -> bytes:
        """Return the contents of the lock file."""
        body = f"{json.dumps(asdict(self))}\n".encode()
        return LINE.append_to(body)

    @classmethod
    def decode(cls, data: bytes) -> TurnNote | None:
        """Parse the contents of the lock file; None unless every byte is valid."""
        body = LINE.strip_from(data)
        if not body:
            return None
        try:
            found = parse_json(body)
            return cls(str(found["shape"]), *(int(found[name]) for name in ("segment", "position", "next_offset")))
        except (ValueError, KeyError, TypeError):
            return None


def noted_end(directory: Directory) -> int:
    """Return the end that the last turn recorded; 0 if there is no note."""
    found = TurnNote.decode(read_lock_note(directory))
    return 0 if found is None else found.next_offset


def proven_end(directory: Directory, saved: Checkpoint | None, published: tuple[int, int]) -> int:
    """Return how much of the log a published (end, epoch) proves to exist. Like any position, it counts up to the end
    of its epoch, because later records were truncated. The checkpoint proves that the epoch has ended; the list of
    epochs says where, and it may already have an epoch that the checkpoint does not name yet."""
    end, epoch = published
    if saved is None or saved.leader_epoch is None or epoch >= saved.leader_epoch:
        return end
    try:
        epochs = load_epochs(directory)
    except CorruptFile:
        return end
    return end if epochs is None else epochs.end_of(epoch, end)
