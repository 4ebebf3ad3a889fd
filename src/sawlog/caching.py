"""Cache policies: which sealed segments of a log stay mapped. The default is least recently used (`LRU`).

Each log has its own policy, created by `LogConfig.segment_cache`. The log calls it for every use of a segment except
consecutive uses of the same one, from one thread at a time, while readers wait: a policy must be fast and must not use
the log. An evicted segment is unmapped, and mapped again when it is next read. An exception from the policy propagates
to the reader.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Protocol


class CachedSegment(Protocol):
    """A mapped segment. Hashable, and equal only to itself."""

    @property
    def base_offset(self) -> int:
        """First offset."""

    @property
    def size(self) -> int:
        """Size in bytes."""


class CachePolicy(Protocol):
    """Decides which segments stay mapped."""

    def use(self, segment: CachedSegment) -> Iterable[CachedSegment]:
        """Record that this segment is about to be read, and return the segments to evict, which must not include it."""

    def forget(self, segment: CachedSegment) -> None:
        """Forget a segment that was trimmed, compacted or truncated away."""


class LRU:
    """Keeps the most recently used segments."""

    def __init__(self, most: int | None = 128) -> None:
        #: Maximum number of mapped segments; None: no limit.
        self.most = most
        self._used: OrderedDict[CachedSegment, None] = OrderedDict()

    def use(self, segment: CachedSegment) -> Iterator[CachedSegment]:
        """See `CachePolicy`."""
        self._used[segment] = None
        self._used.move_to_end(segment)
        while self.most is not None and len(self._used) > max(self.most, 1):
            yield self._used.popitem(last=False)[0]

    def forget(self, segment: CachedSegment) -> None:
        """See `CachePolicy`."""
        self._used.pop(segment, None)
