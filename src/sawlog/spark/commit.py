"""Publishing, next to the driver: the store's `Staging` places what the tasks staged, all or nothing.

A batch job is one transaction. A micro-batch is a transaction with a name and a number (the query's id, the batch's):
if Spark repeats it, because it crashed between our commit and the record in its own checkpoint, the number is already
known and nothing is placed again (see replays.py). Spark may also call `abort` for a micro-batch that was just
published; so nothing is removed without checking whether an intent or the query's note refers to it.

Partitions are locked only while their batches are placed, and for retention: nobody else would do that in a store that
only Spark writes to (see tending.py).

A store is created only with the option createStore: a path that is mistyped, or not mounted, is an error.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..errors import DirectoryLocked, InvalidConfig, StoreNotFound, TopicExists
from ..topics.base import Store
from ..topics.transactions.staging import Part, Piece
from . import places, replays, tending
from .options import WriteOptions
from .where import Where

if TYPE_CHECKING:
    from .staged import Staged, StagedPart

#: More bytes than this go into a file next to the intent.
_INTENT_BYTES = 1 << 20
#: After this many micro-batches, and after the first, a query removes what dead queries have left.
_FORGET_EVERY = 100


def stage_name(query: str, batch: int) -> str:
    """Where the tasks of a micro-batch stage. The same for a repetition, which removes what the first try left."""
    return f"spark{query.replace('-', '')}-{batch}"


def open_store(where: Where) -> Store:
    """The store for writing, without upkeep: that is for long-running processes. It must exist."""
    try:
        places.open_for_task(where).close()
    except StoreNotFound as error:
        raise StoreNotFound(
            errno.ENOENT,
            f'no store in {where}. Is the path right, and is it mounted? .option("createStore", "true") creates '
            "a store there",
        ) from error
    return places.open_store(where, "w")


def prepare(options: WriteOptions, columns: Sequence[str]) -> None:
    """Before anything is written: check that the store and the topic exist, or create them if the options say so.
    Topics of a column are checked by the tasks that find them."""
    if options.topic is None and "topic" not in columns:
        raise InvalidConfig('no topic: give .option("topic", NAME), or a column topic')
    if options.create_store:
        places.open_store(options.where, "w").close()
    with open_store(options.where) as store:
        if options.topic is not None and options.topic not in store:
            make_topic(store, options.topic, options)


def make_topic(store: Store, name: str, options: WriteOptions) -> None:
    """Create a topic that is missing, if the options say so."""
    if options.partitions is None:
        raise InvalidConfig(
            f'no topic {name!r} in {options.path}; create it first, or with .option("partitions", NUMBER)'
        )
    try:
        store.create_topic(name, options.partitions)
    except TopicExists:
        pass  # another task was first


def publish(
    options: WriteOptions, stage: str, staged: Iterable[Staged], *, name: str | None = None, sequence: int | None = None
) -> None:
    """Place everything that was staged, once. `ReplayMismatch` if it was stored before with different rows."""
    messages = list(staged)
    found = [part for message in messages for part in message.parts]
    with open_store(options.where) as store:
        try:
            if name is not None and sequence is not None:
                repeated = replays.Repeated(name, sequence, _topic_id(store, options, found), options.replay_check)
                of_stream = any(message.query is not None for message in messages)
                if _is_replay(store, options, stage, repeated, found, of_stream=of_stream):
                    return
                name = repeated.transaction_name
            parts, data = _gathered(store, stage, found)
            timeout_s = options.lock_timeout_s
            placed = store.staging.publish(
                stage, parts, data=data, name=name, sequence=sequence, lock_timeout_s=timeout_s
            )
        except DirectoryLocked as error:
            raise DirectoryLocked(
                error.path,
                f"{error.holder}; timed out after {options.lock_timeout_s:.0f} s waiting for it (option lockTimeout). "
                "Nothing was stored. Close the writer there",
            ) from error
        tending.tend(store, placed)
        if sequence is not None and sequence % _FORGET_EVERY == 0:
            store.staging.forget_names()


def _topic_id(store: Store, options: WriteOptions, found: Sequence[StagedPart]) -> str | None:
    """The topic of the options, as the tasks found it; None if rows go to the topics of a column."""
    if options.topic is None:
        return None
    return found[0].topic_id if found else store.topic(options.topic).id


def _is_replay(
    store: Store,
    options: WriteOptions,
    stage: str,
    repeated: replays.Repeated,
    found: Sequence[StagedPart],
    *,
    of_stream: bool,
) -> bool:
    """Whether it was stored before; then what was staged now is removed. Waits for a commit in progress, by a driver
    that died."""
    staging = store.staging
    done = staging.replay_of(
        stage,
        lambda: repeated.stored(staging, {part.topic_id for part in found}),
        lock_timeout_s=options.lock_timeout_s,
    )
    if done is None:
        return False
    repeated.check(done, [_part(each) for each in found], of_stream=of_stream)
    return True


def _gathered(store: Store, stage: str, found: Sequence[StagedPart]) -> tuple[list[Part], bytes]:
    """What the tasks staged, and what came with their messages: for the intent, or, if it is large, in a file."""
    data = b"".join(each.data for each in found)
    file = ""
    if len(data) > _INTENT_BYTES:
        file = store.staging.put(stage, data)
        data = b""
    parts: list[Part] = []
    position = 0
    for each in found:
        pieces = each.pieces
        if each.data:
            pieces = (*pieces, Piece(file, position, len(each.data)))
            position += len(each.data)
        parts.append(_part(each, pieces))
    return parts, data


def _part(staged: StagedPart, pieces: tuple[Piece, ...] = ()) -> Part:
    return Part(staged.topic, staged.topic_id, staged.partition, staged.count, pieces, digest=staged.digest)


def discard(options: WriteOptions, stage: str) -> None:
    """Remove what was staged and not published."""
    with open_store(options.where) as store:
        store.staging.discard(stage)
