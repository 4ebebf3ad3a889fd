"""The note that a process leaves in the lock's file at the end of its turn; see `sawlog.log.shared`.

It is one of the records of a log's end: everything below its `next_offset` was synced when it was written, so a log
that ends earlier has lost records.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ..batch.text import parse_json
from ..storage import Directory
from ..storage.checksummed import LINE
from .lock import note_in


@dataclass(frozen=True, slots=True)
class Note:
    """The end of the log at the end of a turn; everything below it was synced."""

    shape: str
    segment: int
    position: int
    next_offset: int

    def encode(self) -> bytes:
        """The content of the lock's file."""
        body = f"{json.dumps(asdict(self))}\n".encode()
        return LINE.put(body)

    @classmethod
    def decode(cls, data: bytes) -> Note | None:
        """From the lock's file; None unless every byte is right."""
        body = LINE.opened(data)
        if not body:
            return None
        try:
            found = parse_json(body)
            return cls(str(found["shape"]), *(int(found[name]) for name in ("segment", "position", "next_offset")))
        except (ValueError, KeyError, TypeError):
            return None


def noted_end(directory: Directory) -> int:
    """Return the end that the last turn has noted; 0 if there is no note."""
    found = Note.decode(note_in(directory))
    return 0 if found is None else found.next_offset
