"""`Handover`: everything of this room that a store needs.

Threads: any. In a forked child it takes no requests and keeps no connections.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from ....errors import SawlogError, TransactionAborted, TransactionError
from ....log.log import Log
from ....storage.interface import Buffer
from ..open_partitions import Holdings
from ..transactions.commits import Intents
from ..transactions.intent import Part
from .connections import Lines, note_of
from .forwarder import Outlet
from .listener import Doorway
from .server import GiveBack, Held, Holder


class Handover:
    """Hands over to other processes, and takes what they hand over."""

    def __init__(
        self,
        doorway: Doorway,
        lines: Lines,
        intents: Intents,
        held: Held,
        committing: threading.RLock,
        give_back: GiveBack,
        *,
        timeout_s: float,
    ) -> None:
        self._doorway = doorway
        self._lines = lines
        self._intents = intents
        self._holder = Holder(intents, held, give_back)
        self._committing = committing
        self._timeout_s = timeout_s

    @property
    def note(self) -> bytes:
        """For the LOCK files of the partitions of this process: where it is reached."""
        return note_of(self._doorway.address)

    def locked(self, log: Log) -> None:
        """This process has got the lock of a partition: take requests from now on."""
        if not self._doorway.address or not self._doorway.open(self._holder):
            log._leave_note(self.note)  # what the log has left says that it is reached

    def outlet(self, topic: Holdings, number: int, log: Log) -> Outlet | None:
        """For appends to a partition whose lock another process holds; None if that takes no requests."""
        made = Outlet(topic, number, log, self._lines, self._commit, self._timeout_s)
        return made if made.is_reached else None

    def _commit(self, topic: Holdings, number: int, batches: Iterable[tuple[Buffer, int]]) -> range:
        """Store batches as a transaction with one part."""
        with self._committing:
            stage = self._intents.area.begin()
            try:
                file = stage.file()
                try:
                    written = [(file.write(data), count) for data, count in batches]
                    file.sync()
                finally:
                    file.close()
                part = Part(
                    topic.name,
                    topic.id,
                    number,
                    sum(count for _, count in written),
                    tuple(piece for piece, _ in written),
                )
                with topic.lending(number):
                    intent = self._intents.commit(
                        stage, [part], lambda part: topic.partition(part.partition), lock_timeout_s=self._timeout_s
                    )
            except TransactionAborted as error:
                stage.end()
                raise error.__cause__ if isinstance(error.__cause__, SawlogError) else error from None
            except TransactionError:
                stage.leave()
                raise
            except BaseException:
                stage.end()
                raise
            stage.end()
        return intent.parts[0].offsets

    def stop(self) -> None:
        """Take no more requests."""
        self._doorway.close()

    def close(self) -> None:
        """End all connections."""
        self._doorway.close()
        self._lines.close()
