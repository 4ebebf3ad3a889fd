"""The roles of two stores: which one is a copy of the other, and where the replica of a directory is.

A directory records the address of its replica, so that the store can read removed records from there. The first address
is recorded. Another one replaces it if no records are only in the first replica, or if the other replica has all of
them: to move to another bucket, replicate everything there, and the new address takes over.

A document in the copy names its source. A store with such a document is written by `sawlog replicate` alone, without
retention or compaction, since the source decides these.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ...display import counted
from ...errors import CorruptFile, ImportMismatch, InvalidConfig, StorageError, TopicNotFound
from ..directory.replica import ReplicaAddress
from ..directory.store import Store
from ..objects.maintenance.maintainer import is_copy
from ..objects.session import StoreSession
from ..objects.state.extents import COPY_OF
from ..objects.state.state import State
from ..objects.store import ObjectStore
from .shipment import Place

_logger = logging.getLogger("sawlog.store.replica")


def record(source: Store, address: ReplicaAddress, places: Mapping[tuple[str, int], Place], *, is_whole: bool) -> None:
    """Record an address, unless the recorded one is still needed. A directory that is not writable keeps all its
    records locally."""
    known, is_damaged = None, False
    try:
        known = source.replica
    except CorruptFile:  # rewritten by a replica that has everything
        is_damaged = True
    is_other = is_damaged or (known is not None and known.url != address.url)
    if known == address or (is_other and not _has_all(source, places)):
        return
    if (known is None and not is_damaged and not is_whole) or address.url.startswith("memory://"):
        return  # a replica of some topics, where another may have all; or one in the memory of this process
    try:
        address.store(source.directory)
    except StorageError as error:
        _logger.warning("%s: where the replica is could not be recorded: %s", source.path, error)


def _has_all(source: Store, places: Mapping[tuple[str, int], Place]) -> bool:
    """Return whether a replica has everything that is only in another one."""
    for topic in source:
        try:
            for number in range(topic.partitions):
                log, place = topic.partition(number), places.get((topic.name, number))
                lowest, local = log.lowest_offset, log.local_offset
                if lowest < local and (place is None or place.start > lowest or place.end < local):
                    return False
        except TopicNotFound:
            continue
        except StorageError:  # only the earlier replica knows where the log begins
            return False
    return True


#: Maximum size of a block of numbers, and number of blocks: ids of another system may be too large for that.
_BLOCK, _MOST_BLOCKS = 1 << 20, 4096


def claim(session: StoreSession, source_id: str, path: str) -> None:
    """Make an empty store the copy of another, unless it is already. Raises `ImportMismatch` if it is something
    else."""

    def look(state: State) -> tuple[int, Mapping[str, object], list[str]]:
        return *state.document(COPY_OF), state.topics()

    version, found, topics = session.look(look, fresh=True)
    if found.get("source") == source_id:
        return
    where = session.bucket.url
    if "source" in found:
        raise ImportMismatch(
            f"{where} is a replica of the store {found['source']} ({found.get('path')}), not of {path}: use another "
            "address"
        )
    if "was" in found:
        raise ImportMismatch(f"{where} was promoted: it is a store of its own now; use another address")
    if topics:
        raise ImportMismatch(
            f"{where} is a store of its own with {counted(len(topics), 'topic')}, not a replica of {path}: "
            "use another address"
        )
    fields = {"source": source_id, "path": path}
    outcome = session.submit(
        [{"do": "change document", "name": COPY_OF, "version": version, "fields": fields}]
    ).result()
    if "ok" not in outcome:  # another replicator was faster, of the same store or of another one
        claim(session, source_id, path)


def still(session: StoreSession, source_id: str) -> dict[str, object]:
    """Return the condition for writing to a copy: it still is one, and is not being promoted. Raises `ImportMismatch`
    if it is no longer a copy."""
    version, found = session.look(lambda state: state.document(COPY_OF), fresh=True)
    if found.get("source") != source_id:
        raise ImportMismatch(f"{session.bucket.url} is no replica any more: it was promoted, or deleted and recreated")
    return {"do": "expect document", "name": COPY_OF, "version": version}


def promote(url: str, *, options: Mapping[str, str] | None = None) -> None:
    """Turn a replica on object storage into a store of its own, for instance because its source is lost. It becomes
    writable, retention and compaction run, and `sawlog replicate` refuses it."""
    with ObjectStore.open(url, options=options, maintenance_interval_s=None) as store:
        session = store.session
        version, found = session.look(lambda state: state.document(COPY_OF), fresh=True)
        if not session.look(is_copy):
            raise InvalidConfig(f"{url} is no replica: there is nothing to promote")
        fields = {"was": found["source"], "path": found.get("path")}
        change = {"do": "change document", "name": COPY_OF, "version": version, "fields": fields}
        session.commit([change, *session.look(_numbers_in_use)])


def _numbers_in_use(state: State) -> list[dict[str, object]]:
    """Return actions that allocate the producer ids in the records, so that a broker does not hand them out again."""
    highest = max((int(name.rpartition("/")[2]) for name in state.entries.names("producer/")), default=-1)
    taken, actions = int(state.entries.get("counter/producer", 0)), list[dict[str, object]]()
    while taken <= highest and len(actions) < _MOST_BLOCKS:
        count = min(highest + 1 - taken, _BLOCK)
        actions.append({"do": "take numbers", "name": "producer", "count": count})
        taken += count
    return actions
