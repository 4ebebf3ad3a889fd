"""The part of a log that is only in its replica, because its segments were removed here (tiering).

`RemoteSegments` lists these segments. It is an immutable value, kept in a small text file with a checksum
(`sawlog.storage.checksummed`) that exists only if there is such a part:

```
sawlog remote 1
{"log_start": 0, "runs": [[0, 1000, 52000, 1763379000000], [1000, 2400, 70100, 1763379900000]], "epochs": [[0, 0]]}
crc32c 1c291ca3
```

`log_start` is the first offset of the log; the checkpoint holds the first local one. A *run* is one or several
segments: first offset, offset after the last, bytes, largest timestamp, so that retention need not ask the replica.
`epochs` are the leader epochs that began in that part; if the log's own list is lost, the local batches could not
supply them. (The JSON is on one line.)

The file is replaced before the checkpoint, both when segments are removed, so that every removed segment is listed, and
when the log is trimmed, so that no trimmed record comes back. If the file is damaged or missing, the log begins where
the replica does (`UNKNOWN`). The checkpoint records that the file must exist, from the first checkpoint after its
creation until the last one before its removal: no crash leaves a checkpoint that misses a file which never existed or
was removed on purpose.

`RemoteLog` is the interface to the replica, which `RemoteSource` opens on demand: a replica is a store on object
storage, on which this package does not depend. Every method may block on the network and raises `RemoteUnavailable` if
the replica cannot be reached or lacks the requested records. It never silently returns fewer records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..batch.header import Rows
from ..config import Isolation
from ..errors import CorruptFile, DataLoss
from ..storage import Directory
from ..storage.checksummed import TitledFile, parsing
from .epochs import Epochs
from .files import REMOTE

if TYPE_CHECKING:
    import pyarrow as pa

    from .reader import Fetched

_FILE = TitledFile("the list of segments that are only in the replica", "sawlog remote 1")
#: More runs than this are joined, which keeps the file small and makes retention less precise for the oldest part.
_MOST_RUNS = 1000


class RemoteRun(NamedTuple):
    """Consecutive segments that are only in the replica."""

    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp: int


@dataclass(frozen=True, slots=True)
class RemoteSegments:
    """Content of the file, as described above."""

    log_start: int
    runs: tuple[RemoteRun, ...]
    #: (epoch, its first offset).
    epochs: tuple[tuple[int, int], ...]
    #: False: only the replica knows.
    is_known: bool = True

    @property
    def end(self) -> int:
        """The offset after the last removed record."""
        return self.runs[-1].next_offset if self.runs else self.log_start

    def below(self, offset: int) -> tuple[RemoteRun, ...]:
        """Return the runs that end at an offset or before. A run that ends later is still here: its removal did not
        complete."""
        return tuple(run for run in self.runs if run.next_offset <= offset)

    def grown(self, runs: Iterable[RemoteRun], epochs: Epochs) -> RemoteSegments:
        """Return a copy with more runs at the end, and the epochs that began up to there."""
        made, end = list(self.runs), self.end
        for run in runs:
            if run.next_offset > end:  # else it was listed before, and not removed since
                made.append(run._replace(base_offset=end if made else run.base_offset))
                end = run.next_offset
        begun = tuple(each for each in epochs.entries if each[1] < end)
        return replace(self, runs=_joined(made), epochs=begun)

    def trimmed(self, offset: int) -> RemoteSegments:
        """Return a copy for a log that starts at this offset, which is below the end."""
        left = tuple(run for run in self.runs if run.next_offset > offset)
        epochs = Epochs(self.epochs).trimmed(offset).entries if self.epochs else ()
        return RemoteSegments(offset, left, epochs)

    def with_epochs(self, found: Epochs) -> Epochs:
        """Return a list of epochs that was rebuilt from the local batches, with the epochs of this part added."""
        if not self.epochs:
            return found
        later = tuple(each for each in found.entries if each[0] > self.epochs[-1][0] and each[1] > self.epochs[-1][1])
        return Epochs((*self.epochs, *later))

    def encode(self) -> bytes:
        """Return the content of the file."""
        assert self.is_known, "an unknown part is never written"
        return _FILE.encode_fields({"log_start": self.log_start, "runs": self.runs, "epochs": self.epochs})

    @classmethod
    def decode(cls, data: bytes) -> RemoteSegments:
        """Decode the content of the file; `CorruptFile` unless every byte is right."""
        found = _FILE.decode_fields(data)
        with parsing(_FILE.what):
            start, runs = found["log_start"], tuple(RemoteRun(*_numbers(each, 4)) for each in found["runs"])
            epochs = tuple((each[0], each[1]) for each in (_numbers(one, 2) for one in found["epochs"]))
            gaps = any(one.next_offset != other.base_offset for one, other in pairwise(runs))
            if type(start) is not int or not runs or gaps or not runs[0].base_offset <= start < runs[-1].next_offset:
                raise ValueError("the runs do not follow each other")
            return cls(start, runs, epochs)


#: A part whose start only the replica knows; and the reason, for reports.
UNKNOWN = RemoteSegments(0, (), (), is_known=False)
LOST_LIST = (
    "the list of segments that are only in the replica is missing or damaged; "
    "`sawlog maintenance` restores it from there"
)


def _numbers(values: Sequence[object], count: int) -> list[int]:
    made = [each for each in values if type(each) is int and -1 <= each < 2**63]
    if len(made) != count or len(values) != count:
        raise ValueError(f"{values!r} are not {count} numbers")
    return made


def _joined(runs: list[RemoteRun]) -> tuple[RemoteRun, ...]:
    """Return the runs; if there are too many, join the oldest in pairs."""
    if len(runs) <= _MOST_RUNS:
        return tuple(runs)
    older, newer = runs[: len(runs) // 2 // 2 * 2], runs[len(runs) // 2 // 2 * 2 :]
    pairs = zip(older[::2], older[1::2], strict=True)
    joined = (
        RemoteRun(one[0], other[1], one.size_bytes + other.size_bytes, max(one.max_timestamp, other.max_timestamp))
        for one, other in pairs
    )
    return *joined, *newer


def load_remote(directory: Directory) -> RemoteSegments | None:
    """Return the tiered part of a log; None if nothing is tiered. Raise `CorruptFile` if the file is damaged."""
    data = _FILE.find(directory, REMOTE)
    return None if data is None else RemoteSegments.decode(data)


def found_remote(directory: Directory, lowest: int, *, must_exist: bool = False) -> RemoteSegments | None:
    """Return the tiered part of a log whose local segments begin at `lowest`; `UNKNOWN` if the file is damaged, or is
    missing although it must exist."""
    try:
        found = load_remote(directory)
    except CorruptFile:
        return UNKNOWN
    if found is None and must_exist:
        return UNKNOWN
    return None if found is None or found.log_start >= lowest else found


def store_remote(directory: Directory, part: RemoteSegments | None) -> None:
    """Replace the file, durably; None removes it."""
    if part is not None:
        directory.replace(REMOTE, part.encode())
    elif directory.exists(REMOTE):
        directory.remove(REMOTE)
        directory.sync()


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Extent of a replica, as the replica reports it."""

    lowest_offset: int
    #: Below this offset the replica is complete, and every transaction is decided.
    stable_offset: int
    #: (leader epoch, its first offset).
    epochs: tuple[tuple[int, int], ...]


