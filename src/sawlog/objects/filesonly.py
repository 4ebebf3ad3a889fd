"""What a log in files can do and a partition on object storage cannot: each call says so, and what to use instead."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Never

from ..errors import StorageError


def _refusing(name: str, instead: str) -> Callable[..., Never]:
    def refuse(self: object, *arguments: object, **options: object) -> Never:
        raise StorageError(errno.ENOTSUP, f"{name} is for logs in files; on object storage {instead}")

    refuse.__name__ = name
    refuse.__doc__ = f"Not on object storage: {instead}."
    return refuse


class FilesOnly:
    """The calls of `Log` that are about its files, or that upkeep does for a whole topic."""

    truncate = _refusing("truncate", "what is committed is never taken back; trim() drops old records")
    compact = _refusing("compact", "topic.upkeep() compacts, as the settings of the topic say")
    apply_retention = _refusing("apply_retention", "topic.upkeep() does that, as the settings of the topic say")
    remove_expired = _refusing("remove_expired", "topic.upkeep() does that, as the settings of the topic say")
    upkeep = _refusing("upkeep", "topic.upkeep() does that")
    merge_segments = _refusing("merge_segments", "topic.upkeep() makes segments of small extents")
    recompress = _refusing("recompress", "batches stay as they were written")
    seal = _refusing("seal", "there is nothing to seal: a commit never changes")
    scrub = _refusing("scrub", "verify() reads and checks everything")
