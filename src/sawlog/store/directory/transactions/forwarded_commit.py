"""`HandedCommit`: a commit of a transaction some of whose partitions other processes hold.

1. The intent is proposed. Each holder, also this process, checks that it can place its parts.
2. The proposal becomes the intent: the commit point. Nothing is rolled back after it.
3. Each holder places its parts, all at the same time. Where a holder is gone, whoever has the lock now does.
4. The intent is completed.

intents.py and docs/adr/0018-the-holder-places.md argue why nothing is lost or doubled.

Threads: one. It holds no lock of a log while it waits for another process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from ....clock import Deadline
from ....errors import DirectoryLocked, TransactionAborted, TransactionError, TransactionPending
from ....log.log import Log
from .completion import Completion, Lost, Neighbour, Neighbours, Refused, Silent
from .intent import Intent, Part
from .pending import Ledger
from .placement import Placing

#: Where a part is placed if this process holds its partition.
_HERE = ""


class HandedCommit:
    """See the module's docstring. Used once."""

    def __init__(
        self,
        intent: Intent,
        log_of: Callable[[Part], Log],
        *,
        ledger: Ledger,
        placing: Placing,
        neighbours: Neighbours,
        completion: Completion,
    ) -> None:
        self._intent = intent
        self._log_of = log_of
        self._ledger = ledger
        self._placing = placing
        self._neighbours = neighbours
        self._completion = completion
        #: Open connections by address.
        self._lines: dict[str, Neighbour] = {}
        #: Who has agreed to place which parts.
        self._placers: defaultdict[str, list[int]] = defaultdict(list)

    def run(self, lock_timeout_s: float) -> Intent:
        """Do all of it and return the intent with the offsets. If it raises, nothing is stored, except if the error is
        `TransactionPending`, or a `TransactionError` that says that it is not known."""
        try:
            self._commit(Deadline(lock_timeout_s))
            return self._complete(Deadline(lock_timeout_s))
        finally:
            for line in self._lines.values():
                line.close()

    # --- before the commit point

    def _commit(self, deadline: Deadline) -> None:
        accepting = False
        try:
            self._ledger.propose(self._intent)
            self._prepare(deadline)
            accepting = True
            self._ledger.accept(self._intent)
        except BaseException as error:
            if accepting:
                self._raise_if_committed(error)
            if isinstance(error, DirectoryLocked) or not isinstance(error, Exception):
                raise  # an interrupt is re-raised unchanged
            raise TransactionAborted(f"nothing was stored: {error}") from error

    def _raise_if_committed(self, why: BaseException) -> None:
        """From the moment at which the intent has its name, others may find and place it."""
        try:
            committed = self._ledger.is_pending(self._intent)
        except BaseException:
            committed = True
        if committed:
            raise TransactionError(
                f"whether the transaction is stored is not known ({why}): it is if "
                f"{self._ledger.path}/{self._intent.file} exists, or has existed"
            ) from why

    def _prepare(self, deadline: Deadline) -> None:
        waiting = dict(enumerate(self._intent.parts))
        while waiting:
            locked: DirectoryLocked | None = None
            elsewhere: defaultdict[str, list[int]] = defaultdict(list)
            for number, part in list(waiting.items()):
                log = self._log_of(part)
                try:
                    self._placing.prepare(self._intent, number, log)
                except DirectoryLocked as error:
                    locked = error
                    if (address := self._neighbours.address(log)) is not None:
                        elsewhere[address].append(number)
                else:
                    self._placers[_HERE].append(number)
                    del waiting[number]
            for address, numbers in elsewhere.items():
                assert locked is not None
                for number in self._prepared(address, numbers, locked, deadline):
                    del waiting[number]
            if locked is not None and waiting:
                deadline.pause(or_raise=locked)

    def _prepared(self, address: str, numbers: list[int], locked: DirectoryLocked, deadline: Deadline) -> list[int]:
        """Which of these parts the process at an address has agreed to place."""
        try:
            line = self._line(address, deadline)
            elsewhere = line.prepare(self._intent.id, numbers, deadline)
        except Silent as error:
            raise DirectoryLocked(locked.path, f"{locked.holder}, which does not answer") from error
        except Refused as error:
            raise locked from error
        except Lost:
            self._drop(address)
            return []
        agreed = [number for number in numbers if number not in elsewhere]
        self._placers[address] += agreed
        return agreed

    def _line(self, address: str, deadline: Deadline) -> Neighbour:
        if address not in self._lines:
            self._lines[address] = self._neighbours.call(address, deadline)
        return self._lines[address]

    def _drop(self, address: str) -> None:
        line = self._lines.pop(address, None)
        if line is not None:
            line.close()

    # --- after it

    def _complete(self, deadline: Deadline) -> Intent:
        try:
            self._place(deadline)
            placed = self._intent.at(self._ledger.progress(self._intent).applied)
            self._ledger.complete(self._intent)
        except BaseException as error:
            path = f"{self._ledger.path}/{self._intent.file}"
            raise TransactionPending(
                f"committed; the processes that hold the partitions complete it, or the next one that opens the store "
                f"for writing ({path}): {error}"
            ) from error
        return placed

    def _place(self, deadline: Deadline) -> None:
        asked = [address for address in self._placers if address != _HERE and self._is_asked(address, deadline)]
        for number in self._placers[_HERE]:
            part = self._intent.parts[number]
            self._completion.bring(self._intent, number, part, deadline)
        for address in asked:
            try:
                self._lines[address].placed(deadline)
            except Silent:
                raise
            except Lost:
                self._drop(address)
        while owed := self._ledger.unmarked(self._intent):
            locked: Exception = TransactionError(f"parts are not placed: {[number for number, _ in owed]}")
            for number, part in owed:
                locked = self._completion.bring(self._intent, number, part, deadline) or locked
            if self._ledger.unmarked(self._intent):
                deadline.pause(or_raise=locked)

    def _is_asked(self, address: str, deadline: Deadline) -> bool:
        line = self._lines.get(address)
        if line is None:
            return False  # it has agreed, and ended before the commit point
        try:
            line.ask_to_place(self._intent.id, self._placers[address], deadline)
        except Lost:
            self._drop(address)
            return False
        return True
