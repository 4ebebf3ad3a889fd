"""Bugs for the checker to find: `python -m tests.broker.history.planted BUG serve ...` is `sawlog serve` with a bug.

Each bug replaces a part of the broker in its process; the package contains none of this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..serving import Serving


def _drop(every: int = 40) -> None:
    """Acknowledge batches before appending them, and sometimes do not append them."""
    from sawlog.broker.handlers import produce

    original, seen = produce._Pending._place, [0]

    def place(self: Any, found: Any, part: Any, made: Any) -> None:
        seen[0] += 1
        if seen[0] % every == 0 and found.topic.name == "in":
            made["base_offset"] = found.log.next_offset
            return
        original(self, found, part, made)

    produce._Pending._place = place  # type: ignore[method-assign]


def _twice(every: int = 40) -> None:
    """Sometimes append a batch twice, the second time without its producer id."""
    from sawlog.broker.handlers import produce

    original, seen = produce._Pending._place, [0]

    def place(self: Any, found: Any, part: Any, made: Any) -> None:
        seen[0] += 1
        copy = None
        if seen[0] % every == 0 and found.topic.name == "in":
            copy = bytearray(part["records"])
        original(self, found, part, made)
        if copy is not None:
            from crc32c import crc32c

            copy[43:57] = b"\xff" * 14  # no producer, no epoch, no sequence
            copy[17:21] = crc32c(bytes(copy[21:])).to_bytes(4, "big")
            found.log._submit(memoryview(copy))

    produce._Pending._place = place  # type: ignore[method-assign]


def _show_aborted() -> None:
    """Omit aborted transactions from the responses to readers of committed records."""
    from sawlog.broker.handlers import fetch

    original = fetch._Fetch._read_one

    def read_one(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(self, *args, **kwargs)
        if made["aborted_transactions"]:
            made["aborted_transactions"] = []
        return made

    fetch._Fetch._read_one = read_one  # type: ignore[method-assign]


def _ignore_isolation() -> None:
    """Return all records at once, including those of open transactions."""
    from sawlog.broker.handlers import fetch

    original = fetch._Fetch.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._committed = False

    fetch._Fetch.__init__ = init  # type: ignore[method-assign]


def _forget_offsets() -> None:
    """Acknowledge offsets that are committed with a transaction without storing them."""
    from sawlog.broker.transactions import TransactionCoordinator
    from sawlog.broker.wire import ErrorCode

    async def commit_offsets(self: Any, name: str, producer: int, epoch: int, group: str, new: Any, stage: Any) -> Any:
        return dict.fromkeys(new, ErrorCode.NONE)

    TransactionCoordinator.commit_offsets = commit_offsets  # type: ignore[method-assign,assignment]


def _commit_everything() -> None:
    """Commit an aborted transaction in one partition."""
    from sawlog.broker.transactions import TransactionCoordinator

    original = TransactionCoordinator._mark

    async def mark(self: Any, entry: Any, place: Any, commit: bool) -> None:
        await original(self, entry, place, commit or place[2] == 0)

    TransactionCoordinator._mark = mark  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class Bug:
    """A bug: how to plant it, and the violation that reveals it."""

    plant: Callable[[], None]
    shown_as: frozenset[str]


BUGS = {
    "drop": Bug(_drop, frozenset({"lost"})),
    "twice": Bug(_twice, frozenset({"duplicated"})),
    "show-aborted": Bug(_show_aborted, frozenset({"aborted"})),
    "ignore-isolation": Bug(_ignore_isolation, frozenset({"aborted"})),
    "forget-offsets": Bug(_forget_offsets, frozenset({"duplicated"})),
    "commit-everything": Bug(_commit_everything, frozenset({"aborted"})),
}


def served_with(bug: str, data: Path) -> Serving:
    """A broker with a bug, not started yet."""
    return Serving(data, module=("tests.broker.history.planted", bug))


if __name__ == "__main__":
    BUGS[sys.argv.pop(1)].plant()
    from sawlog.cli import main

    main()
