"""State of a log's maintenance, kept between runs and across restarts.

A small text file with a checksum (`sawlog.storage.checksummed`):

```
sawlog maintenance 1
{"cleaned": [[1200, 1794785986353]], "damaged": false, "tombstones": 3, "recompressed_offset": 0, "scrubbed": {"0": …}}
crc32c 1c291ca3
```

`cleaned` lists compactions as (end offset, time in ms). `damaged` is true if the last one left out a damaged segment,
and `tombstones` is the number it kept. `recompressed_offset` is the end of the recompressed part. `scrubbed` maps base
offsets of segments to the time of their last successful scrub. The file is a cache: without it, work is repeated and
tombstones live longer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from ..errors import CorruptFile
from ..storage import Directory
from ..storage.checksummed import TitledFile, parsing
from .files import MAINTENANCE

_FILE = TitledFile("the maintenance file", "sawlog maintenance 1")
#: Maximum number of compactions in `cleaned`; older ones are dropped.
_MOST = 100


@dataclass(slots=True)
class MaintenanceState:
    """The content of the file, as described above."""

    cleaned: list[tuple[int, int]] = field(default_factory=list)
    damaged: bool = False
    tombstones: int = 0
    recompressed_offset: int = 0
    scrubbed: dict[int, int] = field(default_factory=dict)

    @property
    def clean_offset(self) -> int:
        """Every key occurs only once below this offset."""
        return self.cleaned[-1][0] if self.cleaned else 0

    def note_clean(self, offset: int, now_ms: int) -> None:
        """Record that the log was compacted up to this offset."""
        if offset > self.clean_offset:
            self.cleaned.append((offset, now_ms))
            del self.cleaned[: max(len(self.cleaned) - _MOST, 0)]

    def forget_compactions(self) -> None:
        """Start over: compact everything again."""
        self.cleaned = []

    def note_round(self, tombstones: int, *, damaged: bool) -> None:
        """Record the result of a round of compaction."""
        self.tombstones, self.damaged = tombstones, damaged

    def note_recompressed(self, offset: int) -> None:
        """Record that everything below this offset was recompressed, or is not worth it."""
        self.recompressed_offset = offset

    def note_scrubbed(self, times: dict[int, int]) -> None:
        """Record the times of successful scrubs by base offset."""
        self.scrubbed = times

    def forget_below(self, time_ms: int) -> int:
        """Return the end offset of the compactions up to that time."""
        return max((offset for offset, when in self.cleaned if when <= time_ms), default=0)

    def truncate(self, offset: int) -> bool:
        """Record a truncation at `offset`; return True if that changes the state."""
        # The last segment that begins below it may be the one that is truncated.
        kept = sorted(base for base in self.scrubbed if base < offset)[:-1]
        if max(self.clean_offset, self.recompressed_offset) <= offset and len(kept) == len(self.scrubbed):
            return False
        self.cleaned = [(min(each, offset), when) for each, when in self.cleaned]
        self.recompressed_offset = min(self.recompressed_offset, offset)
        self.scrubbed = {base: self.scrubbed[base] for base in kept}
        return True

    def encode(self) -> bytes:
        """Encode the file."""
        return _FILE.encode_fields(asdict(self))

    @classmethod
    def decode(cls, data: bytes) -> MaintenanceState:
        """Decode the file; raise `CorruptFile` unless every byte is right."""
        found = _FILE.decode_fields(data)
        with parsing(_FILE.what):
            return cls(
                cleaned=[(int(offset), int(when)) for offset, when in found["cleaned"]],
                damaged=bool(found["damaged"]),
                tombstones=int(found["tombstones"]),
                recompressed_offset=int(found["recompressed_offset"]),
                scrubbed={int(base): int(when) for base, when in found["scrubbed"].items()},
            )


def load_state(directory: Directory) -> MaintenanceState:
    """Load the state; empty if the file is missing or damaged."""
    try:
        data = _FILE.find(directory, MAINTENANCE)
        return MaintenanceState() if data is None else MaintenanceState.decode(data)
    except CorruptFile:
        return MaintenanceState()


def store_state(directory: Directory, state: MaintenanceState) -> None:
    """Replace the file, durably."""
    directory.replace(MAINTENANCE, state.encode())


def truncate_state(directory: Directory, offset: int) -> None:
    """Discard the maintenance state at and above `offset` before the log is truncated there. Otherwise new records at
    these offsets would count as already compacted."""
    state = load_state(directory)
    if state.truncate(offset):
        store_state(directory, state)
