"""The note that a process leaves in the lock file at the end of its turn; see `sawlog.log.shared`.

It is one of the records of where a log ends: everything below its `next_offset` was synced when it was written, so a
log that ends earlier has lost records.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ..batch.text import parse_json
from ..storage import Directory
from ..storage.checksummed import LINE
from .lock import read_lock_note


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
