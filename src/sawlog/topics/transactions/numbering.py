"""`Numbering`: staged files get their offsets, and are synced at the same time.

A large file that contains the batches of one partition becomes a segment of it as it is (sawlog.log.write.adopting).
What takes time is the sync after its offsets were filled in: so the files of a transaction do not wait for each other.

Threads: the caller, who holds the logs, and those that sync for it.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from ...log.write.adopting import Numbered
from .intent import Piece

#: A staged file of at least this size becomes a segment; what is smaller is copied. So a segment is at least this
#: large, whatever is committed at once.
ADOPT_BYTES = 8 << 20
#: How many files are synced at the same time.
_THREADS = 8


def is_adoptable(piece: Piece) -> bool:
    """Whether a piece is a file of its own that is large enough to become a segment."""
    return piece.count > 0 and piece.size_bytes >= ADOPT_BYTES


class Numbering:
    """The numbered files of one transaction. When it ends nothing is being synced any more."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._begun: dict[Piece, tuple[Numbered | None, Future[None] | None]] = {}

    def begin(self, piece: Piece, file: Numbered | None) -> None:
        """A file is numbered, or cannot be adopted: sync it, soon."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="sawlog-numbering")
        self._begun[piece] = file, None if file is None else self._pool.submit(file.sync)

    def has(self, piece: Piece) -> bool:
        """Whether it was begun."""
        return piece in self._begun

    def take(self, piece: Piece) -> Numbered | None:
        """The numbered file; None if it cannot be adopted. All files that were begun are synced by then: the calls to
        the disk that follow come after theirs."""
        for _, syncing in self._begun.values():
            if syncing is not None:
                syncing.result()
        return self._begun[piece][0]

    def __enter__(self) -> Numbering:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown()
