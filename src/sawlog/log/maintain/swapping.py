"""The last steps of replacing segments by a rewritten one: done by the writer, and by opening after a crash.

The protocol is drawn in rewrite.py. These steps can be repeated from the beginning any number of times.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...storage import Directory
from ..files.names import INDEX, LOG, TIME_INDEX, file_name
from ..segment.index import SegmentIndex


def finish_swap(
    directory: Directory, name: str, base: int, others: Sequence[int], index: SegmentIndex | None = None
) -> None:
    """Steps 3 to 5 of the protocol. Without an index it is built when it is needed."""
    directory.remove(file_name(base, INDEX))
    directory.remove(file_name(base, TIME_INDEX))
    for other in others:
        for suffix in (INDEX, TIME_INDEX, LOG):
            directory.remove(file_name(other, suffix))
    directory.sync()
    if index is not None:
        offsets, times = index.encode()
        directory.replace(file_name(base, INDEX), offsets)
        directory.replace(file_name(base, TIME_INDEX), times)
    directory.rename(name, file_name(base))
    directory.sync()
