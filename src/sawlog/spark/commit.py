"""Publishing, beside the driver: what the tasks staged is placed, all or nothing, by the intents of `sawlog.topics`.

A batch job is one transaction. A micro-batch is a transaction with a name and a number (the query's id, the batch's):
if Spark repeats it, because it crashed between our commit and the note in its own checkpoint, the number is known
already and nothing is placed again. Spark may also call `abort` for a micro-batch that was published a moment before;
so nothing is removed without a look whether an intent or the query's note speaks of it.

Partitions are locked while their batches are placed, and not before or after.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..errors import DirectoryLocked, InvalidConfig, TopicExists
from ..topics.intents import Part, Piece
from ..topics.store import Store
from .options import WriteOptions

if TYPE_CHECKING:
    from .writing import Staged, StagedPart

_logger = logging.getLogger("sawlog.spark")

#: An intent is text: more than this goes into a file beside it.
_INTENT_BYTES = 1 << 20


def stage_name(query: str, batch: int) -> str:
    """Where the tasks of a micro-batch stage. The same for a repetition, which sweeps what the first try left."""
    return f"spark{query.replace('-', '')}-{batch}"


def open_store(path: str) -> Store:
    """The store, to write, without upkeep: that is for those who stay."""
    return Store.open(path, upkeep_interval_s=None)


def prepare(options: WriteOptions, columns: Sequence[str]) -> None:
    """Before anything is written: the topic is there, or is made if the options say so."""
    if options.topic is None or "topic" in columns:
        return
    with open_store(options.path) as store:
        if options.topic in store:
            return
        if options.partitions is None:
            raise InvalidConfig(
                f"there is no topic {options.topic!r} in {options.path}; make it first, or let it be made by "
                f'.option("partitions", NUMBER)'
            )
        try:
            store.create_topic(options.topic, options.partitions)
        except TopicExists:
            pass  # another task was first


def publish(
    options: WriteOptions, stage: str, staged: Iterable[Staged], *, name: str | None = None, sequence: int | None = None
) -> None:
    """Place everything that was staged, once."""
    with open_store(options.path) as store:
        try:
            parts, data = _gathered(store, stage, [part for message in staged for part in message.parts])
            store.publish(stage, parts, data=data, name=name, sequence=sequence, lock_timeout_s=options.lock_timeout_s)
        except DirectoryLocked as error:
            raise DirectoryLocked(
                error.path,
                f"{error.holder}, and was waited for for {options.lock_timeout_s:.0f} s (option lockTimeout). Nothing "
                "was stored. Close the writer there",
            ) from error


def _gathered(store: Store, stage: str, found: Sequence[StagedPart]) -> tuple[list[Part], bytes]:
    """What the tasks staged, and what came with their messages: for the intent, or, of very many tasks, in a file."""
    data = b"".join(each.data for each in found)
    file = ""
    if len(data) > _INTENT_BYTES:
        file = store.stage_data(stage, data)
        data = b""
    parts: list[Part] = []
    position = 0
    for each in found:
        pieces = each.pieces
        if each.data:
            pieces = (*pieces, Piece(file, position, len(each.data)))
            position += len(each.data)
        parts.append(Part(each.topic, each.topic_id, each.partition, each.count, pieces))
    return parts, data


def discard(options: WriteOptions, stage: str) -> None:
    """Remove what was staged and not published."""
    with open_store(options.path) as store:
        store.discard(stage)
