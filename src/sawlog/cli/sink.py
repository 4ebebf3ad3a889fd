"""Where `produce` writes records: the topic's own writer or, with `--compression`, batches that are built for it."""

from __future__ import annotations

from contextlib import AbstractContextManager

from .stores import Sink, SomeTopic

#: How long a record waits for a batch to fill before it is stored.
LINGER_MS = 50


def open_sink(topic: SomeTopic, partition: int | None, compression: str | None) -> AbstractContextManager[Sink]:
    """Open a sink; leaving the block stores all appended records, also after an error."""
    if compression is not None:
        return topic.packer(compression, partition=partition, linger_ms=LINGER_MS)
    if partition is not None:
        return topic.partition_writer(partition, linger_ms=LINGER_MS)
    return topic.writer(linger_ms=LINGER_MS)
