"""Which sealed segments of a log stay mapped in memory: a policy, by default those that were used last.

A log has a policy of its own, made by `LogConfig.segment_cache`. It is told of every use, except of several uses of the
same segment in a row, by one thread at a time, while readers wait: it must be quick, and must not use the log. What it
gives up is unmapped; it is mapped again when it is read. An error that it raises is the reader's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Protocol


class Cached(Protocol):
    """A segment that is mapped. Each is hashable and equal to itself only."""

    @property
    def base_offset(self) -> int:
        """Its first offset."""

    @property
    def size(self) -> int:
        """Its size in bytes."""


class CachePolicy(Protocol):
    """Decides which segments stay mapped."""

    def use(self, segment: Cached) -> Iterable[Cached]:
        """This segment is about to be read. Return those to give up: of the ones used before, not this one."""

    def forget(self, segment: Cached) -> None:
        """This segment no longer exists: it was trimmed, compacted or truncated."""


class LRU:
    """Keeps the segments that were used last."""

    def __init__(self, most: int | None = 128) -> None:
        #: How many stay; None: all.
        self.most = most
        self._used: OrderedDict[Cached, None] = OrderedDict()

    def use(self, segment: Cached) -> Iterator[Cached]:
        """See `CachePolicy`."""
        self._used[segment] = None
        self._used.move_to_end(segment)
        while self.most is not None and len(self._used) > max(self.most, 1):
            yield self._used.popitem(last=False)[0]

    def forget(self, segment: Cached) -> None:
        """See `CachePolicy`."""
        self._used.pop(segment, None)
