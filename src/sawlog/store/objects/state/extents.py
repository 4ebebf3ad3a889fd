"""`Extent`: a run of batches in one object, and the objects that extents are in.

An extent is in a commit, in an upload, or in a consolidated segment. The batches in it have the offsets that follow
from its base, one after the other; what is stored in their headers does not count.

A key and a position do not identify bytes: after a bucket is copied or rolled back, the same commit number holds other
records. So each extent records the digest of its batches (`content_digest`). Caches use it as part of the key, and
every read from the bucket compares it.

Leader epochs of a partition that is a copy of one in a directory: [[epoch, its first offset], ...], as the state has
them.

A partition on object storage has one epoch, 0, since nothing is ever taken back. Where a copy comes from records may
have been truncated, and each time a later epoch begins. It is in the headers of the batches, and in what groups have
committed; so that a copy has the same bytes, and is not taken for one that it is not, the epochs are copied, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from json.encoder import encode_basestring_ascii
from typing import NamedTuple

from ....batch.header import COUNT, CRC, Rows

#: Where the batches of an action are, if they are in the commit itself.
INLINE = ""
#: Uploads: batches before their commit, and consolidated ones. What follows is `<commits known>-...`, after the last /.
STAGED, SEGMENTS = "staged/", "segments/"
#: Length of `Extent.digest`.
DIGEST_DIGITS = 16


class Extent(NamedTuple):
    """Batches that follow each other in one object."""

    base_offset: int
    next_offset: int
    key: str
    position: int
    size_bytes: int
    max_timestamp: int
    #: `content_digest` of the batches, as recorded by the commit that placed them.
    digest: str
    #: Not 0 only in a copy of a partition that is stored elsewhere.
    leader_epoch: int = 0


def content_digest(rows: Rows) -> str:
    """Return the identity of batches, wherever they are stored: 64 bits of BLAKE2b, in hexadecimal, over the header
    fields from the record count to the CRC-32C, each as a little-endian i64. Base offset and leader epoch are left out:
    they change when a batch is placed.

    The CRC stands for the records, so the digest of bytes from a bucket proves something only after their CRCs were
    checked."""
    fields = rows[:, COUNT : CRC + 1].astype("<i8", copy=False).tobytes()
    return blake2b(fields, digest_size=DIGEST_DIGITS // 2).hexdigest()


def entry_name(topic: str, partition: int, base: int) -> str:
    """The name of an extent's entry, by the topic's id."""
    return f"extent/{topic}/{partition}/{base:020}"


def entry_text(extent: Extent) -> bytes:
    """The value of an extent's entry as canonical JSON: written out, since a commit may have thousands of them."""
    numbers = f"{extent.position},{extent.size_bytes},{extent.next_offset},{extent.max_timestamp}"
    return f'[{encode_basestring_ascii(extent.key)},{numbers},"{extent.digest}"]'.encode()


def begun_at(key: str) -> int:
    """How many commits were known when an upload was begun; `ValueError` if the key is none of an upload."""
    if not key.startswith((STAGED, SEGMENTS)):
        raise ValueError(key)
    return int(key.rpartition("/")[2].partition("-")[0])


def job_of(key: str) -> str | None:
    """The job whose task has staged an object; None if it is no job's."""
    parts = key.rpartition("/")[2].split("-", 1)[-1].rpartition("-")
    return parts[0] or None if key.startswith(STAGED) else None


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
