"""`Placing`: puts the batches of a part into its log.

Threads: the caller holds the log (`Log.hold`), or has just got its lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from ...batch.header import HEADER_BYTES
from ...errors import CorruptFile
from ...log.log import Log
from .area import StagingArea
from .intent import Intent, Part, Piece
from .ledger import Ledger

#: How much is read from a staged file and appended at once.
_PLACE_BYTES = 2 << 20

_logger = logging.getLogger("sawlog")


class Placing:
    """See the module's docstring."""

    def __init__(self, area: StagingArea, ledger: Ledger) -> None:
        self._area = area
        self._ledger = ledger

    def place(self, intent: Intent, part: Part, log: Log, skip: int = 0) -> None:
        """Append the batches of a part, without its first `skip` records."""
        passed = 0
        for raw, counts in self._groups(intent, part):
            # A batch is there completely or not at all.
            there = [size for count, size in counts if (passed := passed + count) <= skip]
            if rest := raw[sum(there) :]:
                log.place_batches(bytearray(rest))
        if passed != part.count:
            raise CorruptFile(f"{self._ledger.path}: {passed} records are staged, but {part.count} were committed")
        log.sync()

    def _groups(self, intent: Intent, part: Part) -> Iterator[tuple[memoryview, list[tuple[int, int]]]]:
        """The batches of a part in order, a few megabytes at a time, with the number of offsets and bytes of each."""
        for piece in part.pieces:
            if not piece.file:
                yield from _groups_in(lambda position, size: intent.data[position : position + size], piece)
                continue
            storage = self._area.directory.open_shared(piece.file)
            try:
                yield from _groups_in(storage.read, piece)
            finally:
                storage.close()

    # --- after a crash

    def roll_forward(self, topic_id: str, partition: int, log: Log) -> None:
        """Place what was committed for a partition and is missing."""
        for intent in self._ledger.pending():
            for number, part in enumerate(intent.parts):
                ours = (part.topic_id, part.partition) == (topic_id, partition)
                if ours and not self._ledger.is_marked(intent, number):
                    self._apply(intent, part, log)
                    self._ledger.mark(intent, number)

    def _apply(self, intent: Intent, part: Part, log: Log) -> None:
        """Place a part, as far as it is missing. The process that wrote the intent may have died before its name was
        durable, while what is placed is: a power cut between the two would leave a part of a transaction."""
        self._ledger.settle()
        there = log.next_offset - part.offset
        if there < 0:
            _logger.warning("%s ends before offset %s, which once was its end", log.path, part.offset)
        if there < part.count:
            self.place(intent, part, log, max(there, 0))
        else:
            log.sync()


def _groups_in(read: Callable[[int, int], bytes], piece: Piece) -> Iterator[tuple[memoryview, list[tuple[int, int]]]]:
    """Complete batches of a piece. The log checks their content when they are appended."""
    position, end, want = piece.position, piece.position + piece.size_bytes, _PLACE_BYTES
    while position < end:
        wanted = min(want, end - position)
        block = memoryview(read(position, wanted))
        counts: list[tuple[int, int]] = []
        at = 0
        while len(block) - at >= HEADER_BYTES:
            size = 12 + int.from_bytes(block[at + 8 : at + 12], "big", signed=True)
            if size < HEADER_BYTES or size > end - position - at:
                break
            if size > len(block) - at:
                want = max(want, size)
                break
            counts.append((int.from_bytes(block[at + 23 : at + 27], "big", signed=True) + 1, size))
            at += size
        if not counts and min(want, end - position) == wanted:  # reading the same again would change nothing
            raise CorruptFile(f"{piece.file or 'an intent'}: no complete batch at byte {position}")
        if counts:
            yield block[:at], counts
        position += at
