"""What upkeep remembers about a log between two runs and across restarts.

A small text file with a checksum (`sawlog.storage.checksummed`):

```
sawlog upkeep 1
{"cleaned": [[1200, 1794785986353]], "damaged": false, "tombstones": 3, "recompressed_offset": 0, "scrubbed": {"0": …}}
crc32c 1c291ca3
```

`cleaned` is up to which offset the log was compacted at which time (ms), `damaged` whether a segment had to be left out
then, `tombstones` how many of them were left, `recompressed_offset` how far recompression got, `scrubbed` when which
segment was last read completely and found good. All of it is a cache: without the file, work is repeated and tombstones
live longer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from ..errors import CorruptFile
from ..storage import Directory
from ..storage.checksummed import TitledFile, parsing
from .files import UPKEEP

_FILE = TitledFile("the upkeep file", "sawlog upkeep 1")
#: Compactions that are remembered separately; older ones are merged into one.
_MOST = 100


@dataclass(slots=True)
class UpkeepState:
    """See the module's docstring."""

    cleaned: list[tuple[int, int]] = field(default_factory=list)
    damaged: bool = False
    tombstones: int = 0
    recompressed_offset: int = 0
    scrubbed: dict[int, int] = field(default_factory=dict)

    @property
    def clean_offset(self) -> int:
        """Below this offset every key occurs once."""
        return self.cleaned[-1][0] if self.cleaned else 0

    def note_clean(self, offset: int, now_ms: int) -> None:
        """Record that the log was compacted up to this offset."""
        if offset > self.clean_offset:
            self.cleaned.append((offset, now_ms))
            del self.cleaned[: max(len(self.cleaned) - _MOST, 0)]

    def forget_compactions(self) -> None:
        """Everything is compacted again."""
        self.cleaned = []

    def note_round(self, tombstones: int, *, damaged: bool) -> None:
        """Record what a round of compaction has left."""
        self.tombstones, self.damaged = tombstones, damaged

    def note_recompressed(self, offset: int) -> None:
        """Record that everything below this offset was recompressed, or is not worth it."""
        self.recompressed_offset = offset

    def note_scrubbed(self, times: dict[int, int]) -> None:
        """Record when which segment was found good."""
        self.scrubbed = times

    def forget_below(self, time_ms: int) -> int:
        """What was compacted at that time or earlier is below this offset."""
        return max((offset for offset, when in self.cleaned if when <= time_ms), default=0)

    def retreat(self, offset: int) -> bool:
        """Record that the log is truncated at `offset`; returns whether that changes anything."""
        # Of the segments that begin below it, the last may be the one that is truncated.
        kept = sorted(base for base in self.scrubbed if base < offset)[:-1]
        if max(self.clean_offset, self.recompressed_offset) <= offset and len(kept) == len(self.scrubbed):
            return False
        self.cleaned = [(min(each, offset), when) for each, when in self.cleaned]
        self.recompressed_offset = min(self.recompressed_offset, offset)
        self.scrubbed = {base: self.scrubbed[base] for base in kept}
        return True

    def encode(self) -> bytes:
        """The file's bytes."""
        return _FILE.encode_fields(asdict(self))

    @classmethod
    def decode(cls, data: bytes) -> UpkeepState:
        """From the file's bytes; `CorruptFile` unless every byte is right."""
        found = _FILE.decode_fields(data)
        with parsing(_FILE.what):
            return cls(
                cleaned=[(int(offset), int(when)) for offset, when in found["cleaned"]],
                damaged=bool(found["damaged"]),
                tombstones=int(found["tombstones"]),
                recompressed_offset=int(found["recompressed_offset"]),
                scrubbed={int(base): int(when) for base, when in found["scrubbed"].items()},
            )


def load_state(directory: Directory) -> UpkeepState:
    """What is remembered; empty if the file is missing or damaged."""
    try:
        data = _FILE.find(directory, UPKEEP)
        return UpkeepState() if data is None else UpkeepState.decode(data)
    except CorruptFile:
        return UpkeepState()


def store_state(directory: Directory, state: UpkeepState) -> None:
    """Replace the file, durably."""
    directory.replace(UPKEEP, state.encode())


def retreat_state(directory: Directory, offset: int) -> None:
    """Before the log is truncated at `offset`: forget what upkeep has done from there on. Otherwise new records at
    these offsets would be treated as already compacted."""
    state = load_state(directory)
    if state.retreat(offset):
        store_state(directory, state)
