"""What a task sends to the driver: which batches it has for which partition, and where they are staged."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from ..topics.transactions.staging import Piece


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What a task has for one partition: staged, or, if it is small, here."""

    topic: str
    topic_id: str
    partition: int
    count: int
    pieces: tuple[Piece, ...]
    data: bytes = b""
    #: See `Part.digest`.
    digest: int = 0


@dataclass
class Staged(WriterCommitMessage):
    """The message of one task."""

    stage: str
    parts: tuple[StagedPart, ...]
    #: The streaming query, if this is one of its micro-batches.
    query: str | None = None
