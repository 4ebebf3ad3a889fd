"""`Extent`: a run of batches in one object, and the objects that extents are in.

An extent is in a commit, in an upload, or in a consolidated segment. The batches in it have the offsets that follow
from its base, one after the other; what is stored in their headers does not count.
"""

from __future__ import annotations

from json.encoder import encode_basestring_ascii
from typing import NamedTuple

#: Where the batches of an action are, if they are in the commit itself.
INLINE = ""
#: Uploads: batches before their commit, and consolidated ones. What follows is `<commits known>-...`, after the last /.
STAGED, SEGMENTS = "staged/", "segments/"


class Extent(NamedTuple):
    """Batches that follow each other in one object."""

    base_offset: int
    next_offset: int
    key: str
    position: int
    size_bytes: int
    max_timestamp: int
    #: Not 0 only in a copy of a partition that is stored elsewhere.
    leader_epoch: int = 0


def entry_name(topic: str, partition: int, base: int) -> str:
    """The name of an extent's entry, by the topic's id."""
    return f"extent/{topic}/{partition}/{base:020}"


def entry_text(extent: Extent) -> bytes:
    """The value of an extent's entry as canonical JSON: written out, since a commit may have thousands of them."""
    numbers = f"{extent.position},{extent.size_bytes},{extent.next_offset},{extent.max_timestamp}"
    return f"[{encode_basestring_ascii(extent.key)},{numbers}]".encode()


def begun_at(key: str) -> int:
    """How many commits were known when an upload was begun; `ValueError` if the key is none of an upload."""
    if not key.startswith((STAGED, SEGMENTS)):
        raise ValueError(key)
    return int(key.rpartition("/")[2].partition("-")[0])


def job_of(key: str) -> str | None:
    """The job whose task has staged an object; None if it is no job's."""
    parts = key.rpartition("/")[2].split("-", 1)[-1].rpartition("-")
    return parts[0] or None if key.startswith(STAGED) else None
