"""`Placement`: appends the batches of a part to its log.

A large file with the batches of one partition becomes a segment (`sawlog.log.ingest`); smaller ones are copied. The
offset in the intent is compared with the end of the log to find out what is already there (see `commits`).

`FileNumbering` fills in the offsets of staged files and syncs several files concurrently: the sync after numbering
dominates, so the files of a transaction do not wait for each other.

Threads: the caller holds the log (`Log._hold`) or has just taken its lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from types import TracebackType

from ....batch import kernel
from ....batch.header import BatchSpan, batch_spans
from ....errors import CorruptFile
from ....log.ingest import NumberedFile
from ....log.log import Log
from .intent import Intent, Part, Piece
from .pending import PendingTransactions
from .staging_directory import StagingDirectory

#: A staged file of at least this size becomes a segment, a smaller one is copied. This bounds segments from below,
#: however small the commits are.
ADOPT_BYTES = 8 << 20
#: Number of files synced concurrently.
_THREADS = 8


def is_adoptable(piece: Piece) -> bool:
    """Return whether a piece is a complete file that is large enough to become a segment."""
    return piece.count > 0 and piece.size_bytes >= ADOPT_BYTES


class FileNumbering:
    """Numbered files of one transaction. Leaving the context waits for the syncs in progress."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._begun: dict[Piece, tuple[NumberedFile | None, Future[None] | None]] = {}

    def begin(self, piece: Piece, file: NumberedFile | None) -> None:
        """Start syncing a numbered file; None records that the file cannot be adopted."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="sawlog-numbering")
        self._begun[piece] = file, None if file is None else self._pool.submit(file.sync)

    def has(self, piece: Piece) -> bool:
        """Return whether `begin` was called for a piece."""
        return piece in self._begun

    def take(self, piece: Piece) -> NumberedFile | None:
        """Return the numbered file, or None if it cannot be adopted. Waits until all files are synced, so that the disk
        sees later calls after these syncs."""
        for _, syncing in self._begun.values():
            if syncing is not None:
                syncing.result()
        return self._begun[piece][0]

    def __enter__(self) -> FileNumbering:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown()


#: Bytes read from a staged file and appended at once.
_PLACE_BYTES = 2 << 20
#: Space that a partition needs on top of the batches: indexes, a checkpoint, the head of a new segment.
_MARGIN_BYTES = 64 << 10

_logger = logging.getLogger("sawlog")


class Placement:
    """Places the parts of intents into their logs."""

    def __init__(self, staging: StagingDirectory, pending: PendingTransactions) -> None:
        self._staging = staging
        self._pending = pending

    def claim(self, part: Part, log: Log) -> None:
        """Reserve disk space for a part, or raise `StorageFull`."""
        log._claim(sum(piece.size_bytes for piece in part.pieces if not is_adoptable(piece)) + _MARGIN_BYTES)

    def place(
        self, intent: Intent, part: Part, log: Log, skip: int = 0, numbering: FileNumbering | None = None
    ) -> None:
        """Append the batches of a part, without its first `skip` records. Files may already be numbered."""
        with nullcontext(numbering) if numbering is not None else FileNumbering() as known:
            self._place(intent, part, log, skip, known)

    def _place(self, intent: Intent, part: Part, log: Log, skip: int, numbering: FileNumbering) -> None:
        passed = 0
        for piece in part.pieces:
            there = piece.count > 0 and passed + piece.count <= skip
            if there or (passed >= skip and self._adopt(piece, log, numbering)):
                passed += piece.count
            else:
                passed = self._copy(intent, piece, log, passed, skip)
        self._check_count(part, passed)
        log.sync()

    def _adopt(self, piece: Piece, log: Log, numbering: FileNumbering) -> bool:
        """Turn a staged file into a segment; return False if that is impossible here."""
        if not is_adoptable(piece):
            return False
        if not numbering.has(piece):
            numbering.begin(piece, self._number(piece, log, log.next_offset))
        file = numbering.take(piece)
        if file is None or log._adopt_file(file) is None:
            return False
        self._check_piece(piece, len(file.offsets))
        return True

    def _number(self, piece: Piece, log: Log, offset: int) -> NumberedFile | None:
        if self._staging.directory.size(piece.file) != piece.size_bytes:
            return None  # it also contains other batches
        return log._number_file(self._staging.directory, piece.file, offset)

    def number(self, numbering: FileNumbering, part: Part, log: Log) -> None:
        """Number the adoptable files of a part. The caller holds the log and does nothing else with it before they are
        placed."""
        offset = part.offset
        for piece in part.pieces:
            if is_adoptable(piece):
                numbering.begin(piece, self._number(piece, log, offset))
            if not piece.count:
                break  # its number of offsets is unknown
            offset += piece.count

    def _copy(self, intent: Intent, piece: Piece, log: Log, passed: int, skip: int) -> int:
        """Append the missing batches of a piece; return the number of offsets passed so far."""
        before = passed
        for raw, batches in self._groups(intent, piece):
            # A batch is in the log completely or not at all.
            there = [size for _, size, count in batches if (passed := passed + count) <= skip]
            if rest := bytearray(raw[sum(there) :]):
                if piece.count:
                    _number_again(rest, batches[len(there) :])
                log._place_batches(rest)
        if piece.count:
            self._check_piece(piece, passed - before)
        return passed

    def _check_piece(self, piece: Piece, count: int) -> None:
        if count != piece.count:
            raise CorruptFile(f"{self._pending.path}/{piece.file}: {count} records, but {piece.count} were committed")

    def _check_count(self, part: Part, count: int) -> None:
        if count != part.count:
            raise CorruptFile(f"{self._pending.path}: {count} records are staged, but {part.count} were committed")

    def _groups(self, intent: Intent, piece: Piece) -> Iterator[tuple[memoryview, list[BatchSpan]]]:
        """Yield the batches of a piece in order, a few megabytes at a time, with position, size and number of offsets
        of each."""
        if not piece.file:
            yield from _groups_in(lambda position, size: intent.data[position : position + size], piece)
            return
        with closing(self._staging.directory.open_shared(piece.file)) as storage:
            yield from _groups_in(storage.read, piece)

    # --- what was committed

    def roll_forward(self, topic_id: str, partition: int, log: Log) -> None:
        """Place the committed parts of a partition that are missing."""
        for intent in self._pending.intents():
            for number, part in enumerate(intent.parts):
                if (part.topic_id, part.partition) == (topic_id, partition):
                    self._bring(intent, number, part, log)

    def _bring(self, intent: Intent, number: int, part: Part, log: Log) -> None:
        """Place one part, unless it is already placed."""
        # Check the mark first: marks are removed after the intent, so if a part is not marked and its intent still
        # exists afterwards, the part is not placed.
        if number in self._pending.applied(intent) or not self._pending.is_pending(intent):
            return
        # The process that wrote the intent may have died before its name was durable. A power cut would then leave half
        # a transaction.
        self._pending.settle()
        self._apply(intent, part, log)
        self._pending.mark(intent, number)

    def _apply(self, intent: Intent, part: Part, log: Log) -> None:
        """Place the missing batches of a part."""
        there = log.next_offset - part.offset
        if there < 0:
            _logger.warning("%s ends before offset %s, which once was its end", log.path, part.offset)
        if there < part.count:
            self.place(intent, part, log, max(there, 0))
        else:
            log.sync()


def _number_again(data: bytearray, batches: Sequence[BatchSpan]) -> None:
    """Overwrite offsets that a process left when it died, with a power cut, while numbering a file."""
    at = base = 0
    view = memoryview(data)  # the interpreted kernel takes nothing else
    for _, size, count in batches:
        kernel.patch_place(view, at, base, 0)
        at, base = at + size, base + count


def _groups_in(read: Callable[[int, int], bytes], piece: Piece) -> Iterator[tuple[memoryview, list[BatchSpan]]]:
    """Yield the complete batches of a piece. The log validates their content when they are appended."""
    position, end, want = piece.position, piece.position + piece.size_bytes, _PLACE_BYTES
    while position < end:
        wanted = min(want, end - position)
        block = memoryview(read(position, wanted))
        found, following = batch_spans(block)
        at = found[-1].position + found[-1].size_bytes if found else 0
        if following <= end - position - at:
            want = max(want, following)
        if found:
            yield block[:at], found
            position += at
        elif min(want, end - position) == wanted:  # reading again would return the same
            raise CorruptFile(f"{piece.file or 'an intent'}: no complete batch at byte {position}")
