"""`Extent`: consecutive batches in one object; the keys of such objects; and leader epochs of copied partitions.

An extent is in a commit, in an upload or in a consolidated segment. Its batches have consecutive offsets from its base;
the offsets in their stored headers do not count.

A key and a position do not identify bytes: after a bucket is copied or rolled back, the same commit number holds other
records. So each extent records the digest of its batches (`extent_reader.content_digest`). Caches use it as part of the
key, and every read from the bucket verifies it.

A partition on object storage has a single leader epoch, 0, because nothing is ever truncated. In a directory, records
may have been truncated, and each truncation begins a new epoch, which is recorded in the batch headers and in committed
offsets. A copy of such a partition keeps the epochs, as [[epoch, its first offset], ...], so that it has the same bytes
and cannot be mistaken for a copy of something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: The key of batches that are in the commit itself.
INLINE = ""
#: Prefixes of uploads: staged batches, and consolidated ones. After the last / follows `<commits known>-...`.
STAGED, SEGMENTS = "staged/", "segments/"
#: Length of `Extent.digest`.
DIGEST_DIGITS = 16


class Extent(NamedTuple):
    """Consecutive batches in one object."""

    base_offset: int
    next_offset: int
    key: str
    position: int
    size_bytes: int
    max_timestamp: int
    #: `content_digest` of the batches, as recorded by the commit that placed them.
    digest: str
    #: Nonzero only in a copy of a partition that is stored elsewhere.
    leader_epoch: int = 0


def begun_at(key: str) -> int:
    """Return the number of commits known when an upload began. Raises `ValueError` for the key of another object."""
    if not key.startswith((STAGED, SEGMENTS)):
        raise ValueError(key)
    return int(key.rpartition("/")[2].partition("-")[0])


def job_of(key: str) -> str | None:
    """Return the job whose task staged an object, or None."""
    parts = key.rpartition("/")[2].split("-", 1)[-1].rpartition("-")
    return parts[0] or None if key.startswith(STAGED) else None


#: The document that marks a store as a copy of another; `source` is the id of the original.
COPY_OF = "copy-of"
#: Maximum in Kafka's batch header.
_MAX_EPOCH = 2**31 - 1


def epoch_of(epochs: Sequence[Sequence[int]], offset: int) -> int:
    """Return the epoch that an offset belongs to."""
    for epoch, first in reversed(epochs):
        if first <= offset:
            return int(epoch)
    return 0


def with_epoch(epochs: Sequence[Sequence[int]], epoch: int, offset: int) -> list[list[int]]:
    """Return the epochs after a new one begins at the end of the partition. Epochs without records are dropped. Raises
    `ValueError` if the new epoch is not greater."""
    kept = [[number, first] for number, first in epochs if first < offset]
    if type(epoch) is not int or not (kept[-1][0] if kept else -1) < epoch <= _MAX_EPOCH:
        raise ValueError(f"epoch {epoch} does not follow")
    return [*kept, [epoch, offset]]


def epoch_end(epochs: Sequence[Sequence[int]], epoch: int, end: int) -> int:
    """Return the first offset after an epoch; the end of the partition for the last epoch and for an unknown one."""
    if epoch < 0:
        return end
    return min((int(first) for number, first in epochs if number > epoch), default=end)
