"""`Numbering`: staged files get their offsets, and are synced at the same time.

A large file that contains the batches of one partition becomes a segment of it as it is (sawlog.log.ingest).
What takes time is the sync after its offsets were filled in: so the files of a transaction do not wait for each other.

Threads: the caller, who holds the logs, and those that sync for it.

`Placing`: puts the batches of a part into its log: a large file of its own as a segment, the rest as copies.

If the intent names the offset, that is what is compared with the end of the log. Else the offset is noted before
anything is appended, and compared with the note (see intents.py).

Threads: except for `prepare` and `carry_out`, the caller holds the log (`Log.hold`), or has just got its lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from types import TracebackType

from ....batch import kernel
from ....batch.header import Length, lengths
from ....errors import CorruptFile, SawlogError
from ....log.ingest import Numbered
from ....log.log import Log
from .intent import Intent, Part, Piece
from .pending import Ledger
from .staging_directory import StagingArea

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


#: How much is read from a staged file and appended at once.
_PLACE_BYTES = 2 << 20
#: What a partition needs in addition to the batches: indexes, a checkpoint, the head of a new segment.
_MARGIN_BYTES = 64 << 10

_logger = logging.getLogger("sawlog")


class Placing:
    """See the module's docstring."""

    def __init__(self, area: StagingArea, ledger: Ledger) -> None:
        self._area = area
        self._ledger = ledger

    def claim(self, part: Part, log: Log) -> None:
        """Make sure that the disk has space for a part, or raise `StorageFull`."""
        log._claim(sum(piece.size_bytes for piece in part.pieces if not is_adoptable(piece)) + _MARGIN_BYTES)

    def place(self, intent: Intent, part: Part, log: Log, skip: int = 0, numbering: Numbering | None = None) -> None:
        """Append the batches of a part, without its first `skip` records. Files may be numbered already."""
        with nullcontext(numbering) if numbering is not None else Numbering() as known:
            self._place(intent, part, log, skip, known)

    def _place(self, intent: Intent, part: Part, log: Log, skip: int, numbering: Numbering) -> None:
        passed = 0
        for piece in part.pieces:
            there = piece.count > 0 and passed + piece.count <= skip
            if there or (passed >= skip and self._adopt(piece, log, numbering)):
                passed += piece.count
            else:
                passed = self._copy(intent, piece, log, passed, skip)
        self._check_count(part, passed)
        log.sync()

    def _adopt(self, piece: Piece, log: Log, numbering: Numbering) -> bool:
        """Make a staged file a segment; False if that cannot be done here."""
        if not is_adoptable(piece):
            return False
        if not numbering.has(piece):
            numbering.begin(piece, self._number(piece, log, log.next_offset))
        file = numbering.take(piece)
        if file is None or log._adopt_file(file) is None:
            return False
        self._check_piece(piece, len(file.offsets))
        return True

    def _number(self, piece: Piece, log: Log, offset: int) -> Numbered | None:
        if self._area.directory.size(piece.file) != piece.size_bytes:
            return None  # it contains something else as well
        return log._number_file(self._area.directory, piece.file, offset)

    def number(self, numbering: Numbering, part: Part, log: Log) -> None:
        """Number the files of a part that can be adopted. The caller holds the log, and does nothing else with it
        before they are placed."""
        offset = part.offset
        for piece in part.pieces:
            if is_adoptable(piece):
                numbering.begin(piece, self._number(piece, log, offset))
            if not piece.count:
                break  # how many offsets it has is not known yet
            offset += piece.count

    def _copy(self, intent: Intent, piece: Piece, log: Log, passed: int, skip: int) -> int:
        """Append the batches of a piece that are not there, and return how many offsets have been passed."""
        before = passed
        for raw, batches in self._groups(intent, piece):
            # A batch is there completely or not at all.
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
            raise CorruptFile(f"{self._ledger.path}/{piece.file}: {count} records, but {piece.count} were committed")

    def _check_count(self, part: Part, count: int) -> None:
        if count != part.count:
            raise CorruptFile(f"{self._ledger.path}: {count} records are staged, but {part.count} were committed")

    def _groups(self, intent: Intent, piece: Piece) -> Iterator[tuple[memoryview, list[Length]]]:
        """The batches of a piece in order, a few megabytes at a time, with the number of offsets and bytes of each."""
        if not piece.file:
            yield from _groups_in(lambda position, size: intent.data[position : position + size], piece)
            return
        storage = self._area.directory.open_shared(piece.file)
        try:
            yield from _groups_in(storage.read, piece)
        finally:
            storage.close()

    # --- what was committed

    def roll_forward(self, topic_id: str, partition: int, log: Log) -> None:
        """Place what was committed for a partition and is missing."""
        for intent in self._ledger.pending():
            for number, part in enumerate(intent.parts):
                if (part.topic_id, part.partition) == (topic_id, partition):
                    self._bring(intent, number, part, log)

    def _bring(self, intent: Intent, number: int, part: Part, log: Log) -> None:
        """Place one part, unless that is done."""
        done = self._ledger.progress(intent)
        # The mark first: marks are removed after the intent, so a part that is not marked now, of an intent that exists
        # after that, is not placed.
        if number in done.applied or not self._ledger.is_pending(intent):
            return
        # The process that wrote the intent, or the note, may have died before its name was durable: a power cut would
        # then leave a part of a transaction, or place one twice.
        self._ledger.settle()
        if part.offset >= 0:
            self._apply(intent, part, log)
            self._ledger.mark(intent, number)
        else:
            self._ledger.mark(intent, number, self._apply_noted(intent, number, part, log, done.noted.get(number)))

    def _apply(self, intent: Intent, part: Part, log: Log) -> None:
        """Place a part whose offset is in the intent, as far as it is missing."""
        there = log.next_offset - part.offset
        if there < 0:
            _logger.warning("%s ends before offset %s, which once was its end", log.path, part.offset)
        if there < part.count:
            self.place(intent, part, log, max(there, 0))
        else:
            log.sync()

    def _apply_noted(self, intent: Intent, number: int, part: Part, log: Log, noted: int | None) -> int:
        """Place a part whose offset is in the note, as far as it is missing, and return that offset; note it first if
        the part is not begun."""
        log.sync()  # what precedes the part must not be lost when the note is compared
        if noted is None or noted > log.next_offset:
            self._ledger.note(intent, number, log.next_offset, noted)
            noted = log.next_offset
        there = log.next_offset - noted
        if there < part.count:
            with log.appending():  # readers see all of the part, or nothing
                self.place(intent, part, log, there)
        log.sync()
        return noted

    # --- for a partition that is in use

    def prepare(self, intent: Intent, number: int, log: Log) -> None:
        """Before the commit point: raise what would prevent a part from being placed."""
        part = intent.parts[number]
        self.carry_out(part, log)
        count = 0
        for piece in part.pieces:
            if is_adoptable(piece):
                count += log._check_file(self._area.directory, piece.file)
                continue
            for raw, batches in self._groups(intent, piece):
                log._check_batches(raw)
                count += sum(each.offsets for each in batches)
        self._check_count(part, count)
        with log._hold():
            self.claim(part, log)

    def carry_out(self, part: Part, log: Log) -> None:
        """Place what was committed for the partition of a part. If that fails, the log accepts nothing else: its lock
        is released, and whoever gets it next, also this process, places it first."""
        failed = False
        try:
            with log._hold():
                try:
                    self.roll_forward(part.topic_id, part.partition, log)
                except BaseException as error:
                    failed = True
                    log._fail(error)
                    raise
        finally:
            if failed:
                with suppress(SawlogError):  # open writers cannot flush to a log that has failed
                    log._release()


def _number_again(data: bytearray, batches: Sequence[Length]) -> None:
    """Overwrite what somebody who died while numbering a file, with a power cut, has left in place of the offsets."""
    at = base = 0
    for _, size, count in batches:
        kernel.patch_place(data, at, base, 0)
        at, base = at + size, base + count


def _groups_in(read: Callable[[int, int], bytes], piece: Piece) -> Iterator[tuple[memoryview, list[Length]]]:
    """Complete batches of a piece. The log checks their content when they are appended."""
    position, end, want = piece.position, piece.position + piece.size_bytes, _PLACE_BYTES
    while position < end:
        wanted = min(want, end - position)
        block = memoryview(read(position, wanted))
        found, following = lengths(block)
        at = found[-1].position + found[-1].size_bytes if found else 0
        if following <= end - position - at:
            want = max(want, following)
        if found:
            yield block[:at], found
            position += at
        elif min(want, end - position) == wanted:  # reading the same again would change nothing
            raise CorruptFile(f"{piece.file or 'an intent'}: no complete batch at byte {position}")
