"""`Completion`: gets the parts of committed intents placed, by whom it may be, and completes the intents.

For each part that is not marked: if the topic is deleted, the part is gone with it. If this process holds the
partition, it places the part; if nobody does, it takes the lock, which places it. If another process holds it, that one
is asked to. An intent that names offsets was placed by the holder already, when it got the lock.

Threads: any. No lock of a log is held while another process is waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...clock import Deadline
from ...errors import DirectoryLocked, SawlogError, TopicNotFound
from ..topic import Topic
from .intent import Intent, Part
from .ledger import Ledger
from .neighbours import Lost, Neighbours, Silent
from .placing import Placing

#: How long another process is waited for that has to place what somebody else has committed.
_PATIENCE_S = 1.0

_logger = logging.getLogger("sawlog")


class Completion:
    """See the module's docstring."""

    def __init__(
        self, ledger: Ledger, placing: Placing, neighbours: Neighbours, topic_of: Callable[[str], Topic]
    ) -> None:
        self._ledger = ledger
        self._placing = placing
        self._neighbours = neighbours
        self._topic_of = topic_of

    def complete_all(self, where: str) -> None:
        """Try it for all intents. What cannot be completed now is logged, and postponed to the next time."""
        for intent in self._ledger.pending():
            try:
                self.complete(intent, Deadline(_PATIENCE_S))
            except SawlogError as error:
                _logger.warning("%s: a transaction is not completed yet: %s", where, error)

    def complete(self, intent: Intent, deadline: Deadline) -> None:
        """Try it for one."""
        for number, part in self._ledger.unmarked(intent):
            self.bring(intent, number, part, deadline)
        self._ledger.complete_if_done(intent)

    def bring(self, intent: Intent, number: int, part: Part, deadline: Deadline) -> DirectoryLocked | None:
        """Get a part placed. If the process that holds the partition could not be asked, that is returned as an error
        to raise if it is too late to try again."""
        topic = self._topic(part)
        if topic is None:
            self._ledger.mark(intent, number)  # the topic is deleted, and its part with it
            return None
        ours = topic.holdings.held(part.partition)
        try:
            if ours is not None:
                self._placing.carry_out(part, ours)
            else:
                topic.holdings.roll_forward(part.partition)
        except DirectoryLocked as error:
            return self._ask(intent, number, topic, error, deadline) if part.offset < 0 else None
        return None

    def _topic(self, part: Part) -> Topic | None:
        try:
            topic = self._topic_of(part.topic)
        except TopicNotFound:
            return None
        return topic if topic.id == part.topic_id else None

    def _ask(
        self, intent: Intent, number: int, topic: Topic, locked: DirectoryLocked, deadline: Deadline
    ) -> DirectoryLocked | None:
        address = self._neighbours.address(topic.partition(intent.parts[number].partition))
        if address is None:
            return locked
        try:
            line = self._neighbours.call(address, deadline)
            try:
                line.ask_to_place(intent.id, [number], deadline)
                return locked if line.placed(deadline) else None
            finally:
                line.close()
        except Silent as error:
            raise DirectoryLocked(locked.path, f"{locked.holder}, which does not answer") from error
        except Lost:
            return locked