class RemoteLog(Protocol):
    """A partition in the replica. Thread-safe."""

    @property
    def path(self) -> str:
        """Location, for messages."""

    def chunks(
        self, start: int, end: int, *, committed: bool, cached: bool = True
    ) -> Iterator[tuple[memoryview, Rows]]:
        """Yield checked batches with offsets from `start` to `end`, without aborted transactions if `committed`.
        Batches without records may be missing. Unless `cached`, every batch is read from the replica now, which proves
        that it is stored there."""

    def page(self, start: int, end: int, max_bytes: int, *, committed: bool) -> Fetched:
        """Return complete batches from the one that contains `start` on, below `end`, up to `max_bytes` but at least
        one."""

    def offset_at(self, timestamp: int, start: int, end: int) -> int | None:
        """Return the first offset in this range whose record is not older; None if there is none."""

    def newest(self, start: int, end: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record in this range with the largest timestamp."""

    def plan(
        self, start: int, end: int, *, target_bytes: int | None, max_records: int | None, isolation: Isolation
    ) -> list[Any]:
        """Return picklable slices (`PlannedSlice`) that cover the offsets from `start` to `end`."""

    def read_slice(
        self, planned: Any, *, columns: Sequence[str], batch_rows: int, lost: Callable[[DataLoss], None]
    ) -> Iterator[pa.RecordBatch]:
        """Read all records of a slice that `plan` has returned, perhaps in another process."""

    def status(self) -> ReplicaStatus:
        """Look up the extent of the replica. `RemoteUnavailable` if it is not a copy of this log, or no longer."""

    def part(self, end: int) -> RemoteSegments:
        """Return everything that the replica has below `end`, to rebuild a lost list."""


class RemoteSource(Protocol):
    """Opens the replica of a log."""

    @property
    def is_recorded(self) -> bool:
        """True if the store has recorded a replica."""

    def open(self) -> RemoteLog:
        """Return the partition in the replica; `RemoteUnavailable` if it is unknown or cannot be opened."""
