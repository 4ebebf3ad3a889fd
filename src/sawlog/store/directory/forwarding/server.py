"""`ForwardServer`: serves appends and commits that other processes forward to this one.

It calls the same methods as any thread of this process and takes no lock but that of the log. It never takes a
partition's lock on behalf of a peer: requests for partitions it does not hold are refused, and the caller takes the
lock itself.

Threads: one at a time per `ForwardSession`; any number of sessions.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ....clock import Deadline, deadline_passed
from ....errors import DirectoryLocked, LogClosed, SawlogError
from ....log.log import Log
from ..lock_leases import Streak
from ..transactions.commits import Intents
from ..transactions.intent import Intent
from .frames import Head, Malformed, encode_error

#: Yields the log of a partition, by topic name, topic id and number, if this process holds its lock, and keeps the lock
#: until the block ends.
Held = Callable[[str, str, int], AbstractContextManager[Log | None]]

#: Inside a `Held` block, releases the lock of a partition, by topic name and number, unless other calls use it; returns
#: whether it was released.
GiveBack = Callable[[str, int], bool]

#: Maximum time that the kernel takes to release the locks of a dying process.
_DYING_S = 2.0
#: Errors that mean the lock was released after `Held` was called.
_RELEASED = LogClosed, DirectoryLocked

_logger = logging.getLogger("sawlog")


class ForwardServer:
    """Access for peers to the partitions that this process holds."""

    def __init__(self, intents: Intents, held: Held, give_back: GiveBack) -> None:
        self._intents = intents
        self._held = held
        self._give_back = give_back

    def session(self) -> ForwardSession:
        """Start a session for one connection."""
        return ForwardSession(self._intents, self._held, self._give_back)


class ForwardSession:
    """Requests of one connection."""

    def __init__(self, intents: Intents, held: Held, give_back: GiveBack) -> None:
        self._intents = intents
        self._held = held
        self._give_back = give_back
        #: Run of appends by the peer, by topic and partition.
        self._streaks: defaultdict[tuple[str, int], Streak] = defaultdict(Streak)
        #: Intents that the peer has prepared here, with the logs that have reserved space for them.
        self._prepared: dict[str, list[Log]] = {}

    def answer(self, head: Head, body: bytearray) -> Head:
        """Execute a request and return the answer; `Malformed` if the request is invalid."""
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
        streak = self._streaks[topic, number]
        with self._held(topic, _text(head, "topic_id"), number) as log:
            if log is None or deadline_passed(_number(head, "until_ns")):
                return {"elsewhere": True}
            if streak.is_long(log.next_offset) and self._give_back(topic, number):
                return {"elsewhere": True}  # the peer takes the lock: it is the only writer
            try:
                placed = log._place_batches(body, expect_offset=expect_offset)
            except _RELEASED:
                return {"elsewhere": True}
        streak.placed(placed)
        return {"first": placed.start, "count": len(placed)}

    # --- intents

    def _prepare(self, id_: str, numbers: list[int]) -> Head:
        proposal = self._intents.pending.proposal(id_)
        claimed = self._prepared.setdefault(id_, [])

        def prepare(number: int, log: Log) -> None:
            self._intents.placement.prepare(proposal, number, log)
            claimed.append(log)

        return {"elsewhere": self._each(proposal, numbers, prepare)}

    def _place(self, id_: str, numbers: list[int]) -> Head:
        intent = self._intents.pending.find(id_)
        return {"elsewhere": [] if intent is None else self._carry_out(intent, numbers)}

    def _carry_out(self, intent: Intent, numbers: list[int]) -> list[int]:
        """Place parts; return those whose partitions are not held here."""
        placement = self._intents.placement
        elsewhere = self._each(intent, numbers, lambda number, log: placement.carry_out(intent.parts[number], log))
        if not elsewhere:
            self._prepared[intent.id] = []
        return elsewhere

    def _each(self, intent: Intent, numbers: list[int], act: Callable[[int, Log], None]) -> list[int]:
        """Call `act` for each of these parts; return those whose partitions are not held here."""
        elsewhere = []
        for number in numbers:
            if number >= len(intent.parts):
                raise Malformed(f"there is no part {number}")
            part = intent.parts[number]
            with self._held(part.topic, part.topic_id, part.partition) as log:
                try:
                    if log is None:
                        elsewhere.append(number)
                    else:
                        act(number, log)
                except _RELEASED:
                    elsewhere.append(number)
        return elsewhere

    def end(self) -> None:
        """Clean up after the connection has closed. If the peer committed an intent it prepared here and then died, no
        other process may know of it, so complete it; otherwise release the reserved space."""
        for id_, claimed in self._prepared.items():
            try:
                intent = self._intents.pending.find(id_)
                if intent is not None:
                    self._carry_out(intent, [number for number, _ in self._intents.pending.unmarked(intent)])
                    self._complete(intent)
                    continue
                for log in claimed:
                    if log._locked:
                        with log._hold():
                            log._unclaim()
            except (SawlogError, OSError) as error:
                _logger.warning("a transaction that was handed over is not completed yet: %s", error)

    def _complete(self, intent: Intent) -> None:
        """Complete an intent if all of it is placed. The kernel may close the connections of a dying process before it
        releases its locks, so wait for the locks."""
        pending, deadline = self._intents.pending, Deadline(_DYING_S)
        while True:
            pending.complete_if_done(intent)
            if pending.unmarked(intent) or not pending.is_pending(intent) or not deadline.retry():
                return


def _value(head: Head, name: str, kind: type[Any]) -> Any:
    value = head.get(name)
    if type(value) is not kind:
        raise Malformed(f"{name} is {value!r}")
    return value


def _text(head: Head, name: str) -> str:
    """Return a name that cannot lead outside a directory."""
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
