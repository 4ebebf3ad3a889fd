"""`Holder`: what a process that holds partitions does for others.

It uses the methods that any thread of this process would use, and takes no other lock than that of the log. It never
takes the lock of a partition for somebody else: what it does not hold is refused, and the caller takes it.

Threads: a `Session` is for one at a time; there may be many sessions.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from ....clock import Deadline, is_over
from ....errors import DirectoryLocked, LogClosed, SawlogError
from ....log.log import Log
from ..lock_leases import Streak
from ..transactions.commits import Intents
from ..transactions.intent import Intent
from .frames import Head, Malformed, encode_error

#: The log of a partition, by topic, its id and number, if this process holds its lock.
Held = Callable[[str, str, int], Log | None]

#: Releases the lock of a partition, by topic and number, unless this process uses it; returns whether it is released.
GiveBack = Callable[[str, int], bool]

#: How long a process may need to die.
_DYING_S = 2.0
#: The lock was released since `Held` was asked.
_RELEASED = LogClosed, DirectoryLocked

_logger = logging.getLogger("sawlog")


class Holder:
    """The partitions that this process holds, for others."""

    def __init__(self, intents: Intents, held: Held, give_back: GiveBack) -> None:
        self._intents = intents
        self._held = held
        self._give_back = give_back

    def session(self) -> Session:
        """For one connection."""
        return Session(self._intents, self._held, self._give_back)


class Session:
    """The requests of one connection."""

    def __init__(self, intents: Intents, held: Held, give_back: GiveBack) -> None:
        self._intents = intents
        self._held = held
        self._give_back = give_back
        #: What the other side appends, by topic and partition.
        self._streaks: defaultdict[tuple[str, int], Streak] = defaultdict(Streak)
        #: The intents that the other side has prepared here, and the logs that have claimed space for them.
        self._prepared: dict[str, list[Log]] = {}

    def answer(self, head: Head, body: bytearray) -> Head:
        """Do what is asked for; `Malformed` if that is not clear."""
        try:
            match head.get("request"):
                case "append":
                    return self._append(head, body)
                case "append_at":
                    return self._append(head, body, _number(head, "offset"))
                case "prepare":
                    return self._prepare(_text(head, "id"), _numbers(head))
                case "place":
                    return self._place(_text(head, "id"), _numbers(head))
        except (SawlogError, OSError) as error:
            return encode_error(error)
        raise Malformed(f"an unknown request {head.get('request')!r}")

    # --- plain appends

    def _append(self, head: Head, body: bytearray, expect_offset: int | None = None) -> Head:
        topic, number = _text(head, "topic"), _number(head, "partition")
        log = self._held(topic, _text(head, "topic_id"), number)
        if log is None or is_over(_number(head, "until_ns")):
            return {"elsewhere": True}
        streak = self._streaks[topic, number]
        if streak.is_long(log.next_offset) and self._give_back(topic, number):
            return {"elsewhere": True}  # the other side takes the lock: it is the one that writes
        try:
            placed = log._place_batches(body, expect_offset=expect_offset)
        except _RELEASED:
            return {"elsewhere": True}
        streak.placed(placed)
        return {"first": placed.start, "count": len(placed)}

    # --- intents

    def _prepare(self, id_: str, numbers: list[int]) -> Head:
        proposal = self._intents.ledger.proposal(id_)
        claimed = self._prepared.setdefault(id_, [])

        def prepare(number: int, log: Log) -> None:
            self._intents.placing.prepare(proposal, number, log)
            claimed.append(log)

        return {"elsewhere": self._each(proposal, numbers, prepare)}

    def _place(self, id_: str, numbers: list[int]) -> Head:
        intent = self._intents.ledger.find(id_)
        return {"elsewhere": [] if intent is None else self._carry_out(intent, numbers)}

    def _carry_out(self, intent: Intent, numbers: list[int]) -> list[int]:
        """Place parts; returns those whose partitions are not held here."""
        placing = self._intents.placing
        elsewhere = self._each(intent, numbers, lambda number, log: placing.carry_out(intent.parts[number], log))
        if not elsewhere:
            self._prepared[intent.id] = []
        return elsewhere

    def _each(self, intent: Intent, numbers: list[int], act: Callable[[int, Log], None]) -> list[int]:
        """Do something with each of these parts; returns those whose partitions are not held here."""
        elsewhere = []
        for number in numbers:
            if number >= len(intent.parts):
                raise Malformed(f"there is no part {number}")
            part = intent.parts[number]
            log = self._held(part.topic, part.topic_id, part.partition)
            try:
                if log is None:
                    elsewhere.append(number)
                else:
                    act(number, log)
            except _RELEASED:
                elsewhere.append(number)
        return elsewhere

    def end(self) -> None:
        """The connection has ended. If the other side has committed what it prepared and died then, nobody else might
        know of it; if it has not, the space that was claimed is released."""
        for id_, claimed in self._prepared.items():
            try:
                intent = self._intents.ledger.find(id_)
                if intent is not None:
                    self._carry_out(intent, [number for number, _ in self._intents.ledger.unmarked(intent)])
                    self._complete(intent)
                    continue
                for log in claimed:
                    if log.locked:
                        with log._hold():
                            log._unclaim()
            except (SawlogError, OSError) as error:
                _logger.warning("a transaction that was handed over is not completed yet: %s", error)

    def _complete(self, intent: Intent) -> None:
        """Complete an intent if all of it is placed. The system may close the connections of a process that dies before
        its locks: wait for these."""
        ledger, deadline = self._intents.ledger, Deadline(_DYING_S)
        while True:
            ledger.complete_if_done(intent)
            if ledger.unmarked(intent) or not ledger.is_pending(intent) or not deadline.retry():
                return


def _value(head: Head, name: str, kind: type[Any]) -> Any:
    value = head.get(name)
    if type(value) is not kind:
        raise Malformed(f"{name} is {value!r}")
    return value


def _text(head: Head, name: str) -> str:
    """A name that does not lead outside of a directory."""
    value: str = _value(head, name, str)
    if not value or "/" in value or "\0" in value:
        raise Malformed(f"{name} is {value!r}")
    return value


def _number(head: Head, name: str) -> int:
    value: int = _value(head, name, int)
    if value < 0:
        raise Malformed(f"{name} is {value}")
    return value


def _numbers(head: Head) -> list[int]:
    values: list[int] = _value(head, "parts", list)
    if any(type(each) is not int or each < 0 for each in values):
        raise Malformed("parts are not numbers")
    return values
