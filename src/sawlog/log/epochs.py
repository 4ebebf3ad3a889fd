"""Leader epochs: which of several histories of a log a position belongs to.

Offsets are reused after a log has lost its end: a power cut loses records that were written and not synced, and
`truncate` drops records on request. A consumer that had read up to offset 8 of a log that was then cut to 5 must not
continue at 8 once the log has grown to 12: it would skip three records. So a log numbers its histories. A new *leader
epoch* begins when a log is opened for writing after an unclean end, and when a truncation drops records that may have
been read. Each batch carries the epoch in which it was appended, each position the epoch in which it was read. An epoch
ends where the next one begins, and a position beyond the end of its epoch goes back to that end.

The list of epochs is kept in Kafka's file and format, replaced as a whole, durable before the first append of an epoch:

```
leader-epoch-checkpoint
    0            version of this format
    2            number of lines that follow
    0 0          epoch, and its first offset
    3 1200
```

The file has no checksum; the log's own checkpoint holds the current epoch and a checksum of the file. If they disagree,
the list is rebuilt from the batches. A log that has always been in epoch 0 has no such file.

`Epochs` is a value: immutable, safe to share. `epochs_of` rebuilds the list from the batches; `unfinished_truncation`
compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ..batch.checksum import crc32c
from ..batch.header import BASE, LEADER_EPOCH, Rows
from ..errors import CorruptBatch, CorruptFile, StorageError
from ..storage import Directory
from .files import LEADER_EPOCHS

if TYPE_CHECKING:
    from .remote import RemoteSegments
    from .segment import Segment

#: Largest epoch that fits into a batch header.
MAX_EPOCH = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Epochs:
    """(epoch, its first offset), both increasing. Never empty."""

    entries: tuple[tuple[int, int], ...] = ((0, 0),)

    @property
    def current(self) -> int:
        """Epoch of new batches."""
        return self.entries[-1][0]

    def end_of(self, epoch: int, end: int) -> int:
        """Return the end of an epoch in a log that ends at `end`: the start of the first later epoch."""
        for later, start in self.entries:
            if later > epoch:
                return min(start, end)
        return end

    def begun(self, epoch: int, offset: int) -> Epochs:
        """Return the list with one more epoch, from `offset` on. Epochs that would begin there or later never got a
        record and are dropped."""
        kept = tuple(each for each in self.entries if each[1] < offset and each[0] < epoch)
        return Epochs((*kept, (epoch, offset)))

    def begun_by(self, rows: Rows) -> Epochs:
        """Return the list extended by the epochs of these batches."""
        made = self
        first = np.flatnonzero(np.diff(rows[:, LEADER_EPOCH], prepend=self.current))
        for epoch, offset in rows[first][:, (LEADER_EPOCH, BASE)].tolist():
            made = made.begun(epoch, offset)
        return made

    def trimmed(self, lowest: int) -> Epochs:
        """Return the list without epochs that have no record left."""
        gone = sum(1 for _, start in self.entries[1:] if start <= lowest)
        return Epochs(self.entries[gone:])

    def up_to(self, epoch: int) -> Epochs:
        """Return the list without epochs after `epoch`, which a writer has recorded but not begun."""
        kept = tuple(each for each in self.entries if each[0] <= epoch)
        return Epochs(kept) if kept else self

    def encode(self) -> bytes:
        """Return the contents of the file."""
        lines = [f"{epoch} {start}" for epoch, start in self.entries]
        return "\n".join(["0", str(len(lines)), *lines, ""]).encode()

    @property
    def crc(self) -> int:
        """Checksum of the file, for the checkpoint."""
        return crc32c(self.encode())

    @classmethod
    def decode(cls, data: bytes, path: str) -> Epochs:
        """Parse the contents of the file; `CorruptFile` unless it is a valid list."""
        try:
            version, count, *lines = data.decode("ascii").split("\n")
            entries = tuple((int(epoch), int(start)) for epoch, start in (line.split(" ") for line in lines[:-1]))
            in_order = all(a < c and b < d for (a, b), (c, d) in pairwise(entries))
            if version != "0" or not entries or int(count) != len(entries) or lines[-1] or not in_order:
                raise ValueError("the epochs are not in ascending order")
            if entries[0][0] < 0 or entries[0][1] < 0 or entries[-1][0] > MAX_EPOCH:
                raise ValueError("a number out of range")
            made = cls(entries)
            if made.encode() != data:
                raise ValueError("not written by this program")
        except (ValueError, IndexError) as error:
            raise CorruptFile(f"{path} is not a list of leader epochs: {error}") from error
        return made


def load_epochs(directory: Directory) -> Epochs | None:
    """Load the list; None if there is no file, `CorruptFile` if it is damaged."""
    if not directory.exists(LEADER_EPOCHS):
        return None
    return Epochs.decode(directory.read(LEADER_EPOCHS), f"{directory.path}/{LEADER_EPOCHS}")


def store_epochs(directory: Directory, epochs: Epochs) -> None:
    """Replace the list, durably."""
    directory.replace(LEADER_EPOCHS, epochs.encode())


def epochs_of(segments: Iterable[Segment], remote: RemoteSegments | None = None) -> tuple[Epochs, bool]:
    """Rebuild the list from the batches and the part that exists only in the replica. Also return True if the epochs of
    the batches increase, as this version ensures.

    Version 0.2 appended in epoch 0 to what it had imported in later epochs. The epochs below such a step cannot be
    distinguished: they all end where the next epoch begins, if there is one.
    """
    entries: list[tuple[int, int]] = []
    most, ordered = -1, True
    for segment in segments:
        for rows in _rows_of(segment):
            for at in np.flatnonzero(np.diff(rows[:, LEADER_EPOCH], prepend=most)).tolist():
                epoch = int(rows[at, LEADER_EPOCH])
                if epoch > most:
                    entries.append((epoch, int(rows[at, BASE])))
                    most = epoch
                elif epoch < most:
                    entries, ordered = [], False
    if not entries:
        found = Epochs(((max(most, 0), 0),))
        return found if remote is None or not ordered else remote.with_epochs(found), ordered
    if ordered and entries[0][0] == 0:
        entries[0] = (0, 0)
    found = Epochs(tuple(entries))
    return found if remote is None or not ordered else remote.with_epochs(found), ordered


def _rows_of(segment: Segment) -> Iterable[Rows]:
    """Yield the headers of all batches. Damage is skipped here and reported when it is read."""
    loaded = segment.is_loaded
    if segment.size:
        yield from segment.rows_around_damage(segment.base_offset, check=False)
    if not loaded:
        segment.unload()


def as_the_batches_say(epochs: Epochs, segments: Sequence[Segment], remote: RemoteSegments | None) -> Epochs:
    """Return the list without entries that contradict the batches. The last epoch number is not reused."""
    return epochs_of(segments, remote)[0].begun(epochs.current, segments[-1].next_offset)


def epoch_at(segments: Sequence[Segment], offset: int) -> int | None:
    """Return the epoch of the batch that contains `offset`; None if no readable batch does."""
    for segment in reversed(segments):
        if segment.base_offset <= offset < segment.next_offset:
            loaded = segment.is_loaded
            try:
                for chunk in segment.chunks(offset, offset + 1, check=False):
                    return int(chunk.rows[0, LEADER_EPOCH])
            except (CorruptBatch, StorageError):
                return None
            finally:
                if not loaded:
                    segment.unload()
    return None


def unfinished_truncation(epochs: Epochs, segments: Sequence[Segment]) -> int | None:
    """Return the offset of a truncation that was recorded but not finished: the last epoch begins there, and the batch
    at that offset belongs to an earlier one. None if there is none. If the checkpoint says that more is durable, it is
    not an unfinished truncation, and the batches are trusted."""
    last, start = epochs.entries[-1]
    if not segments or start >= segments[-1].next_offset or not last:
        return None  # and no epoch is earlier than 0
    there = epoch_at(segments, start)
    return start if there is not None and there < last else None
