"""Leader epochs of a partition that is a copy of one in a directory: [[epoch, its first offset], ...], as the state has
them.

A partition on object storage has one epoch, 0, since nothing is ever taken back. Where a copy comes from records may
have been truncated, and each time a later epoch begins. It is in the headers of the batches, and in what groups have
committed; so that a copy has the same bytes, and is not taken for one that it is not, the epochs are copied, too.
"""

from __future__ import annotations

from collections.abc import Sequence

#: The document of a store that is a copy of another: the id of that one as `source`.
COPY_OF = "copy-of"
#: What Kafka's header has room for.
_MAX_EPOCH = 2**31 - 1


def epoch_of(epochs: Sequence[Sequence[int]], offset: int) -> int:
    """The epoch that an offset belongs to."""
    for epoch, first in reversed(epochs):
        if first <= offset:
            return int(epoch)
    return 0


def with_epoch(epochs: Sequence[Sequence[int]], epoch: int, offset: int) -> list[list[int]]:
    """The epochs when a later one begins at the end of the partition; one that has no record has never been.
    `ValueError` if it is not later."""
    kept = [[number, first] for number, first in epochs if first < offset]
    if type(epoch) is not int or not (kept[-1][0] if kept else -1) < epoch <= _MAX_EPOCH:
        raise ValueError(f"epoch {epoch} does not follow")
    return [*kept, [epoch, offset]]


def epoch_end(epochs: Sequence[Sequence[int]], epoch: int, end: int) -> int:
    """The first offset after an epoch; the end of the partition for the last one, and for one that is not known."""
    if epoch < 0:
        return end
    return min((int(first) for number, first in epochs if number > epoch), default=end)
